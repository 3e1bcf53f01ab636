"""A store in a local folder: the loop works with no network, and a test needs no Hub.

A new branch is written to a hidden folder beside its final place, flushed, and renamed: it is there whole or not at
all, and two processes that publish the same branch cannot mix. What is there already is changed under a file lock, one
atomic step for each file: `main`, the index of a sweep (so that parallel writers lose no row), a branch that lacks
something. In the place of a commit id stands a hash of the content.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from hub.plain import atomic
from hub.plain.errors import ConflictError, FilesError, IntegrityError, NotFoundError
from hub.store.base import (
    MAX_READ_BYTES,
    NOTHING_ELSE,
    CopyOf,
    Kind,
    Present,
    Publication,
    Store,
    Update,
    checked_name,
)
from hub.store.difference import Equivalent, StoredFile, difference, problems, refuse_other_weights
from hub.store.files import Content, is_allowed, safetensors_header

_INCOMING = ".incoming-"  # a publication that is being written; left behind only by a process that was killed
_COMMIT = re.compile(r"[0-9a-f]{40}")
_ABANDONED_SECONDS = 24 * 3600
_LOCK_TIMEOUT_SECONDS = 120.0
_LARGE_BYTES = 16 * 1024 * 1024


class LocalStore(Store):
    """The folder `root` with the layout of a Hub release. It is made on the first write."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        self.uri = str(self.root)
        self._digests: dict[tuple[int, int, int, int], str] = {}
        if self.root.exists() and not self.root.is_dir():
            raise FilesError(f"store {self.uri}: allowed is a folder, this is a file")

    def repo_id(self, repo: str) -> str:
        return repo.rpartition("/")[2]

    def repos(self, kind: Kind, prefix: str = "", *, tag: str | None = None) -> list[str]:
        folder = self.root / f"{kind}s"
        if not folder.is_dir():
            return []
        found = [entry for entry in _subfolders(folder) if entry.name.startswith(prefix)]
        return sorted(entry.name for entry in found if tag is None or tag in _tags(entry / "main" / "README.md"))

    def branches(self, kind: Kind, repo: str) -> dict[str, str]:
        folder = self._repository(kind, repo)
        if not folder.is_dir():
            return {}
        return {entry.name: _content_id(entry) for entry in sorted(_subfolders(folder))}

    def files(self, kind: Kind, repo: str, revision: str = "main") -> dict[str, StoredFile]:
        return self._stored_in(self.folder(kind, repo, revision))

    def pinned(
        self, kind: Kind, repo: str, path: str, revision: str | None = None, *, max_bytes: int = MAX_READ_BYTES
    ) -> tuple[bytes, str]:
        folder = self.folder(kind, repo, revision or "main")
        file = folder / path
        if file.name != path or not file.is_file():
            raise NotFoundError(f"{self.repo_id(repo)} has no file {path!r} at {revision or 'main'}")
        with file.open("rb") as reader:
            content = reader.read(max_bytes + 1)
        if len(content) > max_bytes:
            raise IntegrityError(f"{path} of {self.repo_id(repo)} is larger than {max_bytes:,} bytes")
        return content, _content_id(folder)

    def folder(self, kind: Kind, repo: str, revision: str = "main") -> Path:
        """The folder of a branch (or of the branch whose content has this commit id).

        Raises:
            NotFoundError: there is none.
        """
        repository = self._repository(kind, repo)
        if len(revision) == 40 and not (repository / revision).is_dir():
            revision = next((b for b, commit in self.branches(kind, repo).items() if commit == revision), revision)
        folder = repository / checked_name(revision, "revision", 120)
        if not folder.is_dir():
            changed = "; files of it were changed since" if _COMMIT.fullmatch(revision) and repository.is_dir() else ""
            where = f"the store {self.uri} has no {kind} {self.repo_id(repo)!r} at revision {revision!r}"
            raise NotFoundError(where + changed)
        return folder

    def publish(
        self,
        repo: str,
        branch: str,
        files: Mapping[str, Content],
        weights: Mapping[str, str],
        message: str,
        equivalent: Equivalent = NOTHING_ELSE,
    ) -> Publication:
        target = self._repository("model", repo) / checked_name(branch, "branch", 120)
        _check_names(files)
        if not (target.is_dir() and any(target.iterdir())):
            target.parent.mkdir(parents=True, exist_ok=True)
            _remove_abandoned(target.parent)
            if self._publish_whole(target, files, weights):
                return Publication(self.repo_id(repo), branch, _content_id(target), written=True)
        with self._locked(target.parent):
            written = self._repair(target, files, weights, equivalent)
        return Publication(self.repo_id(repo), branch, _content_id(target), written)

    def _publish_whole(self, target: Path, files: Mapping[str, Content], weights: Mapping[str, str]) -> bool:
        """Write a new branch beside its place and rename it; False if another process was faster."""
        incoming = target.with_name(f"{_INCOMING}{os.getpid()}-{uuid.uuid4().hex}")
        try:
            _write_all(incoming, files, weights)
            try:
                os.rename(incoming, target)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                return False
        finally:
            shutil.rmtree(incoming, ignore_errors=True)
        atomic.sync_folder(target.parent)
        return True

    def _repair(
        self, target: Path, files: Mapping[str, Content], weights: Mapping[str, str], equivalent: Equivalent
    ) -> bool:
        """Bring a branch that is there to `files`, one atomic change of a file after the other, its record last."""
        there = self._stored_in(target)
        refuse_other_weights(f"{target.parent.name} has a branch {target.name!r}", there, weights)
        change = difference(files, weights, there, equivalent, lambda name: (target / name).read_bytes())
        for name, content in change.written.items():
            _replace(target / name, content)
        for name in change.removed:
            (target / name).unlink(missing_ok=True)
        if change:
            atomic.sync_folder(target)
            if wrong := problems(files, weights, self._stored_in(target), change.written):
                raise IntegrityError(f"{target.parent.name} at {target.name}: {', '.join(wrong[:10])}")
        return bool(change)

    def update(self, kind: Kind, repo: str, reads: tuple[str, ...], change: Update, message: str) -> Publication:
        folder = self._repository(kind, repo) / "main"
        folder.mkdir(parents=True, exist_ok=True)
        with self._locked(folder.parent):
            contents = {path: (folder / path).read_bytes() for path in reads if (folder / path).is_file()}
            changed = change(Present(contents, lambda: self._stored_in(folder)))
            commits = {content.commit for content in changed.values() if isinstance(content, CopyOf)}
            sources = {commit: self.folder(kind, repo, commit) for commit in commits}
            written = False
            for name, content in changed.items():
                if Path(name).name != name:
                    raise FilesError(f"file name {name!r}: allowed is a name without a folder")
                written |= _change_file(folder / name, content, sources)
            return Publication(self.repo_id(repo), "main", _content_id(folder), written)

    @contextmanager
    def _locked(self, folder: Path) -> Iterator[None]:
        from filelock import FileLock, Timeout

        try:
            with FileLock(str(folder / ".lock"), timeout=_LOCK_TIMEOUT_SECONDS):
                yield
        except Timeout:
            raise ConflictError(f"{folder} was locked by another process for {_LOCK_TIMEOUT_SECONDS} s") from None

    def tensor_shapes(self, repo: str, revision: str) -> dict[str, tuple[int, ...]]:
        files = sorted(self.folder("model", repo, revision).glob("*.safetensors"))
        if not files:
            raise NotFoundError(f"{self.repo_id(repo)} has no safetensors at {revision}")
        return {name: shape for file in files for name, shape in safetensors_header(file).items()}

    def fetch(self, repo: str, revision: str, destination: Path | None = None) -> Path:
        folder = self.folder("model", repo, revision)
        if destination is None:
            return folder
        destination.mkdir(parents=True, exist_ok=True)
        for entry in sorted(folder.iterdir()):
            if _is_content(entry) and is_allowed(entry.name) and not (destination / entry.name).exists():
                atomic.copy_file(entry, destination / entry.name)
        return destination

    def _repository(self, kind: Kind, repo: str) -> Path:
        if kind not in ("model", "dataset"):
            raise FilesError(f'kind {kind!r}: allowed are "model" and "dataset"')
        return self.root / f"{kind}s" / checked_name(self.repo_id(repo), "repository")

    def _stored_in(self, folder: Path) -> dict[str, StoredFile]:
        return {entry.name: self._stored(entry) for entry in sorted(folder.iterdir()) if _is_content(entry)}

    def _stored(self, entry: Path) -> StoredFile:
        """Size and sha256. What is large is read once, also under the other name of a hard link."""
        status = entry.stat()
        if status.st_size < _LARGE_BYTES:
            return StoredFile(status.st_size, atomic.sha256_of(entry))
        key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        if key not in self._digests:
            self._digests[key] = atomic.sha256_of(entry)
        return StoredFile(status.st_size, self._digests[key])


