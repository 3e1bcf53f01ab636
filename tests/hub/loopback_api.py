"""The endpoints of the loopback Hub: each is a function from the request to a response or a `Refused`."""

import base64
import hashlib
import json
import re
from datetime import datetime, timezone
from typing import Any
from urllib.parse import parse_qs, quote

import yaml

from tests.hub.loopback_state import LFS_BYTES, LFS_SUFFIXES, Entry, Refused, Response

_KINDS = {"models": "model", "datasets": "dataset"}
_PAGE = 50  # entries of one page of a listing


def route(hub, request, path):
    """The endpoint for a request; also names it in `request.api`."""
    call = _Call(hub, request)
    if request.origin == "storage":
        return lambda: call.storage(path)
    if path[0] == "api":
        return call.api(path[1:])
    kind = _KINDS.get(path[0], "model")
    rest = path[1:] if path[0] in _KINDS else path
    if len(rest) >= 2 and rest[1].endswith(".git"):
        return lambda: call.lfs_batch(kind, f"{rest[0]}/{rest[1].removesuffix('.git')}")
    if len(rest) >= 5 and rest[2] == "resolve":
        return lambda: call.resolve(kind, f"{rest[0]}/{rest[1]}", rest[3], "/".join(rest[4:]))
    return call.unknown


