"""A store on the Hugging Face Hub, or any server that speaks its protocol (`HF_ENDPOINT`).

Branches start from the repository's first commit, so that they hold no file of `main`; `parent_commit` keeps writers
apart. A run takes four calls of the API (branch, preupload, commit, listing), pushed again one; a repository seven.
"""

from __future__ import annotations

import logging
import math
import os
import re
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hub.base.atomic import write_bytes
from hub.base.errors import ConflictError, FilesError, NotFoundError, UnavailableError
from hub.base.types import Fields
from hub.store import cache, transport
from hub.store.base import (
    MAX_READ_BYTES,
    Change,
    Changes,
    CopyOf,
    Head,
    Kind,
    Store,
    StoredFile,
    StoredFiles,
    check_name,
    check_size,
)
from hub.store.files import Hashes, copy_release, is_allowed
from hub.store.folder import LocalStore
from hub.store.transport import DEFAULT_TIMEOUT_SECONDS, Result, Transport

logger = logging.getLogger(__name__)

# The Hub counts the calls of its API over so long.
WINDOW_SECONDS = 300.0
# A free account has 1,000; the rest is for whatever else it does.
CALLS_PER_WINDOW = 950
# The Hub itself puts these into a new repository.
_HUB_FILES = frozenset({".gitattributes"})
_FETCH_WORKERS = 8
# A network that is down does not hold up whoever has the file already.
_ATTEMPTS_WITH_CACHE = 2


@dataclass
class _Repository:
    """A repository as this process last saw it; new branches start from its first commit."""

    branches: dict[str, str]
    first: str | None = None