def _write_all(folder: Path, files: Mapping[str, Content], weights: Mapping[str, str]) -> None:
    """Write a publication into a new folder and check the weights as they lie on the disk."""
    folder.mkdir()
    for name, content in files.items():
        if isinstance(content, bytes):
            atomic.write_bytes(folder / name, content)
        else:
            atomic.copy_file(content, folder / name)
    for name, digest in weights.items():
        found = atomic.sha256_of(folder / name)
        if found != digest:
            raise IntegrityError(f"{name} was written with sha256 {found}, expected was {digest}")
    atomic.sync_folder(folder)


def _check_names(files: Mapping[str, Content]) -> None:
    for name in files:
        if not is_allowed(name):
            raise FilesError(f"file {name!r} is not on the list of what a release may hold")


def _replace(path: Path, content: Content) -> None:
    """Put a file into its place in one step, over another if there is one."""
    if isinstance(content, bytes):
        atomic.write_bytes(path, content)
    else:
        _through_temporary(path, lambda temporary: atomic.copy_file(content, temporary))


def _change_file(path: Path, content: bytes | CopyOf | None, sources: Mapping[str, Path]) -> bool:
    """Write, copy or remove one file; whether that changed anything."""
    if content is None:
        path.unlink(missing_ok=True)
    elif isinstance(content, CopyOf):
        _link(sources[content.commit] / path.name, path)
    elif _same(path, content):
        return False
    else:
        atomic.write_bytes(path, content)
    return True


