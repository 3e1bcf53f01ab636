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

from hub.base import variables
from hub.base.errors import (
    AccessError,
    ConflictError,
    FilesError,
    HubError,
    NotFoundError,
    UnavailableError,
    redact,
)

DEFAULT_TIMEOUT_SECONDS = 120.0
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
# Matched by name: huggingface_hub 1.x uses httpx and 2.x httpx2, with the same names.
_OFFLINE = "OfflineModeIsEnabled"
_NETWORK_ERRORS = frozenset({"TransportError", _OFFLINE, "TimeoutError", "ConnectionError"})
_CONNECT_TIMEOUT_SECONDS = 10.0
# An impatient call gives up within seconds on a machine without a network.
_ATTEMPTS_TO_CONNECT = 3
# Seconds between two attempts, unless the Hub asks for more.
_LONGEST_BACKOFF = 30.0
# A token that was refused is not sent again for so long.
_REFUSED_SECONDS = 60.0
# The Hub counts commits by the hour.
_COMMIT_LIMIT_SECONDS = 3600.0
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
        variables.check([variables.ENDPOINT])
        from huggingface_hub import HfApi, constants, get_token

        if not constants.HF_HUB_OFFLINE:
            variables.check_network(token or get_token() or "")
        self.api: Any = HfApi(endpoint=endpoint, token=token)
        # It would send a request before each commit; cards are checked here.
        self.api._validate_yaml = lambda *_, **__: None
        self.attempts = attempts
        self.longest_wait = longest_wait
        self._timeout = timeout
        # A time of the monotonic clock.
        self._resume_at = 0.0
        self._pause_lock = threading.Lock()
        # Held by the thread that asks whether the Hub is back.
        self._asking_lock = threading.Lock()
        # Time and error of the last call that was given up.
        self._last_failure: tuple[float, UnavailableError] | None = None
        # Tokens and repositories that the Hub refuses, with the end of it and the error.
        self._refusals: dict[Any, tuple[float, HubError]] = {}
        _prepare_client(timeout)

    def require_token(self) -> None:
        """Raise AccessError if there is no token to write with; sends nothing."""
        from huggingface_hub import get_token

        if not self.api.token and not get_token():
            raise AccessError("no access token: run `hf auth login` or set HF_TOKEN to one that may write")

    def call(self, function: Callable[[], Result], attempts: int | None = None, *, patient: bool = True) -> Result:
        """Return the result of `function`, which may be repeated without harm.

        Raises UnavailableError after the last of `attempts`. Unless `patient`, it gives up within seconds when there
        is no network: a cache may have the answer.
        """
        attempt = 0
        is_asking = False
        try:
            while True:
                try:
                    return self.call_once(function)
                except UnavailableError as error:
                    failure_time = time.monotonic()
                    attempt += 1
                    max_attempts = attempts or self.attempts
                    if not patient and not error.connected:
                        max_attempts = min(max_attempts, _ATTEMPTS_TO_CONNECT)
                    if attempt >= max_attempts:
                        raise
                    seconds = self.wait(attempt - 1, error)
                    # Of several threads that fail together, one asks again and the others wait for it.
                    is_asking = is_asking or self._asking_lock.acquire(timeout=max(seconds, _LONGEST_BACKOFF))
                    if self._last_failure and self._last_failure[0] > failure_time:
                        raise self._last_failure[1] from None
                    _sleep(max(0.0, failure_time + seconds - time.monotonic()))
        except UnavailableError as error:
            if is_asking:
                self._last_failure = (time.monotonic(), error)
            raise
        finally:
            if is_asking:
                self._asking_lock.release()

    def call_once(self, function: Callable[[], Result]) -> Result:
        """Return the result of `function`, with the library's exceptions turned into ours, which hold no token.

        For commits: the caller must check what happened before sending again.
        """
        _prepare_client(self._timeout)
        remaining = self._resume_at - time.monotonic()
        if remaining > 0:
            _sleep(remaining + random.uniform(0.0, 0.25))
        # An exception that the caller handles already is the context of what is raised here, and not its cause.
        handled = sys.exc_info()[1]
        attempt = _Attempt(self._check_not_refused)
        token = _attempt.set(attempt)
        try:
            return function()
        except Exception as error:
            translated = _translate(list(_iterate_causes(error, until=handled)))
            if translated is None or translated is error:
                raise
            if translated.refuses is not None:
                key, seconds = translated.refuses
                self._refusals[key] = (time.monotonic() + seconds, translated)
            raise translated from None
        finally:
            _attempt.reset(token)
            for address in attempt.addresses:
                _uploads.pop(address, None)

    def _check_not_refused(self, request: Any) -> None:
        """Raise before a request is sent that would be refused: by its token, or by the limit of commits."""
        sending = _SENDING.search(str(request.url.path))
        for key in (request.headers.get("authorization"), sending and sending[1]):
            refusal = self._refusals.get(key)
            if refusal is not None and time.monotonic() < refusal[0]:
                raise refusal[1]

    def wait(self, attempt: int, error: BaseException | None) -> float:
        """Choose the seconds to wait: as the server asks, else growing with jitter, so that writers spread out.

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


def _iterate_causes(error: BaseException | None, until: BaseException | None = None) -> Iterator[BaseException]:
    """Yield an exception and its causes, without `until` and the causes of that."""
    visited = {id(until)}
    while error is not None and id(error) not in visited:
        visited.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _translate(chain: Sequence[BaseException]) -> HubError | None:
    """Make our error of the library's, which comes with its causes; None if it is not about the Hub."""
    names: set[str] = set()
    response: Any = None
    for link in chain:
        # Errors of ours are raised inside the library by `send`, or by what `call` had asked it to do.
        ours = getattr(link, "unavailable", link)
        if isinstance(ours, HubError):
            return ours
        names.update(_class_names(link))
        answer = getattr(link, "response", None)
        if response is None and hasattr(answer, "status_code"):
            response = answer
    text = _one_line(chain[0])
    if _NO_XET.search(text):
        return FilesError(f"the server has no Xet storage; set HF_HUB_DISABLE_XET=1 and start again: {text}")
    if "UnsupportedProtocol" in names or "InvalidURL" in names:
        return FilesError(f"HF_ENDPOINT is not the address of a Hub, allowed is https://HOST: {text}")
    if response is not None:
        return _translate_response(response, names, text)
    if names & _NETWORK_ERRORS or "LocalEntryNotFoundError" in names:
        error = _unreachable(chain[0], names)
        # It did not come from `send`: the library has repeated it while it resumed a download.
        error.passing = not names & {"ConnectError", "TimeoutException", "RemoteProtocolError", _OFFLINE}
        return error
    if names & {"NotASafetensorsRepoError", "RepositoryNotFoundError", "EntryNotFoundError"}:
        return NotFoundError(text)
    return FilesError(text) if "HFValidationError" in names else None


