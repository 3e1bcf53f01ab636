"""What every benchmark shares: its command line, its rows, the machine they were measured on, and their file.

A row is one measured number with the peer's beside it, measured in the same process, and a bound: what the least
possible work (the disk alone, the matrix products alone, …) takes on the same machine. `Report.finish` prints the rows
and, with `--json FILE`, writes them down for `benchmarks.render`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import resource
import shutil
import statistics
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import psutil

from hub.base.atomic import write_bytes
from hub.base.tables import Table, print_table

ROOT = Path(__file__).resolve().parent.parent
LIBRARIES = ("torch", "transformers", "accelerate", "datasets", "tokenizers", "safetensors", "huggingface_hub")
LIBRARIES += ("numpy", "scipy", "pandas", "pyarrow")
Name = TypeVar("Name")


@dataclass(frozen=True)
class Row:
    """One number. Of units that end in "/s" more is better, of all others less.

    `ratio` is how many times as good as the peer: below 1 the peer is better. None where there is no peer.
    """

    name: str
    value: float
    unit: str
    peer: str | None = None
    peer_value: float | None = None
    ratio: float | None = None
    bound: str | None = None
    bound_value: float | None = None
    note: str = ""

    @property
    def to_the_bound(self) -> float | None:
        """How many times the bound's time (or calls, …) it takes: 1 would be perfect."""
        return quotient(self.bound_value, self.value, self.unit)


def table(rows: Sequence[Row]) -> Table:
    """The rows as one table; a column that no row uses is left out."""

    def times(value: float | None) -> str:
        return "" if value is None else f"{plain(value)}×"

    return Table.of(
        [
            {
                " ": row.name,
                "measured": shown(row.value, row.unit),
                "peer": row.peer or "",
                "peer's": shown(row.peer_value, row.unit),
                "ratio": times(row.ratio),
                "bound": row.bound or "",
                "bound's": shown(row.bound_value, row.unit),
                "× bound": times(row.to_the_bound),
                "note": row.note,
            }
            for row in rows
        ]
    )


def quotient(ours: float | None, theirs: float | None, unit: str) -> float | None:
    """How many times as good `ours` is as `theirs`; None where one is missing or the quotient means nothing."""
    if ours is None or theirs is None:
        return None
    if unit.endswith("/s"):
        ours, theirs = theirs, ours
    return theirs / ours if ours else None


def shown(value: float | None, unit: str) -> str:
    """A number with its unit, seconds in the unit that suits them; nothing for None."""
    if value is None:
        return ""
    if unit == "s":
        for scale, name in ((3600.0, "h"), (1.0, "s"), (1e-3, "ms")):
            if value >= scale:
                return f"{plain(value / scale)} {name}"
        return f"{plain(value / 1e-6)} µs"
    return f"{plain(value)} {unit}".rstrip()


def plain(value: float) -> str:
    """Three digits, or a whole number with separators, or six digits of what is small."""
    if value == 0 or 1e-2 <= abs(value) < 1000:
        return f"{value:.3g}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.6g}"


