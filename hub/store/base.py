"""The interface of a store of releases, with a folder or the Hub behind it (`open_store`).

In a model repository each branch is a run; a dataset repository has `main` only. Every write reads the head of a
branch, commits what differs on top of it, and reads that back; after a conflict or a lost answer it starts again.
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
from hub.store.files import Content, check_allowed, git_id_of, is_allowed, sha256_of, size_of

Kind = Literal["model", "dataset", "space"]

COMMIT = re.compile(r"[0-9a-f]{40}")
MAX_READ_BYTES = 512 * 1024 * 1024
_MAX_CONFLICTS = 30
_NAME = re.compile(r"[A-Za-z0-9]+(?:(?:[.-]|_+)[A-Za-z0-9]+)*")


@dataclass(frozen=True)
class StoredFile:
    """One file of a revision, with the hash by which its store knows it."""

    size: int  # bytes
    sha256: str | None  # hex; None for a small file on the Hub
    # git's id of the content (hex), where there is no sha256.
    blob_id: str | None = None

    def holds(self, content: Content, sha256: str | None = None) -> bool:
        """Whether this is `content`, whose sha256 need not be computed again where it is known."""
        if size_of(content) != self.size:
            return False
        if self.sha256 is not None:
            return (sha256 or sha256_of(content)) == self.sha256
        return git_id_of(content) == self.blob_id


@dataclass(frozen=True)
class Head:
    """The newest commit of a branch and its files; the commit is empty if there is no such branch yet."""

    kind: Kind
    repo: str
    branch: str
    commit: str
    files: Mapping[str, StoredFile]
    private: bool = False


@dataclass(frozen=True)
class CopyOf:
    """A change that copies the file of the same name from another commit, inside the store."""

    commit: str


class Present(dict[str, bytes]):
    """The files of `main` that were asked for, by name; `stored` describes all of its files."""

    stored: Mapping[str, StoredFile]


# What becomes of a file in a commit: new content, a copy from another commit, or (None) its removal.
Change = Content | CopyOf | None
# What `Store.update` is given: from the present files to those that change.
Update = Callable[[Present], Mapping[str, "bytes | CopyOf | None"]]
# File name -> what it becomes, made of what is there; the same bytes if that is as good. May raise ConflictError.
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
    attempts = 6  # how often a commit is tried while the store cannot be reached

    @abstractmethod
    def repo_id(self, repo: str) -> str:
        """The id under which the repository is known: `org/name` on the Hub, `name` in a folder."""

    @abstractmethod
    def repos(self, kind: Kind, prefix: str = "", *, tag: str | None = None) -> list[str]:
        """The names of the repositories that start with `prefix` and whose card on `main` has the tag, sorted."""

    @abstractmethod
    def branches(self, kind: Kind, repo: str) -> dict[str, str]:
        """Branch -> commit; empty if there is no such repository."""

    @abstractmethod
    def files(self, kind: Kind, repo: str, revision: str = "main") -> Mapping[str, StoredFile]:
        """The files of a revision. Raises NotFoundError."""

    @abstractmethod
    def pinned(
        self, kind: Kind, repo: str, path: str, revision: str | None = None, *, max_bytes: int = MAX_READ_BYTES
    ) -> tuple[bytes, str]:
        """One file's bytes, and the commit they were read at; `revision` is a branch, tag or commit, default `main`.

        Raises NotFoundError; IntegrityError for a file larger than `max_bytes`; UnavailableError if the store cannot
        be reached and the file is in no cache.
        """

    def read(
        self, kind: Kind, repo: str, path: str, revision: str | None = None, *, max_bytes: int = MAX_READ_BYTES
    ) -> bytes:
        """One file's bytes; see `pinned`."""
        return self.pinned(kind, repo, path, revision, max_bytes=max_bytes)[0]

    def check_written(self, kind: Kind, repo: str, path: str, content: bytes) -> None:  # noqa: B027 (only a folder can)
        """Raise IntegrityError if `content` of a file of `main` is not what was written there.

        What comes from the Hub was compared with its listing when it was read.
        """

    @abstractmethod
    def fetch(self, repo: str, revision: str, destination: Path | None = None) -> Path:
        """A folder with the files of a model's revision that a release may have, each compared with its hash.

        `destination` must be new or empty; without one the folder is the store's own and must not be written to.
        Raises NotFoundError, IntegrityError, and UnavailableError if neither the store nor a cache has the files.
        """

    def publish(
        self,
        repo: str,
        branch: str,
        files: Mapping[str, Content],
        weights: Mapping[str, str],
        message: str,
        merge: Merge = MappingProxyType({}),
    ) -> Publication:
        """Make `branch` of a model repository hold `files`; `weights` has the sha256 (hex) of each weights file.

        A new branch appears in one atomic step, a new repository before it. On an existing branch what differs is
        written, as `merge` makes it, and what should not be there removed, but for names that no release has.

        Raises:
            ConflictError: the branch has other weights.
            IntegrityError: what was read back is not what was sent.
        """
        checked_name(branch, "branch", 120)
        check_allowed(files)

        def differing(head: Head) -> Iterator[tuple[str, Content]]:
            for name in sorted(files, key=lambda name: (name == "run.json", name)):  # the record last
                content, listed = files[name], head.files.get(name)
                if listed is not None and listed.holds(content, weights.get(name)):
                    continue
                if listed is not None and name in merge:
                    present = self._read_at(head, name)
                    if (content := merge[name](present)) == present:
                        continue
                yield name, content

        def lacking(head: Head) -> Mapping[str, Change]:
            present_weights = {name: file.sha256 for name, file in head.files.items() if name.endswith(".safetensors")}
            if present_weights == dict(weights):
                stale = (name for name in head.files if name not in files and is_allowed(name))
                return dict(differing(head)) | dict.fromkeys(stale)
            # The first commit holds nothing of any run.
            if not head.files or self._is_first_commit(head):
                return {**files, **dict.fromkeys(name for name in head.files if name not in files)}
            listing = (
                ", ".join(f"{name} {(sha or 'unknown')[:12]}" for name, sha in sorted(present_weights.items()))
                or "none"
            )
            raise ConflictError(
                f"{self.repo_id(repo)} has a branch {branch!r} with other weights ({listing}); push under another "
                "branch or sweep name, or remove it first"
            )

        return self._write("model", repo, branch, lacking, message, weights)

    def update(self, kind: Kind, repo: str, reads: tuple[str, ...], change: Update, message: str) -> Publication:
        """Read files of `main`, and write what `change` makes of them, without losing anyone else's change.

        `change` gets those files of `reads` that exist and returns the files to write, the one that readers trust
        last. It is called again when another writer was faster; ConflictError after too many times.
        """

        def changed(head: Head) -> Mapping[str, Change]:
            present = Present({path: self._read_at(head, path) for path in reads if path in head.files})
            present.stored = head.files
            changes = change(present)
            for name in changes:
                if Path(name).name != name:
                    raise FilesError(f"file name {name!r}: allowed is a name without a folder")
            return {
                name: content
                for name, content in changes.items()
                if not (isinstance(content, bytes) and name in head.files and head.files[name].holds(content))
            }

        return self._write(kind, repo, "main", changed, message)

    def _write(
        self,
        kind: Kind,
        repo: str,
        branch: str,
        wanted: Callable[[Head], Mapping[str, Change]],
        message: str,
        sha256: Mapping[str, str] | None = None,
    ) -> Publication:
        """Commit what `wanted` makes of the head of a branch; `sha256` has the file hashes that are known."""
        repo_id, hashes, sent, failures = self.repo_id(repo), sha256 or {}, False, 0
        for attempt in range(_MAX_CONFLICTS):
            with self._exclusive(kind, repo, branch):
                head = self._head(kind, repo, branch, again=attempt > 0)
                changes = wanted(head)
                if not changes:
                    return Publication(repo_id, branch, head.commit, written=sent)
                try:
                    commit = self._commit(head, changes, message, hashes)
                except (ConflictError, UnavailableError) as error:
                    # Another writer was faster, or the answer was lost: what is there now decides.
                    if isinstance(error, UnavailableError):
                        sent, failures = True, failures + 1
                    if failures == self.attempts:
                        raise
                    self._pause(attempt, error)
                    continue
            self._check_commit(head, commit, changes, hashes)
            return Publication(repo_id, branch, commit, written=True)
        raise ConflictError(f"{repo_id}: other writers were faster {_MAX_CONFLICTS} times")

    def _exclusive(self, kind: Kind, repo: str, branch: str) -> AbstractContextManager[object]:
        """Held while a head is read, changed and committed, where a store can keep other writers out."""
        return nullcontext()

    @abstractmethod
    def _head(self, kind: Kind, repo: str, branch: str, *, again: bool) -> Head:
        """The head of a branch to be written; `again`: an earlier answer may be out of date."""

    @abstractmethod
    def _read_at(self, head: Head, path: str) -> bytes:
        """The bytes of a head's file."""

    @abstractmethod
    def _commit(self, head: Head, changes: Mapping[str, Change], message: str, sha256: Mapping[str, str]) -> str:
        """Put changes on top of a head; returns the new commit.

        Raises ConflictError if the branch has moved, UnavailableError if it is not known whether the commit landed.
        """

    @abstractmethod
    def _pause(self, attempt: int, error: Exception) -> None:
        """Wait after a failed attempt (from 0)."""

    def _is_first_commit(self, head: Head) -> bool:
        """Whether a head is at the commit that all branches of a model repository start from."""
        return False

    def _check_commit(  # noqa: B027 (a folder checks before it shows anything)
        self, head: Head, commit: str, changes: Mapping[str, Change], sha256: Mapping[str, str]
    ) -> None:
        """Read back a commit, in a store that could not check its files while it wrote them."""

    def _check(
        self, head: Head, changes: Mapping[str, Change], stored: Mapping[str, StoredFile], sha256: Mapping[str, str]
    ) -> None:
        """Raise IntegrityError unless the files `stored` by a commit on `head` have its changes."""
        copied = {content.commit for content in changes.values() if isinstance(content, CopyOf)}
        sources = {commit: self.files(head.kind, head.repo, commit) for commit in copied}

        def fault(name: str, content: Change) -> str:
            file = stored.get(name)
            if content is None:
                return f"{name} is still there" if file else ""
            if file is None:
                return f"{name} is missing"
            if isinstance(content, CopyOf):
                same = file == sources[content.commit].get(name)
            else:
                same = file.holds(content, sha256.get(name))
            return "" if same else f"{name} has other content"

        if wrong := [text for name, content in sorted(changes.items()) if (text := fault(name, content))]:
            raise IntegrityError(f"{self.repo_id(head.repo)} at {head.branch}: {', '.join(wrong[:10])}")

    def check_visibility(self, models: Iterable[str], index: str) -> None:  # noqa: B027 (a folder hides nothing)
        """Raise FilesError where private and public would mix: a private run in a public repository or index, or the
        runs of private repositories in a public index. `models` and `index` are names of repositories.
        """


def checked_name(name: str, what: str, max_length: int = 96) -> str:
    """`name`, if it can be a repository or branch: letters, digits and single `.`, `-`, `_` inside, or FilesError."""
    if len(name) > max_length or not _NAME.fullmatch(name):
        allowed = f"letters and digits joined by '.', '-' or '_', at most {max_length}"
        raise FilesError(f"{what} {name[:120]!r}: allowed are {allowed}")
    return name
