"""Pushing while training goes on: one thread, one queue, and no error that stays silent.

with BackgroundPusher(store, sweep="demo") as pusher:      # on rank 0 only
    ...
    pusher.submit(folder, record, card=card)               # returns at once
# here every push has ended well, and the index is written; or PushErrors was raised
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from .errors import HubError
from .files import Content
from .push import SweepCard, push_index, push_run
from .records import RunRecord
from .store import Store


class PushErrors(HubError):
    """Some of the pushes failed; `failures` has (run id, error) of each. Pushing again goes on where it stopped."""

    def __init__(self, failures: list[tuple[str, BaseException]]) -> None:
        self.failures = failures
        lines = [f"{run_id}: {error}" for run_id, error in failures]
        super().__init__(f"{len(failures)} of the pushes failed: " + "; ".join(lines))


class BackgroundPusher:
    """Pushes runs one after the other in a thread, and the index of the sweep after each of them.

    Args:
        store: where to.
        sweep: the sweep's name, for the index.
        card: the index's card, as for `push_index`.

    The index is written by the same thread after the run's checkpoint, so that what is in it can always be loaded, and
    an interrupted training run has in it what was pushed so far.
    """

    def __init__(self, store: Store, sweep: str, *, card: SweepCard | None = None) -> None:
        self.store, self.sweep, self._card = store, sweep, card
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="hub-push")
        self._futures: list[tuple[str, Future[RunRecord]]] = []
        self._lock = threading.Lock()

    def submit(
        self,
        folder: str | Path,
        record: RunRecord,
        *,
        card: str | None = None,
        pictures: Mapping[str, Content] | None = None,
    ) -> Future[RunRecord]:
        """Queue a push; the folder must stay as it is until the future is done."""

        def push() -> RunRecord:
            pushed = push_run(self.store, folder, record, card=card, pictures=pictures)
            push_index(self.store, self.sweep, [pushed], card=self._card)
            return pushed

        future = self._pool.submit(push)
        with self._lock:
            self._futures.append((record.run_id, future))
        return future

    def pending(self) -> int:
        """How many pushes have not ended."""
        with self._lock:
            return sum(not future.done() for _, future in self._futures)

    def close(self) -> list[RunRecord]:
        """Wait for all pushes; the records as released, in the order of submission.

        Raises:
            PushErrors: at least one push failed; the others were finished first.
        """
        self._pool.shutdown(wait=True)
        with self._lock:
            ended = list(self._futures)
        failures = [(run_id, error) for run_id, future in ended if (error := future.exception()) is not None]
        if failures:
            raise PushErrors(failures)
        return [future.result() for _, future in ended]

    def __enter__(self) -> BackgroundPusher:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is None:
            self.close()
        else:  # the training failed: end the push that is running, forget those that wait, keep the first error
            self._pool.shutdown(wait=True, cancel_futures=True)
