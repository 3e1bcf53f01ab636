"""The endpoints of the loopback Hub: each is a function from the request to a response or a `Refused`."""

import base64
import hashlib
import json
import re
from datetime import datetime, timezone
from pathlib import PurePosixPath
from urllib.parse import parse_qs, quote, unquote, urlencode

import yaml

from tests.hub.loopback_state import LFS_BYTES, LFS_SUFFIXES, Refused, Response

_KIND = r"/api/(?P<kind>models|datasets|spaces)"
_REPO = _KIND + r"/(?P<repo>[^/]+/[^/]+)"
_FILES = r"(?:/(?P<kind>datasets|spaces))?/(?P<repo>[^/]+/[^/]+)"  # outside of /api
_PAGE = 50  # entries of one page of a listing
_WRITES = ("preupload", "commit", "branch", "tag", "batch")
_ENDPOINTS = []


def endpoint(name, pattern, origin="hub"):
    """Serves the paths of a pattern; its groups are the arguments, and of a repository only what the user may see."""

    def add(function):
        _ENDPOINTS.append((name, re.compile(pattern), origin, function))
        return function

    return add


def route(hub, request, path):
    """The call that answers a request for a quoted path; also names it in `request.api`."""
    call = _Call(hub, request)
    for name, pattern, origin, function in _ENDPOINTS:
        if origin == request.origin and (match := pattern.fullmatch(path)):
            request.api = name if path.startswith("/api/") else ""
            given = {group: unquote(text) for group, text in match.groupdict().items() if text is not None}
            return lambda: call.answer(name, function, given)
    return call.unknown


