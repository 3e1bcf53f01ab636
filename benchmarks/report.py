"""What every benchmark shares: its command line, its rows, the machine they were measured on, and their file.

A row is one measured number with the peer's beside it, measured in the same process, and a bound: what the least
possible work (the disk alone, the matrix products alone, …) takes on the same machine. `Report.finish` prints the rows
and, with `--json FILE`, writes them for `benchmarks.render`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import psutil

from hub.base.atomic import write_bytes
from hub.base.tables import Table, print_table

ROOT = Path(__file__).resolve().parent.parent
LIBRARIES = ("torch", "transformers", "accelerate", "datasets", "tokenizers", "safetensors", "huggingface_hub")
LIBRARIES += ("numpy", "scipy", "pandas", "pyarrow")
GPU_SECONDS = 120  # after which a GPU that does not answer counts as none
Name = TypeVar("Name")
Options = argparse.Namespace
Side = tuple[str, float] | None  # what a peer or a bound is, and its value in the unit of the row


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


def table(rows: Sequence[Row]) -> Table:
    """The rows as one table; a column that no row uses is left out. "× bound" would be 1 for a perfect program."""
    return Table.of(
        [
            {
                " ": row.name,
                "measured": shown(row.value, row.unit),
                "peer": row.peer or "",
                "peer's": shown(row.peer_value, row.unit),
                "ratio": shown(row.ratio, "×"),
                "bound": row.bound or "",
                "bound's": shown(row.bound_value, row.unit),
                "× bound": shown(quotient(row.bound_value, row.value, row.unit), "×"),
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
        scales = {"h": 3600.0, "s": 1.0, "ms": 1e-3, "µs": 0.0}
        unit = next(name for name, scale in scales.items() if value >= scale)
        value /= scales[unit] or 1e-6
    return f"{plain(value)}{'' if unit == '×' else ' '}{unit}".rstrip()


def plain(value: float) -> str:
    """Three digits, or a whole number with separators, or six digits of what is small."""
    if value == 0 or 1e-2 <= abs(value) < 1000:
        return f"{value:.3g}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.6g}"


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """A parser whose help begins with a module's text."""
    form = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(description=description, formatter_class=form, allow_abbrev=False)


def parse(description: str | None, options: Mapping[str, tuple]) -> Options:
    """The command line of a benchmark: flag → (default, default with --fast[, help]), and `--json` and `--fast`.

    A list takes values of its elements' type, a tuple those it holds and no others. `Path` is a folder or file, by
    default the one that BENCH_ and the flag's name give in the environment.
    """
    parser = parser_of(description)
    is_fast = "--fast" in sys.argv
    for flag, (default, fast, *words) in options.items():
        if default is Path:
            variable = f"BENCH{flag.replace('-', '_').upper()[1:]}"
            form: dict[str, Any] = {"type": Path, "default": os.environ.get(variable) or None}
        elif default is False:
            form = {"action": "store_true"}
        elif isinstance(default, tuple):
            form = {"nargs": "*", "choices": default, "default": fast if is_fast else list(default)}
        else:
            form = {"default": fast if is_fast else default}
            form |= {"nargs": "+", "type": type(default[0])} if isinstance(default, list) else {"type": type(default)}
        parser.add_argument(flag, help="; ".join([*words, "default: %(default)s"]), **form)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows, the machine and the versions here")
    parser.add_argument("--fast", action="store_true", help="the smallest sizes, a smoke test")
    return parser.parse_args()


def benchmark(options: Mapping[str, tuple]) -> Callable[[Callable[[Report, Options], None]], Callable[[], None]]:
    """Turn a function that measures into the `main` of its module, with a command line of these options (`parse`)."""

    def run(measure: Callable[[Report, Options], None]) -> None:
        module = sys.modules[measure.__module__]
        parsed = parse(module.__doc__, options)
        report = Report(Path(module.__file__ or "").stem, parsed)
        measure(report, parsed)
        report.finish()

    return lambda measure: partial(run, measure)


