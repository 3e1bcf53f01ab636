"""SIGINT, SIGTERM and the end of the launcher as a request that the loop sees between two steps."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path

import psutil

logger = logging.getLogger(__name__)

_LAUNCHERS = {"accelerate", "accelerate-launch", "torchrun"}
_LAUNCHER_MODULES = {"accelerate.commands.accelerate_cli", "accelerate.commands.launch", "torch.distributed.run"}


class StopSignal:
    """Remembers the first SIGINT or SIGTERM, for the loop to stop between two steps.

    The end of the launcher counts as a SIGTERM: `accelerate launch` of one process dies of a signal without passing it
    on, and the training that it started would continue unseen.
    """

    number: int | None = None

    def __init__(self) -> None:
        self._launcher = _launcher()

    def install(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._remember)

    def requested(self) -> bool:
        """Whether to stop; `number` then says by which signal."""
        if self.number is None and self._launcher is not None and os.getppid() != self._launcher:
            logger.warning("the launcher is gone (process %d): stopping as at SIGTERM", self._launcher)
            self.number = signal.SIGTERM
        return self.number is not None

    def _remember(self, number, _frame) -> None:
        # A second Ctrl-C gives up the checkpoint. A second SIGTERM does not: a scheduler often sends two, one to every
        # process of a node and one passed on by the launcher.
        if self.number is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.number = number


def _launcher() -> int | None:
    """The parent process if it is a launcher; None for a shell, which may end before what it started."""
    parent = os.getppid()
    try:
        words = psutil.Process(parent).cmdline()
    except psutil.Error:
        return None
    is_launcher = any(Path(word).name in _LAUNCHERS for word in words[:2]) or _LAUNCHER_MODULES & {*words[:3]}
    return parent if is_launcher else None
