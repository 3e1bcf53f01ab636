"""Checkpoints that are whole or not there, and that any number of processes can read, sharded or not.

    <folder>/step0000400/      state/: model and optimizer, written by all processes together (torch's distributed
                               checkpoint: every tensor by its name, each process its share)
        random-0.pt, …         random states of every process
        progress.json          what else the loop needs to go on
        checksums.json         sha256 of every file; written last

A checkpoint is written under a temporary name and renamed, so a folder without the `.tmp` is complete; its checksums
find what was damaged later. Branch points are pinned; of the others, the newest two are kept, so that there is one
before the newest. With several machines the folder must be on a file system that all of them share. They are written
by `checkpoint_writer`.
"""

from __future__ import annotations

import json
import logging
import random
import re
import shutil
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from hub.plain.atomic import sha256_of

logger = logging.getLogger(__name__)

_KEPT = 2
_THREADS = 4  # that checksum the files


class CheckpointError(OSError):
    """A checkpoint could not be written; those before it are untouched."""


@dataclass
class Progress:
    """Where training stands; with the tensors of a checkpoint it is all that is needed to go on.

    Attributes:
        step: updates made (the schedule turns it into tokens, batch size and learning rate).
        wall_seconds: time spent training, over all resumes.
        window_*: sums over the steps of the final-loss window, see `loop.LossWindow`.
        skipped_steps: steps whose update was not taken because loss or gradient was not finite.
        recent_losses: of the last finite steps, against which a spike is seen.
        spikes: steps whose loss was far above those before them.
    """

    step: int = 0
    wall_seconds: float = 0.0
    window_steps: int = 0
    window_loss: float = 0.0
    window_routed: list[list[float]] | None = None
    window_dropped: float = 0.0
    skipped_steps: list[int] = field(default_factory=list)
    skipped_in_a_row: int = 0
    recent_losses: list[float] = field(default_factory=list)
    spikes: list[int] = field(default_factory=list)


def path_of(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return folder / f"step{step:07d}"


def load(path: Path, session) -> Progress:
    """Restore model, optimizer and random states; returns the progress. Every process calls this."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import set_model_state_dict, set_optimizer_state_dict

    accelerator, optimizer = session.accelerator, _bare(session.optimizer)
    reader = dcp.FileSystemReader(path / "state")
    stepped = any(name.startswith("optimizer.") for name in reader.read_metadata().state_dict_metadata)
    state = state_of(session, with_optimizer=stepped)
    with warnings.catch_warnings():
        # It warns where a single process loads, which is what is meant then.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
        dcp.load(state, storage_reader=reader, no_dist=not torch.distributed.is_initialized())
    set_model_state_dict(session.model, state["model"])
    if stepped:
        set_optimizer_state_dict(session.model, optimizer, state["optimizer"])
    else:
        optimizer.state.clear()
    own = path / f"random-{accelerator.process_index}.pt"
    if own.exists():  # another number of processes has others; the loop draws no random numbers
        _restore_random_states(torch.load(own, weights_only=True), accelerator.device)
    return Progress(**json.loads((path / "progress.json").read_text()))


def state_of(session, with_optimizer: bool | None = None) -> dict:
    """Model and optimizer by the parameters' names, which are the same however the model is wrapped.

    An optimizer that has not stepped has no state and is left out: asking torch for its state would make one, which
    counts a step that was not taken.
    """
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict

    optimizer = _bare(session.optimizer)
    state = {"model": get_model_state_dict(session.model)}
    if bool(optimizer.state) if with_optimizer is None else with_optimizer:
        state["optimizer"] = get_optimizer_state_dict(session.model, optimizer)
    return state


def _bare(optimizer):
    return getattr(optimizer, "optimizer", optimizer)  # without Accelerate's wrapper


def _restore_random_states(states: dict, device: torch.device) -> None:
    random.setstate(states["python"])
    name, keys, *rest = states["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))  # noqa: NPY002
    torch.set_rng_state(states["torch"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)


def steps(folder: Path) -> list[int]:
    """Steps of the complete checkpoints under `folder`, ascending."""
    names = (re.fullmatch(r"step(\d{7,})", path.name) for path in folder.glob("step*"))
    return sorted(int(match[1]) for match in names if match)


def newest_intact(folder: Path, at_most: int | None = None) -> Path | None:
    """The newest checkpoint whose checksums hold; damaged ones are reported and passed over."""
    for step in reversed(steps(folder)):
        path = path_of(folder, step)
        if at_most is not None and step > at_most:
            continue
        if (damage := find_damage(path)) is None:
            return path
        logger.warning("checkpoint %s is damaged (%s); using the one before it", path, damage)
    return None


def find_damage(path: Path) -> str | None:
    """What is wrong with a checkpoint, or None."""
    try:
        expected = json.loads((path / "checksums.json").read_text())
    except FileNotFoundError:
        return "checksums.json is missing"
    except ValueError:
        return "checksums.json is not JSON"
    for name in expected:
        if not (path / name).exists():
            return f"{name} is missing"
    found = checksums(path)
    return next((f"the sha256 of {name} differs" for name in expected if found[name] != expected[name]), None)


def checksums(folder: Path) -> dict[str, str]:
    """sha256 of every file below a folder, but of the list of them itself."""
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    names = [name for name in names if name != "checksums.json"]
    with ThreadPoolExecutor(_THREADS) as pool:
        return dict(zip(names, pool.map(sha256_of, (folder / name for name in names)), strict=True))


def prune(folder: Path, pinned: set[int]) -> None:
    """Remove all checkpoints but the pinned ones and the newest two."""
    for step in steps(folder)[:-_KEPT]:
        if step not in pinned:
            remove(path_of(folder, step))


def remove(path: Path) -> None:
    """Remove a checkpoint; a kill in between leaves no half of it under its name."""
    if path.exists():
        hidden = path.with_name(f".{path.name}.old")
        shutil.rmtree(hidden, ignore_errors=True)
        path.rename(hidden)
        shutil.rmtree(hidden)


def sweep_up(folder: Path) -> None:
    """Remove what a killed process left half written or half removed."""
    for path in [*folder.glob(".*.tmp"), *folder.glob(".*.old")]:
        shutil.rmtree(path, ignore_errors=True)
