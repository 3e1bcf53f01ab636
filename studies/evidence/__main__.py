"""docs/studies/evidence.md again, from its points; with the public tables at hand, the points first.

    python -m studies.evidence studies/evidence docs/studies/evidence.md [--data FOLDER]

FOLDER holds the tables under their own names, anywhere below it; docs/fitting.md says where they are from.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from studies.evidence.page import write_page
from studies.evidence.points import derive


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("points", type=Path)
    parser.add_argument("page", type=Path)
    parser.add_argument("--data", type=Path, help="the public tables, to derive the points again")
    options = parser.parse_args()
    written = derive(options.data, options.points) if options.data else []
    print(*written, *write_page(options.points, options.page), sep="\n")


if __name__ == "__main__":
    main()
