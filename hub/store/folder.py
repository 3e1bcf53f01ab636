"""A store in a local folder, as `<root>/models/<repository>/<branch>` and `<root>/datasets/<repository>/main`.

One writer at a time holds a repository's file lock. A new branch is written beside its place, checked and renamed, so
it is there whole or not at all; an existing one is changed one atomic step for each file. A hash of the content serves
as commit id.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from hub.base import atomic, checksums
from hub.base.disk import explain_full_disk
from hub.base.errors import ConflictError, FilesError, NotFoundError
from hub.base.markdown import tags_of
from hub.base.paths import check_links, check_utf8
from hub.store.base import (
    COMMIT,
    MAX_READ_BYTES,
    Change,
    Changes,
    CopyOf,
    Head,
    Kind,
    Store,
    StoredFile,
    check_name,
    check_size,
)
from hub.store.files import Hashes, copy_release

# Whoever writes into a repository holds its lock; other writers wait for large weights to be copied.
_LOCK = ".lock"
_LOCK_TIMEOUT_SECONDS = 600.0
# New branches until they are whole, as `atomic.atomic_folder` names them.
_UNFINISHED = ".*.tmp"
_LARGE_BYTES = 16 * 1024 * 1024


class LocalStore(Store):
    """The folder `root` with the layout of a Hub release. It is made on the first write."""

    def __init__(self, root: str | Path) -> None:
        check_utf8(root, "store")
        self.root = Path(root)
        self.uri = str(self.root)
        self._digests: dict[tuple[int, int, int, int], str] = {}
        if self.root.exists() and not self.root.is_dir():
            raise FilesError(f"store {self.uri}: allowed is a folder, this is a file")

    def repo_id(self, repo: str) -> str:
        return repo.rpartition("/")[2]

    def repos(self, kind: Kind, prefix: str = "", *, tag: str | None = None) -> list[str]:
        names = []
        for repository in _folders_in(self.root / f"{kind}s"):
            if not repository.name.startswith(prefix):
                continue
            card = repository / "main" / "README.md"
            if tag is None or (card.is_file() and tag in tags_of(card.read_text(encoding="utf-8"))):
                names.append(repository.name)
        return names

    def branches(self, kind: Kind, repo: str) -> dict[str, str]:
        return {branch.name: _content_id(branch) for branch in _folders_in(self._repository(kind, repo))}

    def files(self, kind: Kind, repo: str, revision: str = "main") -> dict[str, StoredFile]:
        return self._describe_files(self.folder(kind, repo, revision))

    def pinned(
        self, kind: Kind, repo: str, path: str, revision: str | None = None, *, max_bytes: int = MAX_READ_BYTES
    ) -> tuple[bytes, str]:
        folder = self.folder(kind, repo, revision or "main")
        file = folder / path
        if file.name != path or not file.is_file():
            raise NotFoundError(f"{self.repo_id(repo)} has no file {path!r} at {revision or 'main'}")
        check_size(self.repo_id(repo), path, file.stat().st_size, max_bytes)
        return file.read_bytes(), _content_id(folder)

    def check_written(self, kind: Kind, repo: str, path: str, content: bytes) -> None:
        checksums.check(self._repository(kind, repo) / "main" / path, content)

    def folder(self, kind: Kind, repo: str, revision: str = "main") -> Path:
        """Find the folder of a branch, or of the branch whose content has this commit id. Raises NotFoundError."""
        repository = self._repository(kind, repo)
        if COMMIT.fullmatch(revision) and not (repository / revision).is_dir():
            for branch, commit in self.branches(kind, repo).items():
                if commit == revision:
                    revision = branch
                    break
        folder = repository / check_name(revision, "revision", 120)
        if folder.is_dir():
            return folder
        problem = f"the store {self.uri} has no {kind} {self.repo_id(repo)!r} at revision {revision!r}"
        if COMMIT.fullmatch(revision) and repository.is_dir():
            problem += "; its files have changed since"
        raise NotFoundError(problem)

    def fetch(self, repo: str, revision: str, destination: Path | None = None) -> Path:
        folder = self.folder("model", repo, revision)
        return folder if destination is None else copy_release(folder, destination)

    def _head(self, kind: Kind, repo: str, branch: str, *, again: bool) -> Head:
        folder = self._repository(kind, repo) / branch
        if not folder.is_dir() or not any(folder.iterdir()):
            return Head(kind, repo, branch, "", {})
        return Head(kind, repo, branch, _content_id(folder), self._describe_files(folder))

    def _read_at(self, head: Head, path: str) -> bytes:
        return (self._repository(head.kind, head.repo) / head.branch / path).read_bytes()

    def _commit(self, head: Head, changes: Changes, message: str, sha256: Hashes) -> str:
        folder = self._repository(head.kind, head.repo) / head.branch
        if head.commit:
            self._write_changes(head, changes, folder, sha256)
        else:
            with atomic.atomic_folder(folder) as incoming:
                self._write_changes(head, changes, incoming, sha256)
        return _content_id(folder)

    def _write_changes(self, head: Head, changes: Changes, target: Path, sha256: Hashes) -> None:
        """Write the changes into the folder `target` of a branch, or of one that is to be, and check them there."""
        repository = self._repository(head.kind, head.repo)
        commits = {content.commit for content in changes.values() if isinstance(content, CopyOf)}
        sources = {commit: self.folder(head.kind, head.repo, commit) for commit in commits}
        if head.kind == "dataset":
            # A card has no checksum, since people may edit it.
            tables = {name: text for name, text in changes.items() if isinstance(text, bytes)}
            checksums.note(target, {name: text for name, text in tables.items() if not name.endswith(".md")})
        needed_bytes = sum(_size_of(content) for content in changes.values())
        with explain_full_disk(f"the release {repository / head.branch}", target, needed_bytes):
            for name, content in changes.items():
                _change_file(target / name, content, sources)
            atomic.sync(target)
        self._check(head, changes, self._describe_files(target), sha256)

    def _pause(self, attempt: int, error: Exception) -> None:
        """Do not wait: nobody else writes while the lock is held."""

    @contextmanager
    def _exclusive(self, kind: Kind, repo: str, branch: str) -> Iterator[None]:
        """Lock a repository while one of its branches is written, and remove what killed processes left unfinished."""
        from filelock import FileLock, Timeout

        folder = self._repository(kind, repo)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(folder / _LOCK, timeout=_LOCK_TIMEOUT_SECONDS):
                for unfinished in folder.glob(_UNFINISHED):
                    shutil.rmtree(unfinished)
                yield
        except Timeout:
            raise ConflictError(f"{folder} was locked by another process for {_LOCK_TIMEOUT_SECONDS} s") from None

    def _repository(self, kind: Kind, repo: str) -> Path:
        return self.root / f"{kind}s" / check_name(self.repo_id(repo), "repository")

    def _describe_files(self, folder: Path) -> dict[str, StoredFile]:
        return {entry.name: self._describe_file(entry) for entry in _files_in(folder)}

    def _describe_file(self, entry: Path) -> StoredFile:
        """Return size and sha256. A large file is read once, also under the other name of a hard link."""
        status = entry.stat()
        if status.st_size < _LARGE_BYTES:
            return StoredFile(status.st_size, atomic.sha256_of(entry))
        key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        if key not in self._digests:
            self._digests[key] = atomic.sha256_of(entry)
        return StoredFile(status.st_size, self._digests[key])


def _change_file(path: Path, content: Change, sources: Mapping[str, Path]) -> None:
    """Write, copy or remove one file in one step. Copied weights become a hard link where the disk has them."""
    if content is None:
        path.unlink(missing_ok=True)
        return
    if isinstance(content, bytes):
        atomic.write_bytes(path, content)
        return
    source = sources[content.commit] / path.name if isinstance(content, CopyOf) else content
    with atomic.replaced_file(path) as temporary:
        if isinstance(content, CopyOf) and source.suffix == ".safetensors":
            # Some disks have no hard links.
            with suppress(OSError):
                os.link(source, temporary)
        if not temporary.exists():
            atomic.copy_file(source, temporary)


def _size_of(content: Change) -> int:
    """Count the bytes that a change writes, but for copies within the store, which may be links."""
    if isinstance(content, Path):
        return content.stat().st_size
    return len(content) if isinstance(content, bytes) else 0


def _content_id(folder: Path) -> str:
    """Compute 40 hex digits that stand for the folder's content, as a commit id does on the Hub.

    Weights enter with name and size only: their sha256 is in run.json, and hashing gigabytes to list branches is slow.
    """
    digest = hashlib.sha256()
    for entry in _files_in(folder):
        content = entry.stat().st_size if entry.suffix == ".safetensors" else atomic.sha256_of(entry)
        digest.update(f"{entry.name}\0{content}\n".encode())
    return digest.hexdigest()[:40]


def _folders_in(folder: Path) -> list[Path]:
    """List the folders in a folder, sorted; none if it does not exist."""
    if not folder.is_dir():
        return []
    return [entry for entry in _entries_in(folder) if entry.is_dir()]


def _files_in(folder: Path) -> list[Path]:
    """List the files in a folder, sorted."""
    return [entry for entry in _entries_in(folder) if entry.is_file()]


def _entries_in(folder: Path) -> list[Path]:
    """List what a folder shows, sorted. Raises FilesError for a link that has lost its file."""
    entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    check_links(entries, "store")
    return entries
