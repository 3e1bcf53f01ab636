"""The step log that is released with a model: the trunk's up to the branch point, then the branch's, in one file.

`log.jsonl` beside the weights is what the training curve on the card was drawn from: one JSON object per line with
step, tokens, loss, learning rate and the rest of `run.step_log`. A long log is thinned, so that a release stays
small.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

from hub.plain.atomic import write_bytes
from hub.plain.errors import contains_token
from hub.record.run_record import RunRecord

logger = logging.getLogger(__name__)

NAME = "log.jsonl"
MAX_BYTES = 4_000_000
# Lines that are kept as long as there is room: events at a step.
_EVENTS = ("skipped_batch", "loss_spike", "eval_loss")


def write_log(folder: Path, record: RunRecord, trunk_log: Path, branch_log: Path) -> None:
    """Write the run's log beside its model; none if there are no lines.

    A log that cannot be read, or that holds an access token, is left out with a warning: a run of weeks is not lost
    for it.
    """
    try:
        content = run_log(record, trunk_log, branch_log)
    except OSError as error:
        logger.warning("the log of %s could not be read: %s", record.run_id, error)
        return
    if contains_token(content.decode()):
        logger.warning("the log of %s holds what looks like an access token, and is not released", record.run_id)
    elif content:
        write_bytes(folder / NAME, content)


def run_log(record: RunRecord, trunk_log: Path, branch_log: Path, *, max_bytes: int = MAX_BYTES) -> bytes:
    """The lines of the trunk up to the branch point and of the branch, thinned evenly to at most so many bytes.

    Args:
        record: says where the branch left the trunk; an intermediate model lies on the trunk.
        trunk_log, branch_log: files of `training.run.step_log`; one that does not exist has no lines.
        max_bytes: of the result. Every k-th line stays, with the smallest k for which it fits.
    """
    split = record.tokens if record.branch_point_tokens is None else record.branch_point_tokens
    lines = [*_lines(trunk_log, split)]
    if record.branch_point_tokens is not None:
        lines += _lines(branch_log, record.tokens)
    if not lines:
        return b""

    def size(every: int) -> int:
        return sum(len(text) for text, _ in lines[::every]) + len(lines[-1][0])

    every = next((k for k in range(1, len(lines)) if size(k) <= max_bytes), len(lines))
    kept = {*range(0, len(lines), every), len(lines) - 1}
    room = max_bytes - sum(len(lines[position][0]) for position in kept)
    for position, (text, event) in enumerate(lines):
        if event and position not in kept and len(text) <= room:
            kept.add(position)
            room -= len(text)
    return b"".join(lines[position][0] for position in sorted(kept))


def _lines(log: Path, last_token: int) -> Iterator[tuple[bytes, bool]]:
    """(line, whether it is an event) up to this many tokens; incomplete lines are skipped."""
    if not log.exists():
        return
    with open(log, "rb") as file:
        for text in file:
            try:
                line = json.loads(text)
                within = line["tokens"] <= last_token
            except (ValueError, KeyError, TypeError):
                continue
            if within:
                yield text.rstrip(b"\r\n") + b"\n", any(name in line for name in _EVENTS)
