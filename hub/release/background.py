"""Pushing while training goes on: one thread, one queue, and no error that stays silent.

with BackgroundPusher(store, sweep="demo") as pusher:      # on rank 0 only
    ...
    pusher.submit(folder, record, card=card)               # returns at once
# here every push has ended well, and the index is written, once; or PushErrors was raised
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from hub.plain.errors import HubError, PushErrors, UnavailableError
from hub.record.run_record import RunRecord
from hub.release.index import SweepCard, push_index, push_repo_cards
from hub.release.push import check_places, push_run
from hub.store.base import Store
from hub.store.files import Content

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Push:
    run_id: str
    again: Callable[[], RunRecord]
    future: Future[RunRecord]


class BackgroundPusher:
    """Pushes checkpoints one after the other in a thread, and the index of the sweep once, at the end.

    Args:
        store: where to.
        sweep: the sweep's name, for the index.
        card: the index's card, as for `push_index`.
        license: of what is released, see `push_run`.

    At the end also means: when the training fails or is interrupted, with what was pushed so far. A process that is
    killed leaves checkpoints that no index lists; the next push of the run adds them.
    """

    def __init__(self, store: Store, sweep: str, *, card: SweepCard | None = None, license: str | None = None) -> None:
        self.store, self.sweep, self._card, self._license = store, sweep, card, license
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="hub-push")
        self._pushes: list[_Push] = []
        self._lock = threading.Lock()

    def submit(
        self,
        folder: str | Path,
        record: RunRecord,
        *,
        card: str | None = None,
        pictures: Mapping[str, Content] | None = None,
        siblings: Iterable[RunRecord] = (),
    ) -> Future[RunRecord]:
        """Queue a push, with the arguments of `push_run`; the folder must stay as it is until the future is done."""

        def push() -> RunRecord:
            check_places(self.store, [record])
            return push_run(
                self.store,
                folder,
                record,
                card=card,
                pictures=pictures,
                siblings=siblings,
                license=self._license,
            )

        future = self._pool.submit(push)
        with self._lock:
            self._pushes.append(_Push(record.run_id, push, future))
        return future

    def pending(self) -> int:
        """How many pushes have not ended."""
        with self._lock:
            return sum(not push.future.done() for push in self._pushes)

    def close(self) -> list[RunRecord]:
        """Wait for all pushes; the records as released, in the order of submission.

        What failed because the store could not be reached is tried once more, as that may be hours ago. At the end the
        index is written, and `main` of the repositories brought up to date.

        Raises:
            PushErrors: at least one push failed; the others were finished first.
            HubError: the pushes succeeded, and the index or the cards of the repositories did not.
        """
        self._pool.shutdown(wait=True)
        pushed, failures = [], []
        for push in self._pushes:
            error = push.future.exception()
            try:
                pushed.append(push.again() if isinstance(error, UnavailableError) else push.future.result())
            except Exception as reason:
                failures.append((push.run_id, reason))
        if pushed:
            try:
                self._list(pushed)
            except HubError:
                if not failures:
                    raise
        if failures:
            raise PushErrors(failures, pushed)
        return pushed

    def _list(self, pushed: Sequence[RunRecord]) -> None:
        push_index(self.store, self.sweep, pushed, card=self._card, license=self._license)
        push_repo_cards(self.store, self.sweep, [record.repo or "" for record in pushed], license=self._license)

    def __enter__(self) -> BackgroundPusher:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is None:
            self.close()
            return
        # The training failed: end the push that is running, forget those that wait, keep the first error.
        self._pool.shutdown(wait=True, cancel_futures=True)
        futures = [push.future for push in self._pushes if not push.future.cancelled()]
        if pushed := [future.result() for future in futures if future.exception() is None]:
            try:
                self._list(pushed)
            except HubError as reason:
                logger.warning("%d pushed runs are not in the index: %s", len(pushed), reason)
