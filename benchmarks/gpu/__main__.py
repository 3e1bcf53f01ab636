"""python -m benchmarks.gpu: run the parts of the kit, or go on with them; see the package's text."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path

import benchmarks.gpu
from benchmarks.gpu import kit, page
from benchmarks.gpu.cases import CASE_SECONDS, PARTS, Case, cases, first
from benchmarks.gpu.measure import MEASURES
from benchmarks.report import ROOT
from hub.base import atomic

RESULTS, WORK = ROOT / "benchmarks" / "results" / "gpu", ROOT / "build" / "gpu"
SMOKE = ROOT / "build" / "gpu-smoke"


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description=benchmarks.gpu.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"first, {', '.join(PARTS)}; default: all")
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds for this call")
    parser.add_argument("--data", type=Path, help="text for the sweep; default: this machine's documentation")
    parser.add_argument("--results", type=Path, help="folder of the results")
    parser.add_argument("--retry", action="store_true", help="run again what failed")
    parser.add_argument("--smoke", action="store_true", help="tiny shapes; a failure is exit status 1")
    parser.add_argument("--list", action="store_true", help="only say what would be run")
    return parser.parse_args()


def chosen(parts: list[str], smoke: bool) -> Iterator[tuple[str, list[Case]]]:
    """Cases by part, in the order in which they are run: of all parts, those of the first quarter of an hour first."""
    for part in parts or ("first", *PARTS):
        listed = first(smoke) if part == "first" else [(part, case) for case in cases(part, smoke)]
        for name, group in itertools.groupby(listed, key=itemgetter(0)):
            yield name, [case for _, case in group]


def main() -> int:
    given = options()
    groups = list(chosen(given.parts, given.smoke))
    folder = given.results or (SMOKE / "results" if given.smoke else RESULTS)
    work, to = (SMOKE / "work", SMOKE / "benchmarks.md") if given.smoke else (WORK, page.PAGE)
    work.mkdir(parents=True, exist_ok=True)
    if given.data is not None:
        atomic.write_bytes(work / "data.json", json.dumps({"data": str(given.data.absolute())}).encode())
    ends, failed = time.monotonic() + given.limit, 0
    processes = kit.processes(preload="benchmarks.gpu.measure")
    for part, listed in groups:
        results = kit.Results.open(folder, part)
        if given.list:
            for case in listed:
                print(f"{part}: {case.name}: {results.cases.get(case.name, {}).get('status', 'waiting')}")
            continue
        clock = kit.Clock(ends, min(given.limit, CASE_SECONDS[part]))

        def write_page() -> None:
            atomic.write_bytes(to, page.page(folder).encode())

        failed += kit.run(listed, MEASURES[part], results, work, clock, processes, given.retry, write_page)[0]
    left = {
        (part, case.name) for part, listed in groups for case in listed if not kit.Results.open(folder, part).has(case)
    }
    if left and not given.list:
        print(f"{len(left)} cases are left: the same command goes on with them")
    return 1 if given.smoke and (failed or left) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ValueError as error:
        sys.exit(f"error: {error}")
