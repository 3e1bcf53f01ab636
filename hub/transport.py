"""Calls to the Hub with what `huggingface_hub` leaves out: a timeout, retries that honour Retry-After, clear errors.

`call` repeats what may be repeated without harm (reading, and making what may exist already); `call_once` does not,
for commits, whose caller must look at what happened before sending again. Both turn the library's exceptions into
those of `hub.errors`, whose texts hold no token.
"""

from __future__ import annotations

import random
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from .errors import AccessError, ConflictError, FilesError, HubError, NotFoundError, UnavailableError, redacted

DEFAULT_TIMEOUT_SECONDS = 120.0
_CONNECT_TIMEOUT_SECONDS = 10.0
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
_RATE_LIMIT_RESET = re.compile(r"\br=0;\s*t=(\d+)")
# Matched by name: huggingface_hub 1.x uses httpx and 2.x httpx2, with the same names.
_NETWORK_ERRORS = frozenset({"TransportError", "OfflineModeIsEnabled", "TimeoutError", "ConnectionError"})

_client_lock = threading.Lock()

Result = TypeVar("Result")


class Transport:
    """An `HfApi` and the manner of calling it. Safe to use from several threads.

    When the Hub asks one of them to come back later, all of them wait: the limit is one for all.

    Args:
        endpoint: the server; default `HF_ENDPOINT`, else huggingface.co.
        token: an access token; default: the saved one.
        timeout: seconds that the server may stay silent.
        attempts: how often a call is tried.
        longest_wait: seconds between two attempts at most.
    """

    def __init__(
        self, endpoint: str | None, token: str | None, *, timeout: float, attempts: int, longest_wait: float
    ) -> None:
        if attempts < 1:
            raise ValueError(f"attempts is {attempts}, allowed is at least 1")
        self.api = _api_class()(endpoint=endpoint, token=token)
        self.attempts = attempts
        self.longest_wait = longest_wait
        self._timeout = timeout
        self._resume_at = 0.0  # on the monotonic clock
        self._pause_lock = threading.Lock()
        _set_timeout(timeout)

    @property
    def access(self) -> dict[str, Any]:
        """Endpoint and token for the functions that are not methods of `HfApi`."""
        return {"endpoint": self.api.endpoint, "token": self.api.token}

    def require_token(self) -> None:
        """Raise AccessError before anything is sent, if there is no token to write with."""
        from huggingface_hub import get_token

        if not self.api.token and not get_token():
            raise AccessError("no access token: run `hf auth login` or set HF_TOKEN to one that may write")

    def call(self, function: Callable[[], Result], attempts: int | None = None) -> Result:
        """The result of `function`, tried again after transient failures (`attempts` times in all, if given).

        Raises:
            HubError: the kind says what happened; UnavailableError after the last attempt.
        """
        import tenacity

        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(lambda error: isinstance(error, UnavailableError) and error.passing),
            stop=tenacity.stop_after_attempt(attempts or self.attempts),
            wait=lambda state: self.wait(
                state.attempt_number - 1, state.outcome.exception() if state.outcome else None
            ),
            sleep=_sleep,
            reraise=True,
        )
        return retrying(lambda: self.call_once(function))

    def call_once(self, function: Callable[[], Result]) -> Result:
        """The result of `function`, with the library's exceptions turned into those of `hub.errors`."""
        _set_timeout(self._timeout)
        if (remaining := self._resume_at - time.monotonic()) > 0:
            _sleep(remaining + random.uniform(0.0, 0.25))
        # What the caller is dealing with already is the context of whatever is raised here, and not its cause.
        handled = sys.exc_info()[1]
        try:
            return function()
        except HubError:
            raise
        except Exception as error:
            translated = _translated(list(_chain(error, until=handled)))
            if translated is None:
                raise
            raise translated from None

    def pause(self, attempt: int, error: BaseException | None) -> None:
        """Wait before the next attempt, of which `attempt` (from 0) have failed."""
        _sleep(self.wait(attempt, error))

    def wait(self, attempt: int, error: BaseException | None) -> float:
        """Seconds to wait: what the server asks for, else growing with jitter, so that parallel writers spread out.

        Raises:
            UnavailableError: the server asks for longer than `longest_wait`.
        """
        asked = getattr(error, "retry_after", None)
        if asked is not None and asked > self.longest_wait:
            raise UnavailableError(f"{error}; the Hub asks to come back in {asked:.0f} s")
        if asked is not None:
            with self._pause_lock:
                self._resume_at = max(self._resume_at, time.monotonic() + asked)
        base = 0.1 if isinstance(error, ConflictError) else 0.5
        backoff = random.uniform(0.5, 1.0) * min(base * 2.0 ** min(attempt, 10), 30.0)
        return float(max(backoff, asked + random.uniform(0.0, 0.25) if asked is not None else 0.0))


