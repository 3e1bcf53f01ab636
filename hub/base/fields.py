"""Fields that people type: their types, and one reader of arguments, on pydantic.

A type says what a field takes, and how a text of it is read:

    @reads
    def serving_cost(model: Architecture, kv_tokens: Context = 0.0, seed: Whole = 0) -> float: ...

`serving_cost(model, "16k")` gets 16384.0. A value that is not allowed is an InputError that names the field, the value
and what is allowed, in Python, in the shell and on the page. What only numpy can check is left to the function.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache, cached_property, partial, wraps
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from pydantic import (
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetPydanticSchema,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
)
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from hub.base.errors import InputError, allowed_by, shorten, unknown

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

# Largest number; products of several are still finite.
LARGEST = 1e60
_LARGEST_INTEGER = 2**63 - 1
_CONFIG = ConfigDict(arbitrary_types_allowed=True, allow_inf_nan=False)


class Parser(NamedTuple):
    """Reads values as a part of a type: `parse` takes the value and the field's name.

    Of a `quantity` it reads texts alone, such as "80GB"; numbers are what they are.
    """

    parse: Callable[[Any, str], Any]
    is_quantity: bool = False

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_wrap_validator_function(self._read, handler(source))

    def _read(self, value: Any, check: Callable[[Any], Any], info: core_schema.ValidationInfo) -> Any:
        if self.is_quantity and not isinstance(value, str):
            return check(value)
        name = (info.context or {}).get("name", "value")
        try:
            parsed = self.parse(value, name)
        except (TypeError, OverflowError):
            raise InputError(f"{name}={shorten(value)} must be a number, or text such as '1B'") from None
        checked = check(parsed)
        # A number may say where it is from.
        return parsed if type(checked) is float and isinstance(parsed, float) else checked


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


# The part of a type whose texts have units.
quantity = partial(Parser, is_quantity=True)

# Limits of pydantic → their words.
_BOUNDS = {
    "gt": "above",
    "ge": "at least",
    "lt": "below",
    "le": "at most",
}
SWITCH = "SWITCH"
# What is typed for a type, as the help of a command shows it.
_FORMS = {
    bool: SWITCH,
    int: "<int>",
    float: "<float>",
    str: "<str>",
}
Names = Annotated[str | Collection[str], Parser(parse_names)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Whole = Annotated[int, Field(ge=0, le=_LARGEST_INTEGER)]
# The function reads the value, and says more of it.
UNREAD = PlainValidator(lambda value: value)
# One number or nested lists of them.
NUMBERS = Parser(parse_numbers)


def field(help: str, rare: bool = False) -> Any:
    """Say what a field means; the help of a command shows a `rare` one below the others."""
    return Field(description=help, json_schema_extra={"panel": "Advanced"} if rare else None)


def reads(function: FunctionT, types: Mapping[str, Any] | None = None) -> FunctionT:
    """Decorate a function or dataclass so that each argument is read as its type says; a default is taken as it is.

    `types` are those of the arguments where the signature does not have them. Keywords of a TypedDict that the last
    parameter unpacks stand in the signature, and their meanings in the docstring, where editors and `help` find them:
    a type checker alone reads `Unpack[...]`.
    """
    if inspect.isclass(function):
        cast(Any, function).__init__ = reads(function.__init__, types)
        return function
    signature, meanings = _with_keywords(function)
    readers: dict[str, Reader] = {}

    @wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        for name in keywords if meanings else ():
            if name not in signature.parameters:
                raise TypeError(unknown("keyword of a question ", name, sorted(signature.parameters)))
        bound = signature.bind(*arguments, **keywords)
        for name, value in bound.arguments.items():
            parameter = signature.parameters[name]
            if parameter.annotation is parameter.empty or value is parameter.default:
                continue
            if not readers:
                # Types may name classes that stand below the function.
                for key, argument in arguments_of(call).items():
                    readers[key] = Reader(argument.annotation if types is None else types.get(key, Any))
            if name in readers:
                bound.arguments[name] = readers[name](name, value)
        return function(*bound.args, **bound.kwargs)

    if meanings:
        cast(Any, call).__signature__ = signature
        documentation = inspect.cleandoc(function.__doc__ or "")
        call.__doc__ = "\n".join([documentation, "", "Further keywords:", *meanings])
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


# The types of the fields of a TypedDict.
fields_of = cache(partial(get_type_hints, include_extras=True))


def meaning_of(kind: Any) -> str:
    """Return what a field means, with the names of others as Python has them; of several meanings the last."""
    meaning = ""
    for metadata in getattr(kind, "__metadata__", ()):
        if isinstance(metadata, FieldInfo):
            meaning = metadata.description or ""
    return re.sub("--([a-z-]+)", lambda option: option[1].replace("-", "_"), meaning)


def arguments_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the arguments of a function, and the keywords that `reads` shows, with their types."""
    variables = inspect.unwrap(function).__globals__
    arguments = {}
    for name, parameter in inspect.signature(function).parameters.items():
        kind = parameter.annotation
        is_one = parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if not is_one or kind is parameter.empty:
            continue
        if isinstance(kind, str):
            kind = eval(kind, variables)
        arguments[name] = parameter.replace(annotation=kind)
    return arguments


def _metadata_of(kind: Any) -> Iterator[Any]:
    """Go through what a type and its members say besides: parsers, limits, meanings."""
    for metadata in getattr(kind, "__metadata__", ()):
        yield metadata
        if isinstance(metadata, FieldInfo):
            yield from metadata.metadata
    for member in [kind.__origin__] if get_origin(kind) is Annotated else get_args(kind):
        yield from _metadata_of(member)


