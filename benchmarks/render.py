"""Put the tables of benchmarks/results/*.json, and of the GPU kit in its folder gpu, into docs/benchmarks.md.

    python -m benchmarks.render [--results benchmarks/results] [--page docs/benchmarks.md]

What is between `<!-- results of NAME -->`, or `<!-- gpu PART -->`, and `<!-- end -->` is replaced. A file has the name
of its benchmark; `model_speed-h200.json` is from another machine, and gets a table of its own. A table of more than a
dozen rows becomes a CSV file beside the page, and the page shows the range of ratios for each group of rows (the name
up to its first comma or colon) and peer.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.page import sections
from benchmarks.report import ROOT, Row, as_text, format_number, parser_of, table
from hub.base.atomic import write_bytes
from hub.base.errors import InputError
from hub.base.tables import Table

# Rows of the longest table on the page.
LONGEST = 12
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"
PLACE = re.compile(r"(<!-- (results of|gpu) (\w+) -->\n).*?(<!-- end -->\n)", re.DOTALL)


def load(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Read the results of every benchmark. Raises InputError for a file of a benchmark without a place on the page."""
    results: dict[str, list[dict[str, Any]]] = {}
    for _, place_kind, name, _ in PLACE.findall(PAGE.read_text(encoding="utf-8")):
        if place_kind != "gpu":
            results[name] = []
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        if result["benchmark"] not in results:
            raise InputError(f"{path}: benchmark={result['benchmark']!r} is none of {', '.join(results)}")
        results[result["benchmark"]].append(result)
    return results


def write(page: Path, results: Path = RESULTS, gpu: Path | None = None) -> None:
    """Write the page with these results, those of the GPU kit in the folder `gpu`, and long tables beside it."""
    results_by_name = load(results)
    gpu_folder = gpu or results / "gpu"

    def fill(place: re.Match[str]) -> str:
        begin, place_kind, name, end = place.groups()
        if place_kind == "gpu":
            return begin + sections(name, gpu_folder) + end
        texts = [section(result, page.parent / "tables") for result in results_by_name[name]]
        return begin + "".join(texts) + end

    write_bytes(page, PLACE.sub(fill, PAGE.read_text(encoding="utf-8")).encode())


def section(result: dict[str, Any], tables: Path) -> str:
    """Format settings and machine, the rows, and what was skipped."""
    rows = [Row(**row) for row in result["rows"]]
    if len(rows) > LONGEST:
        path = _write_table(rows, tables / f"{result['benchmark']}.csv")
        shown_table = ranges(rows)
        link = f"\n[All {len(rows)} rows]({tables.name}/{path.name}).\n"
    else:
        shown_table = table(rows)
        link = ""
    head = f"{as_text(result['settings']) or 'No settings'} ({_when(result)}). {_where(result['machine'])}."
    skipped = "".join(f"\nSkipped: {reason}.\n" for reason in result["skipped"])
    return f"\n{head}\n\n{shown_table.markdown()}\n{link}{skipped}\n"


def _when(result: dict[str, Any]) -> str:
    busy = ""
    if result["other_work"] > 0.05:
        busy = f", **while other programs used {result['other_work']:.0%} of the cores**"
    return f"{result['date']}, commit {result['commit']}, {result['minutes']:g} min{busy}"


def _where(machine: dict[str, Any]) -> str:
    processor = f"{machine['cpu']}, {machine['cores']} cores, {machine['memory']}"
    return f"{processor}, GPU: {machine['gpu']}, {machine['system']}"


def _write_table(rows: Sequence[Row], path: Path) -> Path:
    """Write rows as a CSV file."""
    all_rows = table(rows)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([all_rows.header, *all_rows.rows])
    write_bytes(path, text.getvalue().encode())
    return path


def ranges(rows: Sequence[Row]) -> Table:
    """Count the rows of each group with one peer, and show the least and greatest of their ratios."""
    groups: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        if row.ratio is not None:
            group = re.split("[,:]", row.name)[0]
            groups.setdefault((group, row.peer or ""), []).append(row.ratio)
    cells = []
    for (name, peer), ratios in groups.items():
        bounds = dict.fromkeys(f"{format_number(ratio)}×" for ratio in (min(ratios), max(ratios)))
        cells.append({" ": name, "peer": peer, "rows": str(len(ratios)), "ratio": " to ".join(bounds)})
    return Table.of(cells)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args()
    write(options.page, options.results)
    print(f"wrote {options.page}")


if __name__ == "__main__":
    main()