def _sleep(seconds: float) -> None:
    time.sleep(seconds)


@lru_cache(maxsize=1)
def _api_class() -> Any:
    from huggingface_hub import HfApi

    class Api(HfApi):
        """`HfApi` without the extra request that has a card's metadata checked before each commit.

        Cards are checked here before they are sent, and by the Hub when they are committed. Should the library rename
        this method, the cost is one request per commit.
        """

        def _validate_yaml(self, content: str, **_: Any) -> None:
            return None

    return Api


def _set_timeout(seconds: float) -> None:
    """Give the process's client a timeout, unless whoever set the client up chose one; the default client has none."""
    from huggingface_hub import get_session, set_client_factory

    with _client_lock:  # a new factory closes the client that is there
        session = get_session()
        if session.timeout.read is not None:
            return
        kind, hooks = type(session), session.event_hooks
        connect = min(_CONNECT_TIMEOUT_SECONDS, seconds)
        set_client_factory(
            lambda: kind(event_hooks=hooks, follow_redirects=True, timeout=(connect, seconds, seconds, seconds))
        )


def _chain(error: BaseException | None, until: BaseException | None = None) -> Iterator[BaseException]:
    """An exception and what it came from, without `until` and what that came from."""
    seen = {id(until)}
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _translated(chain: Sequence[BaseException]) -> HubError | None:
    """Our error for the library's, given with what it came from; None if it is none of the Hub's."""
    error = chain[0]
    responses = (getattr(link, "response", None) for link in chain)
    response = next((found for found in responses if hasattr(found, "status_code")), None)
    names = {kind.__name__ for link in chain for kind in type(link).__mro__}
    text = redacted(" ".join(str(error).split()))[:600]
    if response is None:
        if names & _NETWORK_ERRORS or "LocalEntryNotFoundError" in names:
            unreachable = UnavailableError(f"the Hub cannot be reached: {text or type(error).__name__}")
            unreachable.passing = "OfflineModeIsEnabled" not in names
            return unreachable
        if "NotASafetensorsRepoError" in names or "RepositoryNotFoundError" in names or "EntryNotFoundError" in names:
            return NotFoundError(text)
        return FilesError(text) if "HFValidationError" in names else None
    status = int(response.status_code)
    if status in _TRANSIENT:
        unavailable = UnavailableError(f"the Hub answered {status}: {text}")
        unavailable.retry_after = _retry_after(response)
        return unavailable
    if status == 404 or names & {"RepositoryNotFoundError", "RevisionNotFoundError", "EntryNotFoundError"}:
        return NotFoundError(f"not found, or not visible with this token: {text}")
    if status == 401:
        return AccessError(f"the Hub does not accept the token; run `hf auth login`: {text}")
    if status in (402, 403, 413):
        return AccessError(f"not allowed with this token, or a quota is used up: {text}")
    if status in (409, 412):
        return ConflictError(text)
    return FilesError(f"the Hub refused the request ({status}): {text}")


def _retry_after(response: Any) -> float | None:
    """Seconds that the server asks to wait: Retry-After, else the reset time of an exhausted rate limit."""
    value = response.headers.get("Retry-After", "").strip()
    if value.isdigit():
        return float(value)
    limit = _RATE_LIMIT_RESET.search(response.headers.get("RateLimit", ""))
    return float(limit[1]) if limit else None
