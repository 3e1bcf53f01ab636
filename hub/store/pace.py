"""Keeping the rate of calls below what the Hub allows, before it has to refuse.

The Hub counts calls of its API over five minutes (1,000 for a free account) and answers 429 above that. A release of
hundreds of runs would run into this, and a 429 on a commit says nothing of how long to wait.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

WINDOW_SECONDS = 300.0
CALLS_PER_WINDOW = 950  # of the 1,000 of a free account; the rest is for whatever else the account does


class Pace:
    """Lets at most `calls` calls begin within any `seconds`. Safe to use from several threads.

    Args:
        calls: allowed in one window.
        seconds: length of the window, which slides.
        clock, sleep: time in seconds, and waiting; others for a test or a simulation.
    """

    def __init__(
        self,
        calls: int = CALLS_PER_WINDOW,
        seconds: float = WINDOW_SECONDS,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        if calls < 1:
            raise ValueError(f"calls is {calls}, allowed is at least 1")
        self.calls, self.seconds = calls, seconds
        self._clock, self._sleep = clock, sleep
        self._begun: deque[float] = deque()  # when each call of the window begins, also of those that still wait
        self._lock = threading.Lock()

    def take(self, calls: int) -> None:
        """Wait until so many calls may begin."""
        with self._lock:
            now = self._clock()
            at = max(now, self._begun[-1] if self._begun else now)
            for number in range(calls):
                while self._begun and self._begun[0] <= at - self.seconds:
                    self._begun.popleft()
                if self._begun and len(self._begun) + number >= self.calls:
                    at = self._begun.popleft() + self.seconds
            self._begun.extend([at] * calls)  # they begin together
        if at > now:
            self._sleep(at - now)
