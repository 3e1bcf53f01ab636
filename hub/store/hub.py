"""A store on the Hugging Face Hub, or any server that speaks its protocol (`HF_ENDPOINT`).

What is done here that `huggingface_hub` leaves to its caller:

* A revision is one `create_commit` on a branch made from the repository's first commit, so that no file of `main` lies
  beside ours, with `parent_commit`, so that two writers of one branch cannot mix.
* What a branch lacks is found by the hashes of one listing, sent, and after the commit compared in one listing again
  (`hub.store.transport` has the retries).
* A commit whose response was lost may have landed: the branch is read before anything is sent again.
* `main` and the index are changed with `parent_commit` and a new attempt on 412: parallel writers lose nothing.
* Reading resolves the revision once and uses the commit from there on; offline, the cache answers.

Calls of the API per run: create branch, preupload, commit, listing; pushed again: one listing. Per repository: create
it, and six for its `main`. `hub.store.pace` keeps a release of many runs below the limit of a free account.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hub.plain.atomic import write_bytes
from hub.plain.errors import ConflictError, FilesError, IntegrityError, NotFoundError, UnavailableError
from hub.store import transport
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
from hub.store.difference import (
    Difference,
    Equivalent,
    StoredFile,
    difference,
    have_weights,
    problems,
    refuse_other_weights,
)
from hub.store.files import Content, is_allowed
from hub.store.pace import Pace
from hub.store.transport import DEFAULT_TIMEOUT_SECONDS, Result, Transport

logger = logging.getLogger(__name__)

_OWN_FILES = frozenset({".gitattributes"})  # what the Hub itself puts into a new repository
_COMMIT = re.compile(r"[0-9a-f]{40}")
_UPDATE_ATTEMPTS = 30
_FETCH_WORKERS = 8
_ATTEMPTS_WITH_CACHE = 2  # who has the file already is not kept waiting for a network that is down


@dataclass
class _Repository:
    """What this process knows of a repository: its branches, the commit that new branches start from, its files."""

    branches: dict[str, str]
    base: str | None = None
    base_files: tuple[str, ...] = ()  # of a squashed history only; a release removes them from its branch


class HubStore(Store):
    """The repositories of one organisation or user on the Hub. Safe to use from several threads.

    Args:
        organisation: the namespace.
        private: repositories that are made are private.
        endpoint: the server; default `HF_ENDPOINT`, else huggingface.co.
        token: an access token; default: the one that `hf auth login` or `HF_TOKEN` left. It is never written or shown.
        cache_dir: where downloads are kept; default: the Hub's cache.
        timeout: seconds that a server may stay silent.
        attempts: how often a call is tried before it is an error.
        longest_wait: seconds between two attempts at most; a server that asks for a longer pause is an error.
        pace: how many calls of the API may be made in five minutes; default: what a free account may make.
    """

    def __init__(
        self,
        organisation: str,
        *,
        private: bool = False,
        endpoint: str | None = None,
        token: str | None = None,
        cache_dir: str | Path | None = None,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        attempts: int = 6,
        longest_wait: float = 300.0,
        pace: Pace | None = None,
    ) -> None:
        self.organisation = checked_name(organisation, "organisation")
        self.uri = f"hf://{organisation}"
        self.private = private
        self.transport = Transport(endpoint, token, timeout=timeout, attempts=attempts, longest_wait=longest_wait)
        self._api = self.transport.api
        self._cache_dir = None if cache_dir is None else Path(cache_dir)
        self._known: dict[tuple[Kind, str], _Repository] = {}
        self._trees: dict[tuple[Kind, str, str], dict[str, StoredFile]] = {}  # at commits, which do not change
        self._checked: set[tuple[Kind, str]] = set()
        self._lock = threading.Lock()
        self._pace = pace or Pace(sleep=_pause)

    def _call(self, function: Callable[[], Result], attempts: int | None = None) -> Result:
        """One call of the API, when the pace allows it."""
        self._pace.take(1)
        return self.transport.call(function, attempts)

    def _read_call(self, function: Callable[[], Result], attempts: int | None = None) -> Result:
        """The same for reading, which gives up sooner where there is no network."""
        self._pace.take(1)
        return self.transport.read(function, attempts)

    def repo_id(self, repo: str) -> str:
        return f"{self.organisation}/{checked_name(repo.rpartition('/')[2], 'repository')}"

    def repos(self, kind: Kind, prefix: str = "", *, tag: str | None = None) -> list[str]:
        lister = self._api.list_models if kind == "model" else self._api.list_datasets
        wanted = {"author": self.organisation, "search": prefix or None, "filter": tag}
        found = self._read_call(lambda: list(lister(**wanted)))
        names = (item.id.rpartition("/")[2] for item in found)
        return sorted(name for name in names if name.startswith(prefix))

    def branches(self, kind: Kind, repo: str) -> dict[str, str]:
        try:
            refs = self._call(lambda: self._api.list_repo_refs(self.repo_id(repo), repo_type=kind))
        except NotFoundError:
            return {}
        return {ref.name: ref.target_commit for ref in refs.branches}

    def files(self, kind: Kind, repo: str, revision: str = "main") -> dict[str, StoredFile]:
        return {path: file for path, file in self._tree(kind, repo, revision).items() if path not in _OWN_FILES}

    def pinned(
        self, kind: Kind, repo: str, path: str, revision: str | None = None, *, max_bytes: int = MAX_READ_BYTES
    ) -> tuple[bytes, str]:
        from huggingface_hub import try_to_load_from_cache

        repo_id, wanted = self.repo_id(repo), revision or "main"
        cached = try_to_load_from_cache(repo_id, path, repo_type=kind, revision=wanted, cache_dir=self._cache_dir)
        attempts = _ATTEMPTS_WITH_CACHE if isinstance(cached, str) else None
        try:
            info = self._info(kind, repo, revision, attempts)
            content = self._read_at(kind, repo, path, info.sha, _listed(info), max_bytes)
        except UnavailableError as error:
            if not isinstance(cached, str):
                raise UnavailableError(f"{error}; {path} of {repo_id} is not in the cache either") from None
            logger.warning("%s; using the cached %s of %s", error, path, repo_id)
            # <cache>/<repository>/snapshots/<commit>/<path>
            return _bounded(Path(cached), max_bytes, repo_id), Path(cached).parents[path.count("/")].name
        self._remember(kind, repo_id, wanted, info.sha)
        return content, str(info.sha)

    def _info(self, kind: Kind, repo: str, revision: str | None, attempts: int | None = None) -> Any:
        """Commit and files (with sizes and hashes) of a revision, in one call."""
        repo_id = self.repo_id(repo)
        info = self._read_call(
            lambda: self._api.repo_info(repo_id, repo_type=kind, revision=revision, files_metadata=True), attempts
        )
        self._trees[(kind, repo, str(info.sha))] = _listed(info)
        return info

    def _read_at(
        self,
        kind: Kind,
        repo: str,
        path: str,
        commit: str,
        files: Mapping[str, StoredFile],
        max_bytes: int = MAX_READ_BYTES,
    ) -> bytes:
        """One of the `files` of a commit: two requests when it is not in the cache, none when it is."""
        from huggingface_hub import hf_hub_download

        repo_id = self.repo_id(repo)
        if (found := files.get(path)) is None:
            raise NotFoundError(f"{repo_id} has no file {path!r} at {commit}")
        if found.size > max_bytes:
            raise IntegrityError(f"{path} of {repo_id} has {found.size:,} bytes, allowed are {max_bytes:,}")
        where = {"repo_type": kind, "revision": commit, "cache_dir": self._cache_dir, **self.transport.access}
        for fresh in (False, True):  # a damaged file in the cache is fetched once more
            local = self.transport.read(
                lambda force=fresh: hf_hub_download(repo_id, path, force_download=force, **where)  # type: ignore[misc]
            )
            content = _bounded(Path(local), max_bytes, repo_id)
            if found.holds(content):
                return content
        raise IntegrityError(f"{path} of {repo_id} was received with other content than the Hub lists")

    def publish(
        self,
        repo: str,
        branch: str,
        files: Mapping[str, Content],
        weights: Mapping[str, str],
        message: str,
        equivalent: Equivalent = NOTHING_ELSE,
    ) -> Publication:
        checked_name(branch, "branch", 120)
        for name in files:
            if not is_allowed(name):
                raise FilesError(f"file {name!r} is not on the list of what a release may hold")
        self.transport.require_token()
        known = self._open("model", repo)
        repo_id, place = self.repo_id(repo), f"{self.repo_id(repo)} has a branch {branch!r}"
        head = known.branches.get(branch) or self._start_branch(repo, branch, known)
        sent, last = False, None
        for attempt in range(self.transport.attempts):
            change = self._lacking(repo, head, files, weights, equivalent, known, place)
            if change is None:
                known.branches[branch] = head
                return Publication(repo_id, branch, head, written=sent)
            try:
                operations = {**change.written, **dict.fromkeys(change.removed)}
                commit = self._create_commit("model", repo, branch, operations, message, parent=head)
            except (ConflictError, UnavailableError) as error:
                # The commit landed and its response was lost, or another writer was faster: the branch tells.
                sent, last = sent or isinstance(error, UnavailableError), error
                now = self.branches("model", repo).get(branch, head)
                if now == head:
                    self.transport.pause(attempt, error)
                head = now
                continue
            self._verify("model", repo, commit, files, weights, change.written)
            known.branches[branch] = commit
            return Publication(repo_id, branch, commit, written=True)
        change = self._lacking(repo, head, files, weights, equivalent, known, place)
        if change is None:
            return Publication(repo_id, branch, head, written=sent)
        raise UnavailableError(f"{repo_id}: no commit to {branch} in {self.transport.attempts} attempts: {last}")

    def _lacking(
        self,
        repo: str,
        head: str,
        files: Mapping[str, Content],
        weights: Mapping[str, str],
        equivalent: Equivalent,
        known: _Repository,
        place: str,
    ) -> Difference | None:
        """What the commit `head` lacks; None if nothing. A branch at the first commit holds nothing of anybody's."""
        if head == known.base:
            return Difference(files, tuple(path for path in known.base_files if path not in files))
        there = self.files("model", repo, head)
        if not have_weights(there, weights) and head == self._base(repo, known):
            return Difference(files, tuple(path for path in known.base_files if path not in files))
        refuse_other_weights(place, there, weights)

        def read(name: str) -> bytes:
            return self._read_at("model", repo, name, head, there)

        return difference(files, weights, there, equivalent, read) or None

    def update(self, kind: Kind, repo: str, reads: tuple[str, ...], change: Update, message: str) -> Publication:
        self.transport.require_token()
        self._open(kind, repo)
        repo_id, sent, failed = self.repo_id(repo), False, 0
        for attempt in range(_UPDATE_ATTEMPTS):
            head, present = self._present(kind, repo, reads)
            changed = change(present)
            if not changed:
                return Publication(repo_id, "main", head, written=sent)
            try:
                commit = self._create_commit(kind, repo, "main", changed, message, parent=head)
            except (ConflictError, UnavailableError) as error:
                # Someone else was faster, or the response was lost: what is there now decides, so read again.
                logger.info("%s: attempt %d: %s", repo_id, attempt + 1, error)
                sent = sent or isinstance(error, UnavailableError)
                failed += isinstance(error, UnavailableError)
                if failed == self.transport.attempts:
                    raise
                self.transport.pause(attempt, error)
                continue
            self._verify_changed(kind, repo, commit, changed)
            return Publication(repo_id, "main", commit, written=True)
        raise ConflictError(f"{repo_id}: other writers were faster {_UPDATE_ATTEMPTS} times")

    def check_visibility(self, models: Iterable[str], index: str) -> None:
        names: dict[tuple[Kind, str], None] = {("model", name): None for name in models}
        names[("dataset", index)] = None
        if set(names) <= self._checked:
            return
        self.transport.require_token()
        shown = {kind: self._visible(kind, index.removesuffix("-runs")) for kind in ("model", "dataset")}
        there = {key: shown[key[0]][key[1]] for key in names if key[1] in shown[key[0]]}
        public = [self.repo_id(name) for (_, name), private in there.items() if not private]
        hidden = [self.repo_id(name) for (kind, name), private in there.items() if kind == "model" and private]
        if self.private and public:
            raise FilesError(
                f"private: {', '.join(public[:5])} {'is' if len(public) == 1 else 'are'} public; push without "
                "--private, choose another sweep name, or make what is there private first"
            )
        if not self.private and hidden and not there.get(("dataset", index), False):
            raise FilesError(
                f"private: {', '.join(hidden[:5])} {'is' if len(hidden) == 1 else 'are'} private, and the index "
                f"{self.repo_id(index)} {'is' if ('dataset', index) in there else 'would be'} public; push with "
                "--private"
            )
        self._checked |= set(names)

    def _visible(self, kind: Kind, prefix: str) -> dict[str, bool]:
        """Name -> whether it is private, of the repositories that start so."""
        lister = self._api.list_models if kind == "model" else self._api.list_datasets
        found = self._call(lambda: list(lister(author=self.organisation, search=prefix)))
        return {item.id.rpartition("/")[2]: bool(item.private) for item in found}

    def tensor_shapes(self, repo: str, revision: str) -> dict[str, tuple[int, ...]]:
        repo_id = self.repo_id(repo)
        found = self._call(lambda: self._api.get_safetensors_metadata(repo_id, revision=revision))
        files = found.files_metadata.values()
        return {name: tuple(info.shape) for file in files for name, info in file.tensors.items()}

    def fetch(self, repo: str, revision: str, destination: Path | None = None) -> Path:
        import shutil

        from huggingface_hub import hf_hub_download

        repo_id = self.repo_id(repo)
        try:
            info = self._info("model", repo, revision)
        except UnavailableError as error:
            before = self._fetched_before(repo_id, revision) if destination is None else None
            if before is None:
                raise
            logger.warning("%s; using the cached files of %s", error, repo_id)
            return before
        names = [item.rfilename for item in info.siblings or [] if is_allowed(item.rfilename)]
        if not names:
            raise NotFoundError(f"{repo_id} has no files of a release at {revision}")
        where = {"revision": info.sha, "cache_dir": self._cache_dir, "local_dir": destination, **self.transport.access}

        def download(name: str) -> Path:
            return Path(self.transport.read(lambda: hf_hub_download(repo_id, name, **where)))

        # One before the others: a Hub that fails is asked as often as for one file.
        folder = download(names[0]).parent
        with ThreadPoolExecutor(_FETCH_WORKERS, thread_name_prefix="hub-fetch") as pool:
            list(pool.map(download, names[1:]))
        if destination is not None:
            shutil.rmtree(destination / ".cache", ignore_errors=True)
        return folder

    def _fetched_before(self, repo_id: str, revision: str) -> Path | None:
        """The folder of the cache; what lacks in it, if the download was interrupted, shows in the weights' sha256."""
        from huggingface_hub import snapshot_download

        cached = {"cache_dir": self._cache_dir, "local_files_only": True}
        try:
            return Path(self.transport.call_once(lambda: snapshot_download(repo_id, revision=revision, **cached)))
        except UnavailableError:
            return None

    # -- repositories and branches

    def _open(self, kind: Kind, repo: str) -> _Repository:
        """What is known of the repository, which is made if it does not exist."""
        with self._lock:
            known = self._known.get((kind, repo))
            if known is None:
                known = self._known[(kind, repo)] = self._create_or_list(kind, repo)
            return known

    def _create_or_list(self, kind: Kind, repo: str) -> _Repository:
        repo_id = self.repo_id(repo)
        try:
            self._call(lambda: self._api.create_repo(repo_id, repo_type=kind, private=self.private or None))
        except ConflictError:
            return _Repository(self.branches(kind, repo) if kind == "model" else {})
        if kind == "dataset":
            return _Repository({})
        try:  # in a repository that was just made, main is the first commit
            return _Repository({}, base=self._head_of(kind, repo, ".gitattributes", "main").commit_hash)
        except NotFoundError:
            return _Repository({})

    def _base(self, repo: str, known: _Repository) -> str:
        """The repository's first commit, which holds nothing of any run; every branch starts from it."""
        with self._lock:  # one thread asks for all
            if known.base is None:
                repo_id = self.repo_id(repo)
                base: str = self._call(lambda: self._api.list_repo_commits(repo_id))[-1].commit_id
                known.base_files = tuple(path for path in self._tree("model", repo, base) if path not in _OWN_FILES)
                known.base = base
            return known.base

    def _start_branch(self, repo: str, branch: str, known: _Repository) -> str:
        """Make the branch; returns its head, which is another's commit if someone was faster."""
        repo_id, base = self.repo_id(repo), self._base(repo, known)
        try:
            self._call(lambda: self._api.create_branch(repo_id, branch=branch, revision=base))
        except ConflictError:  # someone else made it, or our own request did and its response was lost
            known.branches.update(self.branches("model", repo))
        return known.branches.setdefault(branch, base)

    # -- commits

    def _create_commit(
        self,
        kind: Kind,
        repo: str,
        branch: str,
        changes: Mapping[str, Content | CopyOf | None],
        message: str,
        *,
        parent: str,
    ) -> str:
        # Made anew for each attempt, because operations keep the state of the commit they were used in.
        operations = [_operation(name, content) for name, content in changes.items()]
        copied = any(isinstance(content, CopyOf) for content in changes.values())
        self._pace.take(4 if copied else 2)  # a copy has its source and its destination looked up
        info = self.transport.call_once(
            lambda: self._api.create_commit(
                self.repo_id(repo),
                operations,
                commit_message=message,
                repo_type=kind,
                revision=branch,
                parent_commit=parent,
            )
        )
        return str(info.oid)

    def _verify(
        self,
        kind: Kind,
        repo: str,
        commit: str,
        files: Mapping[str, Content],
        weights: Mapping[str, str],
        written: Mapping[str, Content],
    ) -> None:
        """List what lies at the commit, and compare the hash of every file that was sent."""
        if wrong := problems(files, weights, self.files(kind, repo, commit), written):
            raise IntegrityError(f"{self.repo_id(repo)} at {commit}: {', '.join(wrong[:10])}")

    def _verify_changed(
        self, kind: Kind, repo: str, commit: str, changed: Mapping[str, bytes | CopyOf | None]
    ) -> None:
        """The same for `main`, where a file may also have been copied from another commit, or removed."""
        sent = {name: content for name, content in changed.items() if isinstance(content, bytes)}
        self._verify(kind, repo, commit, sent, {}, sent)
        there = self.files(kind, repo, commit)
        wrong = [
            f"{name} is not as it should be"
            for name, content in changed.items()
            if (content is None and name in there)
            or (isinstance(content, CopyOf) and there.get(name) != self.files(kind, repo, content.commit).get(name))
        ]
        if wrong:
            raise IntegrityError(f"{self.repo_id(repo)} at {commit}: {', '.join(wrong[:10])}")

    def _head_of(self, kind: Kind, repo: str, path: str, revision: str) -> Any:
        """What the Hub says of a file in the headers of its download: commit_hash, etag, size."""
        from huggingface_hub import get_hf_file_metadata, hf_hub_url

        access = self.transport.access
        url = hf_hub_url(self.repo_id(repo), path, repo_type=kind, revision=revision, endpoint=access["endpoint"])
        return self.transport.call(lambda: get_hf_file_metadata(url, token=access["token"]))

    def _tree(self, kind: Kind, repo: str, revision: str) -> dict[str, StoredFile]:
        """The files of a revision by path, from one listing; that of a commit is asked for once."""
        if (found := self._trees.get((kind, repo, revision))) is not None:
            return found
        repo_id = self.repo_id(repo)
        listed = self._call(
            lambda: list(self._api.list_repo_tree(repo_id, recursive=True, revision=revision, repo_type=kind))
        )
        tree = {item.path: _stored(item) for item in listed if hasattr(item, "blob_id")}
        if _COMMIT.fullmatch(revision):
            self._trees[(kind, repo, revision)] = tree
        return tree

    def _present(self, kind: Kind, repo: str, reads: tuple[str, ...]) -> tuple[str, Present]:
        """The head of `main` and the files named in `reads` at that very commit."""
        info = self._info(kind, repo, "main")
        if self.private and not info.private:
            raise FilesError(f"private: {self.repo_id(repo)} is public; nothing was written to it")
        stored = _listed(info)
        contents = {path: self._read_at(kind, repo, path, info.sha, stored) for path in reads if path in stored}
        return info.sha, Present(contents, lambda: stored)

    def _remember(self, kind: Kind, repo_id: str, revision: str, commit: str) -> None:
        """Note in the Hub's cache which commit a branch was at, so that the same name works offline."""
        from huggingface_hub import constants
        from huggingface_hub.file_download import repo_folder_name

        if revision != commit:
            cache = self._cache_dir or Path(constants.HF_HUB_CACHE)
            folder = cache / repo_folder_name(repo_id=repo_id, repo_type=kind)
            try:
                write_bytes(folder / "refs" / revision, commit.encode())
            except OSError as error:
                logger.info("cannot write to the cache: %s", error.strerror)


def _listed(info: Any) -> dict[str, StoredFile]:
    """The files of a revision, from what the Hub says of it."""
    return {item.rfilename: _stored(item) for item in info.siblings or [] if item.rfilename not in _OWN_FILES}


def _stored(item: Any) -> StoredFile:
    if item.lfs:
        return StoredFile(item.size or 0, item.lfs.sha256)
    return StoredFile(item.size or 0, None, item.blob_id)


def _operation(name: str, content: Content | CopyOf | None) -> Any:
    from huggingface_hub import CommitOperationAdd, CommitOperationCopy, CommitOperationDelete

    if content is None:
        return CommitOperationDelete(name, is_folder=False)
    if isinstance(content, CopyOf):
        return CommitOperationCopy(name, name, src_revision=content.commit)
    return CommitOperationAdd(name, content)


def _pause(seconds: float) -> None:
    logger.info("waiting %.0f s: the Hub counts calls over five minutes", seconds)
    transport._sleep(seconds)


def _bounded(path: Path, max_bytes: int, repo_id: str) -> bytes:
    if path.stat().st_size > max_bytes:
        raise IntegrityError(f"{path.name} of {repo_id} is larger than {max_bytes:,} bytes")
    return path.read_bytes()