class _Call:
    def __init__(self, hub, request):
        self.hub, self.request, self.state = hub, request, hub.state

    def answer(self, name, function, given):
        if "repo" in given:
            namespace = given["repo"].split("/")[0]
            kind = given.pop("kind", "models").removesuffix("s")
            repo, mine = self.state.repository(kind, given["repo"].removesuffix(".git")), self.namespaces()
            if repo.private and namespace not in mine:
                raise Refused(404 if mine else 401, "Repository not found", "RepoNotFound")
            if name in _WRITES:
                self.writer(namespace)
            given["repo"] = repo
        return function(self, **given)

    def unknown(self):
        raise Refused(404, f"no endpoint {self.request.method} {self.request.path}")

    json = staticmethod(Response.of_json)

    # -- who asks

    def user(self):
        token = self.request.headers.get("authorization", "").removeprefix("Bearer ").strip()
        if token and token not in self.hub.users:
            raise Refused(401, "Invalid credentials in Authorization header")
        return self.hub.users[token] if token else None

    def namespaces(self):
        user = self.user()
        return [] if user is None else [user["name"], *user["orgs"]]

    def writer(self, namespace):
        user = self.user()
        if user is None:
            raise Refused(401, "Invalid username or password.")
        if not user["write"] or namespace not in self.namespaces():
            raise Refused(403, f"You don't have the rights to write to {namespace}")

    # -- repositories

    @endpoint("create", "/api/repos/create")
    def create(self):
        asked = self.request.json()
        namespace = asked.get("organization") or next(iter(self.namespaces()), "")
        self.writer(namespace)
        kind, repo_id = asked.get("type") or "model", f"{namespace}/{asked['name']}"
        url = f"{self.hub.endpoint}/{'' if kind == 'model' else f'{kind}s/'}{repo_id}"
        try:
            self.state.create(kind, repo_id, asked.get("visibility") == "private" or bool(asked.get("private")))
        except Refused as refused:
            refused.headers["url"] = url
            raise
        return self.json({"url": url, "name": repo_id})

    @endpoint("list", _KIND)
    def list(self, kind):
        query, mine, found = self.request.query, self.namespaces(), []
        for (of_kind, repo_id), repo in sorted(self.state.repositories.items()):
            namespace, name = repo_id.split("/")
            described = self._described(repo, repo.resolve("main"))
            if (
                kind == f"{of_kind}s"
                and (not repo.private or namespace in mine)
                and namespace in query.get("author", [namespace])
                and query.get("search", [""])[0] in name
                and {*query.get("filter", [])} <= {*described["tags"]}
            ):
                found.append(described)
        return self.page(found)

    @endpoint("info", _REPO)
    @endpoint("revision", _REPO + "/revision/(?P<revision>[^/]+)")
    def info(self, repo, revision="main"):
        return self.json(self._described(repo, repo.resolve(revision), blobs="blobs" in self.request.query))

    @endpoint("branch", _REPO + "/branch/(?P<name>[^/]+)")
    def branch(self, repo, name):
        self.state.branch(repo, name, self.request.json().get("startingPoint"))
        return self.json({}, 201)

    @endpoint("tag", _REPO + "/tag/(?P<revision>[^/]+)")
    def tag(self, repo, revision):
        tag = self.request.json()["tag"]
        if tag in repo.tags:
            raise Refused(409, f"Tag reference exists already: {tag}")
        repo.tags[tag] = repo.resolve(revision).id
        return self.json({})

    @endpoint("refs", _REPO + "/refs")
    def refs(self, repo):
        def listed(refs, folder):
            return [{"name": n, "ref": f"refs/{folder}/{n}", "targetCommit": c} for n, c in sorted(refs.items())]

        branches, tags = listed(repo.branches, "heads"), listed(repo.tags, "tags")
        return self.json({"branches": branches, "converts": [], "tags": tags})

    @endpoint("commits", _REPO + "/commits/(?P<revision>[^/]+)")
    def commits(self, repo, revision):
        return self.page(
            [
                {"id": c.id, "title": c.title, "message": c.message, "authors": [{"user": "tester"}], "date": _date(c)}
                for c in repo.history(revision)
            ]
        )

    @endpoint("tree", _REPO + "/tree/(?P<revision>[^/]+)(?:/(?P<folder>.+))?")
    def tree(self, repo, revision, folder=""):
        tree, prefix = repo.resolve(revision).tree, f"{folder}/" if folder else ""
        found = sorted(path for path in tree if path.startswith(prefix))
        if folder and not found:
            raise Refused(404, f"{folder} does not exist on {revision}", "EntryNotFound")
        items = [_tree_item(path, tree[path]) for path in found]
        for parent in sorted({str(parent) for path in found for parent in PurePosixPath(path).parents} - {"."}):
            if parent.startswith(prefix):
                items.append({"type": "directory", "path": parent, "oid": "0" * 40, "size": 0})
        if self.request.query.get("recursive", ["false"])[0].lower() in ("false", "0"):
            items = [item for item in items if "/" not in item["path"][len(prefix) :]]
        return self.page(items)

    @endpoint("paths-info", _REPO + "/paths-info/(?P<revision>[^/]+)")
    def paths_info(self, repo, revision):
        tree = repo.resolve(revision).tree
        if self.request.headers.get("content-type", "").startswith("application/json"):
            paths = self.request.json()["paths"]
        else:
            paths = parse_qs(self.request.body.decode()).get("paths", [])
        return self.json([_tree_item(path, tree[path]) for path in paths if path in tree])

    # -- commits

    @endpoint("validate", "/api/validate-yaml")
    def validate(self):  # which `upload_folder` asks about a card
        _metadata(self.request.json()["content"])
        return self.json({"errors": [], "warnings": []})

    @endpoint("preupload", _REPO + "/preupload/(?P<revision>[^/]+)")
    def preupload(self, repo, revision):
        tree, answer = repo.resolve(revision).tree, []
        for item in self.request.json()["files"]:
            path, sample = item["path"], base64.b64decode(item["sample"])
            large = path.endswith(LFS_SUFFIXES) or item["size"] > LFS_BYTES or b"\0" in sample
            known = {"oid": tree[path].lfs or tree[path].oid} if path in tree else {}
            answer.append({"path": path, "uploadMode": "lfs" if large else "regular", "shouldIgnore": False, **known})
        if len(answer) > 256:
            raise Refused(413, "too many files")
        return self.json({"files": answer})

    @endpoint("commit", _REPO + "/commit/(?P<branch>[^/]+)")
    def commit(self, repo, branch):
        header, changes = {}, {}
        for line in self.request.body.splitlines():
            item = json.loads(line)
            key, value = item["key"], item["value"]
            if key == "header":
                header = value
            elif key == "file":
                content = value["content"].encode()
                content = base64.b64decode(content) if value["encoding"] == "base64" else content
                if value["path"] == "README.md":
                    _metadata(content.decode())
                changes[value["path"]] = self.state.regular(content)
            elif key == "lfsFile":
                changes[value["path"]] = self.state.pointer(value["oid"], value.get("size"))
            elif key == "deletedFile":
                changes[value["path"]] = None
            else:
                raise Refused(400, f"unknown operation {key}")
        message = header["summary"], header.get("description", "")
        made = self.state.commit(repo, branch, changes, *message, header.get("parentCommit"))
        return self.json({"commitOid": made.id, "commitUrl": f"{self.hub.endpoint}/{repo.id}/commit/{made.id}"})

    # -- collections

    @endpoint("collections", "/api/collections")
    def create_collection(self):
        asked = self.request.json()
        self.writer(asked["namespace"])
        for there in self.state.collections.values():
            if there["title"] == asked["title"]:
                raise Refused(409, "This collection already exists", slug=there["slug"])
        title = re.sub("[^a-z0-9]+", "-", asked["title"].lower())
        slug = f"{asked['namespace']}/{title}-{len(self.state.collections):024x}"
        made = self.state.collections[slug] = {
            "slug": slug, "title": asked["title"], "owner": {"name": asked["namespace"]}, "items": [], "position": 0,
            "lastUpdated": "2024-01-01T00:00:00.000Z", "private": bool(asked.get("private")), "theme": "orange",
            "upvotes": 0, "description": asked.get("description") or "",
        }  # fmt: skip
        return self.json(made)

    @endpoint("collections", "/api/collections/(?P<slug>[^/]+/[^/]+)(?P<items>/items?)?")
    def collection(self, slug, items=None):
        if slug not in self.state.collections:
            raise Refused(404, "Collection not found")
        if items:
            self.writer(slug.split("/")[0])
            item, there = self.request.json()["item"], self.state.collections[slug]["items"]
            if any(old["id"] == item["id"] for old in there):
                raise Refused(409, "Item already in collection")
            there.append({**item, "_id": f"{len(there):024x}", "position": len(there)})
        return self.json(self.state.collections[slug])

    # -- files

    @endpoint("batch", _FILES + "/info/lfs/objects/batch")
    def batch(self, repo):
        objects = []
        for item in self.request.json()["objects"]:
            links = {name: {"href": f"{self.hub.storage}/{name}/{item['oid']}"} for name in ("upload", "verify")}
            objects.append(item if item["oid"] in self.state.large else {**item, "actions": links})
        return self.json({"transfer": "basic", "objects": objects})

    @endpoint("resolve", _FILES + "/resolve/(?P<revision>[^/]+)/(?P<path>.+)")
    def resolve(self, repo, revision, path):
        commit = repo.resolve(revision)
        entry = commit.tree.get(path)
        if entry is None:
            raise Refused(404, "Entry not found", "EntryNotFound", **{"X-Repo-Commit": commit.id})
        headers = {"X-Repo-Commit": commit.id, "Accept-Ranges": "bytes", "ETag": f'"{entry.lfs or entry.oid}"'}
        if entry.lfs:
            headers |= {"X-Linked-Etag": f'"{entry.lfs}"', "X-Linked-Size": str(entry.size)}
            return Response(302, b"", {**headers, "Location": f"{self.hub.storage}/large/{entry.lfs}/{quote(path)}"})
        return self.ranged(self.state.content(entry), headers)

    @endpoint("upload", "/upload/(?P<oid>[^/]+)", "storage")
    def upload(self, oid):
        if hashlib.sha256(self.request.body).hexdigest() != oid:
            raise Refused(400, "content does not match its oid")
        self.state.large[oid] = self.request.body
        return Response(200, b"", {"ETag": f'"{oid}"'})

    @endpoint("verify", "/verify/(?P<oid>[^/]+)", "storage")
    def verify(self, oid):
        if self.request.json()["size"] != len(self.state.large[oid]):
            raise Refused(400, "size does not match")
        return self.json({})

    @endpoint("large", "/large/(?P<oid>[^/]+)/.+", "storage")
    def large(self, oid):
        return self.ranged(self.state.large[oid], {"ETag": f'"{oid}"', "Accept-Ranges": "bytes"})

    # -- helpers

    def ranged(self, content, headers):
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.request.headers.get("range", ""))
        if match is None:
            return Response(200, content, headers)
        start, end = int(match[1]), min(int(match[2] or len(content) - 1), len(content) - 1)
        if start >= len(content):
            raise Refused(416, "range not satisfiable", **{"Content-Range": f"bytes */{len(content)}"})
        headers = {**headers, "Content-Range": f"bytes {start}-{end}/{len(content)}"}
        return Response(206, content[start : end + 1], headers)

    def page(self, items):
        start = int(self.request.query.get("cursor", ["0"])[0])
        size = min(int(self.request.query.get("limit", [_PAGE])[0]), _PAGE)
        headers = {}
        if start + size < len(items):
            query = urlencode({**self.request.query, "cursor": start + size}, doseq=True)
            headers["Link"] = f'<{self.hub.endpoint}{quote(self.request.path)}?{query}>; rel="next"'
        return self.json(items[start : start + size], **headers)

    def _described(self, repo, commit, blobs=False):
        siblings = []
        for path, entry in sorted(commit.tree.items()):
            lfs = {"lfs": {"sha256": entry.lfs, "size": entry.size, "pointerSize": 130}} if entry.lfs else {}
            details = {"size": entry.size, "blobId": entry.oid, **lfs} if blobs else {}
            siblings.append({"rfilename": path, **details})
        entry = commit.tree.get("README.md")
        card = _metadata(self.state.content(entry).decode()) if entry else {}
        tags = [*map(str, card.get("tags") or []), *(f"license:{card[name]}" for name in card if name == "license")]
        return {
            "_id": f"{commit.number:024x}", "id": repo.id, "modelId": repo.id, "author": repo.id.split("/")[0],
            "sha": commit.id, "lastModified": _date(commit), "createdAt": _date(commit), "private": repo.private,
            "disabled": False, "gated": False, "downloads": 0, "likes": 0, "tags": tags, "cardData": card,
            "siblings": siblings,
        }  # fmt: skip


def _tree_item(path, entry):
    lfs = {"lfs": {"oid": entry.lfs, "size": entry.size, "pointerSize": 130}} if entry.lfs else {}
    return {"type": "file", "path": path, "oid": entry.oid, "size": entry.size, **lfs}


def _date(commit):
    return datetime.fromtimestamp(1_700_000_000 + commit.number, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def _metadata(card):
    """The metadata of a card; a commit with other than a YAML mapping is refused."""
    match = re.match(r"---\n(.*?)\n---", card, re.DOTALL)
    try:
        metadata = (yaml.safe_load(match[1]) if match else None) or {}
    except yaml.YAMLError as error:
        raise Refused(400, f"invalid YAML: {error}") from None
    if not isinstance(metadata, dict):
        raise Refused(400, "metadata is not a mapping")
    return metadata
