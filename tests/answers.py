"""Whether two answers are the same but for what another processor may change in their numbers.

Predictions agree to a millionth. Where a minimum is flat, a loss that is sure to 1e-9 determines ln N, ln D and what
follows from them to about sqrt(2e-9 / curvature), 3e-4. Shares of draws are counts of them, and a draw on the edge may
fall to either side. Texts agree with their numbers taken out, and these in all but their last printed digit.
"""

import math
import re
from itertools import zip_longest
from typing import Any

PREDICTION = 1e-6
FLAT = 1e-3
SHARE = 0.01
# The quantities at a minimum, and differences of losses.
AT_A_MINIMUM = {
    "d_model", "n_active", "n_total", "tokens", "tokens_per_parameter", "tokens_low", "tokens_high", "epochs",
    "batch_tokens", "outside", "weight_bytes", "kv_cache_bytes", "memory_bytes", "training_flops", "inference_flops",
    "learning_rate", "learning_rate_interval", "hours", "hours_interval", "gpu_hours_interval", "money", "mfu",
    "data", "data_interval", "compute", "compute_interval", "time_interval", "difference", "interval",
    "deviation_before", "deviation_after",
}  # fmt: skip
SHARES = {"win_share", "win_shares", "unreached"}
_NUMBER = re.compile(r"(?<![\w.])[-−+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
# What follows a count or a share that is printed rounded.
_ROUNDED = re.compile(r" ?[KMBT%]")


def is_same(recorded: Any, now: Any, path: str = "") -> bool:
    """Whether two leaves of an answer are the same; the last names in `path` say which tolerance they have."""
    if isinstance(recorded, str) and isinstance(now, str):
        return is_same_text(recorded, now)
    if not (_is_number(recorded) and _is_number(now)):
        return type(recorded) is type(now) and bool(recorded == now)
    names = {*path.split("/")}
    if names & SHARES:
        return math.isclose(recorded, now, abs_tol=SHARE)
    return math.isclose(recorded, now, rel_tol=FLAT if names & AT_A_MINIMUM else PREDICTION)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_same_text(recorded: str, now: str) -> bool:
    """Whether two texts differ at most in the last digits of rounded numbers and in the blanks before them."""
    if recorded == now:
        return True
    if _without_numbers(recorded) != _without_numbers(now):
        return False
    numbers = zip_longest(_NUMBER.finditer(recorded), _NUMBER.finditer(now))
    return all(first and second and _is_same_number(first, second) for first, second in numbers)


def _without_numbers(text: str) -> str:
    return re.sub(r"[ ─━-]*#[ ─━-]*", "#", _NUMBER.sub("#", text))


def _is_same_number(recorded: re.Match[str], now: re.Match[str]) -> bool:
    """Whether two printed numbers differ by at most a unit in the last digit of the shorter one.

    Whole numbers below 100 are exact, as an E is, unless K, M, B, T or % follows.
    """
    if recorded[0] == now[0]:
        return True
    is_rounded = _ROUNDED.match(recorded.string, recorded.end()) or "." in recorded[0] + now[0]
    if not is_rounded and len(recorded[0].partition("e")[0]) < 3:
        return False
    (value, unit), (other, other_unit) = _read(recorded[0]), _read(now[0])
    return abs(value - other) <= 1.001 * max(unit, other_unit)


def _read(number: str) -> tuple[float, float]:
    """The value of a printed number, and a unit of its last digit."""
    digits = number.replace(",", "").replace("−", "-")
    mantissa, _, exponent = digits.partition("e")
    decimals = len(mantissa.partition(".")[2])
    return float(digits), 10.0 ** (int(exponent or 0) - decimals)
