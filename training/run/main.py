"""One training process, top to bottom: configuration -> data -> model -> trunk -> branches -> run records.

Re-run the same command to resume: finished branches are left alone, and the rest continues from the newest intact
checkpoint. More token counts can be added to a finished run.
"""

from __future__ import annotations

import logging
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path

from hub.base import atomic
from hub.base.disk import explain_full_disk
from hub.base.output import guard_output, log_to_stderr
from hub.base.types import Fields
from hub.record.names import final_branch_name
from hub.record.run_record import RunRecord
from scaling_law import Law
from scaling_law.forecasting.curves import read_lines
from scaling_law.forecasting.live import Watch
from training.configuration.arguments import ConfigurationError, TrainingArguments
from training.configuration.reading import parse_command_line
from training.configuration.schedule import Branch
from training.configuration.variables import check_variables
from training.data import pins
from training.data.tokenizer import load_tokenizer
from training.run import checkpoint, inputs, releaser, results
from training.run.attempt import lock_run, note_end, note_error
from training.run.checkpoint import CheckpointWriter
from training.run.devices import StopSignal, any_process, has_process_group, make_accelerator, on_main
from training.run.dry_run import advice_on_memory, dry_run
from training.run.environment import describe_environment
from training.run.evaluation import HeldOutLoss, evaluate
from training.run.forecast import law_of, watch_run
from training.run.log import StepLog, StepTrace, Trackers, write_log
from training.run.process import borrow_process
from training.run.progress import Progress, count
from training.run.sharding import check_layout
from training.run.step import make_session, train_step

logger = logging.getLogger(__name__)

Finisher = Callable[[Path, RunRecord], None]
DIVERGED = "diverged"


def main(argv: list[str] | TrainingArguments | None = None) -> int:
    """Run the command, given as words or parsed; returns the exit status of `hub.base.commands`.

    A scheduler can tell from the status what to do. 1 is a diverged run. After 3 a restart needs a change, though
    nothing saved is lost; 4: all is trained and saved; 129, 130 or 143: stopped after saving, re-run to resume. May be
    called again, and from any thread.
    """
    with guard_output("stderr"), log_to_stderr("training"):
        try:
            words = sys.argv[1:] if argv is None else argv
            arguments = words if isinstance(words, TrainingArguments) else parse_command_line(words)
            # Whoever has started the group of the processes needs no variables for it.
            if not has_process_group():
                check_variables()
            inputs.check_inputs(arguments)
            with borrow_process():
                if arguments.run.dry_run:
                    return dry_run(arguments)
                with guard_output("stdout"):
                    finishers = releaser.finishers(arguments)
                    status = Run(arguments, finishers).execute()
                    # 4 if not all was pushed.
                    status = status or max((finisher.exit_status for finisher in finishers), default=0)
        except Exception as error:
            return note_error(error)
        note_end(status)
        return status


class Interrupted(RuntimeError):
    """A signal asked for a stop; a checkpoint of the last step was saved."""


