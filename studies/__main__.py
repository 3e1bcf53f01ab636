"""A page of docs/studies again, from the records of its study.

    python -m studies crossing | evidence | granularity | hours | learning_rates | live | models
                      [--runs RUNS…] [--predict [d_model:E …]]

--runs takes the records first: of runs (files, or folders of run.json), or for `evidence` and `learning_rates` the
public tables, anywhere below a folder. --predict writes down, once, what is expected of models that were not trained
yet.
"""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

STUDIES = Path(__file__).parent
PAGES = STUDIES.parent / "docs" / "studies"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = sorted(path.parent.name for path in STUDIES.glob("*/study.py") if path.parent.name != "paper")
    parser.add_argument("name", choices=names)
    parser.add_argument("--runs", type=Path, nargs="+")
    parser.add_argument("--predict", nargs="*", metavar="d_model:E")
    options = parser.parse_args()
    study = importlib.import_module(f"studies.{options.name}.study")
    written = study.take(options.runs) if options.runs else []
    if options.predict is not None:
        written += study.predict(options.predict)
    print(*written, *study.write(PAGES / f"{options.name}.md"), sep="\n")


if __name__ == "__main__":
    main()
