"""The HTTP client that `huggingface_hub` shares in a process: given a timeout, and told when not to try again itself.

The library's own retries know no longest wait, print a warning for each attempt, and multiply with those of
`hub.store.transport`. Inside `single_attempts` a request that fails for now (no answer, or one of `TRANSIENT`) raises
what the library raises after its last attempt, and no further one is sent. Elsewhere the client is as it was.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
# Matched by name: huggingface_hub 1.x uses httpx and 2.x httpx2, with the same names.
NETWORK_ERRORS = frozenset({"TransportError", "OfflineModeIsEnabled", "TimeoutError", "ConnectionError"})
_CONNECT_TIMEOUT_SECONDS = 10.0
_OURS = "hub_single_attempts"  # marks a client whose `send` is ours

_lock = threading.Lock()


@dataclass
class _Attempt:
    """What checks each request, the failure after which none is sent, and where this attempt uploads to."""

    check: Callable[[Any], object]
    failure: Exception | None = None
    addresses: set[str] = field(default_factory=set)


_attempt: ContextVar[_Attempt | None] = ContextVar("hub_attempt", default=None)
_uploads: dict[str, _Attempt] = {}  # address -> attempt: the library uploads several files in threads of its own


@contextmanager
def single_attempts(check: Callable[[Any], object]) -> Iterator[None]:
    """Requests of this thread, and of uploads that it starts, fail at once; `check` sees each first and may raise."""
    attempt = _Attempt(check)
    token = _attempt.set(attempt)
    try:
        yield
    finally:
        _attempt.reset(token)
        for address in attempt.addresses:
            _uploads.pop(address, None)


def prepare(seconds: float) -> None:
    """Give the process's client a timeout, unless whoever set the client up chose one, and the single attempts."""
    from huggingface_hub import get_session, set_client_factory

    with _lock:  # a new factory closes the client that is there
        session = get_session()
        if session.timeout.read is None:
            kind, hooks = type(session), session.event_hooks
            connect = min(_CONNECT_TIMEOUT_SECONDS, seconds)
            timeout = (connect, seconds, seconds, seconds)
            set_client_factory(
                lambda: _with_single_attempts(kind(event_hooks=hooks, follow_redirects=True, timeout=timeout))
            )
        else:
            _with_single_attempts(session)


def kinds(error: BaseException) -> set[str]:
    """The names of an exception's classes."""
    return {kind.__name__ for kind in type(error).__mro__}


def _with_single_attempts(session: Any) -> Any:
    if hasattr(session, _OURS):
        return session
    plain = session.send

    def send(request: Any, **options: Any) -> Any:
        attempt = _attempt.get() or _uploads.get(str(request.url))
        if attempt is None:
            return plain(request, **options)
        if attempt.failure is not None:
            raise attempt.failure
        attempt.check(request)
        try:
            response = _answered(plain(request, **options))
        except Exception as error:
            if kinds(error) & NETWORK_ERRORS and "OfflineModeIsEnabled" not in kinds(error):
                attempt.failure = _unreached()(str(error) or type(error).__name__)
                raise attempt.failure from error
            if "HTTPError" in kinds(error):
                attempt.failure = error
            raise
        if request.url.path.endswith("/info/lfs/objects/batch"):
            attempt.addresses |= {str(type(request.url)(address)) for address in _addresses(response.json())}
            _uploads.update(dict.fromkeys(attempt.addresses, attempt))
        return response

    session.send = send
    setattr(session, _OURS, True)
    return session


def _answered(response: Any) -> Any:
    """The response, unless it says that the server cannot for now."""
    if response.status_code in TRANSIENT:
        from huggingface_hub.utils import hf_raise_for_status

        response.read()
        response.close()
        hf_raise_for_status(response)
    return response


def _addresses(batch: Any) -> Iterator[str]:
    """Where large files are sent, in one piece or in parts, by the answer to a batch request of Git LFS."""
    for item in batch.get("objects", ()) if isinstance(batch, dict) else ():
        for action in (item.get("actions") or {}).values():
            yield action["href"]
            yield from (part for part in (action.get("header") or {}).values() if str(part).startswith("http"))


@lru_cache(maxsize=1)
def _unreached() -> type[Exception]:
    from huggingface_hub.errors import OfflineModeIsEnabled

    class UnreachedError(OfflineModeIsEnabled):
        """No answer came. The library takes it as it takes being offline: no new attempt, and the cache if it can."""

    return UnreachedError
