"""One training process, top to bottom: configuration -> data -> model -> trunk -> branches -> run records.

    <output_dir>/config.yaml             the whole configuration
                 trunk/step0000400/      checkpoints: every branch point, and the newest
                 trunk/log.jsonl
                 <branch>/model/         the finished model with its run.json, for from_pretrained
                 <branch>/log.jsonl

Starting the same command again goes on from what is there: finished branches are left alone, and the rest continues
from the newest intact checkpoint. More token counts can be added to a finished run.
"""

from __future__ import annotations

import json
import logging
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from filelock import FileLock, Timeout

from hub.names import final_branch_name
from hub.records import RunRecord

from . import checkpoint, files, results
from .arguments import ConfigurationError, TrainingArguments
from .checkpoint import Progress
from .configuration import parse_command_line
from .data import TrainingData
from .evaluation import evaluate
from .inputs import check_inputs, held_out, train_cache
from .loop import Diverged, Interrupted, Session, sum_over_processes, train
from .model import architecture, build_model, build_optimizer, model_config, peak_learning_rate
from .schedule import Branch
from .step_log import StepLog
from .tokenizer import fingerprint, load_tokenizer

logger = logging.getLogger(__name__)


def main(argv: list[str] | None = None) -> int:
    """The command; returns the exit status: 0 done, 1 diverged, 2 bad configuration, 128 + n stopped by signal n."""
    logging.basicConfig(format="%(levelname)s %(message)s")
    logging.getLogger("training").setLevel(logging.INFO)
    try:
        arguments = parse_command_line(sys.argv[1:] if argv is None else argv)
        check_inputs(arguments)
        return Run(arguments).execute()
    except (ConfigurationError, FileNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


@dataclass
class _StopSignal:
    """Remembers the first SIGINT or SIGTERM, for the loop to stop between two steps."""

    number: int | None = None

    def install(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._remember)

    def _remember(self, number, _frame) -> None:
        # Asked twice at a keyboard: do not insist on the checkpoint. A scheduler's SIGTERM often comes twice, once to
        # every process of a node and once passed on by the launcher.
        if self.number is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.number = number


class Run:
    """A trunk and its branches, in one process (of possibly many)."""

    def __init__(self, arguments: TrainingArguments):
        from accelerate import Accelerator

        self.arguments = a = arguments
        self.folder = Path(a.run.output_dir)
        self.accelerator = Accelerator(
            mixed_precision="bf16" if a.run.precision == "bf16" else "no",
            log_with=a.run.trackers or None,
            project_dir=str(self.folder),
        )
        self._check_world()
        with self.accelerator.local_main_process_first():
            tokenizer = load_tokenizer(a.data.tokenizer, a.data.tokenizer_revision)
            cache = train_cache(a, tokenizer)
            self.held_out = held_out(a, tokenizer)
        self.tokenizer = tokenizer
        self.data = TrainingData.from_cache(cache, a.data.sequence_length, a.run.micro_batch_sequences, a.run.seed)
        arch = architecture(a.model, len(tokenizer))
        peak, law = peak_learning_rate(a.optimizer, arch)
        hardware, peak_flops = results.describe_hardware(self.accelerator.device, self.accelerator.num_processes)
        self.context = results.RunContext(
            arguments=a,
            architecture=arch,
            data=self.data,
            dataset={
                **cache.manifest["dataset"],
                "fingerprint": cache.fingerprint,
            },
            tokenizer={"id": _public_name(a.data.tokenizer), "fingerprint": fingerprint(tokenizer)},
            peak_learning_rate=peak,
            learning_rate_law=law,
            hardware=hardware,
            peak_flops=peak_flops,
        )
        self.schedule = a.schedule_at(peak)
        self.branches = [self.schedule.branch(tokens) for tokens in sorted(set(a.schedule.tokens))]
        self.stop = _StopSignal()
        self.session = self._session()

    def _check_world(self) -> None:
        a, world = self.arguments, self.accelerator.num_processes
        for stage in a.schedule.stages():
            if stage.sequences // a.run.micro_batch_sequences % world:
                raise ConfigurationError(
                    f"run.micro_batch_sequences: {a.run.micro_batch_sequences} cuts the batch of {stage.sequences} "
                    f"sequences into a number of micro-batches that {world} processes cannot share equally"
                )

    def _session(self) -> Session:
        a = self.arguments
        config = model_config(a, self.context.architecture.vocab_size, self.tokenizer.eos_token_id)
        model = build_model(config, a.run.seed)
        if a.run.gradient_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        optimizer = build_optimizer(model, a.optimizer, self.accelerator.device)
        model, optimizer = self.accelerator.prepare(model, optimizer)
        if a.run.compile:
            model.compile()  # in place: names of parameters stay as they are
        return Session(
            accelerator=self.accelerator,
            model=model,
            optimizer=optimizer,
            data=self.data,
            schedule=self.schedule,
            gradient_clip=a.optimizer.gradient_clip,
            balance_loss=a.model.balance_loss,
            z_loss=a.model.z_loss,
            max_skipped_steps=a.run.max_skipped_steps,
            train_loss_window=a.run.train_loss_window,
            stop_requested=lambda: self.stop.number is not None,
        )

    def execute(self) -> int:
        """Train what is missing; returns the exit status of the command.

        Raises:
            ConfigurationError: the folder holds a run on other tokens, or another process is training in it.
        """
        with self._alone():
            self._check_data()
            if self.accelerator.is_main_process:
                self.arguments.save(self.folder / "config.yaml")
                files.write_json(self.folder / "data.json", self._data_identity())
            if self.arguments.run.trackers:
                self.accelerator.init_trackers(self.arguments.run.sweep, config=_flat(self.arguments.to_dict()))
            self.stop.install()
            self._announce()
            try:
                status = 0 if self._train() else 1
            except Interrupted as error:
                logger.warning("%s", error)
                status = 128 + self.stop.number
            self.accelerator.wait_for_everyone()  # else a process may tear the group down under another
            self.accelerator.end_training()
        return status

    def _train(self) -> bool:
        """The trunk, then every branch that is not finished; returns whether nothing diverged."""
        pending = [branch for branch in self.branches if self._finished(branch) is None]
        fine = True
        try:
            self._train_trunk(pending)
        except Diverged as error:
            logger.error("the trunk diverged: %s", error)
            fine = False
            reached = max(checkpoint.steps(self._trunk), default=-1)
            pending = [branch for branch in pending if branch.decay_step <= reached]
        for branch in pending:
            fine &= self._train_branch(branch)
        return fine

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

    def _data_identity(self) -> dict:
        return {"dataset": self.context.dataset, "tokenizer": self.context.tokenizer}

    def _check_data(self) -> None:
        path = self.folder / "data.json"
        if path.exists() and (before := json.loads(path.read_text())) != self._data_identity():
            raise ConfigurationError(
                f"data.dataset: the run in {self.folder} was trained on other tokens ({before}, now "
                f"{self._data_identity()}); choose another run.output_dir"
            )

    # -- trunk

    @property
    def _trunk(self) -> Path:
        return self.folder / "trunk"

    def _train_trunk(self, pending: list[Branch]) -> None:
        """Bring the trunk to every branch point that a pending branch needs and that has no intact checkpoint."""
        missing = [b.decay_step for b in pending if not self._intact(b.decay_step)]
        if not missing:
            return
        self._trunk.mkdir(parents=True, exist_ok=True)
        start = checkpoint.newest_intact(self._trunk, at_most=missing[0])
        progress = checkpoint.load(start, self.accelerator) if start else Progress()
        first = progress.step + 1 if start else 0  # what is there and intact is not written again
        points = sorted({b.decay_step for b in self.branches if first <= b.decay_step <= max(missing)})
        log = self._log("trunk", progress.step, max(missing), "trunk")
        try:
            for point in points:
                train(
                    self.session, progress, point, None, log, self._save_trunk, self.arguments.run.checkpoint_seconds
                )
                self._save_trunk(progress)
        finally:
            log.close()

    def _intact(self, step: int) -> bool:
        path = checkpoint.path_of(self._trunk, step)
        return path.exists() and checkpoint.find_damage(path) is None

    def _save_trunk(self, progress: Progress) -> None:
        checkpoint.save(self._trunk, self.accelerator, progress)
        if self.accelerator.is_main_process:
            checkpoint.prune(self._trunk, pinned={branch.decay_step for branch in self.branches})

    # -- branches

    def _name(self, branch: Branch) -> str:
        return final_branch_name(branch.tokens, self.arguments.run.seed)

    def _finished(self, branch: Branch) -> RunRecord | None:
        path = self.folder / self._name(branch) / "model" / "run.json"
        return RunRecord.load(path) if path.exists() else None

    def _train_branch(self, branch: Branch) -> bool:
        """Decay from the branch point to the end, evaluate, save; returns whether it did not diverge."""
        name = self._name(branch)
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        start = checkpoint.newest_intact(folder) or checkpoint.path_of(self._trunk, branch.decay_step)
        progress = checkpoint.load(start, self.accelerator)
        log = self._log(name, progress.step, branch.end_step, name)

        def save(progress: Progress) -> None:
            checkpoint.save(folder, self.accelerator, progress)
            if self.accelerator.is_main_process:
                checkpoint.prune(folder, pinned=set())

        try:
            train(self.session, progress, branch.end_step, branch, log, save, self.arguments.run.checkpoint_seconds)
        except Diverged as error:
            logger.error("%s diverged: %s", name, error)
            self._finish(branch, progress, "diverged")
            return False
        finally:
            log.close()
        # No finite step in the whole window of the final loss: there is no loss to report.
        status = "final" if progress.window_steps else "diverged"
        self._finish(branch, progress, status)
        return status == "final"

    def _finish(self, branch: Branch, progress: Progress, status: str) -> None:
        """Evaluate and write the model folder with its record; the folder appears whole or not at all."""
        accelerator, name = self.accelerator, self._name(branch)
        eval_loss = None
        if status == "final":
            with accelerator.autocast():
                eval_loss = evaluate(
                    self.session.model,
                    self.held_out,
                    self.arguments.run.micro_batch_sequences,
                    accelerator.device,
                    accelerator.process_index,
                    accelerator.num_processes,
                    partial(sum_over_processes, accelerator),
                )
        state_dict = accelerator.get_state_dict(self.session.model)  # collective
        if accelerator.is_main_process:
            with files.atomic_folder(self.folder / name / "model") as folder:
                model = accelerator.unwrap_model(self.session.model)
                weights = results.save_model(model, self.tokenizer, state_dict, folder)
                results.run_record(
                    self.context,
                    branch,
                    progress,
                    branch_name=name,
                    status=status,
                    eval_loss=eval_loss,
                    eval_tokens=self.held_out.tokens,
                    weights_sha256=weights,
                ).save(folder / "run.json")
            for step in checkpoint.steps(self.folder / name):  # only the trunk's are needed from here on
                shutil.rmtree(checkpoint.path_of(self.folder / name, step))
        accelerator.wait_for_everyone()

    # -- what a person sees

    def _log(self, folder: str, start_step: int, end_step: int, label: str) -> StepLog:
        a, arch = self.arguments, self.context.architecture
        return StepLog(
            self.folder / folder / "log.jsonl",
            self.accelerator,
            self.schedule,
            start_step=start_step,
            end_step=end_step,
            log_steps=a.run.log_steps,
            flops_per_token=float(arch.training_flops(1)),
            peak_flops=self.context.peak_flops,
            label=f"d{arch.d_model} E{arch.experts} {label}",
            progress=a.run.progress,
        )

    def _announce(self) -> None:
        if not self.accelerator.is_main_process:
            return
        arch, longest = self.context.architecture, self.branches[-1]
        logger.info(
            "d_model %d, %d blocks, E = %d: %.3g active of %.3g parameters; %s tokens; peak learning rate %.3g (%s)",
            *(arch.d_model, arch.n_blocks, arch.experts, arch.n_active, arch.n_total),
            ", ".join(f"{branch.tokens:,}" for branch in self.branches),
            *(self.context.peak_learning_rate, self.context.learning_rate_law),
        )
        epochs = longest.tokens / self.data.unique_tokens
        if epochs > 1:
            logger.warning("the data repeats: %.2f epochs of %s tokens", epochs, f"{self.data.unique_tokens:,}")


def _public_name(path_or_name: str) -> str:
    """The name of a Hub repository as it is, of a local folder only its last part: records hold no path."""
    return Path(path_or_name).name if Path(path_or_name).exists() else path_or_name


def _flat(values: dict) -> dict:
    """Nested sections as `section.field`, with values a tracker takes."""
    return {
        f"{section}.{name}": value if isinstance(value, (int, float, str, bool)) else str(value)
        for section, fields in values.items()
        for name, value in fields.items()
    }


if __name__ == "__main__":  # `accelerate launch -m training.run`, where train.py is not at hand
    sys.exit(main())
