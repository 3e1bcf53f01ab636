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
from benchmarks.report import ROOT, Row, as_text, parser_of, plain, table
from hub.base.atomic import write_bytes
from hub.base.errors import InputError
from hub.base.tables import Table

LONGEST = 12  # rows of a table on the page
RESULTS, PAGE = ROOT / "benchmarks" / "results", ROOT / "docs" / "benchmarks.md"
PLACE = re.compile(r"(<!-- (results of|gpu) (\w+) -->\n).*?(<!-- end -->\n)", re.DOTALL)


def load(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Benchmark → its results. ValueError for a file of a benchmark that has no place on the page."""
    known = [name for _, of, name, _ in PLACE.findall(PAGE.read_text(encoding="utf-8")) if of != "gpu"]
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in known}
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        if result["benchmark"] not in known:
            raise InputError(f"{path}: benchmark={result['benchmark']!r} is none of {', '.join(known)}")
        found[result["benchmark"]].append(result)
    return found


def write(page: Path, results: Path = RESULTS, gpu: Path | None = None) -> None:
    """Write the page with these results, those of the GPU kit in the folder `gpu`, and long tables beside it."""
    found, of_gpus = load(results), gpu or results / "gpu"

    def filled(place: re.Match[str]) -> str:
        if place[2] == "gpu":
            return place[1] + sections(place[3], of_gpus) + place[4]
        return place[1] + "".join(section(result, page.parent / "tables") for result in found[place[3]]) + place[4]

    write_bytes(page, PLACE.sub(filled, PAGE.read_text(encoding="utf-8")).encode())


def section(result: dict[str, Any], tables: Path) -> str:
    """Settings and machine, the rows, and what was skipped."""
    m, other = result["machine"], result["other_work"]
    where = f"{m['cpu']}, {m['cores']} cores, {m['memory']}, GPU: {m['gpu']}, {m['system']}"
    busy = f", **while other programs used {other:.0%} of the cores**" if other > 0.05 else ""
    when = f"{result['date']}, commit {result['commit']}, {result['minutes']:g} min{busy}"
    rows, every = [Row(**row) for row in result["rows"]], ""
    if len(rows) > LONGEST:
        path, whole, text = tables / f"{result['benchmark']}.csv", table(rows), io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([whole.header, *whole.rows])
        write_bytes(path, text.getvalue().encode())
        every = f"\n[All {len(rows)} rows]({tables.name}/{path.name}).\n"
    shown = (ranges(rows) if every else table(rows)).markdown()
    skipped = "".join(f"\nSkipped: {reason}.\n" for reason in result["skipped"])
    return f"\n{as_text(result['settings']) or 'No settings'} ({when}). {where}.\n\n{shown}\n{every}{skipped}\n"


def ranges(rows: Sequence[Row]) -> Table:
    """How often there is a group of rows with one peer, and the least and greatest of its ratios."""
    groups: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        if row.ratio is not None:
            groups.setdefault((re.split("[,:]", row.name)[0], row.peer or ""), []).append(row.ratio)
    spans = [dict.fromkeys(f"{plain(ratio)}×" for ratio in (min(of), max(of))) for of in groups.values()]
    return Table.of(
        [
            {" ": name, "peer": peer, "rows": str(len(ratios)), "ratio": " to ".join(span)}
            for ((name, peer), ratios), span in zip(groups.items(), spans, strict=True)
        ]
    )


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args()
    write(options.page, options.results)
    print(f"wrote {options.page}")


if __name__ == "__main__":
    main()
