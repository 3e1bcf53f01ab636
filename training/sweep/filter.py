"""The part of the paper's listing that a sweep takes: `experts in {1, 8}, d_model <= 1024, tokens <= 4B`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator

from hub.plain.units import parse_count
from training.configuration.arguments import ConfigurationError
from training.configuration.presets import Listed

_NAMES = {"E": "experts", "d": "d_model", "N_act": "n_active", "N_total": "n_total", "D": "tokens"}
_FIELDS = ("d_model", "experts", "n_blocks", "n_heads", "n_active", "n_total", "tokens")
_COMPARISONS: dict[str, Callable] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "=": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}
_CONDITION = re.compile(r"\s*(\w+)\s*(?:(<=|>=|==|=|<|>)\s*([\w.]+)|in\s*\{([^{}]+)\})\s*(?:,|\band\b|$)")


def select(listing: Iterable[Listed], where: str) -> Iterator[dict]:
    """The sections of the listed configurations for which all conditions hold, with the tokens for which they do.

    Args:
        where: conditions joined by commas or `and`: a field, and `in {…}` or one of <=, >=, =, <, > with a number,
            which may be written as 1e9 or 1B. Fields are those of an architecture (d_model or d, experts or E,
            n_blocks, n_heads, n_active or N_act, n_total or N_total) and tokens (or D).

    Raises:
        ConfigurationError: a condition that cannot be read, or none of the listing is left.
    """
    conditions = _parse(where)
    found = False
    for listed in listing:
        tokens = [count for count in listed.tokens if all(c(count) for name, c in conditions if name == "tokens")]
        sizes = (c(getattr(listed.architecture, name)) for name, c in conditions if name != "tokens")
        if tokens and all(sizes):
            found = True
            sections = listed.sections()
            yield {**sections, "schedule": {"tokens": tokens}}
    if not found:
        raise ConfigurationError(f"sweep file: where: {where!r} leaves none of the paper's listing")


def _parse(where: str) -> list[tuple[str, Callable[[float], bool]]]:
    conditions, position = [], 0
    while position < len(where.rstrip()):
        match = _CONDITION.match(where, position)
        name = match and _NAMES.get(match[1], match[1])
        if not match or name not in _FIELDS:
            raise ConfigurationError(
                f"sweep file: where: {where[position:].strip()!r} is no condition; write a field "
                f"({', '.join(_FIELDS)}) and a comparison, such as experts in {{1, 8}}, d_model <= 1024"
            )
        try:
            conditions.append((name, _test(match[2], match[3], match[4])))
        except ValueError as error:
            raise ConfigurationError(f"sweep file: where: {name}: {error}") from error
        position = match.end()
    return conditions


def _test(comparison: str | None, number: str, choices: str | None) -> Callable[[float], bool]:
    if comparison is None:
        allowed = {parse_count(choice) for choice in (choices or "").split(",")}
        return lambda value: value in allowed
    compare, bound = _COMPARISONS[comparison], parse_count(number)
    return lambda value: compare(value, bound)
