"""Where releases lie: one small interface, a local folder and the Hub behind it.

    store = open_store("some/folder")     # LocalStore: no network, ever
    store = open_store("hf://some-org")   # HubStore: the Hub of HF_ENDPOINT

A store has model repositories, one branch per run, each branch one atomic publication; and data set repositories with
one branch, `main`, that is read, changed and written back. The local folder has the same content as the Hub:

    <root>/models/<repository>/<branch>/{config.json, model.safetensors, run.json, README.md, ...}
    <root>/datasets/<repository>/main/{runs.parquet, runs.jsonl, README.md}

so a branch's folder can be given to `from_pretrained` directly.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from hub.plain.errors import FilesError
from hub.store.difference import Equivalent, StoredFile
from hub.store.files import Content

Kind = Literal["model", "dataset"]


@dataclass(frozen=True)
class CopyOf:
    """In the place of a file's content: the file of the same name at this commit, copied inside the store."""

    commit: str


class Present(dict[str, bytes]):
    """The files of `main` that were asked for, by name; `stored` describes all of its files, when it is called."""

    def __init__(self, contents: Mapping[str, bytes], stored: Callable[[], Mapping[str, StoredFile]]) -> None:
        super().__init__(contents)
        self.stored = stored


# What `Store.update` is given: from the present files to those that change; None removes one.
Update = Callable[[Present], Mapping[str, "bytes | CopyOf | None"]]

NOTHING_ELSE: Equivalent = MappingProxyType({})
_NAME = re.compile(r"[A-Za-z0-9]+(?:(?:[.-]|_+)[A-Za-z0-9]+)*")
MAX_READ_BYTES = 512 * 1024 * 1024


@dataclass(frozen=True)
class Publication:
    """Where something was published: the repository's id, branch, commit, and whether this call wrote anything."""

    repo: str
    branch: str
    commit: str
    written: bool


class Store(ABC):
    """What both stores can do. Names of repositories are without the organisation, e.g. `demo-d256-E8`."""

    uri: str

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
    def files(self, kind: Kind, repo: str, revision: str = "main") -> dict[str, StoredFile]:
        """The files of a revision. Raises NotFoundError."""

    @abstractmethod
    def pinned(
        self, kind: Kind, repo: str, path: str, revision: str | None = None, *, max_bytes: int = MAX_READ_BYTES
    ) -> tuple[bytes, str]:
        """One file's bytes, and the commit they were read at; `revision` is a branch, tag or commit, default `main`.

        Raises:
            NotFoundError: no such repository, revision or file.
            IntegrityError: the file is larger than `max_bytes`.
            UnavailableError: the store cannot be reached and the file is in no cache.
        """

    def read(
        self, kind: Kind, repo: str, path: str, revision: str | None = None, *, max_bytes: int = MAX_READ_BYTES
    ) -> bytes:
        """One file's bytes; see `pinned`."""
        return self.pinned(kind, repo, path, revision, max_bytes=max_bytes)[0]

    @abstractmethod
    def publish(
        self,
        repo: str,
        branch: str,
        files: Mapping[str, Content],
        weights: Mapping[str, str],
        message: str,
        equivalent: Equivalent = NOTHING_ELSE,
    ) -> Publication:
        """Make `branch` of a model repository hold `files`, and check it afterwards.

        A new branch appears in one atomic step. On one that is there, every file is compared: what differs is written,
        what should not be there is removed (`written` is False if there was nothing to do). Files that no release can
        have are left alone. The repository is made if needed.

        Args:
            repo: the repository's name.
            branch: the branch's name.
            files: name -> content.
            weights: name of each weights file -> sha256 (hex).
            message: says in the history what this is.
            equivalent: what may differ without being written again; see `hub.store.difference.Equivalent`.

        Raises:
            ConflictError: the branch exists with other weights.
            IntegrityError: what was read back is not what was sent.
        """

    @abstractmethod
    def update(self, kind: Kind, repo: str, reads: tuple[str, ...], change: Update, message: str) -> Publication:
        """Read files of `main`, and write what `change` makes of them, without losing anyone else's change.

        `change` gets the present content of the files named in `reads` (missing ones are absent) and returns the files
        to write, the one that readers trust last; none: nothing is written. A file may be copied from another commit
        (`CopyOf`) or removed (None). `change` may be called several times, when another writer was faster.

        Raises:
            ConflictError: other writers were faster too many times, or hold the lock too long.
        """

    def check_visibility(self, models: Iterable[str], index: str) -> None:  # noqa: B027 (a folder hides nothing)
        """Refuse to write where private and public would mix: a private run into a public repository or index, or the
        runs of private repositories into a public index.

        Args:
            models: names of the model repositories that are to be written or listed.
            index: name of the data set repository with their index.

        Raises:
            FilesError: names the repositories and what to do. Nothing was written.
        """

    @abstractmethod
    def tensor_shapes(self, repo: str, revision: str) -> dict[str, tuple[int, ...]]:
        """The shapes of all tensors of a model's revision, from the headers of its safetensors files.

        Raises:
            NotFoundError: no such repository or revision, or no safetensors in it.
        """

    @abstractmethod
    def fetch(self, repo: str, revision: str, destination: Path | None = None) -> Path:
        """A folder with the files of a model's revision that a release may have; `destination` must be new or empty.

        Without a destination the folder is the store's own (a cache on the Hub) and must not be written to.
        """


def open_store(uri: str | Path, *, private: bool = False) -> Store:
    """The store at `uri`: a folder (`path` or `file:path`), or an organisation or user of the Hub (`hf://name`).

    Args:
        uri: where. Only an `hf://` URI ever leads to a network call.
        private: repositories that are made on the Hub are private.

    Raises:
        FilesError: the URI has another form.
    """
    if isinstance(uri, str) and uri.startswith("hf://"):
        from hub.store.hub import HubStore

        return HubStore(uri.removeprefix("hf://").strip("/"), private=private)
    if isinstance(uri, str) and re.match(r"[A-Za-z][A-Za-z0-9+.-]+:", uri) and not uri.startswith("file:"):
        raise FilesError(f"store {uri!r}: allowed are a folder, file:FOLDER and hf://ORGANISATION")
    from hub.store.folder import LocalStore

    path = str(uri).removeprefix("file:")
    return LocalStore(Path("/" + path.lstrip("/") if path.startswith("//") else path))


def checked_name(name: str, what: str, max_length: int = 96) -> str:
    """`name`, if it can be a repository or branch: letters, digits and single `.`, `-`, `_` inside.

    Raises:
        FilesError: names what is allowed.
    """
    if len(name) > max_length or not _NAME.fullmatch(name):
        raise FilesError(
            f"{what} {name[:120]!r}: allowed are letters and digits joined by '.', '-' or '_', at most {max_length}"
        )
    return name