class Pace:
    """Lets at most `calls` begin within any `seconds`, of all threads; `clock` and `sleep` are for simulations.

    The Hub refuses more, and a refused commit does not say how long to wait.
    """

    def __init__(
        self,
        calls: int = CALLS_PER_WINDOW,
        seconds: float = WINDOW_SECONDS,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.calls = calls
        self.seconds = seconds
        self._clock = clock
        self._sleep = sleep
        # Times at which the last calls begin, also those that still wait.
        self._start_times = deque([-math.inf] * calls, calls)
        self._lock = threading.Lock()

    def wait(self, calls: int) -> None:
        """Wait until so many calls may begin, all of them together."""
        with self._lock:
            now = self._clock()
            start_time = max(now, self._start_times[-1], self._start_times[calls - 1] + self.seconds)
            self._start_times.extend([start_time] * calls)
        if start_time > now:
            self._sleep(start_time - now)


class HubStore(Store):
    """The repositories of one organisation or user on the Hub. Safe to use from several threads.

    New repositories are `private` if asked; the token is never written or shown. Downloads go into the Hub's cache,
    and the default `pace` is that of a free account. For the other options see `Transport`.
    """

    def __init__(
        self,
        organisation: str,
        *,
        private: bool = False,
        endpoint: str | None = None,
        token: str | None = None,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        attempts: int = 6,
        pace: Pace | None = None,
    ) -> None:
        self.organisation = check_name(organisation, "organisation")
        self.uri = f"hf://{organisation}"
        self.private = private
        self.attempts = attempts
        self.transport = Transport(endpoint, token, timeout=timeout, attempts=attempts)
        self._api = self.transport.api
        self._repositories: dict[tuple[Kind, str], _Repository] = {}
        # Trees at commits, which do not change.
        self._trees: dict[tuple[Kind, str, str], StoredFiles] = {}
        self._checked: set[str] = set()
        self._lock = threading.Lock()
        self._pace = pace or Pace(sleep=_pause)

    def _call(self, function: Callable[[], Result], attempts: int | None = None, *, patient: bool = True) -> Result:
        """Call the API at the store's pace; unless `patient`, give up within seconds without a network."""
        self._pace.wait(1)
        return self.transport.call(function, attempts, patient=patient)

    # -- reading

    def repo_id(self, repo: str) -> str:
        return f"{self.organisation}/{check_name(repo.rpartition('/')[2], 'repository')}"

    def repos(self, kind: Kind, prefix: str = "", *, tag: str | None = None) -> list[str]:
        return sorted(name for name in self._search(kind, prefix, tag) if name.startswith(prefix))

    def _search(self, kind: Kind, text: str, tag: str | None = None) -> dict[str, bool]:
        """Find the repositories whose names contain a text, and whether each is private."""
        list_repositories = self._api.list_models if kind == "model" else self._api.list_datasets
        repositories = self._call(
            lambda: list(list_repositories(author=self.organisation, search=text or None, filter=tag)),
            patient=False,
        )
        return {item.id.rpartition("/")[2]: bool(item.private) for item in repositories}

    def branches(self, kind: Kind, repo: str) -> dict[str, str]:
        try:
            refs = self._call(lambda: self._api.list_repo_refs(self.repo_id(repo), repo_type=kind))
        except NotFoundError:
            return {}
        return {ref.name: ref.target_commit for ref in refs.branches}

    def files(self, kind: Kind, repo: str, revision: str = "main") -> StoredFiles:
        """Describe the files of a revision; those of a commit are requested once."""
        tree = self._trees.get((kind, repo, revision))
        return self._read_head(kind, repo, revision, patient=True).files if tree is None else tree

    def pinned(
        self, kind: Kind, repo: str, path: str, revision: str | None = None, *, max_bytes: int = MAX_READ_BYTES
    ) -> tuple[bytes, str]:
        repo_id = self.repo_id(repo)
        name = revision or "main"
        file = cache.find(repo_id, path, repo_type=kind, revision=name)
        try:
            head = self._read_head(kind, repo, revision, _ATTEMPTS_WITH_CACHE if file else None)
            content = self._read_at(head, path, max_bytes)
        except UnavailableError as error:
            if file is None:
                raise UnavailableError(f"{error}; {path} of {repo_id} is not in the cache either") from None
            logger.warning("%s; using the cached %s of %s", error, path, repo_id)
            check_size(repo_id, path, file.stat().st_size, max_bytes)
            content = file.read_bytes()
            cache.check(file, content, repo_id)
            # The file lies at <cache>/<repository>/snapshots/<commit>/<path>.
            commit = file.parents[path.count("/")].name
            return content, commit
        self._remember(kind, repo_id, name, head.commit)
        return content, head.commit

    def _read_head(
        self, kind: Kind, repo: str, revision: str | None, attempts: int | None = None, *, patient: bool = False
    ) -> Head:
        """Read commit and files (with sizes and hashes) of a revision, in one call."""
        options: Fields = {"repo_type": kind, "revision": revision, "files_metadata": True}
        info = self._call(lambda: self._api.repo_info(self.repo_id(repo), **options), attempts, patient=patient)
        commit = str(info.sha)
        items = info.siblings or []
        files = {item.rfilename: stored_file(item) for item in items if item.rfilename not in _HUB_FILES}
        self._trees[(kind, repo, commit)] = files
        return Head(kind, repo, revision or "main", commit, files, bool(info.private))

    def _read_at(self, head: Head, path: str, max_bytes: int = MAX_READ_BYTES) -> bytes:
        """Read the bytes of a file: two requests when it is not in the cache, none when it is."""
        repo_id = self.repo_id(head.repo)
        file = head.files.get(path)
        if file is None:
            raise NotFoundError(f"{repo_id} has no file {path!r} at {head.commit}")
        check_size(repo_id, path, file.size, max_bytes)
        options: Fields = {"repo_type": head.kind, "revision": head.commit}
        return cache.download(self.transport, repo_id, path, file, **options).read_bytes()

    def _remember(self, kind: Kind, repo_id: str, revision: str, commit: str) -> None:
        """Note in the Hub's cache which commit a branch was at, so that the same name works offline."""
        from huggingface_hub import constants
        from huggingface_hub.file_download import repo_folder_name

        if revision != commit:
            folder = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repo_id, repo_type=kind)
            try:
                write_bytes(folder / "refs" / revision, commit.encode())
            except OSError as error:
                logger.info("cannot write to the cache: %s", error.strerror)

    def fetch(self, repo: str, revision: str, destination: Path | None = None) -> Path:
        repo_id = self.repo_id(repo)
        try:
            head = self._read_head("model", repo, revision)
        except UnavailableError as error:
            folder = self._find_cached_release(repo_id, revision, error)
            return folder if destination is None else copy_release(folder, destination)
        files = {name: file for name, file in head.files.items() if is_allowed(name)}
        if not files:
            raise NotFoundError(f"{repo_id} has no files of a release at {revision}")

        def download(name: str) -> Path:
            options: Fields = {"revision": head.commit, "local_dir": destination}
            return cache.download(self.transport, repo_id, name, files[name], **options)

        # One file goes first: a Hub that fails is asked as often as for one file.
        first_name, *names = files
        folder = download(first_name).parent
        with ThreadPoolExecutor(_FETCH_WORKERS, thread_name_prefix="hub-fetch") as pool:
            list(pool.map(download, names))
        if destination is not None:
            shutil.rmtree(destination / ".cache", ignore_errors=True)
        return folder

    def _find_cached_release(self, repo_id: str, revision: str, error: UnavailableError) -> Path:
        """Find the folder of a model's revision in the cache, and check its files; raise `error` without one.

        Files that an interrupted download lacks show in the weights' sha256.
        """
        config = cache.find(repo_id, "config.json", revision=revision)
        if config is None:
            raise UnavailableError(f"{error}; {repo_id} is not in the cache either") from None
        logger.warning("%s; using the cached files of %s", error, repo_id)
        for file in config.parent.iterdir():
            if not is_allowed(file.name):
                continue
            # A link may have lost its blob.
            if not file.exists():
                raise UnavailableError(f"{error}; {file.name} of {repo_id} is not in the cache") from None
            cache.check(file, file, repo_id)
        return config.parent

    def check_visibility(self, models: Iterable[str], index: str) -> None:
        models = set(models)
        names = {index, *models}
        if names <= self._checked:
            return
        self.transport.require_token()
        sweep = index.removesuffix("-runs")
        # None where there is no index yet.
        is_index_private = self._search("dataset", sweep).get(index)
        privacy = {name: private for name, private in self._search("model", sweep).items() if name in models}
        private_models = sorted(name for name, private in privacy.items() if private)
        public = sorted(name for name, private in {**privacy, index: is_index_private}.items() if private is False)
        if self.private and public:
            raise FilesError(
                f"private: {self.repo_id(public[0])} is public; push without --private, choose another sweep name, or "
                "make the existing repositories private first"
            )
        if private_models and not self.private and not is_index_private:
            raise FilesError(
                f"private: {self.repo_id(private_models[0])} is private, and the index {self.repo_id(index)} is or "
                "would be public; push with --private"
            )
        self._checked.update(names)

    # -- writing

    def _head(self, kind: Kind, repo: str, branch: str, *, again: bool) -> Head:
        self.transport.require_token()
        repository = self._open(kind, repo)
        if branch == "main":
            head = self._read_head(kind, repo, "main")
            if self.private and not head.private:
                raise FilesError(f"private: {self.repo_id(repo)} is public; nothing was written to it")
            return head
        if again:
            repository.branches.update(self.branches(kind, repo))
        commit = repository.branches.get(branch) or self._start_branch(repo, branch, repository)
        return Head(kind, repo, branch, commit, self.files(kind, repo, commit))

    def _open(self, kind: Kind, repo: str) -> _Repository:
        """Make the repository if it does not exist."""
        options: Fields = {"repo_type": kind, "private": self.private or None}
        with self._lock:
            if (kind, repo) in self._repositories:
                return self._repositories[(kind, repo)]
            repository = _Repository({})
            try:
                self._call(lambda: self._api.create_repo(self.repo_id(repo), **options))
                if kind == "model":
                    repository.first = self._read_only_commit(repo)
            except ConflictError:
                if kind == "model":
                    repository.branches = self.branches(kind, repo)
            self._repositories[(kind, repo)] = repository
            return repository

    def _read_only_commit(self, repo: str) -> str | None:
        """Read the one commit of a model repository that was just made, from the headers of its one file."""
        from huggingface_hub import hf_hub_url

        url = hf_hub_url(self.repo_id(repo), ".gitattributes", revision="main", endpoint=self._api.endpoint)
        try:
            commit = self.transport.call(lambda: self._api.get_hf_file_metadata(url=url)).commit_hash
        except NotFoundError:
            return None
        self._trees[("model", repo, commit)] = {}
        return commit

    def _first_commit(self, repo: str) -> str:
        """Read the repository's first commit, which holds nothing of any run; every branch starts from it."""
        repository = self._open("model", repo)
        # One thread asks for all.
        with self._lock:
            if repository.first is None:
                repo_id = self.repo_id(repo)
                commits = self._call(lambda: self._api.list_repo_commits(repo_id))
                repository.first = str(commits[-1].commit_id)
                self.files("model", repo, repository.first)
            return repository.first

    def _is_first_commit(self, head: Head) -> bool:
        return head.commit == self._first_commit(head.repo)

    def _start_branch(self, repo: str, branch: str, repository: _Repository) -> str:
        """Make the branch; return its head, which is another's commit if someone was faster."""
        repo_id = self.repo_id(repo)
        first = self._first_commit(repo)
        try:
            self._call(lambda: self._api.create_branch(repo_id, branch=branch, revision=first))
        except ConflictError:
            # Someone else made it, or our own request did and its response was lost.
            repository.branches.update(self.branches("model", repo))
        return repository.branches.setdefault(branch, first)

    def _commit(self, head: Head, changes: Changes, message: str, sha256: Hashes) -> str:
        # Made anew for each attempt, because operations keep the state of the commit they were used in.
        operations = [_operation(name, content) for name, content in changes.items()]
        has_copies = any(isinstance(content, CopyOf) for content in changes.values())
        # A copy has its source and its destination looked up.
        self._pace.wait(4 if has_copies else 2)
        info = self.transport.call_once(
            lambda: self._api.create_commit(
                self.repo_id(head.repo),
                operations,
                commit_message=message,
                repo_type=head.kind,
                revision=head.branch,
                parent_commit=head.commit,
                # A Hub that fails sees one request in each attempt, not one for each file.
                num_threads=1,
            )
        )
        self._repositories[(head.kind, head.repo)].branches[head.branch] = str(info.oid)
        return str(info.oid)

    def _check_commit(self, head: Head, commit: str, changes: Changes, sha256: Hashes) -> None:
        self._check(head, changes, self.files(head.kind, head.repo, commit), sha256)

    def _pause(self, attempt: int, error: Exception) -> None:
        transport._sleep(self.transport.wait(attempt, error))