class _Call:
    def __init__(self, hub, request):
        self.hub, self.request, self.state = hub, request, hub.state

    def unknown(self):
        raise Refused(404, f"no endpoint {self.request.method} {self.request.path}")

    def json(self, value, status=200, **headers):
        return Response.of_json(value, status, **headers)

    # -- who asks

    def user(self):
        token = self.request.headers.get("authorization", "").removeprefix("Bearer ").strip()
        if not token:
            return None
        if token not in self.hub.users:
            raise Refused(401, "Invalid credentials in Authorization header")
        return self.hub.users[token]

    def writer(self, namespace):
        user = self.user()
        if user is None:
            raise Refused(401, "Invalid username or password.")
        if not user["write"] or namespace not in (user["name"], *user["orgs"]):
            raise Refused(403, f"You don't have the rights to write to {namespace}")

    def repository(self, kind, repo_id):
        repo = self.state.repository(kind, repo_id)
        user = self.user()
        if repo.private and (user is None or repo_id.split("/")[0] not in (user["name"], *user["orgs"])):
            raise Refused(401 if user is None else 404, "Repository not found", "RepoNotFound")
        return repo

    # -- /api

    def api(self, path):
        name = path[0]
        self.request.api = name
        if name in _KINDS:
            kind = _KINDS[name]
            if len(path) == 1:
                self.request.api = "list"
                return lambda: self.list(kind)
            action = path[3] if len(path) > 3 else "info"
            self.request.api = action
            return lambda: self.repo_call(kind, "/".join(path[1:3]), action, path[4:])
        if name == "repos":
            self.request.api = path[1]
            return self.create if path[1] == "create" else self.unknown
        if name == "collections":
            return lambda: self.collections(path[1:])
        return self.validate_yaml if name == "validate-yaml" else self.unknown

    def repo_call(self, kind, repo_id, action, rest):
        repo = self.repository(kind, repo_id)
        if action in ("preupload", "commit", "branch", "tag"):
            self.writer(repo_id.split("/")[0])
        calls = {
            "info": lambda: self.info(repo, "main"),
            "revision": lambda: self.info(repo, "/".join(rest)),
            "preupload": lambda: self.preupload(repo, rest[0]),
            "commit": lambda: self.commit(repo, rest[0]),
            "branch": lambda: self.branch(repo, rest[0]),
            "tag": lambda: self.tag(repo, rest[0]),
            "refs": lambda: self.refs(repo),
            "tree": lambda: self.tree(repo, rest[0], "/".join(rest[1:])),
            "paths-info": lambda: self.paths_info(repo, rest[0]),
            "commits": lambda: self.commits(repo, rest[0]),
        }
        return calls.get(action, self.unknown)()

    def validate_yaml(self):
        problems = _metadata_problems(self.request.json()["content"])
        return self.json(
            {"errors": [{"message": text} for text in problems], "warnings": []}, 400 if problems else 200
        )

    def create(self):
        asked = self.request.json()
        user = self.user()
        namespace = asked.get("organization") or (user or {}).get("name", "")
        self.writer(namespace)
        kind, repo_id = asked.get("type") or "model", f"{namespace}/{asked['name']}"
        url = f"{self.hub.endpoint}/{'datasets/' if kind == 'dataset' else ''}{repo_id}"
        try:
            self.state.create(kind, repo_id, asked.get("visibility") == "private" or bool(asked.get("private")))
        except Refused as refused:
            refused.headers["url"] = url
            raise
        return self.json({"url": url, "name": repo_id})

    def list(self, kind):
        query = self.request.query
        user = self.user()
        mine = set() if user is None else {user["name"], *user["orgs"]}
        found = []
        for (of_kind, repo_id), repo in sorted(self.state.repositories.items()):
            namespace, name = repo_id.split("/")
            if of_kind != kind or (repo.private and namespace not in mine):
                continue
            if namespace not in query.get("author", [namespace]) or query.get("search", [""])[0] not in name:
                continue
            if not set(query.get("filter", [])) <= set(_tags(self._card(repo, repo.resolve("main")))):
                continue
            found.append(self._described(repo, repo.resolve("main")))
        return self._page(found)

    def info(self, repo, revision):
        return self.json(self._described(repo, repo.resolve(revision), blobs="blobs" in self.request.query))

    def preupload(self, repo, revision):
        tree = repo.resolve(revision).tree
        files = self.request.json()["files"]
        if len(files) > 256:
            raise Refused(413, "too many files")
        answer = []
        for item in files:
            sample = base64.b64decode(item["sample"])
            large = item["path"].endswith(LFS_SUFFIXES) or item["size"] > LFS_BYTES or b"\0" in sample
            known = tree.get(item["path"])
            oid = {} if known is None else {"oid": known.lfs or known.oid}
            answer.append(
                {"path": item["path"], "uploadMode": "lfs" if large else "regular", "shouldIgnore": False, **oid}
            )
        return self.json({"files": answer})

    def commit(self, repo, branch):
        header: dict[str, Any] = {}
        changes: dict[str, Entry | None] = {}
        for line in self.request.body.splitlines():
            item = json.loads(line)
            key, value = item["key"], item["value"]
            if key == "header":
                header = value
            elif key == "file":
                content = (
                    base64.b64decode(value["content"]) if value["encoding"] == "base64" else value["content"].encode()
                )
                if value["path"] == "README.md" and (problems := _metadata_problems(content.decode())):
                    raise Refused(400, "; ".join(problems))
                changes[value["path"]] = self.state.regular(content)
            elif key == "lfsFile":
                changes[value["path"]] = self.state.pointer(value["oid"], value.get("size"))
            elif key == "deletedFile":
                changes[value["path"]] = None
            else:
                raise Refused(400, f"unknown operation {key}")
        made = self.state.commit(
            repo, branch, changes, header["summary"], header.get("description", ""), header.get("parentCommit")
        )
        return self.json({"commitOid": made.id, "commitUrl": f"{self.hub.endpoint}/{repo.id}/commit/{made.id}"})

    def branch(self, repo, name):
        self.state.branch(repo, name, self.request.json().get("startingPoint"))
        return self.json({}, 201)

    def tag(self, repo, name):
        tag = self.request.json()["tag"]
        if tag in repo.tags:
            raise Refused(409, f"Tag reference exists already: {tag}")
        repo.tags[tag] = repo.resolve(name).id
        return self.json({})

    def refs(self, repo):
        def listed(refs, folder):
            return [{"name": n, "ref": f"refs/{folder}/{n}", "targetCommit": c} for n, c in sorted(refs.items())]

        return self.json(
            {"branches": listed(repo.branches, "heads"), "converts": [], "tags": listed(repo.tags, "tags")}
        )

    def tree(self, repo, revision, folder):
        commit = repo.resolve(revision)
        prefix = f"{folder}/" if folder else ""
        found = {path: entry for path, entry in commit.tree.items() if path.startswith(prefix)}
        if folder and not found:
            raise Refused(404, f"{folder} does not exist on {revision}", "EntryNotFound")
        folders = {path[: match.start()] for path in found for match in re.finditer("/", path[len(prefix) :] and path)}
        items = [_tree_item(path, entry) for path, entry in sorted(found.items())]
        items += [
            {"type": "directory", "path": path, "oid": "0" * 40, "size": 0} for path in sorted(folders - {folder})
        ]
        if "recursive" not in self.request.query or self.request.query["recursive"][0].lower() in ("false", "0"):
            items = [item for item in items if "/" not in item["path"][len(prefix) :]]
        return self._page(items)

    def paths_info(self, repo, revision):
        commit = repo.resolve(revision)
        if self.request.headers.get("content-type", "").startswith("application/json"):
            paths = self.request.json()["paths"]
        else:
            paths = parse_qs(self.request.body.decode()).get("paths", [])
        return self.json([_tree_item(path, commit.tree[path]) for path in paths if path in commit.tree])

    def commits(self, repo, revision):
        return self._page(
            [
                {"id": c.id, "title": c.title, "message": c.message, "authors": [{"user": "tester"}], "date": _date(c)}
                for c in repo.history(revision)
            ]
        )

    def collections(self, path):
        if self.request.method == "POST" and not path:
            asked = self.request.json()
            self.writer(asked["namespace"])
            title = re.sub("[^a-z0-9]+", "-", asked["title"].lower())
            slug = f"{asked['namespace']}/{title}-{len(self.state.collections):024x}"
            for there in self.state.collections.values():
                if there["title"] == asked["title"]:
                    raise Refused(409, "This collection already exists", slug=there["slug"])
            self.state.collections[slug] = _collection(slug, asked)
            return self.json(self.state.collections[slug])
        slug = "/".join(path[:2])
        if slug not in self.state.collections:
            raise Refused(404, "Collection not found")
        if len(path) > 2:
            self.writer(path[0])
            item = self.request.json()["item"]
            items = self.state.collections[slug]["items"]
            if any(old["id"] == item["id"] for old in items):
                raise Refused(409, "Item already in collection")
            items.append({**item, "_id": f"{len(items):024x}", "position": len(items)})
        return self.json(self.state.collections[slug])

    # -- files

    def lfs_batch(self, kind, repo_id):
        self.repository(kind, repo_id)
        self.writer(repo_id.split("/")[0])
        objects = []
        for item in self.request.json()["objects"]:
            actions = {
                "upload": {"href": f"{self.hub.storage}/upload/{item['oid']}"},
                "verify": {"href": f"{self.hub.storage}/verify/{item['oid']}"},
            }
            objects.append({**item, **({} if item["oid"] in self.state.large else {"actions": actions})})
        return self.json({"transfer": "basic", "objects": objects})

    def resolve(self, kind, repo_id, revision, path):
        repo = self.repository(kind, repo_id)
        commit = repo.resolve(revision)
        entry = commit.tree.get(path)
        if entry is None:
            raise Refused(404, "Entry not found", "EntryNotFound", **{"X-Repo-Commit": commit.id})
        headers = {"X-Repo-Commit": commit.id, "Accept-Ranges": "bytes", "ETag": f'"{entry.lfs or entry.oid}"'}
        if entry.lfs:
            headers |= {"X-Linked-Etag": f'"{entry.lfs}"', "X-Linked-Size": str(entry.size)}
            return Response(302, b"", {**headers, "Location": f"{self.hub.storage}/large/{entry.lfs}/{quote(path)}"})
        return self._ranged(self.state.content(entry), headers)

    def storage(self, path):
        action, oid = path[0], path[1]
        if action == "upload":
            if hashlib.sha256(self.request.body).hexdigest() != oid:
                raise Refused(400, "content does not match its oid")
            self.state.large[oid] = self.request.body
            return Response(200, b"", {"ETag": f'"{oid}"'})
        if oid not in self.state.large:
            raise Refused(404, "no such object")
        if action == "verify":
            if self.request.json()["size"] != len(self.state.large[oid]):
                raise Refused(400, "size does not match")
            return self.json({})
        return self._ranged(self.state.large[oid], {"ETag": f'"{oid}"', "Accept-Ranges": "bytes"})

    # -- helpers

    def _ranged(self, content, headers):
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.request.headers.get("range", ""))
        if match is None:
            return Response(200, content, headers)
        start, end = int(match[1]), min(int(match[2] or len(content) - 1), len(content) - 1)
        if start >= len(content):
            raise Refused(416, "range not satisfiable", **{"Content-Range": f"bytes */{len(content)}"})
        headers = {**headers, "Content-Range": f"bytes {start}-{end}/{len(content)}"}
        return Response(206, content[start : end + 1], headers)

    def _page(self, items):
        start = int(self.request.query.get("cursor", ["0"])[0])
        size = min(int(self.request.query.get("limit", [_PAGE])[0]), _PAGE)
        headers = {}
        if start + size < len(items):
            query = {**self.request.query, "cursor": [str(start + size)]}
            text = "&".join(f"{quote(name)}={quote(value)}" for name, values in query.items() for value in values)
            headers["Link"] = f'<{self.hub.endpoint}{quote(self.request.path)}?{text}>; rel="next"'
        return self.json(items[start : start + size], **headers)

    def _card(self, repo, commit):
        entry = commit.tree.get("README.md")
        match = re.match(r"---\n(.*?)\n---", self.state.content(entry).decode(), re.DOTALL) if entry else None
        return (yaml.safe_load(match[1]) if match else None) or {}

    def _described(self, repo, commit, blobs=False):
        siblings = []
        for path, entry in sorted(commit.tree.items()):
            sizes = {"size": entry.size, "blobId": entry.oid} if blobs else {}
            lfs = {"lfs": {"sha256": entry.lfs, "size": entry.size, "pointerSize": 130}} if blobs and entry.lfs else {}
            siblings.append({"rfilename": path, **sizes, **lfs})
        card = self._card(repo, commit)
        return {
            "_id": f"{commit.number:024x}", "id": repo.id, "modelId": repo.id, "author": repo.id.split("/")[0],
            "sha": commit.id, "lastModified": _date(commit), "createdAt": _date(commit), "private": repo.private,
            "disabled": False, "gated": False, "downloads": 0, "likes": 0, "tags": _tags(card), "cardData": card,
            "siblings": siblings,
        }  # fmt: skip


def _tree_item(path, entry):
    lfs = {"lfs": {"oid": entry.lfs, "size": entry.size, "pointerSize": 130}} if entry.lfs else {}
    return {"type": "file", "path": path, "oid": entry.oid, "size": entry.size, **lfs}


def _date(commit):
    return datetime.fromtimestamp(1_700_000_000 + commit.number, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def _tags(card):
    return [str(tag) for tag in card.get("tags") or []] + [
        f"license:{card['license']}" for _ in [0] if "license" in card
    ]


def _metadata_problems(card):
    match = re.match(r"---\n(.*?)\n---", card, re.DOTALL)
    try:
        metadata = yaml.safe_load(match[1]) if match else {}
    except yaml.YAMLError as error:
        return [f"invalid YAML: {error}"]
    return [] if isinstance(metadata, dict) else ["metadata is not a mapping"]


def _collection(slug, asked):
    return {
        "slug": slug, "title": asked["title"], "owner": {"name": asked["namespace"]}, "items": [], "position": 0,
        "lastUpdated": "2024-01-01T00:00:00.000Z", "private": bool(asked.get("private")), "theme": "orange",
        "upvotes": 0, "description": asked.get("description") or "",
    }  # fmt: skip
