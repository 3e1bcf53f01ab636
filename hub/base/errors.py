"""The errors of `hub`: every failure a user can meet has one class here and one clear message.

Exceptions of libraries are turned into these where they arise. No message ever holds a token: `redacted` is applied to
every text that comes from a server or from a lower layer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

# Access tokens of the Hub: user tokens, OAuth tokens and tokens of organisations. A word such as `hf_hub_download` is
# none, because an underscore follows within a few letters.
_TOKEN = re.compile(r"\b(?:hf_(?:oauth_|jwt_|app_)?|api_org_)[A-Za-z0-9]{16,}")
_PRIVATE_KEY = re.compile(r"---- ?BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY|\bPuTTY-User-Key-File-\d")
_BEARER = re.compile(r"(?i)\bbearer\s+[^\s\"',;]+")


class Message(str):
    """A text that keeps the parts it is made of."""

    parts: tuple[str, ...] = ()

    def worded(self, word: Callable[[Given], str]) -> str:
        """Word the text, with every parameter in it as `word` has it."""
        return "".join(part.worded(word) if isinstance(part, Message) else part for part in self.parts)


class Given(Message):
    """A parameter of ours in a message, as one types it in Python: `mfu=0`."""

    name: str
    value: Any
    in_shell: str | None = None

    def worded(self, word: Callable[[Given], str]) -> str:
        return word(self)


def message(*parts: str) -> Message:
    """Join a text of parts, some of them `given`."""
    text = Message("".join(parts))
    text.parts = parts
    return text


def given(name: str, value: Any = ..., in_shell: str | None = None) -> Given:
    """Make a parameter and its value a part of a message.

    A command words it as its option: `mfu=0` is `--mfu 0`, and `loss=...`, `gpu=None` and `force=True` are `--loss`,
    `--gpu` and `--force`. Where the option has another form, `in_shell` is what to type.
    """
    text = "..." if value is ... else repr(value.tolist() if hasattr(value, "tolist") else value)
    return _of_field(name, f"{name}={text}", value, in_shell)


def _parted(text: str) -> list[str]:
    """Split off the field that a text begins with."""
    field, equals, value = text.partition("=")
    if equals and field.isidentifier():
        return [_of_field(field, text, value)]
    field, colon, rest = text.partition(":")
    return [_of_field(field, field, None), f":{rest}"] if colon and field.isidentifier() else [text]


def _of_field(name: str, text: str, value: Any, in_shell: str | None = None) -> Given:
    part = Given(text)
    part.name, part.value, part.in_shell = name, value, in_shell
    return part


class InputError(ValueError):
    """Bad input of a user: the message names the field, the value and what is allowed.

    It is joined from its parts, and whoever shows it words those that are `given`.
    """

    exit_status = 2
    begins_with_field = True  # and not with a file, say

    def __str__(self) -> str:
        return "".join(map(str, self.args))

    @property
    def message(self) -> Message:
        """Split the message into its parts. One that begins with `field=` or `field:` is of that field."""
        parts = [part if isinstance(part, str) else str(part) for part in self.args]
        if parts and self.begins_with_field and not isinstance(parts[0], Message):
            parts[:1] = _parted(parts[0])
        return message(*parts)


class HubError(Exception):
    """Base class of what `hub` raises on purpose; `exit_status` is that of a command it ends.

    `refuses`: the token or repository that later requests of the next seconds need not try, if there is one.
    """

    exit_status = 1
    begins_with_field = False
    refuses: tuple[str, float] | None = None


class RecordError(HubError, InputError):
    """A run record, or a file of them, that breaks the schema. The message names field, value and what is allowed."""

    exit_status = 2


class FilesError(HubError, InputError):
    """A folder that cannot be released as it is: a file is missing, too large, unreadable, or holds a secret."""

    exit_status = 2


class ConflictError(HubError):
    """The store holds something that contradicts the push, e.g. the same branch with other weights."""


class IntegrityError(HubError):
    """Content that differs from its hash: damaged in transit, in a cache or on a disk."""


class NotFoundError(HubError, LookupError):
    """A repository, revision or file that the store does not have."""

    exit_status = 2


class AccessError(HubError, PermissionError):
    """No token, a token that the Hub does not accept, no permission, or a quota that is used up."""

    exit_status = 2


class UnavailableError(HubError, ConnectionError):
    """The store cannot be reached: offline, timed out, or still failing after all retries.

    `retry_after` are the seconds that the server asks to wait, if it does; `passing`: trying again may help;
    `connected`: a connection could be opened.
    """

    retry_after: float | None = None
    passing: bool = True
    connected: bool = True


def problem_lines(problem: Any, value_text: str | None = None) -> list[str]:
    """One of pydantic's problems as lines: field, value (shortened, or `value_text`) and what is allowed."""
    name = ".".join(str(part) for part in problem["loc"] if part != "[key]")
    if problem["type"] == "missing":
        return [f"{name}: missing"]
    message = re.sub(r"^Value error, |(, unable| after validation).*", "", problem["msg"])
    message = re.sub(r"^(\w+ should|must) ", "it must ", message)  # "Input should be greater than 0"
    if problem["type"] == "value_error" and not message.startswith("it must"):
        # A validator of ours names its fields itself.
        return message.splitlines()
    value = repr(problem["input"]) if value_text is None else value_text
    return [f"{name}: {value[:80]}{'…' if len(value) > 80 else ''}; {message}"]


def unknown(what: str, name: object, names: Iterable[object], *, suggests: bool = True) -> Message:
    """Say that a name does not exist, and list all that do; `what=` is a parameter.

    `suggests`: name the nearest one, too.

    >>> unknown("kind=", "chinchila", ["joint", "chinchilla"])
    "kind='chinchila' is unknown: did you mean 'chinchilla'? There are joint, chinchilla"
    """
    from difflib import get_close_matches

    listed = list(map(str, names))
    near = get_close_matches(str(name).lower(), listed, n=1) if suggests else []
    meant = f": did you mean {near[0]!r}? There are" if near else "; there are"
    called = given(what[:-1], name) if what.endswith("=") else f"{what}{name!r}"
    return message(called, f" is unknown{meant} {', '.join(listed)}")


def secret_in(text: str) -> str | None:
    """What `text` seems to hold: "an access token" of the Hub or "a private key"; None for neither."""
    if _TOKEN.search(text):
        return "an access token"
    return "a private key" if _PRIVATE_KEY.search(text) else None


def redacted(text: str) -> str:
    """`text` with everything that looks like an access token replaced by `<token>`."""
    return _BEARER.sub("Bearer <token>", _TOKEN.sub("<token>", text))
