"""Quantities as people write and read them: "1e22", "100B", "80GB", "80GiB", "16k".

The case of a suffix does not matter: "80GB", "80gb" and "80 G" are one size. Counts (parameters, tokens, FLOPs) are
decimal; memory is decimal for GB and binary for GiB; a context length is counted in 1024s, because "16k tokens" of
key-value cache means 16,384 in Ludziejewski et al. 2025 (Table "Optimal E"). What is written here reads back.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from itertools import groupby

from hub.base.errors import InputError

_NUMBER = r"([+-]?(?:\d+(?:_\d+)*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
_QUANTITY = re.compile(rf"^\s*{_NUMBER}\s*([A-Za-z]*)\s*$")

_COUNTS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
_BYTES = {"": 1.0, "B": 1.0}
for _power, _prefix in enumerate("kMGTP", start=1):
    _BYTES[f"{_prefix}B"] = _BYTES[_prefix] = 1000.0**_power
for _power, _prefix in enumerate("KMGTP", start=1):
    _BYTES[f"{_prefix}iB"] = _BYTES[f"{_prefix}i"] = 1024.0**_power
_CONTEXTS = {"": 1.0, "k": 1024.0, "M": 1024.0**2}
_HOURS = {"": 1.0, "min": 1 / 60, "h": 1.0, "d": 24.0, "w": 168.0}
_BARE = re.compile(r"\s*[\d._]+\s*")
# A smaller number without a unit has lost its unit.
LEAST_BYTES = 1e6
LEAST_AMOUNT = 1e3
LEAST_CONTEXT = 64
# Text of a value that is not known.
UNKNOWN = "–"


def parse_count(text: str | float, field: str = "value") -> float:
    """Read a count: "1e22", "100B", "1.1B", "16k" (= 16,000), or a number. Finite and not negative.

    Raises ValueError naming `field`, the value and the allowed suffixes.
    """
    return _parse(text, field, _COUNTS)


def parse_bytes(text: str | float, field: str = "memory") -> float:
    """Read a memory size in bytes: "80GB", "80 gb" or "80G" (80e9), "80GiB" or "80Gi" (80·1024³), or a number.

    Raises ValueError as `parse_count`, and for text such as "80": a few bytes are a forgotten unit.
    """
    size = _parse(text, field, _BYTES)
    if isinstance(text, str) and 0 < size < LEAST_BYTES and text.strip()[-1].isdigit():
        raise InputError(f"{field}={text!r} is {size:g} bytes: did you mean {text.strip()}GB?")
    return size


def parse_context(text: str | float, field: str = "kv_tokens") -> float:
    """Read a context length in tokens: "16k" is 16,384, a plain number itself. ValueError for text such as "16"."""
    size = _parse(text, field, _CONTEXTS)
    if isinstance(text, str) and 0 < size < LEAST_CONTEXT and _BARE.fullmatch(text):
        raise InputError(f"{field}={text!r} has no unit: did you mean {text.strip()}k?")
    return size


def parse_tokens(text: str | float, field: str = "tokens") -> float:
    """Read tokens, as `parse_count`. ValueError for a few without a unit, such as 36."""
    return _parse_amount(text, field, "{0}B or {0}T")


def parse_batch(text: str | float, field: str = "batch_tokens") -> float:
    """Read the tokens of a batch or a warm-up, as `parse_tokens`."""
    return _parse_amount(text, field, "{0}K or {0}M")


def parse_parameters(text: str | float, field: str = "n_active") -> float:
    """Read parameters, as `parse_count`. ValueError for a few without a unit, such as 7."""
    return _parse_amount(text, field, "{0}M or {0}B")


def parse_flops(text: str | float, field: str = "flops") -> float:
    """Read FLOPs, as `parse_count`. ValueError for a few without a power of ten, such as 22."""
    return _parse_amount(text, field, "1e{0}")


def parse_hours(text: str | float, field: str = "hours") -> float:
    """Read hours: 504, "504h", "21d", "3w" or "90min". Finite and not negative."""
    return _parse(text, field, _HOURS)


def _parse_amount(text: str | float, field: str, suggestion: str) -> float:
    """Read a large count: without a unit it must be at least `LEAST_AMOUNT`, or 0."""
    value = _parse(text, field, _COUNTS)
    if 0 < value < LEAST_AMOUNT and (not isinstance(text, str) or _BARE.fullmatch(text)):
        typed = repr(text) if isinstance(text, str) else f"{text:g}"
        raise InputError(f"{field}={typed} has no unit: did you mean {suggestion.format(f'{value:g}')}?")
    return value


def parse_experts(text: str, field: str = "experts") -> list[int]:
    """Read expert counts: "1,2,4,8", a range "1-32" of doublings (1, 2, 4, … up to and with 32), or both mixed.

    Integers of at least 1, in the order given.
    """
    counts: list[int] = []
    for word in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", word)
        if match is None:
            forms = "is not an integer ≥ 1 or a range such as 1-32"
            raise InputError(f"{_word_in(field, text, word)} {forms}")
        count = int(match[1])
        last = int(match[2] or match[1])
        if not (1 <= count <= 65_536 and 1 <= last <= 65_536):
            raise InputError(f"{_word_in(field, text, word)} must lie between 1 and 65,536")
        if last < count:
            raise InputError(f"{_word_in(field, text, word)} must begin with its smaller end")
        while count < last:
            counts.append(count)
            count *= 2
        counts.append(last)
    return list(dict.fromkeys(counts))


def _word_in(field: str, text: str, word: str) -> str:
    """Name a field with its text, and which word of it if it has several."""
    if word == text:
        return f"{field}={text!r}"
    return f"{field}={text!r}: {word.strip()!r}"


def format_experts(experts: Iterable[float], most: int = 8) -> list[str]:
    """Write expert counts for a sentence: three or more in a row as "129 to 199", "…" in the middle of a long list."""
    words: list[str] = []
    # Consecutive counts have one difference to their positions.
    for _, pairs in groupby(enumerate(experts), lambda pair: pair[1] - pair[0]):
        row = [f"{count:.5g}" for _, count in pairs]
        if len(row) > 2:
            row = [f"{row[0]} to {row[-1]}"]
        words += row
    if len(words) > most:
        words[most - 2 : -1] = ["…"]
    return words


def _parse(text: str | float, field: str, suffixes: dict[str, float]) -> float:
    """Read a number with one of the suffixes, in any case."""
    if isinstance(text, str):
        match = _QUANTITY.match(text)
        factors = {suffix.lower(): factor for suffix, factor in suffixes.items()}
        if match is None or match[2].lower() not in factors:
            suffix_list = ", ".join(suffix for suffix in suffixes if suffix and f"{suffix}B" not in suffixes)
            raise InputError(
                f"{field}={text!r} is not a quantity: write a number, optionally followed by {suffix_list}"
            )
        value = float(match[1]) * factors[match[2].lower()]
    else:
        value = float(text)
    if not math.isfinite(value) or value < 0:
        raise InputError(f"{field}={text!r} must be finite and not negative")
    return value


def format_count(value: float | None) -> str:
    """Write a count: 999, 16K, 1.72B, 40.5T, and 1e16 beyond the trillions; None is "–"."""
    return _format(value, ("", "K", "M", "B", "T"))


def format_bytes(value: float | None) -> str:
    """Write bytes in decimal units: 80 GB, 1.27 TB; None is "–"."""
    return _format(value, (" B", " kB", " MB", " GB", " TB", " PB"))


def format_flops(value: float | None) -> str:
    """Write FLOPs and FLOP/s, always with their power of ten: 1e22, 4.7e11; None is "–"."""
    if value is None or not math.isfinite(value) or value == 0:
        return _format(value, ("",))
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def format_ends(low: float, high: float) -> tuple[str, str]:
    """Write the ends of an interval of losses without the digits that other draws would change.

    The standard error of an end is 2 % of the width with 1,000 draws: three decimals of less than 0.01 nats, two of
    less than 1, else one.
    """
    width = high - low
    decimals = 1
    if width < 1:
        decimals = 3 if width < 0.01 else 2
    return f"{low:.{decimals}f}", f"{high:.{decimals}f}"


def bracket_interval(interval: tuple[float, float] | None) -> str:
    """Write an interval of losses behind a loss, " (2.04 to 2.07)"; nothing where there is none."""
    return "" if interval is None else " ({} to {})".format(*format_ends(*interval))


def format_rough(value: float) -> str:
    """Write an end of an interval of hours or factors with the two digits that draws determine: 4.8, 340, 11,000."""
    rounded = float(f"{value:.2g}")
    return f"{rounded:,.0f}" if rounded >= 10 else f"{rounded:g}"


def format_amount(value: float) -> str:
    """Write hours or a price with three digits, or all before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def format_decimal(value: float | None, digits: int = 4) -> str:
    """Write a loss or a fraction with a fixed number of digits; None is "–"."""
    return UNKNOWN if value is None else f"{value:.{digits}f}"


def _format(value: float | None, suffixes: tuple[str, ...]) -> str:
    """Write three significant digits with the suffix of their power of a thousand."""
    if value is None:
        return UNKNOWN
    if not math.isfinite(value):
        return str(value)
    # Rounded before the suffix is chosen, so that 999,936 is 1M.
    rounded = float(f"{value:.3g}")
    power = 0
    while abs(rounded) >= 1000 ** (power + 1):
        power += 1
    if power >= len(suffixes):
        return format_flops(value) + suffixes[0]
    return f"{rounded / 1000**power:.3g}{suffixes[power]}"
