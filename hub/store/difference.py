"""What a revision lacks of what should be there: a release is a state, and a push brings the store to it.

Both stores compare every file by its hash, so that equal weights alone do not pass for a complete release. Where a
file may rightly differ (`Equivalent`), its content is read and judged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hub.plain.errors import ConflictError
from hub.store.files import Content, content_hash, is_allowed, size_of, weights_of

# File name -> whether the content that is there is as good as the one to be released. May raise ConflictError.
Equivalent = Mapping[str, Callable[[bytes], bool]]


@dataclass(frozen=True)
class StoredFile:
    """One file of a revision, with the hash by which its store knows it.

    Attributes:
        size: in bytes.
        sha256: hex; None for a small file on the Hub, which is known by
        blob_id: git's id of the blob (hex).
    """

    size: int
    sha256: str | None
    blob_id: str | None = None

    def holds(self, content: Content, sha256: str | None = None) -> bool:
        """Whether this is `content`, whose sha256 need not be computed again where it is known."""
        if size_of(content) != self.size:
            return False
        if self.sha256 is not None:
            return (sha256 or content_hash(content, large=True)) == self.sha256
        return content_hash(content, large=False) == self.blob_id


@dataclass(frozen=True)
class Difference:
    """What to write, the record last, and what to remove."""

    written: Mapping[str, Content]
    removed: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.written or self.removed)


def difference(
    files: Mapping[str, Content],
    weights: Mapping[str, str],
    there: Mapping[str, StoredFile],
    equivalent: Equivalent,
    read: Callable[[str], bytes],
) -> Difference:
    """What turns the files that are `there` into `files`.

    Args:
        files: name -> content.
        weights: name of each weights file -> sha256 (hex).
        there: what the revision has. Names that no release can have are nobody's concern, and stay.
        equivalent: see `Equivalent`.
        read: gives a file's present content by its name.
    """
    names = sorted(files, key=lambda name: (name == "run.json", name))
    differing = [name for name in names if name not in there or not there[name].holds(files[name], weights.get(name))]
    written = {
        name: files[name]
        for name in differing
        if not (name in there and name in equivalent and equivalent[name](read(name)))
    }
    return Difference(written, tuple(name for name in sorted(there) if name not in files and is_allowed(name)))


def have_weights(there: Mapping[str, StoredFile], weights: Mapping[str, str]) -> bool:
    """Whether the weights files among those that are `there` are exactly `weights` (name -> sha256)."""
    return weights_of({name: file.sha256 for name, file in there.items()}) == dict(weights)


def refuse_other_weights(place: str, there: Mapping[str, StoredFile], weights: Mapping[str, str]) -> None:
    """Raises ConflictError if the revision `place` ("org/name has a branch 'x'") is not of these weights."""
    if not have_weights(there, weights):
        present = weights_of({name: file.sha256 for name, file in there.items()})
        shown = ", ".join(f"{name} {(digest or 'unknown')[:12]}" for name, digest in sorted(present.items())) or "none"
        raise ConflictError(
            f"{place} with other weights ({shown}); push under another branch or sweep name, or remove it first"
        )


def problems(
    files: Mapping[str, Content],
    weights: Mapping[str, str],
    found: Mapping[str, StoredFile],
    written: Mapping[str, Content],
) -> list[str]:
    """What of `files` is missing in a revision, and what of those that were `written` has other content."""
    missing = [f"{name} is missing" for name in sorted(files) if name not in found]
    other = [
        f"{name} has other content"
        for name, content in sorted(written.items())
        if name in found and not found[name].holds(content, weights.get(name))
    ]
    return missing + other