class Report:
    """The rows of one benchmark, and why some were `skipped`; it watches what else the machine does meanwhile."""

    def __init__(self, benchmark: str, options: Options) -> None:
        self.benchmark, self.options, self.rows, self.skipped = benchmark, options, list[Row](), list[str]()
        self._started, self._busy, self._own = time.time(), busy_seconds(), sum(os.times()[:4])

    def add(self, name: str, value: float, unit: str, peer: Side = None, bound: Side = None, note: str = "") -> None:
        """One row."""
        ratio = quotient(value, peer[1], unit) if peer else None
        self.rows.append(Row(name, value, unit, *(peer or (None, None)), ratio, *(bound or (None, None)), note))

    def add_of(
        self,
        spent: Mapping[str, float],
        name: str,
        peer: str = "",
        bound: str = "",
        ours: str = "ours",
        note: str = "",
    ) -> None:
        """One row of the seconds of `in_turns`, whose keys say what peer and bound are."""
        self.add(name, spent[ours], "s", *((key, spent[key]) if key else None for key in (peer, bound)), note=note)

    def finish(self) -> None:
        """Print the rows, and write them where `--json` says."""
        elapsed = time.time() - self._started
        # Of the cores' time what other programs used (children of ours that have ended count as ours).
        others = (busy_seconds() - self._busy) - (sum(os.times()[:4]) - self._own)
        result = {
            "benchmark": self.benchmark,
            "settings": settings(self.options),
            **stamp(),
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
            write_result(self.options.json, result)


def write_result(path: Path, result: dict[str, Any]) -> None:
    """Write JSON that people read, too."""
    write_bytes(path, (json.dumps(result, indent=1, ensure_ascii=False) + "\n").encode())


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
    works: Mapping[Name, Callable[[], object]], rounds: int, measure: Callable[[Callable[[], object]], float] = seconds
) -> dict[Name, float]:
    """Median seconds of each; a round before is not measured. They take turns: a slow minute then hits them all."""
    times = [[measure(work) for work in works.values()] for _ in range(rounds + 1)]
    return {name: statistics.median(values) for name, values in zip(works, zip(*times[1:], strict=True), strict=True)}


def busy_seconds() -> float:
    """CPU seconds that anything on this machine has used since it started."""
    times = psutil.cpu_times()
    return sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq"))


def settings(options: Options) -> dict[str, Any]:
    """The options as plain values; of a path only its last part."""
    values = {name: value for name, value in vars(options).items() if name not in ("json", "fast")}
    return {name: value.name if isinstance(value, Path) else value for name, value in values.items()}


def as_text(values: Mapping[str, Any]) -> str:
    """Settings in one line; those that are not set are left out."""
    parts = []
    for name, value in values.items():
        if value is not None and value is not False:
            text = " ".join(map(str, value)) if isinstance(value, list) else value
            text = f"{value:,}" if isinstance(value, int) else text
            parts.append(name.replace("_", " ") + ("" if value is True else f" {text}"))
    return ", ".join(parts)


@cache
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


@cache
def gpus() -> str:
    """The GPUs that torch can use, such as `1 x NVIDIA H200`, or "none"; CUDA is started in another process."""
    code = "from torch import cuda; print(*map(cuda.get_device_name, range(cuda.device_count())), sep='\\n')"
    names = Counter[str]()
    with suppress(subprocess.TimeoutExpired):
        answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=GPU_SECONDS)
        names.update(answer.stdout.splitlines())
    return ", ".join(f"{count} x {name}" for name, count in names.items() if name) or "none"


@cache
def versions() -> dict[str, str]:
    """Of Python and of the libraries that the numbers depend on."""
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


@cache
def stamp() -> dict[str, str]:
    """The date, and the commit, with a "+" if Python files differ from it; "unknown" without git or a repository."""
    date, git = datetime.datetime.now(datetime.timezone.utc).date().isoformat(), ["git", "-C", str(ROOT)]
    try:
        found = subprocess.run([*git, "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "*.py"], check=False).returncode
    except (OSError, subprocess.CalledProcessError):
        return {"date": date, "commit": "unknown"}
    return {"date": date, "commit": found.stdout.strip() + ("+" if changed else "")}
