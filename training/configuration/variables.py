"""Variables that launchers and libraries read, checked before a library fails over them without their names."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from hub.base.commands import report
from hub.store.variables import check_client_variables
from training.configuration.arguments import ConfigurationError

_YES_OR_NO = ("1", "true", "t", "yes", "y", "on", "0", "false", "f", "no", "n", "off")
_LEVELS = ("debug", "info", "warning", "warn", "error", "critical", "fatal", "notset")
# Variables of Accelerate that it reads as yes or no.
_FLAGS = re.compile(
    "ACCELERATE_(USE_FSDP|USE_CPU|USE_PARALLELISM_CONFIG|DEBUG_MODE|ENABLE_RICH|CPU_AFFINITY|ALLOW_CP_STANDALONE"
    "|BYPASS_DEVICE_MAP|INIT_INCLUDE_BUFFERS|DOWNCAST_BF16)"
)
# Variables of the group of processes that hold a whole number, with the least.
_NUMBERS = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1, "MASTER_PORT": 0}
_GROUP = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def check_variables(variables: Mapping[str, str] = os.environ) -> None:
    """Raise ConfigurationError, or InputError, for a value that Accelerate, torch or the Hub's client cannot read."""
    check_client_variables(variables)
    problems = []
    for name, value in sorted(variables.items()):
        word = value.strip().lower()
        if _FLAGS.fullmatch(name) and word not in _YES_OR_NO:
            problems.append(f"{name}: {value!r}; it must be true or false")
        if name == "ACCELERATE_LOG_LEVEL" and word not in _LEVELS:
            problems.append(f"{name}: {value!r}; it must be one of {', '.join(_LEVELS)}")
        least = _NUMBERS.get(name)
        if least is not None and word and not (word.isdecimal() and least <= int(word) < 65536):
            problems.append(f"{name}: {value!r}; it must be a whole number from {least} on")
    problems = problems or _find_group_problems(variables)
    if problems:
        raise ConfigurationError("\n".join(problems))


def exit_on_unreadable_variables() -> None:
    """End the process with one line on such a value, for programs that have not imported these libraries yet."""
    try:
        check_variables()
    except ValueError as error:
        raise SystemExit(report(error)) from None


def _find_group_problems(variables: Mapping[str, str]) -> list[str]:
    """Say what is wrong with the group of processes that a launcher, or its remains in a shell, describe."""
    values = {name: variables.get(name, "").strip() for name in _GROUP}
    rank = values["RANK"] or "0"
    # RANK=0 alone is that of a single process.
    if rank == "0" and not values["LOCAL_RANK"]:
        return []
    missing = [name for name, value in values.items() if not value]
    if missing:
        names = ", ".join(name for name in values if values[name])
        return [f"{', '.join(missing)}: not set, but {names}; set all of them, as accelerate launch does, or none"]
    if int(rank) >= int(values["WORLD_SIZE"]):
        return [f"RANK: {rank}; it must be less than WORLD_SIZE, which is {values['WORLD_SIZE']}"]
    return []
