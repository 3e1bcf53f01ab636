"""What wandb wrote offline: it has no public reader of its files, which are a log of protobuf records.

The format is LevelDB's: blocks of 32 KiB with records of a header (checksum, length, type) and data; a record that
does not fit into its block is cut into parts. See `core/internal/transactionlog` in wandb's repository.
"""

import json
import struct
from collections.abc import Iterator
from pathlib import Path

_BLOCK = 32 * 1024
_FULL, _FIRST, _LAST = 1, 2, 4


def read_runs(folder: Path) -> dict[str, dict]:
    """Run id -> name, project, group, config, axes (metric -> its axis) and history (a dict for each step).

    A run that was interrupted and continued has several `files`; their histories are joined in the order of time.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    def values(items) -> dict:
        return {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}

    runs: dict[str, dict] = {}
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        records = [Record.FromString(data) for data in _records(path.read_bytes())]
        (run,) = [record.run for record in records if record.HasField("run")]
        found = runs.setdefault(run.run_id, {"files": 0, "history": [], "config": {}, "axes": {}})
        found |= {"name": run.display_name, "group": run.run_group, "project": run.project}
        found["files"] += 1
        for record in records:
            found["config"] |= values(record.config.update)
            if record.HasField("metric"):
                found["axes"][record.metric.glob_name or record.metric.name] = record.metric.step_metric
            if record.HasField("history"):
                found["history"].append(values(record.history.item))
    return runs


def _records(content: bytes) -> Iterator[bytes]:
    assert content[:4] == b":W&B"
    at, parts = 7, b""
    while at + 7 <= len(content):
        if _BLOCK - at % _BLOCK < 7:  # too short for a header: filled with zeros
            at += _BLOCK - at % _BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        data, at = content[at + 7 : at + 7 + length], at + 7 + length
        if kind in (_FULL, _FIRST):
            parts = b""
        parts += data
        if kind in (_FULL, _LAST):
            yield parts
