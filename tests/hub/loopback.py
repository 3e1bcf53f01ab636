"""A small conformant Hub on the loopback interface, which the real clients talk to over HTTP.

It speaks what huggingface_hub, transformers and datasets ask of a Hub: repositories, branches, tags, atomic commits
with parent check, large files through a second origin, downloads with ranges, listings and collections.
Every request is noted, and faults can be put into any of them:

    with LoopbackHub() as hub:
        hub.faults.append(Fault(lambda request: request.api == "commit", "lose"))
"""

from __future__ import annotations

import json
import socket
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

from tests.hub.loopback_api import route
from tests.hub.loopback_state import Refused, Response, State

TOKEN = "hf_" + "LoopbackWriteToken0123456789abcdef"


@dataclass
class Request:
    """One request as it came in; `api` is the endpoint's name ("commit", "tree", ...; "" outside /api)."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes
    origin: str  # "hub" or "storage"
    number: int = 0
    api: str = ""
    status: int = 0

    def json(self):
        return json.loads(self.body or b"{}")


@dataclass
class Fault:
    """What goes wrong with the requests that `when` picks, `times` times.

    kind: "status" answers `status` with `headers` and does nothing; "drop" closes the connection and does nothing;
    "lose" does what was asked and closes the connection; "cut" sends half of the response's body and closes; "before"
    calls `action` first.
    """

    when: Callable[[Request], bool]
    kind: str
    status: int = 503
    headers: dict[str, str] = field(default_factory=dict)
    times: int = 1
    action: Callable[[], object] = lambda: None


class LoopbackHub:
    """The servers (the Hub's and the storage's), their state, the requests so far, and the faults to come."""

    def __init__(self, users=None):
        self.state = State()
        self.users = users or {TOKEN: {"name": "tester", "orgs": ["org"], "write": True}}
        self.requests: list[Request] = []
        self.faults: list[Fault] = []
        self.crashes: list[str] = []  # errors of this server itself; tests require that there are none
        self._lock = threading.Lock()
        self._servers = {origin: _Server(self, origin) for origin in ("hub", "storage")}

    @property
    def endpoint(self):
        return self._servers["hub"].url

    @property
    def storage(self):
        return self._servers["storage"].url

    def __enter__(self):
        for server in self._servers.values():
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_):
        for server in self._servers.values():
            server.shutdown()
            server.server_close()

    def api_calls(self, since=0):
        """The names of the API's endpoints that were called, in order."""
        return [request.api for request in self.requests[since:] if request.path.startswith("/api/")]

    def note(self, request):
        """Keep the request; the fault that hits it, if any."""
        with self._lock:
            request.number = len(self.requests)
            self.requests.append(request)
            for fault in self.faults:
                if fault.times > 0 and fault.when(request):
                    fault.times -= 1
                    return fault
            return None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, hub, origin):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.hub, self.origin = hub, origin
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request, client_address):
        """A client that went away is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def setup(self):
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def log_message(self, format, *args):
        """Quiet: the requests are kept in `LoopbackHub.requests`."""

    def do_any(self):
        parts = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        query = parse_qs(parts.query, keep_blank_values=True)
        request = Request(self.command, unquote(parts.path), query, headers, body, self.server.origin)
        answer = route(self.server.hub, request, parts.path)
        fault = self.server.hub.note(request)
        kind = fault.kind if fault else ""
        if fault and kind == "before":
            fault.action()
        if fault and kind == "status":
            response = Response.of_json({"error": "injected fault"}, fault.status, **fault.headers)
        elif kind == "drop":
            return self._hang_up()
        else:
            response = self._answered(answer)
        request.status = response.status
        if kind == "lose":
            return self._hang_up()
        self._send(response, cut=kind == "cut")

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_any

    def _answered(self, answer):
        try:
            return answer()
        except Refused as refused:
            headers = dict(refused.headers)
            body = {"error": refused.message}
            body |= {name: headers.pop(name) for name in ("url", "slug") if name in headers}
            if refused.code:
                headers["X-Error-Code"] = refused.code
            return Response.of_json(body, refused.status, **{"X-Error-Message": refused.message, **headers})
        except Exception:
            self.server.hub.crashes.append(traceback.format_exc())
            return Response.of_json({"error": "the loopback Hub has a bug"}, 500)

    def _send(self, response, cut):
        self.send_response(response.status)
        body = b"" if self.command == "HEAD" else response.body
        headers = {"Content-Length": str(len(response.body)), **response.headers}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if cut else body)
        if cut:
            self._hang_up()

    def _hang_up(self):
        self.close_connection = True
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)
