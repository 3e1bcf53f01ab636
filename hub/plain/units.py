"""Read quantities as people write them: "1e22", "100B", "80GB", "80GiB", "16k".

One place for the meaning of suffixes, of which the case does not matter: "80GB", "80gb", "80 G" are one size. Counts
(parameters, tokens, FLOPs) are decimal; memory is decimal for GB and binary for GiB; a context length is counted in
1024s, because "16k tokens" of key-value cache means 16,384 in Ludziejewski et al. 2025 (Table "Optimal E") as
everywhere in the field.
"""

from __future__ import annotations

import math
import re

_NUMBER = r"([+-]?(?:\d+(?:_\d+)*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
_PATTERN = re.compile(rf"^\s*{_NUMBER}\s*([A-Za-z]*)\s*$")

COUNT_SUFFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
BYTE_SUFFIXES = {"": 1.0, "B": 1.0}
BYTE_SUFFIXES |= {f"{prefix}{b}": 1000.0**power for power, prefix in enumerate("kMGTP", start=1) for b in ("B", "")}
BYTE_SUFFIXES |= {
    f"{prefix}{b}": 1024.0 ** (i + 1) for i, prefix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi")) for b in ("B", "")
}
CONTEXT_SUFFIXES = {"": 1.0, "k": 1024.0, "M": 1024.0**2}


def parse_count(text: str | float, field: str = "value") -> float:
    """A count: "1e22", "100B", "1.1B", "16k" (= 16,000), or a number. Finite and not negative.

    Raises ValueError naming `field`, the value and the allowed suffixes.
    """
    return _parse(text, field, COUNT_SUFFIXES)


def parse_bytes(text: str | float, field: str = "memory") -> float:
    """A memory size in bytes: "80GB", "80 gb" or "80G" (80e9), "80GiB" or "80Gi" (80·1024³), or a number of bytes."""
    return _parse(text, field, BYTE_SUFFIXES)


def parse_context(text: str | float, field: str = "kv_cache_tokens") -> float:
    """A context length in tokens: "16k" is 16,384; a plain number is itself."""
    return _parse(text, field, CONTEXT_SUFFIXES)


def parse_experts(text: str, field: str = "experts") -> list[int]:
    """Expert counts: "1,2,4,8", a range "1-32", or both mixed. Integers of at least 1, in the order given."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        if match is None:
            raise ValueError(f"{field}={text!r}: {part.strip()!r} is not an integer ≥ 1 or a range such as 1-32")
        first, last = int(match[1]), int(match[2] or match[1])
        if not 1 <= first <= last <= 65_536:
            raise ValueError(f"{field}={text!r}: {part.strip()!r} must be within 1 and 65536, smaller end first")
        found.extend(range(first, last + 1))
    return list(dict.fromkeys(found))


def _parse(text: str | float, field: str, suffixes: dict[str, float]) -> float:
    if isinstance(text, str):
        match = _PATTERN.match(text)
        factors = {suffix.lower(): factor for suffix, factor in suffixes.items()}
        if match is None or match[2].lower() not in factors:
            allowed = ", ".join(s for s in suffixes if s and f"{s}B" not in suffixes)
            raise ValueError(f"{field}={text!r} is not a quantity: write a number, optionally followed by {allowed}")
        value = float(match[1]) * factors[match[2].lower()]
    else:
        value = float(text)
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"{field}={text!r} must be finite and not negative")
    return value


def format_count(value: float) -> str:
    """A count for a reader: 1.7B, 990M, 24.9B, 1e+22 beyond the trillions."""
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    for scale, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if scale * 0.9995 <= abs(value) < scale * 1e3 or (suffix == "T" and scale <= abs(value) < 1e16):
            return f"{value / scale:.3g}{suffix}" if abs(value) < scale * 999.5 else f"{value / scale:.0f}{suffix}"
    return f"{value:.3g}"


def format_bytes(value: float) -> str:
    """Bytes in decimal units: 80 GB, 1.27 TB."""
    for scale, suffix in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(value) >= scale * 0.9995:
            return f"{value / scale:.3g} {suffix}"
    return f"{value:.0f} B"
