"""From a finished branch to a release: the card beside the model, and pushing it while training goes on.

`train.py --push-to-hub hf://ORG` (or a folder) pushes every branch when it is finished, in the background and on the
main process only. A failed push stops nothing: the model lies in the output folder, and
`python -m hub push OUTPUT_DIR hf://ORG` completes the release. The exit status reports it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from hub import BackgroundPusher, HubError, RunRecord, Store, open_store
from hub.plain.atomic import write_bytes
from hub.plain.errors import redacted
from hub.release import background
from hub.release.cards import model_card
from scaling_law.figures.run_pictures import CAPTIONS, run_pictures
from training.configuration.arguments import ConfigurationError, TrainingArguments

logger = logging.getLogger(__name__)

RELEASE_INCOMPLETE = 4  # exit status: everything was trained and is saved, not everything was pushed


def write_card(
    folder: Path, record: RunRecord, trunk_log: Path, branch_log: Path, *, license: str | None = None
) -> None:
    """Write README.md and its pictures beside a model.

    A picture that cannot be drawn is left out with a warning: a run of weeks is not lost for it.
    """
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
    """What `Run` calls for every finished branch; empty if nothing is to be pushed.

    Raises:
        ConfigurationError: the store cannot be used; raised before anything is trained.
    """
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
        logger.warning("run.license is not given: the cards of what is pushed name no licence")
    return (Releaser(store, run.sweep, run.license),)


class Releaser:
    """Pushes finished branches in the background (`hub.BackgroundPusher`); `close` waits for them and raises nothing.

    Called on the main process only. It may be called again for a branch that was pushed before: nothing is sent then.
    """

    def __init__(self, store: Store, sweep: str, license: str | None = None) -> None:
        from huggingface_hub.utils import disable_progress_bars

        self.exit_status = 0
        self._pusher = BackgroundPusher(store, sweep, license=license)
        background.logger.setLevel(logging.INFO)
        if os.environ.get("HF_HUB_DISABLE_PROGRESS_BARS") is None:
            disable_progress_bars()  # those of uploads would break that of the training

    def __call__(self, model_folder: Path, record: RunRecord) -> None:
        """Queue the push of a complete model folder and return at once."""
        self._pusher.submit(model_folder, record)

    def close(self) -> None:
        """Wait for what is being pushed; afterwards `exit_status` is 0, or `RELEASE_INCOMPLETE`."""
        place = self._pusher.store.uri
        if waiting := self._pusher.pending():
            logger.info("waiting for %d pushes to %s", waiting, place)
        try:
            if pushed := self._pusher.close():
                logger.info("%d runs are released in %s", len(pushed), place)
        except Exception as error:
            self.exit_status = RELEASE_INCOMPLETE
            logger.error(
                "the release in %s is not complete: %s. The models are saved; `python -m hub push` with the output "
                "folder and this store completes it.",
                place,
                redacted(str(error)),
            )


def exit_status(trained: int, finishers: Sequence[object]) -> int:
    """That of the training, or if it is 0 that of the finishers."""
    return trained or max((getattr(finisher, "exit_status", 0) for finisher in finishers), default=0)
