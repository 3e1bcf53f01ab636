"""Calls to the Hub with a timeout, bounded retries that honour Retry-After, and clear errors.

The retries of `huggingface_hub` have no longest wait and would multiply with ours, so requests in our calls fail at
once (`_with_single_attempts`). Everyone else in the process keeps them.
"""

from __future__ import annotations

import random
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hub.base.errors import (
    AccessError,
    ConflictError,
    FilesError,
    HubError,
    NotFoundError,
    UnavailableError,
    redacted,
)

DEFAULT_TIMEOUT_SECONDS = 120.0
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
# Matched by name: huggingface_hub 1.x uses httpx and 2.x httpx2, with the same names.
_OFFLINE = "OfflineModeIsEnabled"
_NETWORK_ERRORS = frozenset({"TransportError", _OFFLINE, "TimeoutError", "ConnectionError"})
_CONNECT_TIMEOUT_SECONDS = 10.0
_ATTEMPTS_TO_CONNECT = 3  # unless patient: a machine without a network is told so within seconds
_LONGEST_BACKOFF = 30.0  # seconds between two attempts, unless the Hub asks for more
_REFUSED_SECONDS = 60.0  # a token that was refused is not sent again for so long
_COMMIT_LIMIT_SECONDS = 3600.0  # the Hub counts commits by the hour
_SENDING = re.compile(r"/api/((?:models|datasets|spaces)/[^/]+/[^/]+)/(?:commit|preupload)/")
_client_lock = threading.Lock()
_ADVICE = re.compile(
    r"For more information check: https://developer\.mozilla\.org/\S+|Please make sure you specified the correct "
    r"`repo_id`.*?(?=\(Request ID|$)"
)
_NO_XET = re.compile(r"\b404\b.*/xet-(?:read|write)-token/")

Result = TypeVar("Result")


