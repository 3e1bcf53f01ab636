"""Fields that people type: their types, and one reader of arguments, on pydantic.

A type says what a field takes, and how a text of it is read:

    @reads
    def serving_cost(model: Architecture, kv_tokens: Context = 0.0, seed: Whole = 0) -> float: ...

`serving_cost(model, "16k")` gets 16384.0. A value that is not allowed is an InputError that names the field, the value
and what is allowed, in Python, in the shell and on the page. What only numpy can check is left to the function.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache, cached_property, wraps
from types import UnionType
from typing import Annotated, Any, NamedTuple, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from pydantic import (
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetPydanticSchema,
    PlainValidator,
    TypeAdapter,
    ValidationError,
)
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, core_schema

from hub.base.errors import InputError, allowed_by, shorten, unknown

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

# Largest number; products of several are still finite.
LARGEST = 1e60
_LARGEST_INTEGER = 2**63 - 1
_CONFIG = ConfigDict(arbitrary_types_allowed=True, allow_inf_nan=False)


class Parser(NamedTuple):
    """Reads a number, or the text of one, as a part of a type: `parse` takes the value and the field's name."""

    parse: Callable[[Any, str], Any]

    @property
    def form(self) -> str:
        """Return what is typed, as the help of a command shows it: parse_bytes reads BYTES."""
        return self.parse.__name__.removeprefix("parse_").upper()

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_before_validator_function(self._read, handler(source))

    def _read(self, value: Any, info: core_schema.ValidationInfo) -> Any:
        name = (info.context or {}).get("name") or info.field_name or "value"
        try:
            return self.parse(value, name)
        except (TypeError, OverflowError):
            raise InputError(f"{name}={shorten(value)} must be a number, or text such as '1B'") from None


def parse_names(names: str | Collection[str], field: str = "names") -> tuple[str, ...]:
    """Read names: a collection, or a text with commas between them."""
    words = names.split(",") if isinstance(names, str) else names
    is_list = isinstance(words, Iterable) and not isinstance(words, (bytes, Mapping))
    if not is_list or not all(isinstance(word, str) for word in words):
        raise InputError(f"{field}={shorten(names)} must be text or a list of names")
    return tuple(word.strip() for word in words if word.strip())


def parse_numbers(value: Any, field: str = "value") -> Any:
    """Read one number or nested lists of them as an array."""
    import numpy as np

    try:
        return np.asarray(value, float)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{field}={shorten(value)} must be numbers") from None


_BOUNDS = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
SWITCH = "SWITCH"
_FORMS = {bool: SWITCH, int: "INTEGER", float: "FLOAT", str: "TEXT"}
Names = Annotated[str | Collection[str], Parser(parse_names)]
Whole = Annotated[int, Field(ge=0, le=_LARGEST_INTEGER)]
# The function reads the value, and says more of it.
UNREAD = PlainValidator(lambda value: value)
# One number or nested lists of them.
NUMBERS = Parser(parse_numbers)


def field(help: str, rare: bool = False) -> Any:
    """Say what a field means; the help of a command shows a `rare` one below the others."""
    return Field(description=help, json_schema_extra={"panel": "Advanced"} if rare else None)


def reads(function: FunctionT) -> FunctionT:
    """Decorate a function or dataclass so that each argument is read as its type says; a default is taken as it is.

    Keywords of a TypedDict that the last parameter unpacks stand in the signature, and their meanings in the
    docstring, where editors and `help` find them: a type checker alone reads `Unpack[...]`.
    """
    return _decorate(function)


def reads_as(kind: Any) -> Callable[[FunctionT], FunctionT]:
    """Decorate a dataclass so that its fields are read as those of a TypedDict."""
    return lambda function: _decorate(function, fields_of(kind))


def _decorate(function: FunctionT, types: Mapping[str, Any] | None = None) -> FunctionT:
    if inspect.isclass(function):
        cast(Any, function).__init__ = _decorate(function.__init__, types)
        return function
    signature, meanings = _with_keywords(function)
    readers: dict[str, Reader] = {}

    @wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        if meanings and named.keys() - signature.parameters:
            (name, *_) = named.keys() - signature.parameters
            raise TypeError(unknown("keyword of a question ", name, sorted(signature.parameters)))
        bound = signature.bind(*arguments, **named)
        for name, value in bound.arguments.items():
            parameter = signature.parameters[name]
            if parameter.annotation is parameter.empty or value is parameter.default:
                continue
            if not readers:
                # Types may name classes that stand below the function.
                kinds = types or {key: argument.annotation for key, argument in arguments_of(call).items()}
                readers.update({key: Reader(kind) for key, kind in kinds.items()})
            if name in readers:
                bound.arguments[name] = readers[name](name, value)
        return function(*bound.args, **bound.kwargs)

    if meanings:
        cast(Any, call).__signature__ = signature
        call.__doc__ = "\n".join([inspect.cleandoc(function.__doc__ or ""), "", "Further keywords:", *meanings])
    return cast(FunctionT, call)


