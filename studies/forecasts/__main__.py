"""The tables of docs/studies/forecasts.md, the list of splits, and what the library ships of the public sets.

    python -m studies.forecasts splits|prior|stack|page|accuracy --data FOLDER
    python -m studies.forecasts experts

FOLDER holds the public tables under their own names, anywhere below it; `sets.py` says where they are from, and every
table that is missing is named. `splits` is run once, before anything is tuned; `prior` writes
scaling_law/fitting/population.json, `stack` scaling_law/forecasting/defaults.json, `accuracy`, from one of the tables
alone, scaling_law/formulas/accuracy.json and its section of the page. `experts` needs no table: from the points of
studies/evidence it derives the terms of E in population.json and their section of the page; `prior` does so, too, but
for the page.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from studies.common import fill
from studies.forecasts import accuracy, experts
from studies.forecasts.page import PAGE, write, write_stack
from studies.forecasts.population import write_population
from studies.forecasts.sets import read_sets
from studies.forecasts.splits import make_splits, write_list


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("splits", "prior", "stack", "page", "accuracy", "experts"))
    parser.add_argument("--data", type=Path, help="the public tables (for all but experts)")
    options = parser.parse_args()
    if options.what == "experts":
        results = experts.result()
        print(experts.write(results), fill(PAGE, experts.BLOCKS, results), sep="\n")
        return
    if options.data is None:
        parser.error(f"--data: {options.what} needs the folder of the public tables")
    if options.what == "accuracy":
        print(*accuracy.write(options.data, PAGE), sep="\n")
        return
    tables, missing = read_sets(options.data)
    print(*missing, sep="\n", file=sys.stderr)
    if not tables:
        raise SystemExit(2)
    if options.what == "splits":
        print(write_list(make_splits(tables)))
    elif options.what == "prior":
        print(write_population(tables))
    elif options.what == "stack":
        print(write_stack(tables))
    else:
        print(*write(tables), sep="\n")


if __name__ == "__main__":
    main()
