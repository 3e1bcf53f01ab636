"""Run tests on the kernels of other processors, each in a process of its own: `make test-kernels`.

OpenBLAS and NumPy choose their kernels by the processor, and its last digits, signs and orders with them. A name that
OpenBLAS does not know is ignored in silence, so what runs is asked first.

python -m tests.kernels [--fast] [options of pytest]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import platform
import subprocess
import sys

# Variables for each kernel: a processor without AVX, and one that has it and no more.
KERNELS = {
    "Nehalem": {"OPENBLAS_CORETYPE": "Nehalem", "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4"},
    "Sandybridge": {"OPENBLAS_CORETYPE": "Sandybridge"},
}
# What numbers hang on most, in a minute or two: golden answers, guides, fits and a study.
FAST_TESTS = (
    *("tests/scaling_law/golden", "tests/test_docs.py", "tests/test_adding_a_law_guide.py"),
    *("tests/scaling_law/fitting/test_fit.py", "tests/scaling_law/fitting/test_forms.py"),
    *("tests/scaling_law/runs/test_settings.py", "tests/scaling_law/size/test_draws.py"),
    "tests/studies/test_learning_rates.py",
)
# NumPy's names of AVX2, before and from 2.4 on.
AVX2 = {"AVX2", "X86_V3"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fast", action="store_true", help="only what numbers hang on most, on the first kernel")
    parser.add_argument("--running", action="store_true", help="say what runs in this process, as JSON")
    options, of_pytest = parser.parse_known_args()
    if options.running:
        print(json.dumps(running()))
        return 0
    if platform.machine() not in ("x86_64", "AMD64"):
        print(f"SKIPPED: these are kernels of x86-64, and this machine is {platform.machine()}")
        return 0
    tests = FAST_TESTS if options.fast else ("--ignore", "tests/test_light.py")
    status = 0
    for kernel in list(KERNELS)[: 1 if options.fast else None]:
        problem = refuse(kernel)
        if problem:
            print(problem)
            return 0 if problem.startswith("SKIPPED") else 1
        print(f"== {kernel}", flush=True)
        command = [sys.executable, "-m", "pytest", *of_pytest, *tests]
        status = max(status, subprocess.run(command, env=os.environ | KERNELS[kernel], check=False).returncode)
    return status


def running() -> dict[str, list[str]]:
    """The kernels of all BLAS libraries that NumPy and SciPy loaded here, and the processor's features NumPy uses."""
    import numpy as np
    import scipy.linalg  # noqa: F401
    import threadpoolctl

    libraries = threadpoolctl.threadpool_info()
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        np.show_runtime()
    features = [name for name in sorted(AVX2) if f"'{name}'" in printed.getvalue().partition("'not_found'")[0]]
    return {
        "libraries": [library["internal_api"] for library in libraries],
        "kernels": [library["architecture"] for library in libraries if library["internal_api"] == "openblas"],
        "features": features,
    }


def refuse(kernel: str) -> str:
    """What keeps this kernel from running, or nothing; SKIPPED where NumPy has no OpenBLAS."""
    variables = KERNELS.get(kernel, {"OPENBLAS_CORETYPE": kernel})
    command = [sys.executable, "-m", "tests.kernels", "--running"]
    asked = subprocess.run(command, env=os.environ | variables, stdout=subprocess.PIPE, text=True, check=True)
    here = json.loads(asked.stdout)
    if not here["kernels"]:
        return f"SKIPPED: NumPy has no OpenBLAS here, but {', '.join(here['libraries']) or 'no library that is known'}"
    if {*here["kernels"]} != {kernel}:
        return f"error: {kernel} was asked for, and {', '.join(here['kernels'])} runs"
    if "NPY_DISABLE_CPU_FEATURES" in variables and here["features"]:
        return f"error: NumPy uses {', '.join(here['features'])} though it is disabled"
    return ""


if __name__ == "__main__":
    sys.exit(main())
