"""A full disk and a used-up quota: what is missing, however the error comes."""

import errno
import os

import pytest

from hub.base import disk
from hub.base.atomic import write_bytes
from hub.base.commands import report
from hub.base.disk import FullDiskError, describe_full_disk, explain_full_disk, find_full_disk


class OfTorch(Exception):
    """As torch wraps what its writers raise, one for each process."""

    def __init__(self, error):
        super().__init__("writing failed")
        self.failures = {0: (error, None)}


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), errno.ENOSPC),
        (OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)), errno.EDQUOT),
        (Exception("I/O error: No space left on device (os error 28)"), errno.ENOSPC),  # safetensors, tokenizers
        (Exception("I/O error: Disk quota exceeded (os error 122)"), errno.EDQUOT),
        (OfTorch(OSError(errno.ENOSPC, "")), errno.ENOSPC),
        (OSError(errno.EIO, "Input/output error"), None),
        (None, None),
    ],
)
def test_a_full_disk_is_found_in_the_errors_of_libraries(error, number):
    assert find_full_disk(error) == number
    wrapped = RuntimeError("the writer failed")
    wrapped.__cause__ = error
    assert find_full_disk(wrapped) == number


@pytest.fixture
def free(monkeypatch):
    """A function: let so many bytes and entries be free."""

    def set_free(n_bytes: int, entries: int | None = 100) -> None:
        monkeypatch.setattr(disk, "measure_free_space", lambda folder: (n_bytes, entries))

    return set_free


def test_what_is_missing_counts_what_is_written_already(tmp_path, free):
    free(1_000)
    (tmp_path / "half").write_bytes(b"x" * 4_000)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert describe_full_disk(full, tmp_path, 9_000) == "the disk is full: 9 kB are needed and 4 kB are missing"
    assert describe_full_disk(full, tmp_path) == "the disk is full: 1 kB are free"
    # torch's writer says only that a position is unexpected.
    unclear = RuntimeError("unexpected pos 704 vs 598")
    assert describe_full_disk(unclear, tmp_path, 9_000) == "the disk is full: 9 kB are needed and 4 kB are missing"
    assert describe_full_disk(unclear, tmp_path, 5_000) is None
    assert describe_full_disk(unclear, tmp_path) is None
    quota = OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
    assert describe_full_disk(quota, tmp_path, 9_000) == "the disk quota is used up: 9 kB are needed"
    free(10**9, 0)
    assert describe_full_disk(full, tmp_path, 9_000) == "the disk is full: it holds as many files as it can"


def test_the_error_says_what_to_remove_and_others_pass(tmp_path, free):
    free(0)
    expected = "the model could not be written: the disk is full: 5 kB are needed and 5 kB are missing; remove it"
    with (
        pytest.raises(FullDiskError, match=expected) as caught,
        explain_full_disk("the model", tmp_path / "none", 5_000, lambda: "remove it"),
    ):
        raise Exception("No space left on device (os error 28)")
    assert caught.value.exit_status == 3
    with pytest.raises(KeyError), explain_full_disk("the model", tmp_path / "none", 5_000):
        raise KeyError("of something else")


def test_a_command_names_the_file_that_was_written(tmp_path, free, capsys):
    free(1_000)
    copied = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path / "from"), None, str(tmp_path / "to"))
    assert report(copied) == 3
    assert (
        capsys.readouterr().err
        == f"error: {tmp_path / 'to'}: the disk is full: 1 kB are free; remove what you do not need there\n"
    )
    assert report(OSError(errno.EIO, "Input/output error", "file")) == 3
    assert capsys.readouterr().err == "error: file: Input/output error\n"


def test_a_file_that_finds_no_room_is_named(tmp_path, monkeypatch):
    def fail(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=r"No space left on device: '.*config\.json'$"):
        write_bytes(tmp_path / "config.json", b"{}")
    assert not list(tmp_path.iterdir())