class Transport:
    """An `HfApi` for several threads: when the Hub asks one to wait, all wait.

    Defaults: `HF_ENDPOINT`, else huggingface.co, and the saved token. The server may stay silent for `timeout` s; two
    attempts are at most `longest_wait` s apart.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        token: str | None = None,
        *,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        attempts: int = 6,
        longest_wait: float = 300.0,
    ) -> None:
        from huggingface_hub import HfApi

        self.api: Any = HfApi(endpoint=endpoint, token=token)
        self.api._validate_yaml = lambda *_, **__: None  # a request before each commit; cards are checked here
        self.attempts = attempts
        self.longest_wait = longest_wait
        self._timeout = timeout
        # A time of the monotonic clock.
        self._resume_at = 0.0
        self._pause_lock = threading.Lock()
        self._asking = threading.Lock()  # held by the thread that asks whether the Hub is back
        self._gave_up: tuple[float, UnavailableError] | None = None  # when one last did, and over what
        self._refused: dict[Any, tuple[float, HubError]] = {}  # token or repository -> until when, and what was said
        _prepare(timeout)

    def require_token(self) -> None:
        """Raise AccessError if there is no token to write with; sends nothing."""
        from huggingface_hub import get_token

        if not self.api.token and not get_token():
            raise AccessError("no access token: run `hf auth login` or set HF_TOKEN to one that may write")

    def call(self, function: Callable[[], Result], attempts: int | None = None, *, patient: bool = True) -> Result:
        """The result of `function`, which may be repeated without harm; UnavailableError after the last of `attempts`.

        Unless `patient`, it gives up within seconds when there is no network: a cache may have the answer.
        """
        allowed, attempt, asking = attempts or self.attempts, 0, False
        try:
            while True:
                try:
                    return self.call_once(function)
                except UnavailableError as error:
                    attempt, failed = attempt + 1, time.monotonic()
                    if attempt >= (allowed if patient or error.connected else min(allowed, _ATTEMPTS_TO_CONNECT)):
                        raise
                    seconds = self.wait(attempt - 1, error)
                    # Of several threads that fail together, one asks again and the others wait for it.
                    asking = asking or self._asking.acquire(timeout=max(seconds, _LONGEST_BACKOFF))
                    if self._gave_up and self._gave_up[0] > failed:
                        raise self._gave_up[1] from None
                    if (remaining := failed + seconds - time.monotonic()) > 0:
                        _sleep(remaining)
        except UnavailableError as error:
            if asking:
                self._gave_up = time.monotonic(), error
            raise
        finally:
            if asking:
                self._asking.release()

    def call_once(self, function: Callable[[], Result]) -> Result:
        """The result of `function`, with the library's exceptions turned into ours, whose texts hold no token.

        For commits: the caller must check what happened before sending again.
        """
        _prepare(self._timeout)
        if (remaining := self._resume_at - time.monotonic()) > 0:
            _sleep(remaining + random.uniform(0.0, 0.25))
        # What the caller is dealing with already is the context of whatever is raised here, and not its cause.
        handled, attempt = sys.exc_info()[1], _Attempt(self._check)
        token = _attempt.set(attempt)
        try:
            return function()
        except Exception as error:
            translated = _translated(list(_chain(error, until=handled)))
            if translated is None or translated is error:
                raise
            if translated.refuses is not None:
                key, seconds = translated.refuses
                self._refused[key] = time.monotonic() + seconds, translated
            raise translated from None
        finally:
            _attempt.reset(token)
            for address in attempt.addresses:
                _uploads.pop(address, None)

    def _check(self, request: Any) -> None:
        """Raise before a request is sent that would be refused: by its token, or by the limit of commits."""
        sending = _SENDING.search(str(request.url.path))
        for key in (request.headers.get("authorization"), sending and sending[1]):
            if key in self._refused and time.monotonic() < self._refused[key][0]:
                raise self._refused[key][1]

    def wait(self, attempt: int, error: BaseException | None) -> float:
        """Seconds to wait: what the server asks for, else growing with jitter, so that parallel writers spread out.

        Raises UnavailableError if that is longer than `longest_wait`, or a new attempt does not help.
        """
        if isinstance(error, UnavailableError) and not error.passing:
            raise error
        requested = getattr(error, "retry_after", None)
        if requested is not None and requested > self.longest_wait:
            raise UnavailableError(f"{error}; the Hub asks to wait {requested:.0f} s")
        base = 0.1 if isinstance(error, ConflictError) else 0.5
        backoff = random.uniform(0.5, 1.0) * min(base * 2.0 ** min(attempt, 10), _LONGEST_BACKOFF)
        if requested is None:
            return backoff
        with self._pause_lock:
            self._resume_at = max(self._resume_at, time.monotonic() + requested)
        return max(backoff, float(requested) + random.uniform(0.0, 0.25))


def _sleep(seconds: float) -> None:
    time.sleep(seconds)


def _chain(error: BaseException | None, until: BaseException | None = None) -> Iterator[BaseException]:
    """An exception and its causes, without `until` and the causes of that."""
    seen = {id(until)}
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _translated(chain: Sequence[BaseException]) -> HubError | None:
    """Our error for the library's, which comes with its causes; None if it is not about the Hub."""
    for link in (getattr(link, "unavailable", link) for link in chain):
        if isinstance(link, HubError):  # raised inside the library by `send`, or by what `call` had asked it to do
            return link
    answers = (getattr(link, "response", None) for link in chain)
    response = next((answer for answer in answers if hasattr(answer, "status_code")), None)
    names = {name for link in chain for name in _kinds(link)}
    text = _one_line(chain[0])
    if _NO_XET.search(text):
        return FilesError(f"the server has no Xet storage; set HF_HUB_DISABLE_XET=1 and start again: {text}")
    if "UnsupportedProtocol" in names or "InvalidURL" in names:
        return FilesError(f"HF_ENDPOINT is not the address of a Hub, allowed is https://HOST: {text}")
    if response is None:
        if names & _NETWORK_ERRORS or "LocalEntryNotFoundError" in names:
            error = _unreachable(chain[0], names)
            # It did not come from `send`: the library has repeated it while it resumed a download.
            error.passing = not names & {"ConnectError", "TimeoutException", "RemoteProtocolError", _OFFLINE}
            return error
        if "NotASafetensorsRepoError" in names or "RepositoryNotFoundError" in names or "EntryNotFoundError" in names:
            return NotFoundError(text)
        return FilesError(text) if "HFValidationError" in names else None
    status = int(response.status_code)
    if status == 404 or names & {"RepositoryNotFoundError", "RevisionNotFoundError", "EntryNotFoundError"}:
        return NotFoundError(f"not found, or not visible with this token: {text}")
    if status == 401:
        sent = response.request.headers.get("authorization")
        reason = "the Hub does not accept the token" if sent else "the Hub requires a token"
        refusal = AccessError(f"{reason}; run `hf auth login` or set HF_TOKEN: {text}")
        refusal.refuses = (sent, _REFUSED_SECONDS) if sent else None
        return refusal
    if status in (402, 403, 413):
        return AccessError(f"not allowed with this token, or a quota is used up: {text}")
    if status in (409, 412):
        return ConflictError(text)
    return FilesError(f"the Hub refused the request ({status}): {text}")


