"""Release of finished branches: the card beside the model, and the push while training continues.

A failed push (`--push-to-hub`) does not stop training: `python -m hub push OUTPUT_DIR hf://ORG` completes the release,
and the exit status reports it.
"""

from __future__ import annotations

import logging
import os
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from hub import HubError, RunRecord, Store, open_store, push_run
from hub.base.atomic import write_bytes
from hub.base.errors import AccessError, redact
from hub.release.cards import model_card
from hub.release.push import check_places, release_runs
from hub.store.hub import HubStore
from scaling_law.figures.run_pictures import CAPTIONS, run_pictures
from training.configuration.arguments import ConfigurationError, TrainingArguments

logger = logging.getLogger(__name__)

# Exit status: everything was trained and is saved, not everything was pushed.
RELEASE_INCOMPLETE = 4


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
    """Make the callables that `Run` calls for every finished branch.

    Raises ConfigurationError if the store cannot be used.
    """
    run = arguments.run
    if not run.push_to_hub:
        return ()
    try:
        store = open_store(run.push_to_hub, private=run.private)
        # Only the main process pushes; others, perhaps on other machines, need no token.
        if isinstance(store, HubStore) and os.environ.get("RANK", "0") == "0":
            store.transport.require_token()
    except (HubError, ValueError) as error:
        raise ConfigurationError(f"run.push_to_hub: {error}") from None
    if run.license is None:
        logger.warning("run.license is not set: the pushed cards name no licence")
    return (Releaser(store, run.license),)


class Releaser:
    """Pusher of finished branches one after the other in a thread, and of the index of the sweep once, in `close`.

    Called on the main process only. A killed process may leave checkpoints that no index lists; the run's next push
    adds them, and sends nothing twice.
    """

    def __init__(self, store: Store, license: str | None = None) -> None:
        self.exit_status = 0
        self._store = store
        self._license = license
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="hub-push")
        self._runs: list[tuple[Path, RunRecord]] = []
        self._pushes: list[Future[None]] = []
        # True when a warning said that the store lets nobody in.
        self._has_refused = False

    def __call__(self, model_folder: Path, record: RunRecord) -> None:
        """Queue the push of a model folder, which must stay as it is until `close`; return at once."""
        self._runs.append((model_folder, record))
        # Where a thread cannot be started, `close` pushes.
        with suppress(RuntimeError):
            self._pushes.append(self._pool.submit(self._push, model_folder, record))

    def _push(self, folder: Path, record: RunRecord) -> None:
        """Push one run, and log the result; a missing or refused token only once."""
        try:
            check_places(self._store, [record])
            pushed = push_run(self._store, folder, record, license=self._license)
            logger.info("pushed %s@%s", pushed.repo, pushed.branch)
        except Exception as error:
            is_refused = isinstance(error, AccessError)
            if not (self._has_refused and is_refused):
                logger.warning("pushing %s failed, training continues: %s", record.run_id, redact(str(error)))
            self._has_refused = self._has_refused or is_refused

    def close(self) -> None:
        """Wait for all pushes, retry those that failed, and write the index; then `exit_status` is 0 or 4.

        Files that have been pushed are compared, and not sent again.
        """
        waiting = sum(not push.done() for push in self._pushes)
        if waiting:
            logger.info("waiting for %d pushes to %s", waiting, self._store.uri)
        self._pool.shutdown(wait=True)
        try:
            result = release_runs(self._store, self._runs, license=self._license)
            if result.failed:
                raise result.failed
        except Exception as error:
            self.exit_status = RELEASE_INCOMPLETE
            logger.error(
                "the release in %s is not complete: %s. The models are saved; `python -m hub push` with the output "
                "folder and this store completes it.",
                self._store.uri,
                redact(str(error)),
            )
        if self._runs and not self.exit_status:
            logger.info("%d runs are released in %s", len(self._runs), self._store.uri)
