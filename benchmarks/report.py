"""The common part of every benchmark: its command line, its rows, the machine that they were measured on, their file.

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
LIBRARIES = (
    "torch",
    "transformers",
    "accelerate",
    "datasets",
    "tokenizers",
    "safetensors",
    "huggingface_hub",
    "numpy",
    "scipy",
    "pandas",
    "pyarrow",
)
# Seconds after which a GPU that does not answer counts as none.
GPU_SECONDS = 120
# Units of seconds with the least value that they show.
TIME_UNITS = {"h": 3600.0, "s": 1.0, "ms": 1e-3, "µs": 0.0}
Name = TypeVar("Name")
Options = argparse.Namespace
# A peer or a bound in words, and its value in the unit of the row.
Side = tuple[str, float] | None


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
    """Make one table of the rows; a column that no row uses is left out.

    "× bound" would be 1 for a perfect program.
    """
    cells = []
    for row in rows:
        cells.append(
            {
                " ": row.name,
                "measured": format_value(row.value, row.unit),
                "peer": row.peer or "",
                "peer's": format_value(row.peer_value, row.unit),
                "ratio": format_value(row.ratio, "×"),
                "bound": row.bound or "",
                "bound's": format_value(row.bound_value, row.unit),
                "× bound": format_value(quotient(row.bound_value, row.value, row.unit), "×"),
                "note": row.note,
            }
        )
    return Table.of(cells)


def quotient(ours: float | None, theirs: float | None, unit: str) -> float | None:
    """Return how many times as good `ours` is as `theirs`.

    None where one of them is missing or the quotient means nothing.
    """
    if ours is None or theirs is None:
        return None
    if unit.endswith("/s"):
        return ours / theirs if theirs else None
    return theirs / ours if ours else None


def format_value(value: float | None, unit: str) -> str:
    """Format a number with its unit, seconds in the unit that suits them; nothing for None."""
    if value is None:
        return ""
    if unit == "s":
        unit = next(name for name, least in TIME_UNITS.items() if value >= least)
        value /= TIME_UNITS[unit] or 1e-6
    space = "" if unit == "×" else " "
    return f"{format_number(value)}{space}{unit}".rstrip()


def format_number(value: float) -> str:
    """Format three digits, or a whole number with separators, or six digits of what is small."""
    if value == 0 or 1e-2 <= abs(value) < 1000:
        return f"{value:.3g}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.6g}"


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """Make a parser whose help begins with a module's text."""
    form = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(description=description, formatter_class=form, allow_abbrev=False)


def parse(description: str | None, options: Mapping[str, tuple]) -> Options:
    """Parse the command line of a benchmark: flag → (default, default with --fast[, help]), and `--json` and `--fast`.

    A list takes values of its elements' type, a tuple those it holds and no others. `Path` is a folder or file, by
    default the one that BENCH_ and the flag's name give in the environment.
    """
    parser = parser_of(description)
    is_fast = "--fast" in sys.argv
    for flag, (default, fast_default, *words) in options.items():
        form = _argument_form(flag, default, fast_default if is_fast else default)
        parser.add_argument(flag, help="; ".join([*words, "default: %(default)s"]), **form)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows, the machine and the versions here")
    parser.add_argument("--fast", action="store_true", help="the smallest sizes, a smoke test")
    return parser.parse_args()


