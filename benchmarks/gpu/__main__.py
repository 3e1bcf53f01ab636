"""python -m benchmarks.gpu: run the parts of the kit, or go on with them; see the package's text."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import benchmarks.gpu
from benchmarks import render
from benchmarks.gpu import baselines, kit
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


def chosen(parts: list[str], smoke: bool) -> Iterator[tuple[str, list[Case]]]:
    """Cases by part, in the order in which they are run: of all parts, those of the first minutes first."""
    for part in parts or ("first", *PARTS):
        yield from first(smoke) if part == "first" else [(part, cases(part, smoke))]


def main() -> int:
    given, started = options(), time.monotonic()
    groups, build = list(chosen(given.parts, given.smoke)), ROOT / "build" / ("gpu-smoke" if given.smoke else "gpu")
    folder = given.results or (build / "results" if given.smoke else render.RESULTS / "gpu")
    work, page = build / "work" if given.smoke else build, build / "benchmarks.md" if given.smoke else render.PAGE
    if given.list:
        for part, listed in groups:
            found = kit.Results.open(folder, part).cases
            for case in listed:
                print(f"{part}: {case.name}: {found.get(case.name, {}).get('status', 'waiting')}")
        return 0
    if gpus() == "none" and not given.smoke:
        raise InputError("torch finds no GPU here; --smoke runs tiny shapes on a CPU")
    work.mkdir(parents=True, exist_ok=True)
    if given.data is not None:
        atomic.write_json(work / "data.json", {"data": str(given.data.absolute())})
    processes, write_page = kit.processes(preload="benchmarks.gpu.measure"), partial(render.write, page, gpu=folder)
    limit = FIRST_SECONDS if given.limit is None and given.parts == ["first"] else given.limit
    ends = math.inf if limit is None else started + limit
    call, failed = kit.Kit(folder, work, processes, ends, given.retry, write_page), 0
    for part, listed in groups:
        failed += call.run(part, listed, MEASURES[part], CASE_SECONDS[part])[0]
    for part in dict.fromkeys(part for part, _ in groups):
        print("".join(f"{line}\n" for line in baselines.compare(kit.Results.open(folder, part))), end="")
    left = {(part, c.name) for part, listed in groups for c in listed if not kit.Results.open(folder, part).has(c)}
    if left:
        print(f"{len(left)} cases are left: the same command goes on with them")
    return 1 if given.smoke and (failed or left) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ValueError as error:
        sys.exit(f"error: {error}")
