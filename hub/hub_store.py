"""A store on the Hugging Face Hub, or any server that speaks its protocol (`HF_ENDPOINT`).

What is done here that `huggingface_hub` leaves to its caller:

* A revision is one `create_commit` on a branch made from the repository's first commit, so that no file of `main` lies
  beside ours, with `parent_commit`, so that two writers of one branch cannot mix.
* After a commit every file is read back at that commit and its hash compared (`hub.transport` has the retries).
* A commit whose response was lost may have landed: the branch is read before anything is sent again.
* The index is changed with `parent_commit` and a new attempt on 412, so that parallel writers lose no row.
* Reading resolves the revision once and uses the commit from there on; offline, the cache answers.

Calls of the API per run: create branch, preupload, commit; once for a new repository: create it. What is read back
comes from the downloads' headers, which the Hub counts apart and allows ten times as often.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .atomic import write_bytes
from .errors import ConflictError, FilesError, IntegrityError, NotFoundError, UnavailableError
from .files import Content, content_hash, is_allowed, same_weights, weights_of
from .store import MAX_READ_BYTES, Kind, Publication, Store, StoredFile, Update, checked_name
from .transport import DEFAULT_TIMEOUT_SECONDS, Transport

logger = logging.getLogger(__name__)

_OWN_FILES = frozenset({".gitattributes"})  # what the Hub itself puts into a new repository
_SHA256_DIGITS = 64
_UPDATE_ATTEMPTS = 30
_FETCH_WORKERS = 8
_ATTEMPTS_WITH_CACHE = 2  # who has the file already is not kept waiting for a network that is down


@dataclass
class _Repository:
    """What this process knows of a repository: its branches, the commit that new branches start from, its files."""

    branches: dict[str, str]
    base: str | None = None
    base_files: tuple[str, ...] = ()


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
    ) -> None:
        self.organisation = checked_name(organisation, "organisation")
        self.uri = f"hf://{organisation}"
        self.private = private
        self.transport = Transport(endpoint, token, timeout=timeout, attempts=attempts, longest_wait=longest_wait)
        self._api = self.transport.api
        self._cache_dir = None if cache_dir is None else Path(cache_dir)
        self._known: dict[tuple[Kind, str], _Repository] = {}
        self._lock = threading.Lock()

    def repo_id(self, repo: str) -> str:
        return f"{self.organisation}/{checked_name(repo.rpartition('/')[2], 'repository')}"

    def repos(self, kind: Kind, prefix: str = "", *, tag: str | None = None) -> list[str]:
        lister = self._api.list_models if kind == "model" else self._api.list_datasets
        wanted = {"author": self.organisation, "search": prefix or None, "filter": tag}
        found = self.transport.read(lambda: list(lister(**wanted)))
        names = (item.id.rpartition("/")[2] for item in found)
        return sorted(name for name in names if name.startswith(prefix))

    def branches(self, kind: Kind, repo: str) -> dict[str, str]:
        try:
            refs = self.transport.call(lambda: self._api.list_repo_refs(self.repo_id(repo), repo_type=kind))
        except NotFoundError:
            return {}
        return {ref.name: ref.target_commit for ref in refs.branches}

    def files(self, kind: Kind, repo: str, revision: str = "main") -> dict[str, StoredFile]:
        tree = self._tree(kind, repo, revision)
        return {
            path: StoredFile(item.size, item.lfs.sha256 if item.lfs else None)
            for path, item in tree.items()
            if path not in _OWN_FILES
        }

    def pinned(
        self, kind: Kind, repo: str, path: str, revision: str | None = None, *, max_bytes: int = MAX_READ_BYTES
    ) -> tuple[bytes, str]:
        from huggingface_hub import try_to_load_from_cache

        repo_id, wanted = self.repo_id(repo), revision or "main"
        cached = try_to_load_from_cache(repo_id, path, repo_type=kind, revision=wanted, cache_dir=self._cache_dir)
        attempts = _ATTEMPTS_WITH_CACHE if isinstance(cached, str) else None
        try:
            info = self._info(kind, repo, revision, attempts)
            content = self._read_at(kind, repo, path, info, max_bytes)
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
        return self.transport.read(
            lambda: self._api.repo_info(repo_id, repo_type=kind, revision=revision, files_metadata=True), attempts
        )

    def _read_at(self, kind: Kind, repo: str, path: str, info: Any, max_bytes: int) -> bytes:
        """A file at the commit of `info`: two requests when it is not in the cache, none when it is."""
        from huggingface_hub import hf_hub_download

        repo_id = self.repo_id(repo)
        found = next((item for item in info.siblings or [] if item.rfilename == path), None)
        if found is None:
            raise NotFoundError(f"{repo_id} has no file {path!r} at {info.sha}")
        if found.size is not None and found.size > max_bytes:
            raise IntegrityError(f"{path} of {repo_id} has {found.size:,} bytes, allowed are {max_bytes:,}")
        where = {"repo_type": kind, "revision": info.sha, "cache_dir": self._cache_dir, **self.transport.access}
        expected = found.lfs.sha256 if found.lfs else found.blob_id
        for fresh in (False, True):  # a damaged file in the cache is fetched once more
            local = self.transport.read(
                lambda force=fresh: hf_hub_download(repo_id, path, force_download=force, **where)  # type: ignore[misc]
            )
            content = _bounded(Path(local), max_bytes, repo_id)
            actual = content_hash(content, large=found.lfs is not None)
            if actual == expected:
                return content
        raise IntegrityError(f"{path} of {repo_id} was received with hash {actual}, the Hub says {expected}")

    def publish(
        self, repo: str, branch: str, files: Mapping[str, Content], weights: Mapping[str, str], message: str
    ) -> Publication:
        checked_name(branch, "branch", 120)
        for name in files:
            if not is_allowed(name):
                raise FilesError(f"file {name!r} is not on the list of what a release may hold")
        self.transport.require_token()
        known = self._open("model", repo)
        head = known.branches.get(branch)
        if head is None:
            head = self._start_branch(repo, branch, known)
        if head != known.base:  # there is something on it, or the first commit was not asked for yet
            there = self._weights_at(repo, head)
            if same_weights(there, weights):
                return Publication(self.repo_id(repo), branch, head, written=False)
            if head != self._base(repo, known):
                raise self._other_weights(repo, branch, there)
        commit = self._commit_release(repo, branch, files, weights, message, known)
        known.branches[branch] = commit
        return Publication(self.repo_id(repo), branch, commit, written=True)

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
            self._verify(kind, repo, commit, changed)
            return Publication(repo_id, "main", commit, written=True)
        raise ConflictError(f"{repo_id}: other writers were faster {_UPDATE_ATTEMPTS} times")

    def tensor_shapes(self, repo: str, revision: str) -> dict[str, tuple[int, ...]]:
        repo_id = self.repo_id(repo)
        found = self.transport.call(lambda: self._api.get_safetensors_metadata(repo_id, revision=revision))
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
            self.transport.call(lambda: self._api.create_repo(repo_id, repo_type=kind, private=self.private or None))
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
                base: str = self.transport.call(lambda: self._api.list_repo_commits(repo_id))[-1].commit_id
                # Only a squashed history has files in its first commit; a release removes them from its branch.
                known.base_files = tuple(path for path in self._tree("model", repo, base) if path not in _OWN_FILES)
                known.base = base
            return known.base

    def _start_branch(self, repo: str, branch: str, known: _Repository) -> str:
        """Make the branch; returns its head, which is another's commit if someone was faster."""
        repo_id, base = self.repo_id(repo), self._base(repo, known)
        try:
            self.transport.call(lambda: self._api.create_branch(repo_id, branch=branch, revision=base))
        except ConflictError:  # someone else made it, or our own request did and its response was lost
            known.branches.update(self.branches("model", repo))
        return known.branches.setdefault(branch, base)

    def _weights_at(self, repo: str, revision: str) -> dict[str, str | None]:
        return weights_of({path: item.sha256 for path, item in self.files("model", repo, revision).items()})

    def _other_weights(self, repo: str, branch: str, there: Mapping[str, str | None]) -> ConflictError:
        shown = ", ".join(f"{name} {(digest or 'unknown')[:12]}" for name, digest in sorted(there.items())) or "none"
        return ConflictError(
            f"{self.repo_id(repo)} has a branch {branch!r} with other weights ({shown}); "
            f"push under another branch or remove it first"
        )

    # -- commits

    def _commit_release(
        self,
        repo: str,
        branch: str,
        files: Mapping[str, Content],
        weights: Mapping[str, str],
        message: str,
        known: _Repository,
    ) -> str:
        base = self._base(repo, known)
        removed = tuple(path for path in known.base_files if path not in files)
        last: Exception | None = None
        for attempt in range(self.transport.attempts):
            try:
                commit = self._create_commit("model", repo, branch, files, message, parent=base, removed=removed)
            except (ConflictError, UnavailableError) as error:
                head = self.branches("model", repo).get(branch, base)
                if head == base:
                    last = error
                    self.transport.pause(attempt, error)
                    continue
                # The commit landed and its response was lost, or another writer was faster.
                there = self._weights_at(repo, head)
                if not same_weights(there, weights):
                    raise self._other_weights(repo, branch, there) from None
                commit = head
            self._verify("model", repo, commit, files)
            return commit
        raise UnavailableError(
            f"{self.repo_id(repo)}: no commit to {branch} in {self.transport.attempts} attempts: {last}"
        )

    def _create_commit(
        self,
        kind: Kind,
        repo: str,
        branch: str,
        files: Mapping[str, Content],
        message: str,
        *,
        parent: str,
        removed: tuple[str, ...] = (),
    ) -> str:
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        # Made anew for each attempt, because operations keep the state of the commit they were used in.
        operations: list[Any] = [CommitOperationDelete(path, is_folder=False) for path in removed]
        operations += [CommitOperationAdd(name, content) for name, content in files.items()]
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

    def _verify(self, kind: Kind, repo: str, commit: str, files: Mapping[str, Content]) -> None:
        """Read back what lies at the commit, and compare every file's hash with what was sent.

        The hashes come with the headers of a download, which costs no call of the API. That nothing else lies there
        follows from the commit's parent, whose files are known.
        """

        def problem(name: str) -> str | None:
            try:
                found = self._head_of(kind, repo, name, commit)
            except NotFoundError:
                return f"{name} is missing"
            large = len(found.etag or "") == _SHA256_DIGITS  # a sha256 for a large file, else git's id of the blob
            same = found.etag == content_hash(files[name], large=large) and found.commit_hash == commit
            return None if same else f"{name} has other content"

        with ThreadPoolExecutor(min(8, len(files)), thread_name_prefix="hub-verify") as pool:
            problems = [text for text in pool.map(problem, files) if text]
        if problems:
            raise IntegrityError(f"{self.repo_id(repo)} at {commit}: {', '.join(problems[:10])}")

    def _head_of(self, kind: Kind, repo: str, path: str, revision: str) -> Any:
        """What the Hub says of a file in the headers of its download: commit_hash, etag, size."""
        from huggingface_hub import get_hf_file_metadata, hf_hub_url

        access = self.transport.access
        url = hf_hub_url(self.repo_id(repo), path, repo_type=kind, revision=revision, endpoint=access["endpoint"])
        return self.transport.call(lambda: get_hf_file_metadata(url, token=access["token"]))

    def _tree(self, kind: Kind, repo: str, revision: str) -> dict[str, Any]:
        repo_id = self.repo_id(repo)
        listed = self.transport.call(
            lambda: list(self._api.list_repo_tree(repo_id, recursive=True, revision=revision, repo_type=kind))
        )
        return {item.path: item for item in listed if hasattr(item, "blob_id")}

    def _present(self, kind: Kind, repo: str, reads: tuple[str, ...]) -> tuple[str, dict[str, bytes]]:
        """The head of `main` and the files named in `reads` at that very commit."""
        info = self._info(kind, repo, "main")
        there = {item.rfilename for item in info.siblings or []}
        return info.sha, {
            path: self._read_at(kind, repo, path, info, MAX_READ_BYTES) for path in reads if path in there
        }

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


def _bounded(path: Path, max_bytes: int, repo_id: str) -> bytes:
    if path.stat().st_size > max_bytes:
        raise IntegrityError(f"{path.name} of {repo_id} is larger than {max_bytes:,} bytes")
    return path.read_bytes()