def _translate_response(response: Any, names: set[str], text: str) -> HubError:
    """Make our error of a response; `names` are those of the library's errors."""
    status = int(response.status_code)
    if status == 404 or names & {"RepositoryNotFoundError", "RevisionNotFoundError", "EntryNotFoundError"}:
        return NotFoundError(f"not found, or not visible with this token: {text}")
    if status == 401:
        token = response.request.headers.get("authorization")
        reason = "the Hub does not accept the token" if token else "the Hub requires a token"
        refusal = AccessError(f"{reason}; run `hf auth login` or set HF_TOKEN: {text}")
        refusal.refuses = (token, _REFUSED_SECONDS) if token else None
        return refusal
    if status in (402, 403, 413):
        return AccessError(f"not allowed with this token, or a quota is used up: {text}")
    if status in (409, 412):
        return ConflictError(text)
    return FilesError(f"the Hub refused the request ({status}): {text}")


def _one_line(error: object) -> str:
    """Write an error's text as one line, without a token and the library's general advice."""
    text = redact(" ".join(str(error).split()))
    return _ADVICE.sub("", text)[:600].strip()


def _unreachable(error: BaseException, names: set[str]) -> UnavailableError:
    reason = _one_line(error) or type(error).__name__
    if "CERTIFICATE_VERIFY_FAILED" in reason:
        reason += "; SSL_CERT_FILE names the certificates to trust (REQUESTS_CA_BUNDLE and CURL_CA_BUNDLE do not)"
    unreachable = UnavailableError(f"the Hub cannot be reached: {reason}")
    unreachable.connected = not names & {"ConnectError", "ConnectTimeout"}
    return unreachable


