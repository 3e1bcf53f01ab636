"""The interface of a store of releases, with a folder or the Hub behind it (`open_store`).

In a model repository each branch is a run; a dataset repository has `main` only. Every write reads the head of a
branch, commits the differences on top of it, and reads that back; after a conflict or a lost answer it starts again.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from hub.base.errors import ConflictError, FilesError, IntegrityError, UnavailableError
from hub.base.types import Strings
from hub.store.files import Content, Contents, Hashes, check_allowed, git_id_of, is_allowed, sha256_of, size_of

Kind = Literal["model", "dataset"]

COMMIT = re.compile(r"[0-9a-f]{40}")
MAX_READ_BYTES = 512 * 1024 * 1024
_MAX_CONFLICTS = 30
_NAME = re.compile(r"[A-Za-z0-9]+(?:(?:[.-]|_+)[A-Za-z0-9]+)*")


@dataclass(frozen=True)
class StoredFile:
    """One file of a revision, with the hash by which its store knows it."""

    # In bytes.
    size: int
    # In hex; None for a small file on the Hub.
    sha256: str | None
    # git's id of the content (hex), where there is no sha256.
    blob_id: str | None = None

    def holds(self, content: Content, sha256: str | None = None) -> bool:
        """Return whether this is `content`, whose sha256 need not be computed again where it is known."""
        if size_of(content) != self.size:
            return False
        if self.sha256 is not None:
            return (sha256 or sha256_of(content)) == self.sha256
        return git_id_of(content) == self.blob_id


StoredFiles = Mapping[str, StoredFile]


@dataclass(frozen=True)
class Head:
    """The newest commit of a branch and its files; the commit is empty if there is no such branch yet."""

    kind: Kind
    repo: str
    branch: str
    commit: str
    files: StoredFiles
    private: bool = False


@dataclass(frozen=True)
class CopyOf:
    """A change that copies the file of the same name from another commit, inside the store."""

    commit: str


class Present(dict[str, bytes]):
    """The files of `main` that were asked for, by name; `stored` describes all of its files."""

    stored: StoredFiles


# The change of a file in a commit: new content, a copy from another commit, or (None) its removal.
Change = Content | CopyOf | None
Changes = Mapping[str, Change]
# Makes changes of the present files, for `Store.update`.
Update = Callable[[Present], Mapping[str, "bytes | CopyOf | None"]]
# Makes, by file name, new content of the present one; the same bytes if that is as good. May raise ConflictError.
Merge = Mapping[str, Callable[[bytes], bytes]]


@dataclass(frozen=True)
class Publication:
    """The result of publishing: repository id, branch, commit, and whether this call wrote anything."""

    repo: str
    branch: str
    commit: str
    written: bool


class Store(ABC):
    """The operations of both stores. Repository names omit the organisation, e.g. `demo-d256-E8`."""

    uri: str
    # So often a commit is tried while the store cannot be reached.
    attempts = 6

    @abstractmethod
    def repo_id(self, repo: str) -> str:
        """Return the id under which the repository is known: `org/name` on the Hub, `name` in a folder."""

    @abstractmethod
    def repos(self, kind: Kind, prefix: str = "", *, tag: str | None = None) -> list[str]:
        """List the repositories whose names start with `prefix` and whose card on `main` has the tag, sorted."""

    @abstractmethod
    def branches(self, kind: Kind, repo: str) -> dict[str, str]:
        """Return the commit of each branch; nothing if there is no such repository."""

    @abstractmethod
    def files(self, kind: Kind, repo: str, revision: str = "main") -> StoredFiles:
        """Describe the files of a revision. Raises NotFoundError."""

    @abstractmethod
    def pinned(
        self, kind: Kind, repo: str, path: str, revision: str | None = None, *, max_bytes: int = MAX_READ_BYTES
    ) -> tuple[bytes, str]:
        """Read a file, and the commit it was read at; `revision` is a branch, tag or commit, default `main`.

        Raises NotFoundError; IntegrityError for a file larger than `max_bytes`; UnavailableError if the store cannot
        be reached and the file is in no cache.
        """

    def read(
        self, kind: Kind, repo: str, path: str, revision: str | None = None, *, max_bytes: int = MAX_READ_BYTES
    ) -> bytes:
        """Read the bytes of a file; see `pinned`."""
        return self.pinned(kind, repo, path, revision, max_bytes=max_bytes)[0]

    def check_written(self, kind: Kind, repo: str, path: str, content: bytes) -> None:  # noqa: B027 (only a folder can)
        """Raise IntegrityError if `content` of a file of `main` is not what was written there.

        A file of the Hub was compared with its listing when it was read.
        """

    @abstractmethod
    def fetch(self, repo: str, revision: str, destination: Path | None = None) -> Path:
        """Provide a folder with the files of a model's revision that a release may have, compared with their hashes.

        `destination` must be new or empty; without one the folder is the store's own and must not be written to.
        Raises NotFoundError, IntegrityError, and UnavailableError if neither the store nor a cache has the files.
        """

    def publish(
        self,
        repo: str,
        branch: str,
        files: Contents,
        weights: Hashes,
        message: str,
        merge: Merge = MappingProxyType({}),
    ) -> Publication:
        """Make `branch` of a model repository hold `files`; `weights` has the sha256 (hex) of each weights file.

        A new branch appears in one atomic step, a new repository before it. On an existing branch files that differ
        are written, as `merge` makes them, and files that should not be there removed, but for names that no release
        has.

        Raises:
            ConflictError: the branch has other weights.
            IntegrityError: what was read back is not what was sent.
        """
        check_name(branch, "branch", 120)
        check_allowed(files)

        def find_changes(head: Head) -> Changes:
            present_weights = {name: file.sha256 for name, file in head.files.items() if name.endswith(".safetensors")}
            stale = [name for name in head.files if name not in files]
            changes: dict[str, Change] = {}
            if present_weights == dict(weights):
                changes.update(self._find_differences(head, files, weights, merge))
                # Names that no release has are somebody's own.
                stale = [name for name in stale if is_allowed(name)]
            elif not head.files or self._is_first_commit(head):
                # The first commit holds nothing of any run.
                changes.update(files)
            else:
                raise ConflictError(
                    f"{self.repo_id(repo)} has a branch {branch!r} with other weights; push under another branch or "
                    "sweep name, or remove it first"
                )
            changes.update(dict.fromkeys(stale))
            return changes

        return self._write("model", repo, branch, find_changes, message, weights)

    def _find_differences(
        self, head: Head, files: Contents, weights: Hashes, merge: Merge
    ) -> Iterator[tuple[str, Content]]:
        """Yield the files that differ from those of a head, as `merge` makes them, the run's record last."""
        for name in sorted(files, key=lambda name: (name == "run.json", name)):
            content = files[name]
            stored = head.files.get(name)
            if stored is not None and stored.holds(content, weights.get(name)):
                continue
            if stored is not None and name in merge:
                present = self._read_at(head, name)
                content = merge[name](present)
                if content == present:
                    continue
            yield name, content

    def update(self, kind: Kind, repo: str, reads: Strings, change: Update, message: str) -> Publication:
        """Read files of `main`, and write the changes that `change` makes of them, without losing anyone else's.

        `change` gets those files of `reads` that exist and returns the files to write, the one that readers trust
        last. It is called again when another writer was faster; ConflictError after too many times.
        """

        def find_changes(head: Head) -> Changes:
            present = Present({path: self._read_at(head, path) for path in reads if path in head.files})
            present.stored = head.files
            changes: dict[str, Change] = {}
            for name, content in change(present).items():
                if Path(name).name != name:
                    raise FilesError(f"file name {name!r}: allowed is a name without a folder")
                stored = head.files.get(name)
                if not isinstance(content, bytes) or stored is None or not stored.holds(content):
                    changes[name] = content
            return changes

        return self._write(kind, repo, "main", find_changes, message)

    def _write(
        self,
        kind: Kind,
        repo: str,
        branch: str,
        find_changes: Callable[[Head], Changes],
        message: str,
        sha256: Hashes | None = None,
    ) -> Publication:
        """Commit the changes to the head of a branch; `sha256` has the file hashes that are known."""
        repo_id = self.repo_id(repo)
        hashes = sha256 or {}
        lost_answers = 0
        for attempt in range(_MAX_CONFLICTS):
            with self._exclusive(kind, repo, branch):
                head = self._head(kind, repo, branch, again=attempt > 0)
                changes = find_changes(head)
                if not changes:
                    return Publication(repo_id, branch, head.commit, written=lost_answers > 0)
                try:
                    commit = self._commit(head, changes, message, hashes)
                except (ConflictError, UnavailableError) as error:
                    # Another writer was faster, or the answer was lost: the head as it is now decides.
                    if isinstance(error, UnavailableError):
                        lost_answers += 1
                    if lost_answers == self.attempts:
                        raise
                    self._pause(attempt, error)
                    continue
            self._check_commit(head, commit, changes, hashes)
            return Publication(repo_id, branch, commit, written=True)
        raise ConflictError(f"{repo_id}: other writers were faster {_MAX_CONFLICTS} times")

    def _exclusive(self, kind: Kind, repo: str, branch: str) -> AbstractContextManager[object]:
        """Keep other writers out while a head is read, changed and committed, where a store can."""
        return nullcontext()

    @abstractmethod
    def _head(self, kind: Kind, repo: str, branch: str, *, again: bool) -> Head:
        """Read the head of a branch to be written; `again`: an earlier answer may be out of date."""

    @abstractmethod
    def _read_at(self, head: Head, path: str) -> bytes:
        """Read the bytes of a head's file."""

    @abstractmethod
    def _commit(self, head: Head, changes: Changes, message: str, sha256: Hashes) -> str:
        """Put changes on top of a head; return the new commit.

        Raises ConflictError if the branch has moved, UnavailableError if it is not known whether the commit landed.
        """

    @abstractmethod
    def _pause(self, attempt: int, error: Exception) -> None:
        """Wait after a failed attempt (from 0)."""

    def _is_first_commit(self, head: Head) -> bool:
        """Return whether a head is at the commit that all branches of a model repository start from."""
        return False

    def _check_commit(  # noqa: B027 (a folder checks before it shows anything)
        self, head: Head, commit: str, changes: Changes, sha256: Hashes
    ) -> None:
        """Read back a commit, in a store that could not check its files while it wrote them."""

    def _check(self, head: Head, changes: Changes, stored: StoredFiles, sha256: Hashes) -> None:
        """Raise IntegrityError unless the files `stored` by a commit on `head` have its changes."""
        copy_commits = {content.commit for content in changes.values() if isinstance(content, CopyOf)}
        sources = {commit: self.files(head.kind, head.repo, commit) for commit in copy_commits}

        faults = []
        for name, content in changes.items():
            file = stored.get(name)
            if content is None:
                is_right = file is None
            elif isinstance(content, CopyOf):
                is_right = file is not None and file == sources[content.commit].get(name)
            else:
                is_right = file is not None and file.holds(content, sha256.get(name))
            if not is_right:
                faults.append(name)
        if faults:
            names = ", ".join(sorted(faults)[:10])
            raise IntegrityError(f"{self.repo_id(head.repo)} at {head.branch} has not what was sent: {names}")

    def check_visibility(self, models: Iterable[str], index: str) -> None:  # noqa: B027 (a folder hides nothing)
        """Raise FilesError where private and public would mix: a private run in a public repository or index, or the
        runs of private repositories in a public index. `models` and `index` are names of repositories.
        """


def check_size(repo_id: str, path: str, size: int, max_bytes: int) -> None:
    """Raise IntegrityError for a file that is larger than a reader takes."""
    if size > max_bytes:
        raise IntegrityError(f"{path} of {repo_id} has {size:,} bytes, allowed are {max_bytes:,}")


def check_name(name: str, label: str, max_length: int = 96) -> str:
    """Return `name` if it can be a repository or branch: letters, digits and single `.`, `-`, `_` inside.

    Raises FilesError otherwise.
    """
    if len(name) > max_length or not _NAME.fullmatch(name):
        raise FilesError(
            f"{label} {name[:120]!r}: allowed are letters and digits joined by '.', '-' or '_', at most {max_length}"
        )
    return name
