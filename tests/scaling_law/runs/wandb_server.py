"""W&B's public GraphQL API on loopback, for the queries of its client: types, pages, histories, faults.

It answers the fields that a query selects and refuses those that W&B's types do not have. What the types hold is in
`wandb/apis/public/runs.py` of wandb 0.31, whose `wandb.Api` reads from this server in `test_wandb.py`.
"""

import json
import math
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

KEY = "0123456789abcdef" * 2 + "01234567"
AUTHORIZATION = "Basic YXBpOjAxMjM0NTY3ODlhYmNkZWYwMTIzNDU2Nzg5YWJjZGVmMDEyMzQ1Njc="  # of the user "api"
_TOKEN = re.compile(r"\([^)]*\)|\.\.\.|[{}]|\w+")
_ARGUMENT = re.compile(r'(\w+)\s*:\s*(\[?)\s*(\$\w+|"[^"]*"|[\w.-]+)')
_RUN = {
    **dict.fromkeys(("id", "tags", "sweepName", "group", "jobType", "commit", "heartbeatAt", "description", "notes")),
    **{"readOnly": False, "systemMetrics": "{}", "projectId": "1"},
    **{"user": {"name": "A", "username": "a"}},
}


class Refused(Exception):
    """A query that the schema does not allow."""


def run(i, state="finished", history=(), config=None, **summary):
    """A run as W&B keeps it: texts of JSON, {"value": …} around configured values, and the steps of its history."""
    lines = [{"_step": step, **line} for step, line in enumerate(history)]
    settings = {"params": 1e6 * (i + 1), "experts": 4, "optim": {"name": "adamw"}} | (config or {})
    texts = {name: {"value": value, "desc": None} for name, value in settings.items()}
    texts["_wandb"] = {"value": {"cli_version": "0.31.0"}}
    last = {name: value for line in lines for name, value in line.items()}
    kept = last | {"_runtime": 12.5, "_timestamp": 1.7e9, "_wandb": {"runtime": 12}} | summary
    fields = {"name": f"id{i}", "displayName": f"run{i}", "state": state, "createdAt": f"2026-01-01T00:00:{i:02}Z"}
    fields |= {"config": json.dumps(texts), "summaryMetrics": json.dumps(kept), "historyLineCount": len(lines)}
    keys = {"keys": {name: {} for name in last}, "lastStep": len(lines) - 1}
    return {**_RUN, **fields, "historyKeys": keys, "history": lines}


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        server, body = self.server, self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path != "/graphql":  # wandb-core reports on itself, too
            return self.answer(404, {})
        query = json.loads(body)
        number = len(server.asked)
        server.asked.append((self.headers.get("Authorization"), query.get("variables") or {}))
        for at, status, *rest in server.faults:
            if at == number:
                return self.answer(status, *rest)
        if self.headers.get("Authorization") != AUTHORIZATION:
            return self.answer(401, {}, '{"errors":[{"message":"user is not logged in"}]}')
        try:
            answer = {"data": _executed(query["query"], query.get("variables") or {}, server.root())}
            self.answer(200, {}, json.dumps(answer))
        except Refused as error:
            self.answer(400, {}, json.dumps({"errors": [{"message": str(error)}], "data": None}))

    def do_GET(self):
        """Where a redirected request ends."""
        self.server.asked.append((self.headers.get("Authorization"), {}))
        self.answer(200, {}, "a page")

    def answer(self, status, headers=(), body=""):
        """An answer; of "cut", the half of one."""
        content = body.encode() or b'{"data": {"project"'
        self.send_response(200 if status == "cut" else status)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content) * (2 if status == "cut" else 1)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    """`runs` of lab/sweep, for those with the key; what was `asked`.

    `faults` are what befalls requests, by their number from 0: (number, status or "cut", headers, body).
    """

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.runs, self.asked, self.faults, self.longest_page = [], [], [], math.inf
        self.url = f"http://127.0.0.1:{self.server_port}"

    def root(self):
        viewer = {"id": "u", "entity": "lab", "username": "a", "name": "A", "email": "", "admin": False, "flags": "{}"}
        viewer["teams"] = {"edges": []}
        return {"viewer": viewer, "project": self.project}

    def project(self, name, entityName):
        if (entityName, name) != ("lab", "sweep"):
            return None
        by_name = {one["name"]: _of(one) for one in self.runs}
        return {
            **{
                "internalId": "1",
                "readOnly": False,
                "runs": self.page,
                "runCount": lambda filters="{}": len(self.runs),
            },
            "run": lambda name: by_name.get(name),
        }

    def page(self, first, after=None, order="-created_at", filters="{}"):
        """Up to `first` runs after a cursor. Without an order the newest come first, as W&B has them."""
        assert order.lstrip("+-") == "created_at"
        runs = sorted(self.runs, key=lambda one: one["createdAt"], reverse=order.startswith("-"))
        at = int(after or 0)
        end = at + int(min(first, self.longest_page))
        edges = [{"node": _of(one), "cursor": str(at + i + 1)} for i, one in enumerate(runs[at:end])]
        return {"edges": edges, "pageInfo": {"endCursor": str(end), "hasNextPage": end < len(runs)}}