def _with_keywords(function: Any) -> tuple[inspect.Signature, list[str]]:
    """Return the signature of a function with the keywords that it unpacks, and a line on the meaning of each."""
    signature = inspect.signature(function)
    *parameters, last = signature.parameters.values()
    if last.kind is not last.VAR_KEYWORD or not str(last.annotation).startswith("Unpack["):
        return signature, []
    meanings = []
    (kind,) = get_args(eval(last.annotation, function.__globals__))
    for name, annotation in fields_of(kind).items():
        meanings.append(f"    {name}: {meaning_of(annotation)}")
        parameters.append(last.replace(name=name, kind=last.KEYWORD_ONLY, default=None, annotation=annotation))
    return signature.replace(parameters=parameters), meanings


@cache
def fields_of(kind: Any) -> Mapping[str, Any]:
    """Return the types of the fields of a TypedDict."""
    return get_type_hints(kind, include_extras=True)


def meaning_of(kind: Any) -> str:
    """Return what a field means, with the names of others as Python has them; of several meanings the last."""
    meanings = [part.description or "" for part in getattr(kind, "__metadata__", ()) if isinstance(part, FieldInfo)]
    return re.sub("--([a-z-]+)", lambda option: option[1].replace("-", "_"), "".join(meanings[-1:]))


def arguments_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the arguments of a function, and the keywords that `reads` shows, with their types."""
    scope = inspect.unwrap(function).__globals__
    arguments = {}
    for name, parameter in inspect.signature(function).parameters.items():
        kind = parameter.annotation
        is_one = parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if is_one and kind is not parameter.empty:
            arguments[name] = parameter.replace(annotation=eval(kind, scope) if isinstance(kind, str) else kind)
    return arguments


def form_of(kind: Any) -> str:
    """Return what is typed for a type, as the help of a command shows it; empty where nothing says it."""
    for part in getattr(kind, "__metadata__", ()):
        if isinstance(part, Parser):
            return part.form
    if isinstance(kind, type):
        return _FORMS.get(kind, "")
    members = [kind.__origin__] if get_origin(kind) is Annotated else get_args(kind)
    return next((form for form in map(form_of, members) if form), "")


class Reader:
    """Reads values of one type; what pydantic makes for it is made for the first value."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind

    @cached_property
    def adapter(self) -> TypeAdapter[Any]:
        """Make it without a search for pydantic's plugins among all packages, which takes as long as a query."""
        name = "PYDANTIC_DISABLE_PLUGINS"
        value = os.environ.pop(name, None)
        os.environ[name] = "__all__"
        try:
            return TypeAdapter(for_pydantic(self.kind), config=_CONFIG)
        finally:
            del os.environ[name]
            if value is not None:
                os.environ[name] = value

    def __call__(self, name: str, value: Any) -> Any:
        """Read a value of the field `name`. InputError names the field, the value and what is allowed."""
        if self.kind is Any:
            return value
        if getattr(value, "ndim", None) == 0:
            # numpy's numbers are read as Python's.
            value = value.item()
        if isinstance(value, (int, float)) and not abs(value) <= LARGEST:
            raise InputError(f"{name}={shorten(value)} must be a number, finite and up to {LARGEST:g}")
        # Only words of a shell stand for a switch.
        is_switch = isinstance(value, bool) or (form_of(self.kind) == SWITCH and not isinstance(value, str))
        try:
            return self.adapter.validate_python(value, strict=is_switch or None, context={"name": name})
        except ValidationError as error:
            raise _refusal(name, value, error, self.kind) from None


def _refusal(name: str, value: Any, error: ValidationError, kind: Any) -> InputError:
    """Word what pydantic says of a value: the error of our own parser, or all that would be allowed."""
    allowed = []
    for problem in error.errors(include_url=False):
        own_error = problem.get("ctx", {}).get("error")
        if isinstance(own_error, InputError):
            return own_error
        allowed.append(allowed_by(problem))
    bounds = []
    for bound in FieldInfo.from_annotation(kind).metadata:
        bounds += [f"{word} {getattr(bound, limit)}" for limit, word in _BOUNDS.items() if hasattr(bound, limit)]
    if allowed[0] in bounds:
        number = "a whole number of " if form_of(kind) == "INTEGER" else ""
        allowed = [number + " and ".join(bounds).replace("above 0", "positive and finite", len(bounds) == 1)]
    return InputError(f"{name}={shorten(value)} must be {' or '.join(dict.fromkeys(allowed))}")


def for_pydantic(kind: Any) -> Any:
    """Replace what pydantic would take apart, or does not know: instances of our classes, and numpy's arrays."""
    arguments = get_args(kind)
    origin = get_origin(kind)
    if is_dataclass(kind):
        return Annotated[Any, GetPydanticSchema(lambda source, handler: core_schema.is_instance_schema(kind))]
    if getattr(origin, "__name__", "") == "ndarray":
        return Annotated[Any, NUMBERS]
    if origin is Annotated:
        return Annotated[(for_pydantic(arguments[0]), *arguments[1:])]
    if origin in (Union, UnionType):
        # A union with a protocol is numpy's ArrayLike.
        if any(getattr(get_origin(member), "_is_protocol", False) for member in arguments):
            return Any
        return Union[tuple(for_pydantic(member) for member in arguments)]  # noqa: UP007
    if origin is Collection and arguments == (str,):
        return Annotated[Any, Parser(parse_names)]
    if origin in (Mapping, Sequence, Collection):
        return origin[tuple(for_pydantic(member) for member in arguments)]
    return kind
