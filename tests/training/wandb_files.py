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
    from wandb.proto import wandb_internal_pb2

    runs: dict[str, dict] = {}
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        run, config, metrics, history = None, {}, {}, []
        for data in _records(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "run":
                run = record.run
            elif record.WhichOneof("record_type") == "config":
                config |= {item.key: json.loads(item.value_json) for item in record.config.update}
            elif record.WhichOneof("record_type") == "metric":
                metrics[record.metric.glob_name or record.metric.name] = record.metric.step_metric
            elif record.WhichOneof("record_type") == "history":
                items = record.history.item
                history.append({item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items})
        found = runs.setdefault(run.run_id, {"name": run.display_name, "files": 0, "history": []})
        found.update(group=run.run_group, project=run.project, axes=metrics, config=config)
        found["files"] += 1
        found["history"] += history
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
