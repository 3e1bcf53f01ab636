"""Checksums beside a table: noted before it is written, so that no moment of a write looks like damage."""

import pytest

from hub import IntegrityError
from hub.base import checksums
from tests.hub.samples import flip


def test_what_was_written_passes_at_every_moment_of_a_write_and_else_nothing(tmp_path):
    file = tmp_path / "runs.jsonl"
    file.write_bytes(b"older")
    checksums.check(file, b"anything")  # a folder of an earlier version has no checksums
    for new in (b"one", b"two", b"three"):
        before = file.read_bytes()
        checksums.note(tmp_path, {file.name: new})
        checksums.check(file, before)  # a process that is killed here leaves the old file
        file.write_bytes(new)
        checksums.check(file, new)
    with pytest.raises(IntegrityError, match=r"runs\.jsonl has changed since it was pushed") as caught:
        checksums.check(file, b"thre3")
    (tmp_path / checksums.FILE_NAME).unlink()  # as the error says
    assert str(tmp_path / checksums.FILE_NAME) in str(caught.value)
    checksums.check(file, b"thre3")


def test_damage_is_not_noted_and_the_file_does_not_grow(tmp_path):
    file = tmp_path / "runs.jsonl"
    for number in range(50):
        checksums.note(tmp_path, {file.name: b"%d" % number, "runs.parquet": b"same"})
    size = (tmp_path / checksums.FILE_NAME).stat().st_size
    file.write_bytes(b"damaged")
    checksums.note(tmp_path, {file.name: b"new"})
    assert (tmp_path / checksums.FILE_NAME).stat().st_size == size
    with pytest.raises(IntegrityError):
        checksums.check(file, b"damaged")


def test_damaged_checksums_are_no_other_error(tmp_path):
    checksums.note(tmp_path, {"runs.jsonl": b"content"})
    path = tmp_path / checksums.FILE_NAME
    content, refused = path.read_bytes(), 0
    for bit in range(8 * len(content)):
        flip(path, content, bit)
        try:
            checksums.check(tmp_path / "runs.jsonl", b"content")
        except IntegrityError:
            refused += 1
    assert refused >= 8 * 64  # the bits of the digest; another file's checksum says nothing of this one
