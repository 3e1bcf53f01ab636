"""Write what docs/studies/forecasts.md has from elsewhere, and what the library ships of the public sets.

    python -m studies.forecasts prior|accuracy|misses --data FOLDER
    python -m studies.forecasts experts|extrapolation|trust|simulated

`python -m studies forecasts` writes the rest of the page. FOLDER holds the public tables under their own names,
anywhere below it; `sets.py` says where they are from. `prior` writes scaling_law/fitting/population.json, `accuracy`,
from one of the tables alone, scaling_law/formulas/accuracy.json and its section of the page. `experts` needs no table:
from the points of studies/evidence it derives the terms of E in population.json and their section of the page; `prior`
does so, too, but for the page. `misses` writes misses.csv, from which `extrapolation` derives the rule in
scaling_law/formulas/evidence.json and its section of the page; `trust` writes the table of docs/answers.md from that
file, and `simulated` the records of simulated laboratories.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from studies.forecasts import accuracy, extrapolation, population, simulated, trust
from studies.forecasts.sets import read_sets

FORECASTS = Path(__file__).parents[2] / "docs" / "studies" / "forecasts.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    of_tables = ("prior", "accuracy", "misses")
    parser.add_argument("what", choices=(*of_tables, "experts", "extrapolation", "trust", "simulated"))
    parser.add_argument("--data", type=Path, help=f"the public tables (for {', '.join(of_tables)})")
    options = parser.parse_args()
    if options.what == "experts":
        folds = population.folds()
        members = population.members_of_experts(population.read_sources(population.POINTS))
        written = [population.write_experts(members, folds), *population.PAGE.write(FORECASTS, folds)]
    elif options.what == "extrapolation":
        misses = extrapolation.read()
        written = [extrapolation.write_rule(misses), *extrapolation.PAGE.write(FORECASTS, misses)]
    elif options.what == "trust":
        written = trust.PAGE.write(trust.ANSWERS)
    elif options.what == "simulated":
        written = [simulated.write()]
    elif options.data is None:
        parser.error(f"--data: {options.what} needs the folder of the public tables")
    elif options.what == "accuracy":
        written = accuracy.write(options.data, FORECASTS)
    else:
        tables, missing = read_sets(options.data)
        print(*missing, sep="\n", file=sys.stderr)
        # The files that ship need all sets.
        if missing:
            raise SystemExit(2)
        if options.what == "prior":
            written = [population.write_population(tables)]
        else:
            written = [extrapolation.write_misses(tables)]
    print(*written, sep="\n")


if __name__ == "__main__":
    main()
