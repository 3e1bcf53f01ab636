"""`make test-kernels` runs what it says: a name that OpenBLAS does not know is ignored in silence."""

import platform
import subprocess
import sys

import pytest

from tests import kernels

pytest.importorskip("threadpoolctl")
pytestmark = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="kernels of x86-64")


@pytest.mark.parametrize("kernel", kernels.KERNELS)
def test_the_kernels_run(kernel):
    assert not kernels.refuse(kernel) or kernels.refuse(kernel).startswith("SKIPPED")


def test_a_kernel_that_does_not_run_is_an_error(monkeypatch):
    monkeypatch.setitem(kernels.KERNELS, "Prescott", {"OPENBLAS_CORETYPE": "Prescott"})
    assert kernels.refuse("Prescott").startswith(("error: Prescott was asked for, and ", "SKIPPED"))


def test_another_machine_is_skipped_with_the_reason(monkeypatch, capsys):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(sys, "argv", ["kernels"])
    monkeypatch.setattr(subprocess, "run", None)
    assert kernels.main() == 0
    assert capsys.readouterr().out == "SKIPPED: these are kernels of x86-64, and this machine is aarch64\n"