def _link(source: Path, path: Path) -> None:
    """Put a file of another branch into its place: weights as a hard link where the disk can, the rest as a copy."""

    def make(temporary: Path) -> None:
        if source.suffix == ".safetensors":
            try:
                os.link(source, temporary)
                return
            except OSError:  # a disk without hard links
                pass
        atomic.copy_file(source, temporary)

    _through_temporary(path, make)


def _through_temporary(path: Path, make: Callable[[Path], object]) -> None:
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        make(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _content_id(folder: Path) -> str:
    """40 hex digits that stand for the folder's content, as a commit id does on the Hub.

    Weights enter with name and size only: their sha256 is in run.json, and hashing gigabytes to list branches is slow.
    """
    digest = hashlib.sha256()
    for entry in sorted(folder.iterdir()):
        if _is_content(entry):
            content = entry.stat().st_size if entry.suffix == ".safetensors" else atomic.sha256_of(entry)
            digest.update(f"{entry.name}\0{content}\n".encode())
    return digest.hexdigest()[:40]


def _remove_abandoned(folder: Path) -> None:
    """Remove what processes left that were killed while they published, once it is old enough not to be in use."""
    for entry in folder.glob(f"{_INCOMING}*"):
        try:
            if time.time() - entry.stat().st_mtime > _ABANDONED_SECONDS:
                shutil.rmtree(entry, ignore_errors=True)
        except FileNotFoundError:
            continue


def _tags(card: Path) -> list[str]:
    from hub.plain.metadata import tags_of

    return tags_of(card.read_text(encoding="utf-8")) if card.is_file() else []


def _subfolders(folder: Path) -> list[Path]:
    return [entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")]


def _is_content(entry: Path) -> bool:
    return entry.is_file() and not entry.name.startswith(".")


def _same(path: Path, content: bytes) -> bool:
    return path.is_file() and path.stat().st_size == len(content) and path.read_bytes() == content
