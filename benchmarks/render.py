"""Put the tables of benchmarks/results/*.json into docs/benchmarks.md.

    python -m benchmarks.render [--results benchmarks/results] [--page docs/benchmarks.md]

The text of the page is written by hand; what is between `<!-- results of NAME -->` and `<!-- end -->` is replaced.
A file is named after its benchmark; `model_speed-h200.json` is one of the same benchmark from another machine, and
gets a table of its own. A table of more than a dozen rows becomes a CSV file beside the page, and the page says the
range of its ratios for each group of rows (the name up to its first comma or colon) and peer.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import ROOT, Row, as_text, plain, table
from hub.base.atomic import write_bytes
from hub.base.errors import InputError
from hub.base.tables import Table

LONGEST = 12  # rows of a table on the page
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


def page(results: dict[str, list[dict[str, Any]]], tables: Path) -> str:
    """The page with these results; long tables are written into the folder `tables`."""

    def of(place: re.Match[str]) -> str:
        return place[1] + "".join(section(result, tables) for result in results.get(place[2], [])) + place[3]

    return PLACE.sub(of, PAGE.read_text(encoding="utf-8"))


def section(result: dict[str, Any], tables: Path) -> str:
    """Settings and machine, the rows, and what was skipped."""
    m, other = result["machine"], result["other_work"]
    where = f"{m['cpu']}, {m['cores']} cores, {m['memory']}, GPU: {m['gpu']}, {m['system']}"
    busy = f", **while other programs used {other:.0%} of the cores**" if other > 0.05 else ""
    when = f"{result['date']}, commit {result['commit']}, {result['minutes']:g} min{busy}"
    rows, every = [Row(**row) for row in result["rows"]], ""
    if len(rows) > LONGEST:
        written = write_csv(tables / f"{result['benchmark']}.csv", table(rows))
        every = f"\n[All {len(rows)} rows]({tables.name}/{written.name}).\n"
    shown = (ranges(rows) if every else table(rows)).markdown()
    skipped = "".join(f"\nSkipped: {reason}.\n" for reason in result["skipped"])
    return f"\n{as_text(result['settings']) or 'No settings'} ({when}). {where}.\n\n{shown}\n{every}{skipped}\n"


def ranges(rows: Sequence[Row]) -> Table:
    """How often there is a group of rows with one peer, and the least and greatest of its ratios."""
    groups: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        if row.ratio is not None:
            groups.setdefault((re.split("[,:]", row.name)[0], row.peer or ""), []).append(row.ratio)
    return Table.of(
        [
            {" ": name, "peer": peer, "rows": str(len(ratios)), "ratio": span(ratios)}
            for (name, peer), ratios in groups.items()
        ]
    )


def span(ratios: Sequence[float]) -> str:
    return " to ".join(dict.fromkeys(f"{plain(ratio)}×" for ratio in (min(ratios), max(ratios))))


def write_csv(path: Path, rows: Table) -> Path:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([rows.header, *rows.rows])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, text.getvalue().encode())
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args()
    options.page.write_text(page(load(options.results), options.page.parent / "tables"), encoding="utf-8")
    print(f"wrote {options.page}")


if __name__ == "__main__":
    main()
