"""Checkpoints that are complete or absent, and that any number of processes can read, sharded or not.

`stepNNNNNNN/` gets its name when complete: `state/` by torch's distributed checkpoint, `progress.json`, and every
sha256 in `checksums.json`. Machines must share its file system. No random state: nothing in the loop draws numbers.
"""

from __future__ import annotations

import json
import logging
import shutil
import warnings
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.storage import WriteResult

from hub.base import atomic
from hub.base.atomic import sha256_of, sync
from hub.base.disk import WriteError, describe_full_disk, share_disk, size_of
from hub.base.types import Fields
from hub.base.units import format_bytes
from training.configuration.arguments import TrainingArguments
from training.configuration.schedule import Branch
from training.run.progress import Progress
from training.run.step import Session

logger = logging.getLogger(__name__)

# A single process saves and loads alone on purpose.
warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
# Checkpoints that stay besides those of branch points.
_NEWEST = 2
# Threads that compute checksums.
_THREADS = 4


class CheckpointError(WriteError):
    """A checkpoint could not be written; those before it are untouched."""


# -- in a folder


def most_at_a_time(branches: Collection[Branch]) -> int:
    """Count the checkpoints that a run may have: each branch point, the newest two, and one that is being written."""
    return len({branch.decay_step for branch in branches}) + _NEWEST + 1


def path_of(folder: Path, step: int) -> Path:
    """Return the folder of the checkpoint of a step."""
    return folder / f"step{step:07d}"


def steps(folder: Path) -> list[int]:
    """List the steps of the complete checkpoints under `folder`, ascending."""
    names = [path.name.removeprefix("step") for path in folder.glob("step*")]
    return sorted(int(name) for name in names if name.isdigit())


def newest_intact(folder: Path, at_most: int | None = None) -> Path | None:
    """Find the newest checkpoint whose checksums match; damaged ones are logged and skipped."""
    for step in reversed(steps(folder)):
        path = path_of(folder, step)
        if at_most is not None and step > at_most:
            continue
        damage = find_damage(path)
        if damage is None:
            return path
        logger.warning("checkpoint %s is damaged (%s); using the one before it", path, damage)
    return None


def find_damage(path: Path) -> str | None:
    """Say what is wrong with a checkpoint; None if nothing is."""
    try:
        expected = json.loads((path / "checksums.json").read_text())
    except (FileNotFoundError, ValueError) as error:
        return f"checksums.json: {error}"
    for name in expected:
        if not (path / name).exists():
            return f"{name} is missing"
    actual = _checksums(path)
    for name, checksum in expected.items():
        if actual[name] != checksum:
            return f"the sha256 of {name} differs"
    return None


def _checksums(folder: Path) -> dict[str, str]:
    """Compute the sha256 of every file below a folder, except that of the list of them."""
    files = [path for path in folder.rglob("*") if path.is_file() and path != folder / "checksums.json"]
    names = sorted(str(path.relative_to(folder)) for path in files)
    with ThreadPoolExecutor(_THREADS) as pool:
        return dict(zip(names, pool.map(sha256_of, (folder / name for name in names)), strict=True))


def prune(folder: Path, pinned: Collection[int]) -> None:
    """Remove all checkpoints but the pinned ones and the newest two."""
    for step in steps(folder)[:-_NEWEST]:
        if step not in pinned:
            remove(path_of(folder, step))


def remove(path: Path) -> None:
    """Remove a checkpoint; a kill meanwhile leaves no partial one under its name."""
    if path.exists():
        hidden = path.with_name(f".{path.name}.old")
        shutil.rmtree(hidden, ignore_errors=True)
        path.rename(hidden)
        shutil.rmtree(hidden)


def remove_leftovers(folder: Path) -> None:
    """Remove files that a killed process left half written or half removed."""
    for path in [*folder.glob(".*.tmp"), *folder.glob(".*.old")]:
        if path.is_file():
            path.unlink()
        else:
            shutil.rmtree(path, ignore_errors=True)


# -- state


def count_bytes(state: Any) -> int:
    """Count the bytes of all tensors in nested dicts and lists, on whatever processes they are."""
    if isinstance(state, torch.Tensor):
        return state.numel() * state.element_size()
    if isinstance(state, dict):
        return sum(map(count_bytes, state.values()))
    if isinstance(state, list):
        return sum(map(count_bytes, state))
    return 0


def advise_on_space(arguments: TrainingArguments) -> str:
    """Say what a run's user may remove when its disk is full."""
    run = Path(arguments.run.output_dir).absolute()
    caches = Path(arguments.data.cache_dir)
    things = f"trunk/step* of finished runs in {run.parent}"
    if share_disk(run, caches):
        things += f" or unused token caches ({caches} holds {format_bytes(size_of(caches))})"
    return f"remove what you do not need, such as {things}, and start again: nothing that was saved is lost"


def _state_of(session: Session, with_optimizer: bool) -> Fields:
    """Return model and optimizer by the parameters' names, which are the same however the model is wrapped.

    An optimizer without a state is left out: asking torch for it would count a step that was not taken.
    """
    model, optimizer = get_state_dict(session.model, session.optimizers if with_optimizer else [])
    return {"model": model, "optimizer": optimizer}


