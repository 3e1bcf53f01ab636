"""Write the tables of docs/studies/forecasts.md, and what the library ships of the public sets.

    python -m studies.forecasts prior|stack|page|counts|accuracy|misses --data FOLDER
    python -m studies.forecasts experts|extrapolation|trust

FOLDER holds the public tables under their own names, anywhere below it; `sets.py` says where they are from, and every
table that is missing is named: the page leaves its sets out, `prior` and `stack` refuse. `prior` writes
scaling_law/fitting/population.json, `stack` scaling_law/forecasting/defaults.json and the page, `counts` its section
on the counts of N, `accuracy`, from one of the tables alone, scaling_law/formulas/accuracy.json and its section of the
page. `experts` needs no table: from the points of studies/evidence it derives the terms of E in population.json and
their section of the page; `prior` does so, too, but for the page. `misses` writes misses.csv, from which
`extrapolation` derives the rule in scaling_law/formulas/evidence.json and its section of the page; `trust` writes the
table of docs/answers.md from that file.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from studies.forecasts import accuracy, counts, extrapolation, page, population, trust
from studies.forecasts.sets import read_sets
from studies.forecasts.stacking import cases_of, write_defaults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    of_tables = ("prior", "stack", "page", "counts", "accuracy", "misses")
    parser.add_argument("what", choices=(*of_tables, "experts", "extrapolation", "trust"))
    parser.add_argument("--data", type=Path, help=f"the public tables (for {', '.join(of_tables)})")
    options = parser.parse_args()
    if options.what == "experts":
        folds = population.folds()
        members = population.members_of_experts(population.read_sources(population.POINTS))
        written = [population.write_experts(members, folds), *population.PAGE.write(page.FORECASTS, folds)]
    elif options.what == "extrapolation":
        misses = extrapolation.read()
        written = [extrapolation.write_rule(misses), *extrapolation.PAGE.write(page.FORECASTS, misses)]
    elif options.what == "trust":
        written = trust.PAGE.write(trust.ANSWERS)
    elif options.data is None:
        parser.error(f"--data: {options.what} needs the folder of the public tables")
    elif options.what == "accuracy":
        written = accuracy.write(options.data, page.FORECASTS)
    else:
        tables, missing = read_sets(options.data)
        print(*missing, sep="\n", file=sys.stderr)
        # The files that ship need all sets.
        if not tables or (missing and options.what in ("prior", "stack")):
            raise SystemExit(2)
        if options.what == "prior":
            written = [population.write_population(tables)]
        elif options.what == "misses":
            written = [extrapolation.write_misses(tables)]
        elif options.what == "counts":
            written = counts.write(tables, page.FORECASTS)
        else:
            cases = [*cases_of(tables)]
            written = page.page(cases).write(page.FORECASTS)
            if options.what == "stack":
                written.append(write_defaults(cases))
    print(*written, sep="\n")


if __name__ == "__main__":
    main()
