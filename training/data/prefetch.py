"""Reading ahead: a thread that makes the next micro-batches of one process while the device works on this one."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from training.data.builder import Stopped

AHEAD = 32  # items; a micro-batch of 32 sequences of 512 tokens takes 0.25 MB


class Prefetcher:
    """Items made ahead of time, in order, by a thread.

    Args:
        make: position, stop event -> item. It may wait for long, and raises `Stopped` soon after the event is set.
        start: the first position.
        stride: from one position to the next.
        end: positions from here on are not made ahead; None for no end.
        ahead: items made but not taken yet, at most.
    """

    def __init__(
        self,
        make: Callable[[int, threading.Event], Any],
        start: int,
        stride: int,
        end: int | None,
        ahead: int = AHEAD,
    ):
        self.position = start  # of the item that `take` gives next
        self._make, self._stride, self._end = make, stride, end
        self._items: queue.Queue = queue.Queue(ahead)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, args=(start,), name="prefetch", daemon=True)
        self._thread.start()

    def take(self) -> Any:
        """The next item, waited for if need be.

        Raises:
            whatever `make` raised for it; after that, as after `end`, there is nothing to take.
        """
        item, error = self._items.get()
        if error is not None:
            raise error
        self.position += self._stride
        return item

    def gives(self, position: int) -> bool:
        """Whether `take` gives the item of this position next."""
        return position == self.position and (self._end is None or position < self._end)

    def close(self) -> None:
        """End the thread and wait until it has ended."""
        self._stop.set()
        with suppress(queue.Empty):
            while True:
                self._items.get_nowait()
        self._thread.join()

    def _work(self, position: int) -> None:
        while (self._end is None or position < self._end) and not self._stop.is_set():
            try:
                made = self._make(position, self._stop), None
            except Stopped:
                return
            except BaseException as error:
                made = None, error
            self._put(made)
            if made[1] is not None:
                return
            position += self._stride

    def _put(self, made: tuple) -> None:
        while not self._stop.is_set():
            with suppress(queue.Full):
                self._items.put(made, timeout=0.1)
                return
