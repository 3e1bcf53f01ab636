"""Variables that launchers and libraries read, checked before a library fails over them without their names."""

from __future__ import annotations

import os
from collections.abc import Mapping

from hub.base.errors import InputError
from hub.base.variables import ENDPOINT, PORT, Kind, check

_KINDS = (
    ENDPOINT,
    Kind(
        "ACCELERATE_(USE_FSDP|USE_CPU|USE_PARALLELISM_CONFIG|DEBUG_MODE|ENABLE_RICH|CPU_AFFINITY|ALLOW_CP_STANDALONE"
        "|BYPASS_DEVICE_MAP|INIT_INCLUDE_BUFFERS|DOWNCAST_BF16)",
        "1|true|t|yes|y|on|0|false|f|no|n|off",
        "true or false",
    ),
    Kind(
        "ACCELERATE_LOG_LEVEL",
        "debug|info|warn(ing)?|error|critical|fatal|notset",
        "one of debug, info, warning, error, critical",
    ),
    Kind("(LOCAL_)?RANK|MASTER_PORT", f"{PORT}?", "a whole number from 0 on"),
    Kind("(LOCAL_)?WORLD_SIZE", r"([1-9]\d{0,4})?", "a whole number from 1 on"),
)
_GROUP = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def check_variables(variables: Mapping[str, str] = os.environ) -> None:
    """Raise InputError for a value that Accelerate, torch or the Hub's client cannot read.

    The group of processes that a launcher describes, or its remains in a shell, must be whole.
    """
    check(_KINDS, variables)
    missing = [name for name in _GROUP if not variables.get(name)]
    rank = int(variables.get("RANK") or 0)
    # RANK=0 alone is that of a single process.
    if rank == 0 and "LOCAL_RANK" in missing:
        return
    if missing:
        names = ", ".join(name for name in _GROUP if name not in missing)
        raise InputError(f"{', '.join(missing)}: not set, but {names}; set all, as accelerate launch does, or none")
    if rank >= int(variables["WORLD_SIZE"]):
        raise InputError(f"RANK: {rank}; it must be less than WORLD_SIZE, which is {variables['WORLD_SIZE']}")
