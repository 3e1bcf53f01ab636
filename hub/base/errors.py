"""The errors of `hub`: every failure a user can meet has one class here and one clear message.

Exceptions of libraries are turned into these where they arise. No message ever holds a token: `redact` is applied to
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
# pydantic's words → ours.
_ALLOWED = {
    "integer": "a whole number",
    "number": "a number",
    "boolean": "True or False",
    "string": "text",
    "dictionary": "a mapping",
    "a Mapping": "a mapping",
    "Input is not a valid path.*": "a path",
    "tuple": "a pair",
}
_BEARER = re.compile(r"(?i)\bbearer\s+[^\s\"',;]+")


class Message(str):
    """A text that keeps the pieces it is made of."""

    pieces: tuple[str, ...] = ()

    def worded(self, word: Callable[[Given], str]) -> str:
        """Word the text, with every parameter in it as `word` has it."""
        return "".join(piece.worded(word) if isinstance(piece, Message) else piece for piece in self.pieces)


class Given(Message):
    """A parameter of ours in a message, as one types it in Python: `mfu=0`."""

    name: str
    value: Any
    in_shell: str | None = None

    def worded(self, word: Callable[[Given], str]) -> str:
        return word(self)


def message(*pieces: str) -> Message:
    """Join a text of pieces, some of them `given`."""
    text = Message("".join(pieces))
    text.pieces = pieces
    return text


def given(name: str, value: Any = ..., in_shell: str | None = None, text: str | None = None) -> Given:
    """Make a parameter and its value a piece of a message, whose `text` may say more than both.

    A command words it as its option: `mfu=0` is `--mfu 0`, and `loss=...`, `gpu=None` and `force=True` are `--loss`,
    `--gpu` and `--force`. Where the option has another form, `in_shell` is what to type.
    """
    if text is None:
        text = f"{name}={'...' if value is ... else literal(value)}"
    piece = Given(text)
    piece.name = name
    piece.value = value
    piece.in_shell = in_shell
    return piece


def _split_field(text: str) -> list[str]:
    """Split off the field that a text begins with."""
    field, equals, value = text.partition("=")
    if equals and field.isidentifier():
        return [given(field, value, text=text)]
    field, colon, sentence = text.partition(":")
    if colon and field.isidentifier():
        return [given(field, None, text=field), f":{sentence}"]
    return [text]


class InputError(ValueError):
    """Bad input of a user: the message names the field, the value and what is allowed.

    It is joined from its pieces, and whoever shows it words those that are `given`.
    """

    exit_status = 2
    # A message may begin with something else, say a file.
    begins_with_field = True

    def __str__(self) -> str:
        return "".join(map(str, self.args))

    @property
    def message(self) -> Message:
        """The message in its pieces; one that begins with `field=` or `field:` is about that field."""
        pieces = [piece if isinstance(piece, str) else str(piece) for piece in self.args]
        if pieces and self.begins_with_field and not isinstance(pieces[0], Message):
            pieces[:1] = _split_field(pieces[0])
        return message(*pieces)


def reason_of(error: Exception) -> str:
    """Return the message of an error as a reason in an answer, with parameters by their names alone."""
    if isinstance(error, InputError):
        return error.message.worded(lambda parameter: parameter.name.replace("_", " "))
    return str(error)


class HubError(Exception):
    """Base class of the errors that `hub` raises on purpose; `exit_status` is that of a command it ends.

    `refuses`: the token or repository that later requests of the next seconds need not try, if there is one.
    """

    exit_status = 1
    begins_with_field = False
    refuses: tuple[str, float] | None = None


class RecordError(HubError, InputError):
    """A run record, or a file of them, that breaks the schema. The message names field, value and what is allowed."""

    exit_status = 2


class NewerError(RecordError):
    """A record or a file that a newer version of this package wrote."""


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


def literal(value: Any) -> str:
    """Write a value as Python does, also where it comes from numpy: 0.5, not np.float64(0.5)."""
    return repr(value.tolist() if hasattr(value, "tolist") else value)


def shorten(value: Any) -> str:
    """Write a value as in code, but at most eighty characters of it."""
    if isinstance(value, int) and abs(value) >= 10**40:
        return f"{str(value)[:1]}…, of {len(str(abs(value)))} digits"
    text = literal(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


def allowed_by(problem: Any) -> str:
    """Say what one of pydantic's problems would have allowed, as the end of "it must be"."""
    reason = re.sub(r"^Input should be (a valid )?|, (got|unable).*", "", problem["msg"])
    reason = re.sub(r"^an instance of (?=[^AEIOU])", "a ", reason).replace("an instance of", "an")
    for words, ours in _ALLOWED.items():
        reason = re.sub(f"^{words}(?!\\w)", ours, reason)
    return reason


def problem_lines(problem: Any, value_text: str | None = None) -> list[str]:
    """Word one of pydantic's problems as lines: field, value (shortened, or `value_text`), what is allowed."""
    name = ".".join(str(key) for key in problem["loc"] if key != "[key]")
    if problem["type"] == "missing":
        return [f"{name}: missing"]
    reason = re.sub(r"^Value error, |(, unable| after validation).*", "", problem["msg"])
    # pydantic says "Input should be greater than 0".
    reason = re.sub(r"^(\w+ should|must) ", "it must ", reason)
    if problem["type"] == "value_error" and not reason.startswith("it must"):
        # A validator of ours names its fields itself.
        return reason.splitlines()
    value = repr(problem["input"]) if value_text is None else value_text
    if len(value) > 80:
        value = f"{value[:80]}…"
    return [f"{name}: {value}; {reason}"]


def unknown(label: str, name: object, names: Iterable[object], *, suggests: bool = True) -> Message:
    """Say that a name does not exist, and list all that do; a `label` that ends in `=` is a parameter.

    `suggests`: name the nearest one, too.

    >>> unknown("kind=", "chinchila", ["joint", "chinchilla"])
    "kind='chinchila' is unknown: did you mean 'chinchilla'? There are joint, chinchilla"
    """
    from difflib import get_close_matches

    candidates = list(map(str, names))
    matches = get_close_matches(str(name).lower(), candidates, n=1) if suggests else []
    subject = given(label[:-1], name) if label.endswith("=") else f"{label}{name!r}"
    verdict = f" is unknown: did you mean {matches[0]!r}? There are" if matches else " is unknown; there are"
    return message(subject, f"{verdict} {', '.join(candidates)}")


def secret_in(text: str) -> str | None:
    """Name what `text` seems to hold: "an access token" of the Hub or "a private key"; None for neither."""
    if _TOKEN.search(text):
        return "an access token"
    return "a private key" if _PRIVATE_KEY.search(text) else None


def redact(text: str) -> str:
    """Replace everything in `text` that looks like an access token by `<token>`."""
    return _BEARER.sub("Bearer <token>", _TOKEN.sub("<token>", text))
