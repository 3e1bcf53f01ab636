"""Release of finished branches: the card beside the model, and the push while training continues.

A failed push (`--push-to-hub`) does not stop training: `python -m hub push OUTPUT_DIR hf://ORG` completes the release,
and the exit status reports it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from hub import HubError, PushErrors, RunRecord, Store, open_store, push_run
from hub.base.atomic import write_bytes
from hub.base.errors import AccessError, UnavailableError, redacted
from hub.release.cards import model_card
from hub.release.push import check_places, push_listing
from scaling_law.figures.run_pictures import CAPTIONS, run_pictures
from training.configuration.arguments import ConfigurationError, TrainingArguments

logger = logging.getLogger(__name__)

RELEASE_INCOMPLETE = 4  # exit status: everything was trained and is saved, not everything was pushed


def write_card(
    folder: Path, record: RunRecord, trunk_log: Path, branch_log: Path, *, license: str | None = None
) -> None:
    """Write README.md and its pictures beside a model. One that cannot be drawn is left out with a warning."""
    try:
        pictures = run_pictures(record, trunk_log, branch_log)
    except Exception as error:
        logger.warning("the pictures of %s could not be drawn: %s", record.run_id, error)
        pictures = {}
    for name, content in pictures.items():
        write_bytes(folder / name, content)
    card = model_card(record, pictures={name: CAPTIONS[name] for name in pictures}, license=license)
    write_bytes(folder / "README.md", card.encode())


def finishers(arguments: TrainingArguments) -> tuple[Releaser, ...]:
    """What `Run` calls for every finished branch. Raises ConfigurationError if the store cannot be used."""
    run = arguments.run
    if not run.push_to_hub:
        return ()
    try:
        store = open_store(run.push_to_hub, private=run.private)
        # Only the main process pushes; others, perhaps on other machines, need no token.
        if run.push_to_hub.startswith("hf://") and os.environ.get("RANK", "0") == "0":
            store.transport.require_token()
    except (HubError, ValueError) as error:
        raise ConfigurationError(f"run.push_to_hub: {error}") from None
    if run.license is None:
        logger.warning("run.license is not set: the pushed cards name no licence")
    return (Releaser(store, run.sweep, run.license),)


class Releaser:
    """Pushes finished branches one after the other in a thread, and the index of the sweep once, in `close`.

    Called on the main process only. A killed process may leave checkpoints that no index lists; the run's next push
    adds them, and sends nothing twice.
    """

    def __init__(self, store: Store, sweep: str, license: str | None = None) -> None:
        from huggingface_hub.utils import disable_progress_bars

        self.exit_status = 0
        self._store, self._sweep, self._license = store, sweep, license
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="hub-push")
        self._pushes: list[tuple[RunRecord, Callable[[], RunRecord], Future[RunRecord]]] = []
        self._refused = False  # whether it was said that the store lets nobody in
        if os.environ.get("HF_HUB_DISABLE_PROGRESS_BARS") is None:
            disable_progress_bars()  # those of uploads would break that of the training

    def __call__(self, model_folder: Path, record: RunRecord) -> Future[RunRecord]:
        """Queue the push of a model folder, which must stay as it is until the future is done, and return at once."""
        siblings = [*(other for other, _, _ in self._pushes), record]

        def push() -> RunRecord:
            check_places(self._store, [record])
            return push_run(self._store, model_folder, record, siblings=siblings, license=self._license)

        try:
            future = self._pool.submit(push)
        except RuntimeError as error:  # a thread that cannot be started
            future = Future()
            future.set_exception(error)
        future.add_done_callback(lambda ended: self._report(record, ended))
        self._pushes.append((record, push, future))
        return future

    def _report(self, record: RunRecord, future: Future[RunRecord]) -> None:
        """Log the result of a push; a missing or refused token only once."""
        error = future.exception()
        if error is None:
            logger.info("pushed %s@%s", future.result().repo, future.result().branch)
        elif not (self._refused and isinstance(error, AccessError)):
            self._refused = self._refused or isinstance(error, AccessError)
            logger.warning("pushing %s failed, training continues: %s", record.run_id, redacted(str(error)))

    def close(self) -> None:
        """Wait for all pushes and write the index; afterwards `exit_status` is 0, or `RELEASE_INCOMPLETE`.

        A push that failed because the store was unreachable is retried once, as that may be hours ago.
        """
        if waiting := sum(not future.done() for _, _, future in self._pushes):
            logger.info("waiting for %d pushes to %s", waiting, self._store.uri)
        self._pool.shutdown(wait=True)
        pushed: list[RunRecord] = []
        failures: list[tuple[str, BaseException]] = []
        for record, push, future in self._pushes:
            try:
                pushed.append(push() if isinstance(future.exception(), UnavailableError) else future.result())
            except Exception as error:
                failures.append((record.run_id, error))
        try:
            if pushed:
                push_listing(self._store, self._sweep, pushed, license=self._license)
        except Exception as error:
            failures.append(("the index", error))
        if failures:
            self.exit_status = RELEASE_INCOMPLETE
            logger.error(
                "the release in %s is not complete: %s. The models are saved; `python -m hub push` with the output "
                "folder and this store completes it.",
                self._store.uri,
                PushErrors(failures, pushed),
            )
        elif pushed:
            logger.info("%d runs are released in %s", len(pushed), self._store.uri)


def exit_status(trained: int, finishers: Sequence[object]) -> int:
    """The exit status of the training, or if that is 0, of the finishers."""
    return trained or max((getattr(finisher, "exit_status", 0) for finisher in finishers), default=0)
