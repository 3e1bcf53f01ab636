"""A store in a local folder: the loop works with no network, and a test needs no Hub.

A publication is written to a hidden folder beside its final place, flushed, and renamed: it is there whole or not at
all, and two processes that publish the same branch cannot mix. The index of a sweep is changed under a file lock, so
that parallel writers lose no row. In the place of a commit id stands a hash of the content.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

from . import atomic
from .errors import ConflictError, FilesError, IntegrityError, NotFoundError
from .files import Content, is_allowed, safetensors_header
from .store import MAX_READ_BYTES, Kind, Publication, Store, StoredFile, Update, checked_name

_INCOMING = ".incoming-"  # a publication that is being written; left behind only by a process that was killed
_ABANDONED_SECONDS = 24 * 3600
_LOCK_TIMEOUT_SECONDS = 120.0


class LocalStore(Store):
    """The folder `root` with the layout of a Hub release. It is made on the first write."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        self.uri = str(self.root)
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
        folder = self.folder(kind, repo, revision)
        return {entry.name: _stored(entry) for entry in sorted(folder.iterdir()) if _is_content(entry)}

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
            raise NotFoundError(f"the store {self.uri} has no {kind} {self.repo_id(repo)!r} at revision {revision!r}")
        return folder

    def publish(
        self, repo: str, branch: str, files: Mapping[str, Content], weights: Mapping[str, str], message: str
    ) -> Publication:
        target = self._repository("model", repo) / checked_name(branch, "branch", 120)
        if target.is_dir() and any(target.iterdir()):
            return self._published_before(repo, branch, weights)
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(target.parent)
        incoming = target.with_name(f"{_INCOMING}{os.getpid()}-{uuid.uuid4().hex}")
        try:
            _write_all(incoming, files, weights)
            commit = _content_id(incoming)
            try:
                os.rename(incoming, target)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                return self._published_before(repo, branch, weights)  # another process was faster
        finally:
            shutil.rmtree(incoming, ignore_errors=True)
        atomic.sync_folder(target.parent)
        return Publication(self.repo_id(repo), branch, commit, written=True)

    def update(self, kind: Kind, repo: str, reads: tuple[str, ...], change: Update, message: str) -> Publication:
        from filelock import FileLock, Timeout

        folder = self._repository(kind, repo) / "main"
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(str(folder.parent / ".lock"), timeout=_LOCK_TIMEOUT_SECONDS):
                present = {path: (folder / path).read_bytes() for path in reads if (folder / path).is_file()}
                changed = {name: data for name, data in change(present).items() if not _same(folder / name, data)}
                for name, data in changed.items():
                    if Path(name).name != name:
                        raise FilesError(f"file name {name!r}: allowed is a name without a folder")
                    atomic.write_bytes(folder / name, data)
                return Publication(self.repo_id(repo), "main", _content_id(folder), written=bool(changed))
        except Timeout:
            raise ConflictError(
                f"{folder.parent} was locked by another process for {_LOCK_TIMEOUT_SECONDS} s"
            ) from None

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

    def _published_before(self, repo: str, branch: str, weights: Mapping[str, str]) -> Publication:
        folder = self.folder("model", repo, branch)
        there = atomic.weights_sha256(folder)
        if there != dict(weights):
            raise ConflictError(
                f"{self.repo_id(repo)} has a branch {branch!r} with other weights "
                f"({_shown(there)}, not {_shown(weights)}); push under another branch or remove it first"
            )
        return Publication(self.repo_id(repo), branch, _content_id(folder), written=False)


def _write_all(folder: Path, files: Mapping[str, Content], weights: Mapping[str, str]) -> None:
    """Write a publication into a new folder and check the weights as they lie on the disk."""
    folder.mkdir()
    for name, content in files.items():
        if not is_allowed(name):
            raise FilesError(f"file {name!r} is not on the list of what a release may hold")
        if isinstance(content, bytes):
            atomic.write_bytes(folder / name, content)
        else:
            atomic.copy_file(content, folder / name)
    for name, digest in weights.items():
        found = atomic.sha256_of(folder / name)
        if found != digest:
            raise IntegrityError(f"{name} was written with sha256 {found}, expected was {digest}")
    atomic.sync_folder(folder)


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
    from .cards import tags_of

    return tags_of(card.read_text(encoding="utf-8")) if card.is_file() else []


def _subfolders(folder: Path) -> list[Path]:
    return [entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")]


def _is_content(entry: Path) -> bool:
    return entry.is_file() and not entry.name.startswith(".")


def _stored(entry: Path) -> StoredFile:
    return StoredFile(entry.stat().st_size, atomic.sha256_of(entry))


def _same(path: Path, content: bytes) -> bool:
    return path.is_file() and path.stat().st_size == len(content) and path.read_bytes() == content


def _shown(weights: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {digest[:12]}" for name, digest in sorted(weights.items())) or "no weights"
