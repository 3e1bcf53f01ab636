"""What the loopback Hub remembers: repositories with branches, tags and commits, as git would keep them.

A commit is a full tree (path -> entry) and a parent, so every revision stays readable. Large files are kept by sha256
beside the repositories, as on the Hub, where an upload and the commit that uses it are two steps.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import threading
from dataclasses import dataclass, field

GITATTRIBUTES = (
    b"*.safetensors filter=lfs\n*.parquet filter=lfs\n*.png filter=lfs\n*.pt filter=lfs\n*.model filter=lfs\n"
)
LFS_SUFFIXES = (".safetensors", ".parquet", ".png", ".pt", ".model")
LFS_BYTES = 10 * 1024 * 1024


class Refused(Exception):
    """A request that the Hub answers with an error: status, X-Error-Code, message."""

    def __init__(self, status, message, code=None, **headers):
        super().__init__(message)
        self.status, self.message, self.code, self.headers = status, message, code, headers


@dataclass
class Response:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of_json(cls, value, status=200, **headers):
        return cls(status, json.dumps(value).encode(), {"Content-Type": "application/json", **headers})


@dataclass(frozen=True)
class Entry:
    size: int
    oid: str  # git's blob id: of the content, or of the pointer if the content is large
    lfs: str | None  # sha256 of large content


@dataclass(frozen=True)
class Commit:
    id: str
    parent: str | None
    title: str
    message: str
    tree: dict[str, Entry]
    number: int


@dataclass
class Repository:
    kind: str
    id: str
    private: bool
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    commits: dict[str, Commit] = field(default_factory=dict)

    def resolve(self, revision):
        name = revision.removeprefix("refs/heads/").removeprefix("refs/tags/")
        found = self.branches.get(name) or self.tags.get(name) or (revision if revision in self.commits else None)
        if found is None:
            raise Refused(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return self.commits[found]

    def history(self, revision):
        listed = [self.resolve(revision)]
        while (parent := listed[-1].parent) is not None:
            listed.append(self.commits[parent])
        return listed


class State:
    """All repositories, behind one lock."""

    def __init__(self):
        self.lock = threading.RLock()
        self.repositories: dict[tuple[str, str], Repository] = {}
        self.blobs: dict[str, bytes] = {}  # by git blob id
        self.large: dict[str, bytes] = {}  # by sha256
        self.collections: dict[str, dict] = {}
        self._numbers = itertools.count(1)

    def create(self, kind, repo_id, private):
        with self.lock:
            if (kind, repo_id) in self.repositories:
                raise Refused(409, "You already created this repo")
            repo = self.repositories[(kind, repo_id)] = Repository(kind, repo_id, private)
            first = self.commit(repo, "main", {".gitattributes": self.regular(GITATTRIBUTES)}, "initial commit")
            assert repo.branches == {"main": first.id}
            return repo

    def repository(self, kind, repo_id):
        with self.lock:
            try:
                return self.repositories[(kind, repo_id)]
            except KeyError:
                raise Refused(404, "Repository not found", "RepoNotFound") from None

    def commit(self, repo, branch, changes, title, message="", parent=None):
        """Put a commit on a branch; `None` removes a path."""
        with self.lock:
            head = repo.branches.get(branch)
            if repo.commits and head is None:
                raise Refused(404, f"Invalid rev id: {branch}", "RevisionNotFound")
            if parent is not None and head is not None and not head.startswith(parent):
                raise Refused(412, "A commit has happened since. Please refresh and try again.")
            tree = dict(repo.commits[head].tree) if head else {}
            for path, entry in changes.items():
                tree.pop(path, None)
                if entry is not None:
                    tree[path] = entry
            number = next(self._numbers)
            content = f"{repo.kind}/{repo.id}/{number}/{head}/{sorted(tree.items())}/{title}"
            made = Commit(hashlib.sha1(content.encode()).hexdigest(), head, title, message, tree, number)
            repo.commits[made.id] = made
            repo.branches[branch] = made.id
            return made

    def branch(self, repo, name, start):
        with self.lock:
            if name in repo.branches:
                raise Refused(409, f"Reference already exists: {name}")
            repo.branches[name] = repo.resolve(start or "main").id

    def regular(self, content):
        oid = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        self.blobs[oid] = content
        return Entry(len(content), oid, None)

    def pointer(self, sha256, size):
        """An entry of large content that was uploaded; a copy inside the Hub says no size."""
        if sha256 not in self.large:
            raise Refused(400, f"LFS object {sha256} was never uploaded")
        if size is None:
            size = len(self.large[sha256])
        if size != len(self.large[sha256]):
            raise Refused(400, f"LFS object {sha256} has another size than {size}")
        text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n".encode()
        return Entry(size, hashlib.sha1(b"blob %d\0" % len(text) + text).hexdigest(), sha256)

    def content(self, entry):
        return self.large[entry.lfs] if entry.lfs else self.blobs[entry.oid]

    def put(self, kind, repo_id, branch, files):
        """Commit files directly, as another user would; makes repository and branch if needed."""
        with self.lock:
            repo = self.repositories.get((kind, repo_id)) or self.create(kind, repo_id, private=False)
            if branch not in repo.branches:
                self.branch(repo, branch, repo.history("main")[-1].id)
            entries: dict[str, Entry | None] = {}
            for path, content in files.items():
                if path.endswith(LFS_SUFFIXES):
                    digest = hashlib.sha256(content).hexdigest()
                    self.large[digest] = content
                    entries[path] = self.pointer(digest, len(content))
                else:
                    entries[path] = self.regular(content)
            return self.commit(repo, branch, entries, "put").id