def _of(one):
    """A run's fields, those with arguments as functions."""

    def sampled(specs):
        return [_sampled(one["history"], **json.loads(spec)) for spec in specs]

    def history(samples=500, minStep=0, maxStep=math.inf):
        return [json.dumps(line) for line in _sampled(one["history"], (), samples, minStep, maxStep)]

    return one | {"sampledHistory": sampled, "history": history}


def _sampled(lines, keys, samples, minStep=0, maxStep=math.inf):
    """The lines of these steps that have all keys; every so many of them where there are more than `samples`."""
    inside = [line for line in lines if minStep <= line["_step"] < maxStep and all(key in line for key in keys)]
    every = max(1, math.ceil(len(inside) / samples))
    return [{key: line[key] for key in keys} if keys else line for line in inside[::every]]


@contextmanager
def serving():
    server = Server()
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


# ------------------------------------------------------------------ GraphQL, as far as these queries have it


def _executed(text, variables, root):
    """The selected fields of the only query of a document with its fragments."""
    tokens, parts = iter(_TOKEN.findall(re.sub(r"#.*", "", text))), {}
    for word in tokens:
        assert word in ("query", "fragment"), "nothing is ever written"
        head = [*iter(tokens.__next__, "{")]
        parts["query" if word == "query" else head[0]] = _selection(tokens)
    return _selected(root, parts["query"], parts, variables)


def _selection(tokens):
    """[field, arguments, selection] of each; a fragment is the field "..." with its name as the arguments."""
    fields = []
    for token in iter(tokens.__next__, "}"):
        if token == "{":
            fields[-1][2] = _selection(tokens)
        elif token.startswith("("):
            fields[-1][1] = token
        else:
            fields.append([token, next(tokens) if token == "..." else "", None])
    return fields


def _arguments(text, variables):
    """Those of a field that are not null."""
    values = {}
    for name, listed, word in _ARGUMENT.findall(text):
        value = variables.get(word[1:]) if word.startswith("$") else json.loads(word)
        values[name] = [value] if listed else value
    return {name: value for name, value in values.items() if value is not None}


def _selected(value, selection, fragments, variables):
    if value is None:
        return None
    if isinstance(value, list):
        return [_selected(one, selection, fragments, variables) for one in value]
    answer = {}
    for name, arguments, inner in selection:
        if name == "...":
            answer |= _selected(value, fragments[arguments], fragments, variables)
            continue
        if name not in value:
            raise Refused(f'Cannot query field "{name}"')
        part = value[name]
        if arguments and not callable(part):
            raise Refused(f'Unknown arguments {arguments} on field "{name}"')
        part = part(**_arguments(arguments, variables)) if callable(part) else part
        answer[name] = part if inner is None else _selected(part, inner, fragments, variables)
    return answer
