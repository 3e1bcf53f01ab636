"""SIGINT and SIGTERM as a wish that the loop sees between two steps."""

from __future__ import annotations

import signal


class StopSignal:
    """Remembers the first SIGINT or SIGTERM, for the loop to stop between two steps."""

    number: int | None = None

    def install(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._remember)

    def _remember(self, number, _frame) -> None:
        # Asked twice at a keyboard: do not insist on the checkpoint. A scheduler's SIGTERM often comes twice, once to
        # every process of a node and once passed on by the launcher.
        if self.number is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.number = number
