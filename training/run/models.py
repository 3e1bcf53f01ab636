"""The models that a run leaves: evaluated, written with their records, and handed to whoever waits for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from hub.plain import folders as files
from hub.record.run_record import RunRecord
from training.configuration.schedule import Branch
from training.run import checkpoint, results
from training.run.checkpoint import Progress
from training.run.distributed import on_main, sum_over_processes
from training.run.evaluation import HeldOut, HeldOutLoss, evaluate
from training.run.loop import Session
from training.run.releaser import write_card
from training.run.run_log import write_log

Finisher = Callable[[Path, RunRecord], None]


class Models:
    """Leaves models of one session.

    Args:
        finishers: see `run.Run`.
    """

    def __init__(
        self,
        session: Session,
        context: results.RunContext,
        tokenizer,
        held_out: HeldOut,
        finishers: Sequence[Finisher] = (),
    ):
        self.session, self.context, self.tokenizer, self.held_out = session, context, tokenizer, held_out
        self.finishers = tuple(finishers)

    def evaluate(self) -> HeldOutLoss:
        """The held-out loss now, dropless; collective."""
        accelerator = self.session.accelerator
        with accelerator.autocast():
            return evaluate(
                self.session.model,
                self.held_out,
                self.context.arguments.run.micro_batch_sequences,
                accelerator.device,
                accelerator.process_index,
                accelerator.num_processes,
                partial(sum_over_processes, accelerator),
            )

    def leave(self, folder: Path, branch: Branch, progress: Progress, status: str) -> None:
        """Write <folder>/model with its record, whole or not at all; then the folder's checkpoints go. Collective.

        Args:
            branch: the run that the record is of; for an intermediate model the longest of its trunk.
            status: final, intermediate or diverged; a diverged model is not evaluated.
        """
        accelerator = self.session.accelerator
        measured = None if status == "diverged" else self.evaluate()
        state_dict = accelerator.get_state_dict(self.session.model)

        def write() -> None:
            folder.mkdir(parents=True, exist_ok=True)
            with files.atomic_folder(folder / "model") as temporary:
                config = accelerator.unwrap_model(self.session.model).config
                weights = results.save_model(config, self.tokenizer, state_dict, temporary)
                record = results.run_record(
                    self.context,
                    branch,
                    progress,
                    branch_name=folder.name,
                    status=status,
                    measured=measured,
                    held_out=self.held_out,
                    weights_sha256=weights,
                )
                run = self.context.arguments.run
                logs = (Path(run.output_dir) / "trunk" / "log.jsonl", folder / "log.jsonl")
                write_log(temporary, record, *logs)
                write_card(temporary, record, *logs, license=run.license)
                record.save(temporary / "run.json")
            self.completed(folder / "model", record)

        on_main(accelerator, write)

    def completed(self, model: Path, record: RunRecord) -> None:
        """On the main process: what follows a complete model folder."""
        for step in checkpoint.steps(model.parent):  # only the trunk's are needed from here on
            checkpoint.remove(checkpoint.path_of(model.parent, step))
        for finisher in self.finishers:
            finisher(model, record)

    def close(self) -> None:
        """Let the finishers end what they began, on the main process."""
        if self.session.accelerator.is_main_process:
            for finisher in self.finishers:
                getattr(finisher, "close", lambda: None)()
