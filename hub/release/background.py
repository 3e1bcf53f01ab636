"""Pushing while training goes on: one thread, one queue, and no error that stays silent.

with BackgroundPusher(store, sweep="demo") as pusher:      # on rank 0 only
    ...
    pusher.submit(folder, record)                          # returns at once
# here every push has succeeded, and the index is written, once; or PushErrors was raised
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from hub.plain.errors import AccessError, HubError, PushErrors, UnavailableError, redacted
from hub.record.run_record import RunRecord
from hub.release.push import check_places, push_listing, push_run
from hub.store.base import Store

logger = logging.getLogger(__name__)


class BackgroundPusher:
    """Pushes checkpoints one after the other in a thread, and the index of the sweep once, at the end.

    "At the end" includes a training that fails or is interrupted, with what was pushed so far. A process that is
    killed leaves checkpoints that no index lists; the next push of the run adds them.

    Args:
        store: where to.
        sweep: the sweep's name, for the index.
        license: of what is released, see `push_run`.
    """

    def __init__(self, store: Store, sweep: str, *, license: str | None = None) -> None:
        self.store, self.sweep, self._license = store, sweep, license
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="hub-push")
        self._pushes: list[tuple[RunRecord, Callable[[], RunRecord], Future[RunRecord]]] = []
        self._refused = False  # whether it was said that the store lets nobody in

    def submit(self, folder: str | Path, record: RunRecord) -> Future[RunRecord]:
        """Queue a push; the folder must stay as it is until the future is done.

        The run's card shows it among those that were submitted before. What became of the push is logged, a missing
        or refused token once.
        """
        siblings = [*(other for other, _, _ in self._pushes), record]

        def push() -> RunRecord:
            check_places(self.store, [record])
            return push_run(self.store, folder, record, siblings=siblings, license=self._license)

        try:
            future = self._pool.submit(push)
        except RuntimeError as error:  # a thread that cannot be started
            future = Future()
            future.set_exception(error)
        future.add_done_callback(lambda ended: self._report(record, ended))
        self._pushes.append((record, push, future))
        return future

    def pending(self) -> int:
        """How many pushes have not ended."""
        return sum(not future.done() for _, _, future in self._pushes)

    def close(self) -> list[RunRecord]:
        """Wait for all pushes; the records as released, in the order of submission.

        What failed because the store could not be reached is tried once more, as that may be hours ago. Then the
        index is written, and `main` of the repositories brought up to date.

        Raises:
            PushErrors: at least one push failed; the others were finished first.
            HubError: the pushes succeeded, and the index or the cards of the repositories did not.
        """
        self._pool.shutdown(wait=True)
        pushed: list[RunRecord] = []
        failures: list[tuple[str, BaseException]] = []
        for record, push, future in self._pushes:
            try:
                pushed.append(push() if isinstance(future.exception(), UnavailableError) else future.result())
            except Exception as reason:
                failures.append((record.run_id, reason))
        try:
            if pushed:
                push_listing(self.store, self.sweep, pushed, license=self._license)
        except HubError:
            if not failures:
                raise
        if failures:
            raise PushErrors(failures, pushed)
        return pushed

    def __enter__(self) -> BackgroundPusher:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is None:
            self.close()
            return
        # The training failed: end the push that is running, forget those that wait, keep the first error.
        self._pool.shutdown(wait=True, cancel_futures=True)
        ended = [future for _, _, future in self._pushes if not future.cancelled()]
        pushed = [future.result() for future in ended if future.exception() is None]
        if missing := len(self._pushes) - len(pushed):
            logger.warning("%d of %d runs were not pushed", missing, len(self._pushes))
        if pushed:
            try:
                push_listing(self.store, self.sweep, pushed, license=self._license)
            except HubError as reason:
                logger.warning("%d pushed runs are not in the index: %s", len(pushed), reason)

    def _report(self, record: RunRecord, future: Future[RunRecord]) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            logger.info("pushed %s@%s", future.result().repo, future.result().branch)
        elif not (self._refused and isinstance(error, AccessError)):
            self._refused = self._refused or isinstance(error, AccessError)
            logger.warning("pushing %s failed, training goes on: %s", record.run_id, redacted(str(error)))