def form_of(kind: Any) -> str:
    """Return what is typed for a type, as the help of a command shows it; empty where nothing says it."""
    for metadata in _metadata_of(kind):
        if isinstance(metadata, Parser):
            # parse_bytes reads BYTES.
            return metadata.parse.__name__.removeprefix("parse_").upper()
    if isinstance(kind, type):
        return _FORMS.get(kind, "")
    if get_origin(kind) is Literal:
        return "|".join(get_args(kind))
    members = [kind.__origin__] if get_origin(kind) is Annotated else get_args(kind)
    return next((form for form in map(form_of, members) if form), "")


class Reader:
    """Reads values of one type; what pydantic makes for it is made for the first value.

    Python's numbers are numbers; a reader that `reads_text` takes those that are typed as well: "8", "true".
    """

    def __init__(self, kind: Any, reads_text: bool = False) -> None:
        self.kind = kind
        self.reads_text = reads_text
        self.is_switch = form_of(kind) == SWITCH

    @cached_property
    def adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(for_pydantic(self.kind), config=_CONFIG)

    def __call__(self, name: str, value: Any) -> Any:
        """Read a value of the field `name`. InputError names the field, the value and what is allowed."""
        if self.kind is Any:
            return value
        if getattr(value, "ndim", None) == 0:
            # numpy's numbers are read as Python's.
            value = value.item()
        is_number = isinstance(value, (int, float))
        if is_number:
            _check_magnitude(name, value)
        # Only words of a shell stand for a switch.
        is_strict = self.is_switch
        if isinstance(value, str):
            is_strict = not self.reads_text
        elif isinstance(value, (bool, bytes)):
            is_strict = True
        try:
            result = self.adapter.validate_python(value, strict=is_strict or None, context={"name": name})
        except ValidationError as error:
            raise self._refusal(name, value, error) from None
        if type(result) is float:
            _check_magnitude(name, result)
            if is_number and result == value:
                # A whole number stays one, as messages show it.
                return value
        return result

    def _refusal(self, name: str, value: Any, error: ValidationError) -> InputError:
        """Word what pydantic says of a value: the error of our own parser, or all that would be allowed."""
        members = get_args(FieldInfo.from_annotation(self.kind).annotation)
        # What is typed cannot be None.
        is_optional = type(None) in members and not self.reads_text
        alternatives = []
        for problem in error.errors(include_url=False):
            own_error = problem.get("ctx", {}).get("error")
            if isinstance(own_error, InputError):
                return own_error
            if problem["type"] == "literal_error" and isinstance(value, str):
                choices = re.findall("'([^']*)'", problem["ctx"]["expected"])
                if is_optional:
                    choices.append("None")
                return InputError(unknown(f"{name}=", value, choices))
            if problem["type"].startswith(("greater_than", "less_than")):
                alternatives = [_range_in_words(self.kind)]
                break
            alternatives.append(allowed_by(problem))
        if any(isinstance(metadata, Parser) and metadata.is_quantity for metadata in _metadata_of(self.kind)):
            alternatives = [words.replace("text", "text such as '1B'") for words in alternatives]
        words = " or ".join(dict.fromkeys(alternatives))
        if is_optional:
            words += ", or None"
        value_text = value if self.reads_text and _is_number(value) else shorten(value)
        return InputError(f"{name}={value_text} must be {words}")


def _check_magnitude(name: str, number: float) -> None:
    """Refuse numbers whose products with others would not be finite."""
    if not abs(number) <= LARGEST:
        raise InputError(f"{name}={shorten(number)} must be a number, finite and up to {LARGEST:g}")
    if 0 < abs(number) < 1 / LARGEST:
        raise InputError(f"{name}={shorten(number)} must be 0, or from {1 / LARGEST:g} to {LARGEST:g}")


def _is_number(text: Any) -> bool:
    try:
        float(text if isinstance(text, str) else "")
    except ValueError:
        return False
    return True


def _range_in_words(kind: Any) -> str:
    """Say which numbers the limits of a type allow."""
    limits = {}
    for bound in _metadata_of(kind):
        for key, word in _BOUNDS.items():
            if hasattr(bound, key) and getattr(bound, key) != _LARGEST_INTEGER:
                limits[word] = getattr(bound, key)
    words = " and ".join(f"{word} {limit}" for word, limit in limits.items())
    if form_of(kind) == _FORMS[int]:
        return f"a whole number of {words}"
    if limits == {"above": 0}:
        return "positive and finite"
    if limits == {"at least": 0}:
        return "finite and not negative"
    return words


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
    if origin in (Sequence, Collection) and arguments == (str,):
        return Annotated[Any, Parser(parse_names)]
    if origin in (Sequence, Collection, tuple):
        validator = PlainValidator(_read_pair if origin is tuple else _read_list)
        return Annotated[Any, validator, WithJsonSchema({"type": "array"})]
    if origin is Mapping:
        return Annotated[Any, GetPydanticSchema(lambda source, handler: core_schema.is_instance_schema(Mapping))]
    return kind


def _read_list(value: Any, description: str = "a list") -> Any:
    """Take lists, whose items the function reads."""
    is_list = isinstance(value, Collection) and not isinstance(value, (str, bytes, Mapping))
    if not is_list or getattr(value, "ndim", 1) == 0:
        raise PydanticCustomError("list", description)
    return value


def _read_pair(value: Any) -> Any:
    return _read_list(value, "a pair")