class Run:
    """A trunk and its branches, in one process (of possibly many).

        <output_dir>/config.yaml             the whole configuration
                     trunk/step0000400/      checkpoints: every branch point, and the newest two
                     trunk/log.jsonl
                     trunk/forecast.json     the finished runs that its forecasts learn from
                     <branch>/model/         the finished model with its run.json, for from_pretrained
                     <branch>/log.jsonl
                     intermediate/<step…>/model/   models of the trunk at run.release_tokens
                     profile/                the traces of run.profile_steps

    The main process calls `finishers` with every complete model folder and its record, final, diverged or
    intermediate, and again on resuming, since a process may have been killed in between. It closes those that can be.
    """

    def __init__(self, arguments: TrainingArguments, finishers: Sequence[Finisher] = ()):
        a = inputs.resolve_arguments(arguments)
        self.folder = Path(a.run.output_dir)
        self.trunk = self.folder / "trunk"
        self.intermediate = self.folder / "intermediate"
        self.finishers = tuple(finishers)
        self.stop = StopSignal()

        # The processes, and the commits of the data: one process asks for them, since upstream a commit may come.
        self._has_callers_group = has_process_group()
        accelerator = make_accelerator(a.run)
        self.accelerator = accelerator
        check_layout(a, accelerator)
        a, self.pins = on_main(accelerator, partial(pins.pinned, a, self.folder))
        self.arguments = a

        # The data. The first process of each node begins to tokenise; the others take over if it does not.
        with accelerator.local_main_process_first():
            self.tokenizer = load_tokenizer(a.data.tokenizer, a.data.tokenizer_revision)
        patience = 0.0 if accelerator.is_local_main_process else 5.0
        self.held_out = inputs.HeldOutText(a, self.tokenizer, patience)
        self.data = inputs.training_data(a, self.tokenizer, patience)

        # The model, its schedule, and the steps after which it is saved.
        self.session = make_session(a, accelerator, self.tokenizer, self.data)
        # The main process alone has the law.
        self.law: Law | None = None
        on_main(accelerator, lambda: setattr(self, "law", law_of(a, self.session.architecture)))
        self.schedule = self.session.schedule
        self.branches = a.branches()
        self.branch_points = {branch.decay_step for branch in self.branches}
        self.evaluation_steps = {self.schedule.ramp.steps(tokens) for tokens in a.run.eval_tokens}
        self.release_steps = {self.schedule.ramp.steps(tokens) for tokens in a.run.release_tokens}
        self.writer = CheckpointWriter(self.session, a.run.async_checkpoints)
        trace = self.folder / "profile" / f"trace-{accelerator.process_index}.json.gz"
        self.trace = StepTrace(trace, a.run.profile_steps)
        self.trackers = Trackers(accelerator, a)

    def execute(self) -> int:
        """Train the missing branches; returns the exit status of the command.

        Raises:
            ConfigurationError: the folder holds a run on other tokens, or another process is training in it.
            CheckpointError: a checkpoint could not be written, say on a full disk.
            OutOfMemory: a step does not fit; says what to try.
        """
        # No name holds the lock, which is released with the block or, however that ends, with the process.
        with lock_run(self.folder) if self.accelerator.is_main_process else nullcontext(), ExitStack() as stack:
            stack.callback(self.stop.uninstall)
            stack.callback(self._close)
            statuses = on_main(self.accelerator, self._begin)
            self.stop.install()
            if self.accelerator.is_main_process:
                self._announce()
            try:
                with advice_on_memory(self.session):
                    status = 0 if self._train(statuses) else 1
                    on_main(self.accelerator, self._conclude)
            except Interrupted as error:
                self.writer.wait()
                logger.warning("%s", error)
                status = 128 + (self.stop.number or signal.SIGTERM)
            # A process may not tear the group down under another.
            self.accelerator.wait_for_everyone()
            self.writer.close()
            if not self._has_callers_group:
                self.accelerator.end_training()
        return status

    def _close(self) -> None:
        """Stop everything that runs beside the loop."""
        finishers = self.finishers if self.accelerator.is_main_process else ()
        workers = (self.trace, self.writer, self.data.tokens, self.held_out.tokens, self.trackers, *finishers)
        # The stack closes each of them, whatever happens to the rest.
        with ExitStack() as stack:
            for worker in reversed(workers):
                stack.callback(getattr(worker, "close", lambda: None))

    def _begin(self) -> dict[str, str]:
        """Check and note whose run the folder holds, and clean up after a kill; on the main process.

        Returns the status of each model that is there, final, intermediate or diverged, by the name of its folder.
        """
        stored = pins.RunData.of(self.folder)
        cache = self.data.tokens.cache
        tokenizer = results.tokenizer_identity(self.session)
        revision = str(cache.dataset["revision"])
        if stored.dataset and revision == stored.dataset["revision"] and revision.startswith("sha256:"):
            # A folder that was renamed holds the same data, which records go on to name as before.
            cache.recipe["source"]["dataset"] = stored.dataset["id"]
        identity = {"dataset": cache.dataset, "tokenizer": tokenizer}
        before = {"dataset": stored.dataset, "tokenizer": stored.tokenizer}
        fingerprint_before = (stored.tokenizer or tokenizer)["fingerprint"]
        is_same = stored.dataset == cache.dataset and fingerprint_before == tokenizer["fingerprint"]
        if stored != pins.RunData() and not is_same:
            raise ConfigurationError(
                f"data.dataset: the run in {self.folder} was trained on other tokens ({before}, now {identity}); "
                "choose another run.output_dir"
            )
        self.arguments.save(self.folder / "config.yaml")
        peak = self.schedule.peak
        pins.RunData(**identity, pins=list(self.pins), peak_learning_rate=peak).save(self.folder)
        for folder in [self.folder, *self.folder.iterdir(), *self.intermediate.glob("*")]:
            checkpoint.remove_leftovers(folder)
        models = [*self.folder.glob("*/model"), *self.intermediate.glob("*/model")]
        records = {model: RunRecord.load(model) for model in models}
        for model, record in records.items():
            self._finish_model(model, record)
        return {model.parent.name: record.status for model, record in records.items()}

    def _announce(self) -> None:
        """Log what will be trained; on the main process."""
        arch = self.session.architecture
        tokens = ", ".join(f"{branch.tokens:,}" for branch in self.branches)
        model = f"d_model {arch.d_model}, {arch.n_blocks} blocks, E = {arch.experts}"
        parameters = f"{arch.n_active:.3g} active of {arch.n_total:.3g} parameters"
        rate = f"peak learning rate {self.schedule.peak:.3g} ({self.session.learning_rate_law})"
        logger.info("%s: %s; %s tokens; %s", model, parameters, tokens, rate)
        if self.accelerator.is_fsdp2:
            logger.info("weights: %s", self.session.layout)
        # None while it is not known whether more follows.
        unique = self.data.unique_tokens
        if unique is not None and self.branches[-1].tokens > unique:
            epochs = self.branches[-1].tokens / unique
            logger.warning("the data repeats: %.2f epochs of %s tokens", epochs, f"{unique:,}")

    def _conclude(self) -> None:
        """Log the loss of the longest branch, and where its model lies; on the main process."""
        model = self._folder(self.branches[-1]) / "model"
        record = RunRecord.load(model)
        text = "diverged" if record.eval_loss is None else f"held-out loss {record.eval_loss:.4f}"
        logger.info("%s after %s tokens: %s", text, f"{record.tokens:,}", model)

    # -- the trunk, and its branches

    def _train(self, statuses: dict[str, str]) -> bool:
        """Train the trunk, then every branch without a status; returns whether none diverged, now or before."""
        names = {branch: self._folder(branch).name for branch in self.branches}
        pending = [branch for branch, name in names.items() if name not in statuses]
        diverged = [name for name in names.values() if statuses.get(name) == DIVERGED]
        if diverged:
            logger.error("diverged before, and not trained again: %s", ", ".join(diverged))
        progress, has_diverged = self._train_trunk(pending)
        lost_points = on_main(self.accelerator, partial(self._missing_points, pending)) if has_diverged else []
        lost_branches = [branch for branch in pending if branch.decay_step in lost_points]
        for branch in lost_branches:
            self._save_model(self._folder(branch), branch, progress, DIVERGED)
        # One that diverges does not stop the rest.
        finished = [self._train_branch(branch) for branch in pending if branch not in lost_branches]
        return all(finished) and not has_diverged and not diverged

    def _train_trunk(self, pending: list[Branch]) -> tuple[Progress, bool]:
        """Train the trunk to every branch point that a pending branch needs.

        Returns how far it is, and whether it diverged.
        """
        missing = on_main(self.accelerator, partial(self._missing_points, pending))
        if not missing:
            return Progress(), False
        progress = self._resume(self.trunk, at_most=missing[0])
        if 0 in missing:
            self.writer.save(self.trunk, progress, self.branch_points)
        has_diverged = self._loop(progress, max(missing), None, self.trunk)
        self.writer.wait()
        return progress, has_diverged

    def _train_branch(self, branch: Branch) -> bool:
        """Decay from the branch point to the end, evaluate, save; returns whether it did not diverge."""
        folder = self._folder(branch)
        progress = self._resume(folder, otherwise=checkpoint.path_of(self.trunk, branch.decay_step))
        has_diverged = self._loop(progress, branch.end_step, branch, folder)
        # Without a finite step in the whole window of the final loss there is no loss to report.
        status = DIVERGED if has_diverged or not progress.window_steps else "final"
        # The last checkpoint must be there before its folder is cleared of checkpoints.
        self.writer.wait()
        self._save_model(folder, branch, progress, status)
        return status != DIVERGED

    def _resume(self, folder: Path, at_most: int | None = None, otherwise: Path | None = None) -> Progress:
        """Load the newest intact checkpoint in `folder`, up to a step, or another; begin anew without either."""

        def newest() -> Path | None:
            folder.mkdir(parents=True, exist_ok=True)
            return checkpoint.newest_intact(folder, at_most) or otherwise

        start = on_main(self.accelerator, newest)
        return checkpoint.load(start, self.session) if start else Progress()

    def _loop(self, progress: Progress, end_step: int, branch: Branch | None, folder: Path) -> bool:
        """Train on the trunk (branch None) or in a branch's decay: step, log, evaluate, save.

        Moves `progress` along in place, and saves every branch point of the trunk, of which `end_step` is one. Returns
        whether it diverged, after `run.max_skipped_steps` non-finite steps in a row. Raises Interrupted after saving.
        """
        run = self.arguments.run
        session = self.session
        pinned = self.branch_points if branch is None else set()
        session.model.train()
        progress.add_environment(describe_environment())
        forecast = partial(self._forecast, branch, folder)
        with StepLog(session, folder, progress.step, end_step, self.trackers, forecast) as log:
            seconds_before = progress.wall_seconds
            start_time = time.monotonic()
            save_time = start_time
            while progress.step < end_step:
                # An error of the tokenising is better now than after the training.
                self.held_out.tokens.check()
                self.trace(progress.step)
                rate = self.schedule.learning_rate(progress.step, branch)
                result = train_step(session, progress.step, rate)
                count(session, progress, result, branch)
                progress.add_time(seconds_before + time.monotonic() - start_time)

                log(progress, result, rate)
                if branch is None and progress.step in self.release_steps:
                    self._save_intermediate(progress)
                if progress.step in self.evaluation_steps:
                    log.evaluation(progress, self._evaluate())
                skipped = progress.skipped_in_a_row
                if skipped >= run.max_skipped_steps:
                    text = "%s diverged: %d steps in a row not finite, the last at %d"
                    logger.error(text, folder.name, skipped, progress.step - 1)
                    return True

                # All stop after the same step, whichever was asked to; of the clocks the main process's decides.
                is_due = self.accelerator.is_main_process and time.monotonic() - save_time >= run.checkpoint_seconds
                stops, is_due = any_process(self.accelerator, self.stop.requested(), is_due)
                is_end = progress.step == end_step
                if progress.step in pinned or (not is_end and (stops or is_due)):
                    self.writer.save(folder, progress, pinned)
                    save_time = time.monotonic()
                if stops and not is_end:
                    raise Interrupted(f"stopped after step {progress.step}; the checkpoint is saved")
        return False

    def _forecast(self, branch: Branch | None, folder: Path, lines: list[Fields]) -> Watch:
        """Make the forecast of the final loss from the lines of the trunk and, in a branch's decay, of the branch."""
        branches = self.branches
        if branch:
            trunk_lines = read_lines(self.trunk / "log.jsonl", branch.branch_point_tokens)
            lines = [line for _, line in trunk_lines] + lines
            branches = [branch]
        return watch_run(self.arguments, self.session.architecture, branches, folder, lines, self.law)

    def _folder(self, branch: Branch) -> Path:
        return self.folder / final_branch_name(branch.tokens, self.arguments.run.seed)

    def _missing_points(self, pending: list[Branch]) -> list[int]:
        """List the branch points without an intact checkpoint."""
        points = [branch.decay_step for branch in pending]
        return [step for step in points if checkpoint.find_damage(checkpoint.path_of(self.trunk, step)) is not None]

    # -- results

    def _evaluate(self) -> HeldOutLoss:
        """Measure the held-out loss now, dropless; collective."""
        session = self.session
        with self.accelerator.autocast(), session.runner.eagerly():
            return evaluate(
                session.model,
                self.held_out.wait(),
                self.arguments.run.micro_batch_sequences,
                self.accelerator.device,
                session.reader,
                session.layout.readers,
                reduce=session.total,
            )

    def _save_intermediate(self, progress: Progress) -> None:
        """Save a model of the trunk, unless it is there. Collective."""
        name = final_branch_name(self.schedule.ramp.tokens(progress.step), self.arguments.run.seed)
        folder = self.intermediate / f"step{progress.step:07d}-{name}"
        if not on_main(self.accelerator, (folder / "model").exists):
            self._save_model(folder, self.branches[-1], progress, "intermediate")

    def _save_model(self, folder: Path, branch: Branch, progress: Progress, status: str) -> None:
        """Write <folder>/model with its record, whole or not at all; then the folder's checkpoints go. Collective.

        An intermediate model is a part of the longest branch; a diverged one is not evaluated.
        """
        held_out = None if status == DIVERGED else (self.held_out.wait(), self._evaluate())
        state_dict = self.accelerator.get_state_dict(self.session.model)

        def write() -> None:
            folder.mkdir(parents=True, exist_ok=True)
            n_bytes = checkpoint.count_bytes(state_dict)
            advise = partial(checkpoint.advise_on_space, self.arguments)
            with (
                atomic.atomic_folder(folder / "model") as temporary,
                explain_full_disk(f"the model {folder / 'model'}", temporary, n_bytes, advise),
            ):
                config = self.accelerator.unwrap_model(self.session.model).config
                weights = results.save_model(config, self.tokenizer, state_dict, temporary)
                record = results.run_record(self.session, branch, progress, folder.name, status, held_out, weights)
                logs = (self.trunk / "log.jsonl", folder / "log.jsonl")
                write_log(temporary, record, *logs)
                releaser.write_card(temporary, record, *logs, license=self.arguments.run.license)
                record.save(temporary / "run.json")
            self._finish_model(folder / "model", record)

        on_main(self.accelerator, write)

    def _finish_model(self, model: Path, record: RunRecord) -> None:
        """Remove a model's checkpoints and call the finishers; on the main process."""
        # Only the trunk's are needed from here on.
        for step in checkpoint.steps(model.parent):
            checkpoint.remove(checkpoint.path_of(model.parent, step))
        for finisher in self.finishers:
            finisher(model, record)
