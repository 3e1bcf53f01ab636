"""docs/studies/crossing.md again, from its records; given the runs of a sweep, the records first.

    python -m studies.crossing studies/crossing docs/studies/crossing.md [--runs RUNS…] [--predict [80:12 …]]

RUNS are files of records, or folders of run.json: together they replace the records. --predict writes down, once,
where experts begin to pay for models (d_model:E) that no run has shown yet.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from studies.crossing.page import PREDICTION, RECORDS, read_page, write_page
from studies.crossing.prediction import ASKED, predict, save
from studies.crossing.records import gather


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("page", type=Path)
    parser.add_argument("--runs", type=Path, nargs="+", help="records of the sweep, and of its grids of rates")
    parser.add_argument("--predict", nargs="*", type=_model, help="d_model:E, default 80:12 and 80:3")
    options = parser.parse_args()
    records = options.folder / RECORDS
    written = [gather(options.runs, records)] if options.runs else []
    if options.predict is not None:
        made = predict(read_page(options.folder).results, records, options.predict or ASKED)
        written.append(save(made, options.folder / PREDICTION))
    print(*written, *write_page(options.folder, options.page), sep="\n")


def _model(text: str) -> tuple[int, int]:
    d_model, experts = text.split(":")
    return int(d_model), int(experts)


if __name__ == "__main__":
    main()
