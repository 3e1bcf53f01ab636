"""docs/granularity.md again, from its predictions and records; given runs, the records first.

    python -m scaling_law.report.granularity docs/granularity docs/crossing/runs.jsonl docs/granularity.md [--runs …]
    python -m scaling_law.report.granularity docs/granularity --predict

--predict asks the laws, once, before the runs.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from scaling_law.report.crossing.records import gather
from scaling_law.report.granularity.page import PREDICTION, RECORDS, write_page
from scaling_law.report.granularity.prediction import predict, save


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
