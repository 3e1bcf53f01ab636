"""One training process, top to bottom: configuration -> data -> model -> trunk -> branches -> run records.

    <output_dir>/config.yaml             the whole configuration
                 trunk/step0000400/      checkpoints: every branch point, and the newest two
                 trunk/log.jsonl
                 <branch>/model/         the finished model with its run.json, for from_pretrained
                 <branch>/log.jsonl
                 intermediate/<step…>/model/   models of the trunk at run.release_tokens
                 profile/                the traces of run.profile_steps

Starting the same command again goes on from what is there: finished branches are left alone, and the rest continues
from the newest intact checkpoint. More token counts can be added to a finished run.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from filelock import FileLock, Timeout

from hub.plain import folders as files
from hub.plain.commands import report
from hub.record.names import final_branch_name
from hub.record.run_record import RunRecord
from training.configuration.arguments import ConfigurationError, TrainingArguments
from training.configuration.reading import parse_command_line
from training.configuration.schedule import Branch
from training.data import pins
from training.run import checkpoint, memory, releaser, setup
from training.run.checkpoint import Progress
from training.run.checkpoint_writer import CheckpointWriter
from training.run.distributed import make_accelerator, on_main
from training.run.inputs import check_inputs, settled
from training.run.loop import Diverged, Interrupted, StepResult, train
from training.run.model import utilisation_flops
from training.run.models import Finisher, Models
from training.run.step_log import StepLog
from training.run.stop_signal import StopSignal
from training.run.trace import StepProfiler
from training.run.trackers import Trackers

logger = logging.getLogger(__name__)


def main(argv: list[str] | None = None) -> int:
    """The command. Returns the exit status, by which a scheduler can tell what to do:

    0 done; 1 diverged; 2 bad configuration; 3 the machine gave out (disk full, out of memory, data that cannot be
    read): nothing that was saved is lost, but starting again needs a change; 4 all trained and saved, not all of it
    pushed; 130 or 143 stopped by SIGINT or SIGTERM after saving: start it again.
    """
    logging.basicConfig(format="%(levelname)s %(message)s")
    logging.getLogger("training").setLevel(logging.INFO)
    try:
        arguments = parse_command_line(sys.argv[1:] if argv is None else argv)
        check_inputs(arguments)
        if arguments.run.dry_run:
            from training.run.dry_run import dry_run

            return dry_run(arguments)
        finishers = releaser.finishers(arguments)
        return releaser.exit_status(Run(arguments, finishers).execute(), finishers)
    except Exception as error:
        return report(error)


class Run:
    """A trunk and its branches, in one process (of possibly many).

    Args:
        arguments: the configuration.
        finishers: called on the main process with every complete model folder and its record, final, diverged or
            intermediate, and again for those that are there when the run is started again: a process may have been
            killed in between, so they must not mind. One that has a `close` is closed when the run ends, however.
    """

    def __init__(self, arguments: TrainingArguments, finishers: Sequence[Finisher] = ()):
        arguments = settled(arguments)
        self.folder = Path(arguments.run.output_dir)
        self._trunk, self._intermediate = self.folder / "trunk", self.folder / "intermediate"
        self.accelerator = make_accelerator(arguments.run)
        # One process asks for all: upstream a commit may come in between.
        self.arguments, self.pins = on_main(self.accelerator, lambda: pins.pinned(arguments, self.folder))
        a = self.arguments
        a.check_processes(self.accelerator.num_processes)
        self._run_data = data = setup.read_data(a, self.accelerator)
        self.tokenizer, self.data, self.held_out = data.tokenizer, data.training, data.held_out
        self.context = setup.run_context(a, self.accelerator, data)
        self.stop = StopSignal()
        self.session = setup.make_session(
            a,
            self.accelerator,
            self.data,
            self.context.architecture.vocab_size,
            self.tokenizer.eos_token_id,
            self.context.peak_learning_rate,
            self.stop.requested,
        )
        if a.run.profile_steps:
            self.session.before_step = StepProfiler(
                self.folder / "profile", self.accelerator.process_index, *a.run.profile_steps
            )
        self.writer = CheckpointWriter(self.session, a.run.async_checkpoints)
        self.schedule = self.session.schedule
        self.models = Models(self.session, self.context, self.tokenizer, self.held_out, finishers)
        self.evaluations = {self.schedule.ramp.steps(tokens) for tokens in a.run.eval_tokens}
        self.branches = [self.schedule.branch(tokens) for tokens in sorted(set(a.schedule.tokens))]

    def execute(self) -> int:
        """Train what is missing; returns the exit status of the command.

        Raises:
            ConfigurationError: the folder holds a run on other tokens, or another process is training in it.
            CheckpointError: a checkpoint could not be written, say on a full disk.
            OutOfMemory: a step does not fit; says which micro-batch would.
        """
        with self._alone(), self._closing():
            on_main(self.accelerator, self._begin)
            self.stop.install()
            if self.accelerator.is_main_process:
                setup.announce(self.context, self.branches)
            try:
                status = 0 if self._train() else 1
            except Interrupted as error:
                self.writer.wait()
                logger.warning("%s", error)
                status = 128 + self.stop.number if self.stop.number else 128 + signal.SIGTERM
            except RuntimeError as error:
                if not memory.is_out_of_memory(error):
                    raise
                raise memory.explained(self.session, self.arguments, error) from None
            self.accelerator.wait_for_everyone()  # else a process may tear the group down under another
            self.writer.close()
            self.accelerator.end_training()
        return status

    def _begin(self) -> None:
        """On the main process: check and write down what the folder holds, and clear away what a kill left there."""
        path = self.folder / "data.json"
        identity = {"dataset": self.context.dataset, "tokenizer": self.context.tokenizer}
        if path.exists():
            before = {name: json.loads(path.read_text()).get(name) for name in identity}
            if before != identity:
                raise ConfigurationError(
                    f"data.dataset: the run in {self.folder} was trained on other tokens ({before}, now {identity}); "
                    "choose another run.output_dir"
                )
        self.arguments.save(self.folder / "config.yaml")
        files.write_json(path, {**identity, "pins": [vars(pin) for pin in self.pins]})
        for folder in (path for path in [*self.folder.iterdir(), *self._intermediate.glob("*")] if path.is_dir()):
            checkpoint.sweep_up(folder)
        for path in [*self.folder.glob("*/model"), *self._intermediate.glob("*/model")]:
            self.models.completed(path, RunRecord.load(path))

    def _train(self) -> bool:
        """The trunk, then every branch that is not finished; returns whether nothing diverged, now or before."""
        ends = on_main(self.accelerator, lambda: [self._status(branch) for branch in self.branches])
        pending = [branch for branch, end in zip(self.branches, ends, strict=True) if end is None]
        before = [self._name(branch) for branch, end in zip(self.branches, ends, strict=True) if end == "diverged"]
        if before:
            logger.error("diverged before, and not trained again: %s", ", ".join(before))
        try:
            self._train_trunk(pending)
        except Diverged as error:
            logger.error("the trunk diverged: %s", error)
            self.writer.wait()
            reached = on_main(self.accelerator, lambda: {b.decay_step for b in pending if self._intact(b.decay_step)})
            for branch in pending:
                if branch.decay_step not in reached:
                    self.models.leave(self.folder / self._name(branch), branch, error.progress, "diverged")
            for branch in pending:
                if branch.decay_step in reached:
                    self._train_branch(branch)
            return False
        fine = [self._train_branch(branch) for branch in pending]  # one that diverges does not stop the rest
        return all(fine) and not before

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the run's folder; the lock goes with the process, however it ends."""
        if not self.accelerator.is_main_process:
            yield
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.folder / ".lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise ConfigurationError(f"run.output_dir: another process is training in {self.folder}") from None
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def _closing(self) -> Iterator[None]:
        """Whatever happens, end what goes on beside the training."""
        try:
            yield
        finally:
            if close := getattr(self.session.before_step, "close", None):
                close()
            self.writer.close()
            self._run_data.close()
            self.models.close()

    # -- trunk

    def _train_trunk(self, pending: list[Branch]) -> None:
        """Bring the trunk to every branch point that a pending branch needs and that has no intact checkpoint."""

        def look() -> tuple[list[int], Path | None]:
            missing = [b.decay_step for b in pending if not self._intact(b.decay_step)]
            self._trunk.mkdir(parents=True, exist_ok=True)
            return missing, checkpoint.newest_intact(self._trunk, at_most=missing[0]) if missing else None

        missing, start = on_main(self.accelerator, look)
        if not missing:
            return
        progress = checkpoint.load(start, self.session) if start else Progress()
        first = progress.step + 1 if start else 0  # what is there and intact is not written again
        points = sorted({b.decay_step for b in self.branches if first <= b.decay_step <= max(missing)})
        releases = {self.schedule.ramp.steps(tokens) for tokens in self.arguments.run.release_tokens}
        with self._log("trunk", progress.step, max(missing)) as log:
            at_step = partial(self._at_step, log, releases)
            for point in points:
                every = self.arguments.run.checkpoint_seconds
                train(self.session, progress, point, None, at_step, self._save_trunk, every)
                self._save_trunk(progress)
        self.writer.wait()

    def _intact(self, step: int) -> bool:
        path = checkpoint.path_of(self._trunk, step)
        return path.exists() and checkpoint.find_damage(path) is None

    def _save_trunk(self, progress: Progress) -> None:
        self._save(self._trunk, {branch.decay_step for branch in self.branches}, progress)

    def _save(self, folder: Path, pinned: set[int], progress: Progress) -> None:
        self.writer.save(folder, progress, then=lambda: checkpoint.prune(folder, pinned))

    # -- branches

    def _name(self, branch: Branch) -> str:
        return final_branch_name(branch.tokens, self.arguments.run.seed)

    def _status(self, branch: Branch) -> str | None:
        """How a branch ended, final or diverged; None while it has not."""
        model = self.folder / self._name(branch) / "model"
        return RunRecord.load(model).status if (model / "run.json").exists() else None

    def _train_branch(self, branch: Branch) -> bool:
        """Decay from the branch point to the end, evaluate, save; returns whether it did not diverge."""
        folder = self.folder / self._name(branch)

        def look() -> Path:
            folder.mkdir(parents=True, exist_ok=True)
            return checkpoint.newest_intact(folder) or checkpoint.path_of(self._trunk, branch.decay_step)

        progress = checkpoint.load(on_main(self.accelerator, look), self.session)
        save = partial(self._save, folder, set())
        with self._log(folder.name, progress.step, branch.end_step) as log:
            at_step = partial(self._at_step, log, set())
            try:
                every = self.arguments.run.checkpoint_seconds
                train(self.session, progress, branch.end_step, branch, at_step, save, every)
            except Diverged as error:
                logger.error("%s diverged: %s", folder.name, error)
                self.writer.wait()
                self.models.leave(folder, branch, progress, "diverged")
                return False
        self.writer.wait()  # before its folder is cleared of checkpoints
        # No finite step in the whole window of the final loss: there is no loss to report.
        status = "final" if progress.window_steps else "diverged"
        self.models.leave(folder, branch, progress, status)
        return status == "final"

    # -- what a person sees

    def _at_step(self, log: StepLog, releases: set[int], progress: Progress, result: StepResult, rate: float) -> None:
        """After every update: the log, and at the steps that were asked for an evaluation or an intermediate model."""
        log(progress, result, rate)
        if progress.step in releases:
            base = final_branch_name(self.schedule.ramp.tokens(progress.step), self.arguments.run.seed)
            folder = self._intermediate / f"step{progress.step:07d}-{base}"
            if not on_main(self.accelerator, (folder / "model").exists):
                self.models.leave(folder, self.branches[-1], progress, "intermediate")
        if progress.step in self.evaluations:
            log.evaluation(progress, self.models.evaluate())

    def _log(self, folder: str, start_step: int, end_step: int) -> StepLog:
        a, arch = self.arguments, self.context.architecture
        start_tokens = self.schedule.ramp.tokens(start_step)
        return StepLog(
            self.folder / folder / "log.jsonl",
            self.accelerator,
            self.schedule,
            self.data,
            Trackers(self.accelerator, a, self.folder / folder, start_tokens),
            start_step=start_step,
            end_step=end_step,
            log_steps=a.run.log_steps,
            flops_per_token=utilisation_flops(arch),
            peak_flops=self.context.peak_flops,
            label=f"d{arch.d_model} E{arch.experts} {folder}",
            progress=a.run.progress,
        )


if __name__ == "__main__":  # `accelerate launch -m training.run.main`, where train.py is not at hand
    sys.exit(main())
