"""Writing checkpoints beside the training: a copy in the host's memory at once, the disk in a thread.

Training stops for the copy only, not while it is written, checksummed and synced. Until then the copy takes as much
host memory as the checkpoint has bytes: 12 for each parameter, less where FSDP2 shares them out.
"""

from __future__ import annotations

import json
import random
import shutil
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from hub.plain import folders as files
from hub.plain.atomic import sync_folder
from training.run.checkpoint import CheckpointError, Progress, checksums, path_of, remove, state_of


class CheckpointWriter:
    """Writes the checkpoints of a session. Every process has one and calls it at the same steps.

    One checkpoint is written at a time: the next `save` waits for it. What goes wrong in the thread is raised by the
    next `save` or `wait`, on every process.

    Args:
        session: has `accelerator`, and the prepared `model` and `optimizer`.
        asynchronous: False writes before `save` returns.
    """

    def __init__(self, session, asynchronous: bool = True):
        self._session, self._asynchronous = session, asynchronous
        self._is_main = session.accelerator.is_main_process
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future | None = None
        # A group of its own: what the thread sends must not get between what the training sends.
        self._group = dist.new_group(backend="gloo") if session.accelerator.num_processes > 1 else None

    def save(self, folder: Path, progress: Progress, then: Callable[[], None] = lambda: None) -> None:
        """Take a copy of this step and write it under `folder`.

        Args:
            then: called on the main process when the checkpoint is complete, in the thread.

        Raises:
            CheckpointError: the checkpoint before this one could not be written; or this one, if not asynchronous.
        """
        self.wait()
        random_states = _random_states(self._session.accelerator.device)
        state = _copy(state_of(self._session), self._is_main)
        step, text = progress.step, json.dumps(asdict(progress))
        self._pending = self._thread.submit(self._write, path_of(folder, step), state, random_states, text, then)
        if not self._asynchronous:
            self.wait()

    def wait(self) -> None:
        """Return when what was saved is on the disk. Raises CheckpointError where it could not be written."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Let the checkpoint that is being written end, however; nothing more can be saved. May be called twice.

        Before the end of a process its group must be gone: gloo's threads would abort it.
        """
        self._thread.shutdown(wait=True)
        group, self._group = self._group, None
        if group is not None and dist.is_initialized():
            dist.destroy_process_group(group)

    def _write(self, target: Path, state: dict, random_states: dict, progress: str, then: Callable[[], None]) -> None:
        import torch.distributed.checkpoint as dcp

        temporary = target.with_name(f".{target.name}.tmp")

        def make() -> None:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)

        def complete() -> None:
            (temporary / "progress.json").write_text(progress)
            digests = checksums(temporary)
            files.sync_tree(temporary)
            files.write_json(temporary / "checksums.json", digests)
            remove(target)  # only there if it was damaged
            temporary.rename(target)
            sync_folder(target.parent)
            then()

        index = self._session.accelerator.process_index
        try:
            self._on_each(make, main_only=True)
            self._on_each(lambda: torch.save(random_states, temporary / f"random-{index}.pt"))
            with _no_warning():
                # One thread: an error in another of torch's writing threads is lost, and the checkpoint with it.
                # `complete` syncs what this machine wrote; what others wrote only they can.
                alone = self._group is None
                writer = dcp.FileSystemWriter(temporary / "state", thread_count=1, sync_files=not alone)
                dcp.save(state, storage_writer=writer, process_group=self._group, no_dist=alone)
            self._on_each(complete, main_only=True)
        except (OSError, RuntimeError, dcp.api.CheckpointException) as error:
            if self._is_main:
                shutil.rmtree(temporary, ignore_errors=True)
            free = shutil.disk_usage(target.parent).free  # torch's writers do not always say that the disk is full
            reason = f"{_reason(error)} ({free:,} bytes are free there)"
            raise CheckpointError(f"the checkpoint {target} could not be written: {reason}") from error

    def _on_each(self, function: Callable[[], None], main_only: bool = False) -> None:
        """Call it on every process, or on the main one, and raise on all what went wrong on any."""
        error = None
        if self._is_main or not main_only:
            try:
                function()
            except (OSError, RuntimeError) as failure:
                error = failure
        if self._group is None:
            if error is not None:
                raise error
            return
        reasons: list[str | None] = [None] * dist.get_world_size(self._group)
        dist.all_gather_object(reasons, None if error is None else _reason(error), group=self._group)
        if failed := [reason for reason in reasons if reason is not None]:
            raise OSError(failed[0]) from error


def _copy(value, is_main: bool):
    """The state with its tensors copied into the host's memory.

    What every process has the same of (all that FSDP2 did not shard) is copied and written by the main process only.
    """
    if isinstance(value, dict):
        kept = value.items() if is_main else [(k, v) for k, v in value.items() if not _is_whole_tensor(v)]
        return {name: _copy(item, is_main) for name, item in kept}
    if isinstance(value, (list, tuple)):
        return type(value)(_copy(item, is_main) for item in value)
    return value.detach().to("cpu", copy=True) if isinstance(value, torch.Tensor) else value


def _is_whole_tensor(value) -> bool:
    return isinstance(value, torch.Tensor) and not hasattr(value, "full_tensor")


@contextmanager
def _no_warning() -> Iterator[None]:
    """torch warns where a single process saves, which is what is meant then."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
        yield


def _random_states(device: torch.device) -> dict:
    name, keys, position, has_gauss, gauss = np.random.get_state()  # noqa: NPY002 (the state others may draw from)
    states = {
        "python": random.getstate(),
        "numpy": (str(name), torch.from_numpy(keys.astype(np.int64)), int(position), int(has_gauss), float(gauss)),
        "torch": torch.get_rng_state(),
    }
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def _reason(error: BaseException) -> str:
    """The first cause: torch wraps what its writers raise, one per process."""
    for wrapped, _ in getattr(error, "failures", {}).values():
        return _reason(wrapped)
    return str(error.__cause__ or error)