def parse(description: str, *arguments: tuple[str, dict[str, Any]], fast: dict[str, Any]) -> argparse.Namespace:
    """The options of a benchmark: its own `arguments` (name, keywords), `--json`, and `--fast` for its least sizes."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, keywords in arguments:
        parser.add_argument(name, **keywords)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows, the machine and the versions here")
    parser.add_argument("--fast", action="store_true", help="the smallest sizes, to see that it works")
    if parser.parse_known_args()[0].fast:
        parser.set_defaults(**fast)
    return parser.parse_args()


class Report:
    """Collects the rows of one benchmark. Make it before the measurements: it watches what else the machine does.

    Args:
        benchmark: the module's name.
        options: what `parse` gave. They are written down, of paths the last part only.
    """

    def __init__(self, benchmark: str, options: argparse.Namespace) -> None:
        self.benchmark, self.options, self.rows, self.skipped = benchmark, options, list[Row](), list[str]()
        self._started, self._busy, self._own = time.time(), busy_seconds(), sum(os.times()[:4])

    def add(
        self,
        name: str,
        value: float,
        unit: str,
        *,
        peer: tuple[str, float] | None = None,
        bound: tuple[str, float] | None = None,
        note: str = "",
    ) -> None:
        """One row; `peer` and `bound` are (what it is, its value in the same unit)."""
        ratio = quotient(value, peer[1], unit) if peer else None
        self.rows.append(Row(name, value, unit, *(peer or (None, None)), ratio, *(bound or (None, None)), note))

    def skip(self, reason: str) -> None:
        """Say what was not measured, and why."""
        self.skipped.append(reason)

    def finish(self) -> None:
        """Print the rows, and write them where `--json` says."""
        elapsed = time.time() - self._started
        # Of the cores' time what other programs used (children of ours that have ended count as ours).
        others = (busy_seconds() - self._busy) - (sum(os.times()[:4]) - self._own)
        result = {
            "benchmark": self.benchmark,
            "settings": settings(self.options),
            "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
            "commit": commit(),
            "machine": machine(),
            "versions": versions(),
            "minutes": round(elapsed / 60, 1),
            "other_work": round(max(0.0, others) / (elapsed * (os.cpu_count() or 1)), 3),
            "rows": [asdict(row) for row in self.rows],
            "skipped": self.skipped,
        }
        print(f"{self.benchmark}: {as_text(result['settings'])}")
        print_table(table(self.rows))
        for reason in self.skipped:
            print(f"skipped: {reason}")
        print(f"other programs used {result['other_work']:.0%} of the cores meanwhile")
        if self.options.json:
            write_bytes(self.options.json, (json.dumps(result, indent=1, ensure_ascii=False) + "\n").encode())


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def cpu_seconds_of_children(work: Callable[[], object]) -> float:
    """CPU seconds, user and system, of the processes that `work` starts and waits for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    work()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def in_turns(
    works: dict[Name, Callable[[], object]], rounds: int, measure: Callable[[Callable[[], object]], float] = seconds
) -> dict[Name, float]:
    """Median seconds of each; a round before is not measured. They take turns: a slow minute then hits them all."""
    times: dict[Name, list[float]] = {name: [] for name in works}
    for number in range(rounds + 1):
        for name, work in works.items():
            spent = measure(work)
            if number:
                times[name].append(spent)
    return {name: statistics.median(values) for name, values in times.items()}


def busy_seconds() -> float:
    """CPU seconds that anything on this machine has used since it started."""
    times = psutil.cpu_times()
    return sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq"))


def settings(options: argparse.Namespace) -> dict[str, Any]:
    """The options as plain values; of a path only its last part."""
    values = {name: value for name, value in vars(options).items() if name not in ("json", "fast")}
    return {name: value.name if isinstance(value, Path) else value for name, value in values.items()}


def as_text(values: dict[str, Any]) -> str:
    """Settings in one line; those that are not set are left out."""
    parts = []
    for name, value in values.items():
        if value is not None and value is not False:
            text = " ".join(map(str, value)) if isinstance(value, list | tuple) else value
            text = f"{value:,}" if isinstance(value, int) else text
            parts.append(name.replace("_", " ") + ("" if value is True else f" {text}"))
    return ", ".join(parts)


def machine() -> dict[str, Any]:
    """CPU, cores that this process may use, memory and GPUs; no name of the machine."""
    information = Path("/proc/cpuinfo")
    named = re.search(r"model name\s*: (.+)", information.read_text()) if information.exists() else None
    return {
        "cpu": named[1] if named else platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "gpu": gpus(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def gpus() -> str:
    """Such as `1 x NVIDIA H200`; "none" without the driver's tool. Torch would start CUDA to answer."""
    if shutil.which("nvidia-smi") is None:
        return "none"
    asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    names = Counter(subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip().splitlines())
    return ", ".join(f"{count} x {name}" for name, count in names.items()) or "none"


def versions() -> dict[str, str]:
    """Of Python and of the libraries that the numbers depend on."""
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def commit() -> str:
    """The commit that was measured, with a "+" if Python files differ from it; "unknown" outside a repository."""
    git = ["git", "-C", str(ROOT)]
    found = subprocess.run([*git, "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True, check=False)
    if found.returncode:
        return "unknown"
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "*.py"], check=False).returncode
    return found.stdout.strip() + ("+" if changed else "")
