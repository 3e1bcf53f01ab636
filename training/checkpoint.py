"""Checkpoints that are whole or not there.

    <folder>/step0000400/      Accelerate's save_state: model, optimizer, random states of every process
        progress.json          what else the loop needs to go on
        checksums.json         sha256 of every file; written last

A checkpoint is written under a temporary name and renamed, so a folder without the `.tmp` is complete; its checksums
find what was damaged later. Branch points are pinned; of the others, only the newest is kept.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path

from hub.atomic import sha256_of, sync_folder

from . import files

logger = logging.getLogger(__name__)


@dataclass
class Progress:
    """Where training stands; with the tensors of a checkpoint it is all that is needed to go on.

    Attributes:
        step: updates made (the schedule turns it into tokens, batch size and learning rate).
        wall_seconds: time spent training, over all resumes.
        window_*: sums over the steps of the final-loss window, see `loop.LossWindow`.
        skipped_steps: steps whose update was not taken because loss or gradient was not finite.
    """

    step: int = 0
    wall_seconds: float = 0.0
    window_steps: int = 0
    window_loss: float = 0.0
    window_routed: list[list[float]] | None = None
    window_dropped: float = 0.0
    skipped_steps: list[int] = field(default_factory=list)
    skipped_in_a_row: int = 0


def path_of(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return folder / f"step{step:07d}"


def save(folder: Path, accelerator, progress: Progress) -> Path:
    """Write the checkpoint of this step under `folder`; every process calls this."""
    target = path_of(folder, progress.step)
    temporary = folder / f".{target.name}.tmp"
    if accelerator.is_main_process:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
    accelerator.wait_for_everyone()
    accelerator.save_state(str(temporary))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        (temporary / "progress.json").write_text(json.dumps(asdict(progress)))
        paths = sorted(path for path in temporary.rglob("*") if path.is_file())
        checksums = {str(path.relative_to(temporary)): sha256_of(path) for path in paths}
        files.sync_tree(temporary)
        files.write_json(temporary / "checksums.json", checksums)
        shutil.rmtree(target, ignore_errors=True)
        temporary.rename(target)
        sync_folder(folder)
    accelerator.wait_for_everyone()
    return target


def load(path: Path, accelerator) -> Progress:
    """Restore model, optimizer and random states; returns the progress."""
    accelerator.load_state(str(path))
    return Progress(**json.loads((path / "progress.json").read_text()))


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
    if not (path / "checksums.json").exists():
        return "checksums.json is missing"
    for name, expected in json.loads((path / "checksums.json").read_text()).items():
        if not (path / name).exists():
            return f"{name} is missing"
        if sha256_of(path / name) != expected:
            return f"the sha256 of {name} differs"
    return None


def prune(folder: Path, pinned: set[int]) -> None:
    """Remove all checkpoints but the pinned ones and the newest."""
    for step in steps(folder)[:-1]:
        if step not in pinned:
            shutil.rmtree(path_of(folder, step))
