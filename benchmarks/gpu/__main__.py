"""Run the parts of the kit, or go on with them: `python -m benchmarks.gpu`; see the package's text."""

from __future__ import annotations

import argparse
import math
import sys
import time
from functools import partial
from pathlib import Path

import benchmarks.gpu
from benchmarks import render
from benchmarks.gpu import baselines, kit, real_run
from benchmarks.gpu.cases import CASE_SECONDS, FIRST_SECONDS, PARTS, Case, cases, first
from benchmarks.gpu.measure import MEASURES
from benchmarks.report import ROOT, gpus, parser_of
from hub.base import atomic
from hub.base.errors import InputError


def options() -> argparse.Namespace:
    parser = parser_of(benchmarks.gpu.__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"first, {', '.join(PARTS)}; default: all")
    parser.add_argument(
        "--limit", type=float, help=f"seconds for this call; default: {FIRST_SECONDS:.0f} for first alone"
    )
    parser.add_argument("--data", type=Path, help="text for the sweep; default: this machine's documentation")
    parser.add_argument("--results", type=Path, help="folder of the results")
    parser.add_argument("--retry", action="store_true", help="run again what failed")
    parser.add_argument("--smoke", action="store_true", help="tiny shapes, also on a CPU; a failure is exit status 1")
    parser.add_argument("--list", action="store_true", help="only list what would be run")
    return parser.parse_args()


def choose_cases(parts: list[str], smoke: bool) -> list[tuple[str, list[Case]]]:
    """Return cases by part, in the order in which they are run: of all parts, those of the first minutes first."""
    groups = []
    for part in parts or ("first", *PARTS):
        groups += first(smoke) if part == "first" else [(part, cases(part, smoke))]
    return groups


def print_cases(groups: list[tuple[str, list[Case]]], folder: Path) -> None:
    """Print each case with its status."""
    for part, part_cases in groups:
        results = kit.Results.open(folder, part)
        for case in part_cases:
            status = "waiting"
            if results.has_any(case):
                status = results.cases[case.name]["status"]
                if not results.has(case):
                    status += " with other code"
            print(f"{part}: {case.name}: {status}")


def count_waiting(groups: list[tuple[str, list[Case]]], folder: Path) -> int:
    """Count the cases that have no result of this code yet."""
    waiting = set()
    for part, part_cases in groups:
        results = kit.Results.open(folder, part)
        waiting.update((part, case.name) for case in part_cases if not results.has(case))
    return len(waiting)


def make_kit(o: argparse.Namespace, started: float, folder: Path, work: Path, page: Path) -> kit.Kit:
    """Make the kit of this call."""
    work.mkdir(parents=True, exist_ok=True)
    if o.data is not None:
        atomic.write_json(work / "data.json", {"data": str(o.data.absolute())})
    limit = FIRST_SECONDS if o.limit is None and o.parts == ["first"] else o.limit
    deadline = math.inf if limit is None else started + limit
    processes = kit.processes(preload=real_run.__name__)
    return kit.Kit(folder, work, processes, deadline, o.retry, partial(render.write, page, gpu=folder))


def main() -> int:
    o = options()
    started = time.monotonic()
    groups = choose_cases(o.parts, o.smoke)
    if o.smoke:
        build = ROOT / "build" / "gpu-smoke"
        folder = build / "results"
        work = build / "work"
        page = build / "benchmarks.md"
    else:
        folder = render.RESULTS / "gpu"
        work = ROOT / "build" / "gpu"
        page = render.PAGE
    if o.results:
        folder = o.results
    if o.list:
        print_cases(groups, folder)
        return 0
    if gpus() == "none" and not o.smoke:
        raise InputError("torch finds no GPU here; --smoke runs tiny shapes on a CPU")
    call = make_kit(o, started, folder, work, page)
    measures = {**MEASURES, "run": real_run.run}
    failed = 0
    for part, part_cases in groups:
        failed += call.run(part, part_cases, measures[part], CASE_SECONDS[part])[0]
    for part in dict.fromkeys(part for part, _ in groups):
        for line in baselines.compare(kit.Results.open(folder, part)):
            print(line)
    waiting = count_waiting(groups, folder)
    if waiting:
        print(f"{waiting} cases are left: the same command goes on with them")
    return 1 if o.smoke and (failed or waiting) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ValueError as error:
        sys.exit(f"error: {error}")
