"""The HTTP client that `huggingface_hub` shares in a process: given a timeout, and told when not to try again itself.

The library's own retries know no longest wait, print a warning for each attempt, and multiply with those of
`store.transport`. Inside `single_attempts` a request that fails for now (no answer, or one of `TRANSIENT`) raises what
the library raises after its last attempt, and no further one is sent. Outside of it, and in other threads, the client
is as it was.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
# Matched by name: huggingface_hub 1.x uses httpx and 2.x httpx2, with the same names.
NETWORK_ERRORS = frozenset({"TransportError", "OfflineModeIsEnabled", "TimeoutError", "ConnectionError"})
_CONNECT_TIMEOUT_SECONDS = 10.0
_SINGLE = "hub_single_attempts"  # marks a client whose `send` is ours

_lock = threading.Lock()


@dataclass
class _Attempt:
    """What is looked at before each request, and the failure after which none is sent."""

    check: Callable[[Any], object]
    failure: Exception | None = None


_attempt: ContextVar[_Attempt | None] = ContextVar("hub_attempt", default=None)


@contextmanager
def single_attempts(check: Callable[[Any], object]) -> Iterator[None]:
    """Requests of this thread fail at once; each is given to `check` first, which may raise."""
    token = _attempt.set(_Attempt(check))
    try:
        yield
    finally:
        _attempt.reset(token)


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


def was_single(response: Any) -> bool:
    """Whether a failed response is of a request that was made once, and not again and again by the library."""
    return bool(response.extensions.get(_SINGLE))


def kinds(error: BaseException) -> set[str]:
    """The names of an exception's classes."""
    return {kind.__name__ for kind in type(error).__mro__}


def _with_single_attempts(session: Any) -> Any:
    if hasattr(session, _SINGLE):
        return session
    plain = session.send

    def send(request: Any, **options: Any) -> Any:
        attempt = _attempt.get()
        if attempt is None:
            return plain(request, **options)
        if attempt.failure is not None:
            raise attempt.failure
        attempt.check(request)
        try:
            return _answered(plain(request, **options))
        except Exception as error:
            if kinds(error) & NETWORK_ERRORS and "OfflineModeIsEnabled" not in kinds(error):
                attempt.failure = _unreached()(str(error) or type(error).__name__)
                raise attempt.failure from error
            if "HTTPError" in kinds(error):
                attempt.failure = error
            raise

    session.send = send
    setattr(session, _SINGLE, True)
    return session


def _answered(response: Any) -> Any:
    """The response, unless it says that the server cannot for now."""
    if response.status_code in TRANSIENT:
        from huggingface_hub.utils import hf_raise_for_status

        response.read()
        response.close()
        response.extensions[_SINGLE] = True
        hf_raise_for_status(response)
    return response


@lru_cache(maxsize=1)
def _unreached() -> type[Exception]:
    from huggingface_hub.errors import OfflineModeIsEnabled

    class UnreachedError(OfflineModeIsEnabled):
        """No answer came. The library takes it as it takes being offline: no new attempt, and the cache if it can."""

    return UnreachedError
