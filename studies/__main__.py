"""Write a page of docs/studies again, from the records of its study.

    python -m studies anatomy | crossing | demo_runs | diagnose | evidence | granularity | hours | learning_rates
                      | live | models | promote
                      [--runs RUNS…] [--predict [d_model:E …]]

--runs takes the records first: of runs (files, or folders of run.json), or for `anatomy`, `evidence`, `hours`,
`learning_rates` and `promote` public tables, or a folder somewhere above them. --predict writes down, once, what is
expected of models that were not trained yet.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from hub.base.errors import InputError

STUDIES = Path(__file__).parent
PAGES = STUDIES.parent / "docs" / "studies"
# The function of a study that an option calls before the page is written.
ACTIONS = {"runs": "take", "predict": "predict"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = sorted(path.parent.name for path in STUDIES.glob("*/study.py") if path.parent.name != "paper")
    parser.add_argument("name", choices=names)
    parser.add_argument("--runs", type=Path, nargs="+")
    parser.add_argument("--predict", nargs="*", metavar="d_model:E")
    options = parser.parse_args()
    study = importlib.import_module(f"studies.{options.name}.study")
    written = []
    for option, action in ACTIONS.items():
        values = getattr(options, option)
        if values is None:
            continue
        if not hasattr(study, action):
            parser.error(f"--{option}: the study {options.name!r} has none")
        written += getattr(study, action)(values)
    content = study.PAGE.read()
    # A study with a `ship` also writes what the library takes from it.
    if hasattr(study, "ship"):
        written.append(study.ship(content))
    print(*written, *study.PAGE.write(PAGES / f"{options.name}.md", content), sep="\n")


if __name__ == "__main__":
    try:
        main()
    except (InputError, FileExistsError, FileNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