def _argument_form(flag: str, kind: Any, default: Any) -> dict[str, Any]:
    """Return the options of `add_argument` for a flag; `kind` is its usual default."""
    if kind is Path:
        variable = f"BENCH{flag.replace('-', '_').upper()[1:]}"
        return {"type": Path, "default": os.environ.get(variable) or None}
    if kind is False:
        return {"action": "store_true"}
    if isinstance(kind, tuple):
        return {"nargs": "*", "choices": kind, "default": list(default)}
    if isinstance(kind, list):
        return {"nargs": "+", "type": type(kind[0]), "default": default}
    return {"type": type(kind), "default": default}


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
        self.benchmark = benchmark
        self.options = options
        self.rows: list[Row] = []
        self.skipped: list[str] = []
        self._started = time.time()
        self._busy_before = busy_seconds()
        self._own_before = own_cpu_seconds()

    def add(self, name: str, value: float, unit: str, peer: Side = None, bound: Side = None, note: str = "") -> None:
        """Add one row."""
        peer_name, peer_value = peer or (None, None)
        bound_name, bound_value = bound or (None, None)
        ratio = quotient(value, peer_value, unit)
        self.rows.append(Row(name, value, unit, peer_name, peer_value, ratio, bound_name, bound_value, note))

    def add_of(
        self,
        seconds_by_name: Mapping[str, float],
        name: str,
        peer: str = "",
        bound: str = "",
        ours: str = "ours",
        note: str = "",
    ) -> None:
        """Add one row of the seconds of `in_turns`, whose keys say what peer and bound are."""
        peer_side = (peer, seconds_by_name[peer]) if peer else None
        bound_side = (bound, seconds_by_name[bound]) if bound else None
        self.add(name, seconds_by_name[ours], "s", peer_side, bound_side, note)

    def finish(self) -> None:
        """Print the rows, and write them where `--json` says."""
        elapsed = time.time() - self._started
        # Children of ours that have ended count as ours.
        own_seconds = own_cpu_seconds() - self._own_before
        other_seconds = (busy_seconds() - self._busy_before) - own_seconds
        result = {
            "benchmark": self.benchmark,
            "settings": settings(self.options),
            **stamp(),
            "machine": machine(),
            "versions": versions(),
            "minutes": round(elapsed / 60, 1),
            "other_work": round(max(0.0, other_seconds) / (elapsed * (os.cpu_count() or 1)), 3),
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
    """Measure the wall time of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def cpu_seconds_of_children(work: Callable[[], object]) -> float:
    """Measure the CPU seconds, user and system, of the processes that `work` starts and waits for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    work()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def cpu_seconds(work: Callable[[], object]) -> float:
    """Measure the CPU seconds of this process in one call, which other programs disturb less."""
    started = time.process_time()
    work()
    return time.process_time() - started


def in_turns(
    works: Mapping[Name, Callable[[], object]], rounds: int, measure: Callable[[Callable[[], object]], float] = seconds
) -> dict[Name, float]:
    """Measure the median seconds of each; a round before is not measured.

    They take turns, so that a slow minute hits them all.
    """
    times_of_works: dict[Name, list[float]] = {name: [] for name in works}
    for _ in range(rounds + 1):
        for name, work in works.items():
            times_of_works[name].append(measure(work))
    return {name: statistics.median(times[1:]) for name, times in times_of_works.items()}


def busy_seconds() -> float:
    """Return the CPU seconds that anything on this machine has used since it started."""
    times = psutil.cpu_times()
    return sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq"))


def own_cpu_seconds() -> float:
    """Return the CPU seconds of this process and its children that have ended."""
    return sum(os.times()[:4])


def settings(options: Options) -> dict[str, Any]:
    """Return the options as plain values; of a path only its last part."""
    values = {name: value for name, value in vars(options).items() if name not in ("json", "fast")}
    return {name: value.name if isinstance(value, Path) else value for name, value in values.items()}


def as_text(values: Mapping[str, Any]) -> str:
    """Format settings in one line; those that are not set are left out."""
    texts = []
    for name, value in values.items():
        if value is None or value is False:
            continue
        words = name.replace("_", " ")
        if value is True:
            texts.append(words)
        elif isinstance(value, list):
            texts.append(f"{words} {' '.join(map(str, value))}")
        elif isinstance(value, int):
            texts.append(f"{words} {value:,}")
        else:
            texts.append(f"{words} {value}")
    return ", ".join(texts)


@cache
def machine() -> dict[str, Any]:
    """Describe CPU, cores that this process may use, memory and GPUs; no name of the machine."""
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "gpu": gpus(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def _cpu_name() -> str:
    information = Path("/proc/cpuinfo")
    match = re.search(r"model name\s*: (.+)", information.read_text()) if information.exists() else None
    if match:
        return match[1]
    return platform.processor() or platform.machine()


@cache
def gpus() -> str:
    """Name the GPUs that torch can use, such as `1 x NVIDIA H200`, or "none"; CUDA is started in another process."""
    code = "from torch import cuda; print(*map(cuda.get_device_name, range(cuda.device_count())), sep='\\n')"
    names = Counter[str]()
    with suppress(subprocess.TimeoutExpired):
        answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=GPU_SECONDS)
        names.update(answer.stdout.splitlines())
    return ", ".join(f"{count} x {name}" for name, count in names.items() if name) or "none"


@cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that the numbers depend on."""
    library_versions = {"python": platform.python_version()}
    for name in LIBRARIES:
        with suppress(PackageNotFoundError):
            library_versions[name] = version(name)
    return library_versions


@cache
def stamp() -> dict[str, str]:
    """Return the date, and the commit, with a "+" if Python files differ from it.

    The commit is "unknown" without git or a repository.
    """
    date = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    git = ["git", "-C", str(ROOT)]
    try:
        head = subprocess.run([*git, "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True, check=True)
        difference = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "*.py"], check=False)
    except (OSError, subprocess.CalledProcessError):
        return {"date": date, "commit": "unknown"}
    mark = "+" if difference.returncode else ""
    return {"date": date, "commit": f"{head.stdout.strip()}{mark}"}