def load(path: Path, session: Session) -> Progress:
    """Restore model and optimizer; returns the progress. Every process calls this."""
    reader = dcp.FileSystemReader(path / "state")
    has_stepped = any(name.startswith("optimizer.") for name in reader.read_metadata().state_dict_metadata)
    if not has_stepped:
        for optimizer in session.optimizers:
            optimizer.state.clear()
    state = _state_of(session, with_optimizer=has_stepped)
    # Their settings are the configuration's, and which parameters share them the layout's.
    groups = state["optimizer"].pop("param_groups", None)
    dcp.load(state, storage_reader=reader, no_dist=not dist.is_initialized())
    state["optimizer"]["param_groups"] = groups
    optimizers = session.optimizers if has_stepped else []
    set_state_dict(session.model, optimizers, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return Progress(**json.loads((path / "progress.json").read_text()))


class CheckpointWriter:
    """Writer of the checkpoints of a session, one at a time; every process has one and calls it at the same steps.

    Training waits only for the copy into host memory (12 bytes per parameter, less under FSDP2). A thread writes it,
    and the next `save` or `wait` raises its errors on every process. `asynchronous=False` writes before `save` ends.
    """

    def __init__(self, session: Session, asynchronous: bool = True):
        self._session = session
        self._asynchronous = asynchronous
        # The writer at work, with the future of its end.
        self._pending: tuple[_FolderWriter, Any] | None = None
        # A second group: messages of the thread must not get between those of the training.
        self._group = dist.new_group(backend="gloo") if dist.is_initialized() else None

    def save(self, folder: Path, progress: Progress, pinned: Collection[int] = ()) -> None:
        """Copy this step and write it under `folder`; then `prune` all but the pinned ones.

        Raises CheckpointError for the checkpoint before this one; or for this one, if not asynchronous.
        """
        self.wait()
        accelerator = self._session.accelerator
        is_single = self._group is None
        has_stepped = any(optimizer.state for optimizer in self._session.optimizers)
        state = _state_of(self._session, with_optimizer=has_stepped)
        n_bytes = count_bytes(state)
        if not (accelerator.is_main_process or accelerator.is_fsdp2):
            # All processes have the same; the main one copies and writes it.
            state = {}
        writer = _FolderWriter(path_of(folder, progress.step), progress, pinned, n_bytes, sync_files=not is_single)
        future = dcp.async_save(state, storage_writer=writer, process_group=self._group, no_dist=is_single)
        self._pending = (writer, future)
        if not self._asynchronous:
            self.wait()

    def wait(self) -> None:
        """Wait until the last save is on disk. Raises CheckpointError if it could not be written."""
        if self._pending is None:
            return
        writer, future = self._pending
        self._pending = None
        try:
            future.result()
        except (OSError, RuntimeError, dcp.api.CheckpointException) as error:
            # torch does not always say that the disk is full. The files are counted before they are removed.
            reason = describe_full_disk(error, writer.temporary, writer.n_bytes)
            if self._session.accelerator.is_main_process:
                shutil.rmtree(writer.temporary, ignore_errors=True)
            if reason is not None:
                reason += f"; {advise_on_space(self._session.arguments)}"
            else:
                free = shutil.disk_usage(writer.target.parent).free
                reason = f"{_reason(error)} ({free:,} bytes are free there)"
            raise CheckpointError(f"the checkpoint {writer.target} could not be written: {reason}") from error

    def close(self) -> None:
        """Wait for a checkpoint that is being written; afterwards nothing can be saved. May be called twice.

        Before the end of a process its group must be gone: gloo's threads would abort it.
        """
        if self._pending is not None:
            _, future = self._pending
            future.exception()
        group = self._group
        self._group = None
        if group is not None and dist.is_initialized():
            dist.destroy_process_group(group)


class _FolderWriter(dcp.FileSystemWriter):
    """Writer of the checkpoint `target` under a temporary name, which it loses when all is on disk."""

    def __init__(self, target: Path, progress: Progress, pinned: Collection[int], n_bytes: int, sync_files: bool):
        self.target = target
        self.temporary = target.with_name(f".{target.name}.tmp")
        self.n_bytes = n_bytes
        self._progress = json.dumps(asdict(progress))
        self._pinned = pinned
        # One thread: an error in another of torch's writing threads is lost, and the checkpoint with it.
        # `finish` syncs the files that this machine wrote; only the other machines can sync theirs.
        super().__init__(self.temporary / "state", thread_count=1, sync_files=sync_files)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Complete the checkpoint; torch calls this on the main process, and raises its errors on all."""
        super().finish(metadata, results)
        (self.temporary / "progress.json").write_text(self._progress)
        digests = _checksums(self.temporary)
        atomic.sync_tree(self.temporary)
        atomic.write_json(self.temporary / "checksums.json", digests)
        # It is there only if it was damaged.
        remove(self.target)
        self.temporary.rename(self.target)
        sync(self.target.parent)
        prune(self.target.parent, self._pinned)


def _reason(error: BaseException) -> str:
    """Return the first cause: torch wraps what its writers raise, one per process."""
    for wrapped, _ in getattr(error, "failures", {}).values():
        return _reason(wrapped)
    return str(error.__cause__ or error)
