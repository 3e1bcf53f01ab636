"""python -m benchmarks.gpu: run the parts of the kit, or go on with them; see the package's text."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import benchmarks.gpu
from benchmarks.gpu import kit
from benchmarks.gpu.cases import CASE_SECONDS, PARTS, cases
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
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds for this call")
    parser.add_argument("--data", type=Path, help="text for the sweep; default: this machine's documentation")
    parser.add_argument("--results", type=Path, help="folder of the results")
    parser.add_argument("--retry", action="store_true", help="run again what failed")
    parser.add_argument("--smoke", action="store_true", help="tiny shapes; a failure is exit status 1")
    parser.add_argument("--list", action="store_true", help="only say what would be run")
    return parser.parse_args()


def main() -> int:
    given = options()
    chosen = {part: cases(part, given.smoke) for part in given.parts or PARTS}
    folder = given.results or (SMOKE / "results" if given.smoke else RESULTS)
    work = SMOKE / "work" if given.smoke else WORK
    work.mkdir(parents=True, exist_ok=True)
    if given.data is not None:
        atomic.write_bytes(work / "data.json", json.dumps({"data": str(given.data.absolute())}).encode())
    ends, failed, left = time.monotonic() + given.limit, 0, 0
    processes = kit.processes(preload="benchmarks.gpu.measure")
    for part, listed in chosen.items():
        results = kit.Results.open(folder, part)
        if given.list:
            for case in listed:
                print(f"{part}: {case.name}: {results.cases.get(case.name, {}).get('status', 'waiting')}")
            continue
        clock = kit.Clock(ends, min(given.limit, CASE_SECONDS[part]))
        failed_now, left_now = kit.run(listed, MEASURES[part], results, work, clock, processes, given.retry)
        failed, left = failed + failed_now, left + left_now
    if left:
        print(f"{left} cases are left: the same command goes on with them")
    return 1 if given.smoke and (failed or left) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ValueError as error:
        sys.exit(f"error: {error}")
