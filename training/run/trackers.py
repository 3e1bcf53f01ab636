"""Accelerate's trackers: one tracker run for the trunk and one for each branch.

A branch begins at a step that the trunk has passed. In a tracker run that they shared its steps would go backwards,
and wandb drops such steps: the decay of every branch but the longest would be lost. So each has a run of its own, in
the project named after the sweep and in a group named after the size and seed. Its axis is tokens, on which runs of
every size and batch lie over each other.

    <output_dir>/<trunk or branch>/tracker.json    the id by which a resumed run continues its tracker run
                 tensorboard/<trunk or branch>/    TensorBoard's events; wandb and trackio keep theirs where they do
"""

from __future__ import annotations

import json
import secrets
from pathlib import Path

from hub.plain.atomic import write_json
from training.configuration.arguments import ConfigurationError, TrainingArguments
from training.run.devices import on_main


def check_trackers(names: list[str]) -> None:
    """Refuse a tracker that would log nothing: Accelerate passes over one that is not installed.

    Raises:
        ConfigurationError: a name is unknown, or its package is not installed.
    """
    from accelerate.tracking import get_available_trackers
    from accelerate.utils import LoggerType

    known, installed = LoggerType.list(), [str(tracker) for tracker in get_available_trackers()]
    for name in names:
        if name not in known:
            raise ConfigurationError(f"run.trackers: {name!r}; allowed are {', '.join(known)}")
        if name not in installed and (name != "all" or not installed):
            missing, others = "no tracker is" if name == "all" else f"{name!r} is not", ", ".join(installed) or "none"
            raise ConfigurationError(f"run.trackers: {missing} installed; allowed are {others}")


class Trackers:
    """The tracker runs of the trunk or of one branch, from its start or resumption to its end.

    They live on the main process alone; the others make the same calls and log nothing.

    Args:
        folder: of the trunk or branch; its name names the tracker run.
        start_tokens: tokens that are trained already.

    Raises:
        ConfigurationError: a tracker cannot be started, say because its service refuses the login; on all processes.
    """

    def __init__(self, accelerator, arguments: TrainingArguments, folder: Path, start_tokens: int):
        self._started: list = []
        if arguments.run.trackers:
            on_main(accelerator, lambda: self._start(arguments, folder, start_tokens))

    def log(self, values: dict[str, float], step: int, tokens: int) -> None:
        """Log numbers at a number of trained tokens; wandb counts steps, and is told to draw over the tokens."""
        values = {"updates": step, "tokens": tokens, **values}
        for tracker in self._started:
            tracker.log(values, step=step if tracker.name == "wandb" else tokens)

    def finish(self) -> None:
        """End the tracker runs, so that the next branch begins its own."""
        while self._started:
            self._started.pop().finish()

    def _start(self, arguments: TrainingArguments, folder: Path, start_tokens: int) -> None:
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS, filter_trackers

        output_dir = Path(arguments.run.output_dir)
        group = f"{arguments.model.name}-seed{arguments.run.seed}"
        name = f"{group}-{folder.name.partition('-')[0]}"
        run_id, is_new = _run_id(folder / "tracker.json", name)
        settings = {
            "wandb": {"id": run_id, "name": name, "group": group, "resume": "allow"},
            # trackio continues the latest run of a name, so the name has to be this run's alone.
            "trackio": {"name": run_id, "group": group, "resume": "allow"},
            # Events from beyond the checkpoint that training resumes from are hidden.
            "tensorboard": {"purge_step": start_tokens + 1},
        }
        for tracker_name in map(str, filter_trackers(arguments.run.trackers, output_dir)):
            kind = LOGGER_TYPE_TO_CLASS[tracker_name]
            place = [str(output_dir)] if kind.requires_logging_directory else []
            project = arguments.run.sweep
            if tracker_name == "tensorboard":
                project, place = folder.name, [str(output_dir / "tensorboard")]
            try:
                tracker = kind(project, *place, **settings.get(tracker_name, {}))
                tracker.start()
                self._started.append(tracker)
                if is_new or tracker_name != "tensorboard":  # which would show the configuration as one more run
                    tracker.store_init_configuration(arguments.flat())
            except Exception as error:  # each service has errors of its own
                self.finish()
                reason = " ".join(str(error).split()) or type(error).__name__
                raise ConfigurationError(f"run.trackers: {tracker_name} could not be started: {reason}") from error
            if tracker_name == "wandb":
                tracker.tracker.define_metric("*", step_metric="tokens")


def _run_id(path: Path, name: str) -> tuple[str, bool]:
    """The id of a tracker run, which a run of the same name in another folder does not share; whether it is new."""
    if path.exists():
        return json.loads(path.read_text(encoding="utf-8"))["id"], False
    run_id = f"{name}-{secrets.token_hex(4)}"
    write_json(path, {"id": run_id})
    return run_id, True