def _unavailable(response: Any) -> UnavailableError:
    """Make the error of a response that says that the server cannot for now."""
    request = response.request
    reason = response.headers.get("X-Error-Message", response.reason_phrase)
    text = _one_line(f"{reason} ({request.method} {request.url.path})")
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
        error.passing = False
        error.refuses = (sending[1], _COMMIT_LIMIT_SECONDS)
    return error


def _retry_after(response: Any) -> float | None:
    """Read the seconds that the server asks to wait: Retry-After, else the reset of an exhausted rate limit."""
    from huggingface_hub.utils import parse_ratelimit_headers

    value = response.headers.get("Retry-After", "").strip()
    if value.isdigit():
        return float(value)
    limit = parse_ratelimit_headers(response.headers)
    return float(limit.reset_in_seconds) if limit and limit.remaining == 0 else None


# -- the client


@dataclass
class _Attempt:
    """A check of each request, the failure after which none is sent, and the upload addresses of this attempt."""

    check: Callable[[Any], object]
    failure: Any = None
    addresses: set[str] = field(default_factory=set)


_attempt: ContextVar[_Attempt | None] = ContextVar("hub_attempt", default=None)
# The attempts by address: the library uploads several files in threads of its own.
_uploads: dict[str, _Attempt] = {}


def _prepare_client(seconds: float) -> None:
    """Give the process's client a timeout, unless whoever set the client up chose one, and the single attempts."""
    from huggingface_hub import get_session, set_client_factory

    # A new factory closes the client that is there.
    with _client_lock:
        session = get_session()
        if session.timeout.read is not None:
            _with_single_attempts(session)
            return
        client_class = type(session)
        hooks = session.event_hooks
        timeout = (min(_CONNECT_TIMEOUT_SECONDS, seconds), seconds, seconds, seconds)

        def make_client() -> Any:
            return _with_single_attempts(client_class(event_hooks=hooks, follow_redirects=True, timeout=timeout))

        set_client_factory(make_client)


def _class_names(error: BaseException) -> set[str]:
    return {error_class.__name__ for error_class in type(error).__mro__}


def _with_single_attempts(session: Any) -> Any:
    """Replace the `send` of a session by one that fails at once inside our calls."""
    is_ours = "send" in vars(session)
    if is_ours:
        return session
    from huggingface_hub.errors import OfflineModeIsEnabled

    plain_send = session.send

    def send(request: Any, **options: Any) -> Any:
        attempt = _attempt.get() or _uploads.get(str(request.url))
        if attempt is None:
            return plain_send(request, **options)
        if attempt.failure is not None:
            raise attempt.failure
        attempt.check(request)
        try:
            response = plain_send(request, **options)
            unavailable = _unavailable(response) if response.status_code in _TRANSIENT else None
        except Exception as error:
            names = _class_names(error)
            if not names & _NETWORK_ERRORS or _OFFLINE in names:
                raise
            unavailable = _unreachable(error, names)
        if unavailable is not None:
            # The library takes it as it takes being offline: no new attempt, and the cache if it can.
            attempt.failure = OfflineModeIsEnabled(str(unavailable))
            attempt.failure.unavailable = unavailable
            raise attempt.failure
        if request.url.path.endswith("/info/lfs/objects/batch"):
            url_class = type(request.url)
            attempt.addresses.update(str(url_class(address)) for address in _upload_addresses(response.json()))
            _uploads.update(dict.fromkeys(attempt.addresses, attempt))
        return response

    session.send = send
    return session


def _upload_addresses(batch: Any) -> Iterator[str]:
    """Yield the upload addresses of large files, whole or in chunks, in the response to a Git LFS batch request."""
    items = batch.get("objects", ()) if isinstance(batch, dict) else ()
    for item in items:
        for action in (item.get("actions") or {}).values():
            yield action["href"]
            for value in (action.get("header") or {}).values():
                if str(value).startswith("http"):
                    yield value
