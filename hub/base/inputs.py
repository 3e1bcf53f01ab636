"""Arguments of public functions, read before they are used: one parser for each type that an annotation names.

`@reads` takes the parsers from the annotations of a function or of a dataclass, which stand there as text:

    @reads(seed=whole(0))
    def bootstrap(runs: Runs, n_resamples: int = 1000, seed: int = 0, progress: bool = False) -> Bootstrap: ...

A value that no alternative of an annotation takes is an InputError that names the field, the value and what is
allowed. What an annotation leaves open (Any, arrays, quantities such as "1B") is read by the function itself.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import wraps
from numbers import Real
from os import PathLike
from typing import Any, Literal, TypeVar, cast, get_origin, overload

from hub.base.errors import InputError
from hub.base.tables import literal

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
# Takes the field's name and the value.
Parser = Callable[[str, Any], Any]

# Largest number; products of several are still finite.
LARGEST = 1e60
_LEFT_OPEN = object()


@overload
def reads(function: FunctionT, /) -> FunctionT: ...
@overload
def reads(**parsers: Parser) -> Callable[[FunctionT], FunctionT]: ...
def reads(*own: Any, **parsers: Parser) -> Any:
    """Decorate a function or dataclass so that each argument is read by the parser of its field.

    `parsers` replace what an annotation says. An argument that is the default itself is taken as it is.
    """

    def decorate(function: FunctionT) -> FunctionT:
        if inspect.isclass(function):
            cls: Any = function
            cls.__init__ = decorate(cls.__init__)
            return function
        signature = inspect.signature(function)
        scope = getattr(function, "__globals__", {})
        further = [p for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD]

        @wraps(function)
        def call(*arguments: Any, **keywords: Any) -> Any:
            bound = signature.bind(*arguments, **keywords)
            for name, value in bound.arguments.items():
                parameter = signature.parameters[name]
                if value is parameter.default or parameter.kind is parameter.VAR_POSITIONAL:
                    continue
                if parameter in further:
                    bound.arguments[name] = _read_fields(str(parameter.annotation), value, scope)
                elif name in parsers:
                    bound.arguments[name] = parsers[name](name, value)
                else:
                    bound.arguments[name] = read_as(str(parameter.annotation), name, value, scope)
            return function(*bound.args, **bound.kwargs)

        return cast(FunctionT, call)

    return decorate(own[0]) if own else decorate


def read_as(annotation: str, name: str, value: Any, scope: Mapping[str, Any]) -> Any:
    """Read a value as what an annotation says; names of classes are those of `scope`."""
    allowed = []
    for alternative in _split(annotation, "|"):
        kind = alternative.partition("[")[0]
        words, accept = _KINDS.get(alternative) or _KINDS.get(kind) or _of_class(scope.get(alternative))
        if accept is None:
            return value
        result = accept(value)
        if result is not _LEFT_OPEN:
            return result
        allowed.append(words)
    raise InputError(f"{name}={shorten(value)} must be {' or '.join(dict.fromkeys(allowed))}")


def _read_fields(annotation: str, values: Mapping[str, Any], scope: Mapping[str, Any]) -> dict[str, Any]:
    """Read keywords by the types of the TypedDict that `annotation` unpacks; others stay as they are."""
    fields = scope.get(annotation.removeprefix("Unpack[").removesuffix("]"))
    kinds = getattr(fields, "__annotations__", {})
    classes = vars(sys.modules[fields.__module__]) if kinds and fields is not None else {}
    read = dict(values)
    for name in values.keys() & kinds.keys():
        kind = getattr(kinds[name], "__forward_arg__", kinds[name])
        read[name] = read_as(_without_metadata(str(kind)), name, values[name], classes)
    return read


def _without_metadata(annotation: str) -> str:
    """Return the type of `Annotated[type, metadata]`."""
    if not annotation.startswith("Annotated["):
        return annotation
    first, *_ = _split(annotation[len("Annotated[") : -1], ",")
    return first


def whole(least: int = 0, most: int = 2**63 - 1) -> Parser:
    """Make a parser of whole numbers in a range."""

    def parse(name: str, value: Any) -> int:
        number = _whole(value)
        if number is _LEFT_OPEN or not least <= number <= most:
            bound = f"from {least} to {most}" if most < 2**63 - 1 else f"of at least {least}"
            raise InputError(f"{name}={shorten(value)} must be a whole number {bound}")
        return int(number)

    return parse


def as_it_is(name: str, value: Any) -> Any:
    """Leave a value to the function, which says more of it."""
    return value


def instance_of(kind: type) -> Parser:
    """Make a parser that takes instances of a class."""
    return lambda name, value: read_as(kind.__name__, name, value, {kind.__name__: kind})


def optional(parser: Parser) -> Parser:
    """Make a parser that lets None pass."""
    return lambda name, value: None if value is None else parser(name, value)


def numbers_of(name: str, value: Any) -> Any:
    """Read one number or nested lists of them as an array."""
    import numpy as np

    try:
        return np.asarray(value, float)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{name}={shorten(value)} must be numbers") from None


def shorten(value: Any) -> str:
    """Write a value as in code, but at most eighty characters of it."""
    huge = isinstance(value, int) and abs(value) >= 10**40
    text = f"{str(value)[:1]}…, of {len(str(abs(value)))} digits" if huge else literal(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


def _split(annotation: str, separator: str) -> list[str]:
    """Split an annotation at the separators outside of brackets."""
    parts = []
    depth = 0
    start = 0
    for i, character in enumerate(annotation):
        if character in "[(":
            depth += 1
        elif character in ")]":
            depth -= 1
        elif character == separator and not depth:
            parts.append(annotation[start:i].strip())
            start = i + 1
    return [*parts, annotation[start:].strip()]


def _flag(value: Any) -> Any:
    if isinstance(value, bool):
        return value
    is_numpys = getattr(getattr(value, "dtype", None), "kind", "") == "b" and getattr(value, "ndim", 1) == 0
    return bool(value) if is_numpys else _LEFT_OPEN


def _whole(value: Any) -> Any:
    number = _real(value)
    is_whole = number is not _LEFT_OPEN and abs(number) < 2**63 and float(number).is_integer()
    return int(value) if is_whole else _LEFT_OPEN


def _real(value: Any) -> Any:
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    return value if is_number and abs(value) <= LARGEST else _LEFT_OPEN


def _texts(value: Any) -> Any:
    is_list = isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping))
    is_scalar = getattr(value, "ndim", None) == 0
    items = list(value) if is_list and not is_scalar else [None]
    if not all(isinstance(item, str) for item in items):
        return _LEFT_OPEN
    return items if hasattr(value, "ndim") else value


def _list(value: Any) -> Any:
    is_list = isinstance(value, Collection) and not isinstance(value, (str, bytes, Mapping))
    return value if is_list and getattr(value, "ndim", 1) != 0 else _LEFT_OPEN


def _array(value: Any) -> Any:
    try:
        return numbers_of("", value)
    except InputError:
        return _LEFT_OPEN


def _instance(*classes: type) -> Callable[[Any], Any]:
    return lambda value: value if isinstance(value, classes) else _LEFT_OPEN


def _of_class(kind: Any) -> tuple[str, Callable[[Any], Any] | None]:
    """What a class of ours takes; nothing is checked for what is none, such as an alias."""
    if get_origin(kind) is Literal:
        return _TEXT
    if kind is Any or not inspect.isclass(kind):
        return "", None
    article = "an" if kind.__name__[0] in "AEIOU" else "a"
    return f"{article} {kind.__name__}", _instance(kind)


_TEXT: tuple[str, Callable[[Any], Any]] = ("text", _instance(str))
_LIST = ("a list of names", _texts)
_KINDS: dict[str, tuple[str, Callable[[Any], Any] | None]] = {
    "bool": ("True or False", _flag),
    "str": _TEXT,
    "Literal": _TEXT,
    "int": ("a whole number", _whole),
    "float": (f"a number, finite and up to {LARGEST:g}", _real),
    "tuple": ("a pair", _list),
    "FloatArray": ("numbers", _array),
    "NDArray": ("numbers", _array),
    "None": ("None", lambda value: None if value is None else _LEFT_OPEN),
    "Path": ("a path", _instance(PathLike)),
    "Mapping": ("a mapping", _instance(Mapping)),
    "Collection[str]": _LIST,
    "Sequence[str]": _LIST,
    "Collection": ("a list", _list),
    "Sequence": ("a list", _list),
}
