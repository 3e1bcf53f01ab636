"""Put the tables of benchmarks/results/*.json into docs/benchmarks.md.

    python -m benchmarks.render [--results benchmarks/results] [--page docs/benchmarks.md]

The text of the page is written by hand; what is between `<!-- results of NAME -->` and `<!-- end -->` is replaced.
A file is named after its benchmark; `model_speed-h200.json` is one of the same benchmark from another machine, and
gets a table of its own.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from benchmarks.report import ROOT, Row, as_text, table
from hub.base.errors import InputError

RESULTS, PAGE = ROOT / "benchmarks" / "results", ROOT / "docs" / "benchmarks.md"
PLACE = re.compile(r"(<!-- results of (\w+) -->\n).*?(<!-- end -->\n)", re.DOTALL)


def load(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Benchmark → its results. ValueError for a file of a benchmark that has no place on the page."""
    known = [name for _, name, _ in PLACE.findall(PAGE.read_text(encoding="utf-8"))]
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in known}
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        if result["benchmark"] not in known:
            raise InputError(f"{path}: benchmark={result['benchmark']!r} is none of {', '.join(known)}")
        found[result["benchmark"]].append(result)
    return found


def page(results: dict[str, list[dict[str, Any]]]) -> str:
    """The page with these results."""

    def tables(place: re.Match[str]) -> str:
        return place[1] + "".join(map(section, results.get(place[2], []))) + place[3]

    return PLACE.sub(tables, PAGE.read_text(encoding="utf-8"))


def section(result: dict[str, Any]) -> str:
    """Settings and machine, the rows, and what was skipped."""
    m, other = result["machine"], result["other_work"]
    where = f"{m['cpu']}, {m['cores']} cores, {m['memory']}, GPU: {m['gpu']}, {m['system']}"
    busy = f", **while other programs used {other:.0%} of the cores**" if other > 0.05 else ""
    when = f"{result['date']}, commit {result['commit']}, {result['minutes']:g} min{busy}"
    rows = table([Row(**row) for row in result["rows"]]).markdown()
    skipped = "".join(f"\nSkipped: {reason}.\n" for reason in result["skipped"])
    return f"\n{as_text(result['settings']) or 'No settings'} ({when}). {where}.\n\n{rows}\n{skipped}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args()
    options.page.write_text(page(load(options.results)), encoding="utf-8")
    print(f"wrote {options.page}")


if __name__ == "__main__":
    main()