def _one_line(error: object) -> str:
    """An error's text as one line, without a token and the library's general advice."""
    return _ADVICE.sub("", redacted(" ".join(str(error).split())))[:600].strip()


def _unreachable(error: BaseException, names: set[str]) -> UnavailableError:
    unreachable = UnavailableError(f"the Hub cannot be reached: {_one_line(error) or type(error).__name__}")
    unreachable.connected = not names & {"ConnectError", "ConnectTimeout"}
    return unreachable


def _unavailable(response: Any) -> UnavailableError:
    """The error for a response that says that the server cannot for now."""
    request, said = response.request, response.headers.get("X-Error-Message", response.reason_phrase)
    text = _one_line(f"{said} ({request.method} {request.url.path})")
    response.close()
    error = UnavailableError(f"the Hub answered {response.status_code}: {text}")
    error.retry_after = _retry_after(response)
    sending = _SENDING.search(str(request.url.path))
    if response.status_code == 429 and error.retry_after is None and sending:
        repository = sending[1].partition("/")[2]
        error = UnavailableError(
            f"{repository} takes no more commits for now (the Hub allows 128 per hour); re-run the same command in an "
            f"hour to resume: {text}"
        )
        error.passing, error.refuses = False, (sending[1], _COMMIT_LIMIT_SECONDS)
    return error


def _retry_after(response: Any) -> float | None:
    """Seconds that the server asks to wait: Retry-After, else the reset time of an exhausted rate limit."""
    from huggingface_hub.utils import parse_ratelimit_headers

    value = response.headers.get("Retry-After", "").strip()
    if value.isdigit():
        return float(value)
    limit = parse_ratelimit_headers(response.headers)
    return float(limit.reset_in_seconds) if limit and limit.remaining == 0 else None


# -- the client


@dataclass
class _Attempt:
    """The check of each request, the failure after which none is sent, and the upload addresses of this attempt."""

    check: Callable[[Any], object]
    failure: Any = None
    addresses: set[str] = field(default_factory=set)


_attempt: ContextVar[_Attempt | None] = ContextVar("hub_attempt", default=None)
_uploads: dict[str, _Attempt] = {}  # address -> attempt: the library uploads several files in threads of its own


def _prepare(seconds: float) -> None:
    """Give the process's client a timeout, unless whoever set the client up chose one, and the single attempts."""
    from huggingface_hub import get_session, set_client_factory

    with _client_lock:  # a new factory closes the client that is there
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


def _kinds(error: BaseException) -> set[str]:
    return {kind.__name__ for kind in type(error).__mro__}


def _with_single_attempts(session: Any) -> Any:
    if "send" in vars(session):  # ours
        return session
    from huggingface_hub.errors import OfflineModeIsEnabled

    plain = session.send

    def send(request: Any, **options: Any) -> Any:
        attempt = _attempt.get() or _uploads.get(str(request.url))
        if attempt is None:
            return plain(request, **options)
        if attempt.failure is not None:
            raise attempt.failure
        attempt.check(request)
        try:
            response = plain(request, **options)
            unavailable = _unavailable(response) if response.status_code in _TRANSIENT else None
        except Exception as error:
            names = _kinds(error)
            if not names & _NETWORK_ERRORS or _OFFLINE in names:
                raise
            unavailable = _unreachable(error, names)
        if unavailable is not None:
            # The library takes it as it takes being offline: no new attempt, and the cache if it can.
            attempt.failure = OfflineModeIsEnabled(str(unavailable))
            attempt.failure.unavailable = unavailable
            raise attempt.failure
        if request.url.path.endswith("/info/lfs/objects/batch"):
            attempt.addresses |= {str(type(request.url)(address)) for address in _addresses(response.json())}
            _uploads.update(dict.fromkeys(attempt.addresses, attempt))
        return response

    session.send = send
    return session


def _addresses(batch: Any) -> Iterator[str]:
    """The upload addresses of large files, whole or in parts, in the response to a Git LFS batch request."""
    for item in batch.get("objects", ()) if isinstance(batch, dict) else ():
        for action in (item.get("actions") or {}).values():
            yield action["href"]
            yield from (part for part in (action.get("header") or {}).values() if str(part).startswith("http"))