def open_store(uri: str | Path, *, private: bool = False) -> Store:
    """Open the store at `uri`: a folder (`path` or `file:path`), or an organisation or user of the Hub (`hf://name`).

    Only `hf://` leads to network calls; there, new repositories are `private` if asked. Other URIs raise FilesError.
    """
    text = str(uri)
    if text.startswith("hf://"):
        return HubStore(text.removeprefix("hf://").strip("/"), private=private)
    has_scheme = isinstance(uri, str) and re.match(r"[A-Za-z][A-Za-z0-9+.-]+:", uri)
    # An empty text comes, for example, of a shell's variable that is not set.
    if not uri or (has_scheme and not text.startswith("file:")):
        raise FilesError(f"store {uri!r}: allowed are a folder, file:FOLDER and hf://ORGANISATION")
    path = os.path.expanduser(text.removeprefix("file:"))
    if path.startswith("//"):
        path = "/" + path.lstrip("/")
    return LocalStore(Path(path))


def stored_file(item: Any) -> StoredFile:
    """Describe a file of the Hub's own listings."""
    if item.lfs:
        return StoredFile(item.size or 0, item.lfs.sha256)
    return StoredFile(item.size or 0, None, item.blob_id)


def _operation(name: str, content: Change) -> Any:
    from huggingface_hub import CommitOperationAdd, CommitOperationCopy, CommitOperationDelete

    if content is None:
        return CommitOperationDelete(name, is_folder=False)
    if isinstance(content, CopyOf):
        return CommitOperationCopy(name, name, src_revision=content.commit)
    return CommitOperationAdd(name, content)


def _pause(seconds: float) -> None:
    logger.info("waiting %.0f s: the Hub counts calls over five minutes", seconds)
    transport._sleep(seconds)
