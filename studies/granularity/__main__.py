"""docs/studies/granularity.md again, from its predictions and records; given runs, the records first.

    python -m studies.granularity studies/granularity studies/crossing/runs.jsonl docs/studies/granularity.md [--runs]
    python -m studies.granularity studies/granularity --predict

--predict asks the laws, once, before the runs.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from studies.crossing.records import gather
from studies.granularity.page import PREDICTION, RECORDS, write_page
from studies.granularity.prediction import predict, save


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("crossing", type=Path, nargs="?", help="records of our dense and top-1 models by AdamW")
    parser.add_argument("page", type=Path, nargs="?")
    parser.add_argument("--runs", type=Path, nargs="+", help="records of this experiment, and of its grids of rates")
    parser.add_argument("--predict", action="store_true", help="ask the laws, once")
    options = parser.parse_args()
    if options.predict:
        print(save(predict(), options.folder / PREDICTION))
    elif options.page is None:
        parser.error("crossing and page are needed, unless with --predict")
    else:
        written = [gather(options.runs, options.folder / RECORDS)] if options.runs else []
        print(*written, *write_page(options.folder, options.crossing, options.page), sep="\n")


if __name__ == "__main__":
    main()
