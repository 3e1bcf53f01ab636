"""Every table of the paper: printed value, ours, difference.

python -m studies.paper [compute_optimal] [--law printed] [--differing] [--json]
"""

from __future__ import annotations

import argparse

from rich.console import Group

from hub.plain.tables import show
from scaling_law import JointLaw
from studies.paper.study import TABLES, all_tables, find


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", choices=TABLES, help="one table")
    parser.add_argument("--differing", action="store_true", help="only cells that differ from print")
    parser.add_argument(
        "--law", default="published", help="published, printed (its rounded coefficients), or a saved joint law"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    own = options.law in ("published", "printed")
    law = JointLaw.published(options.law == "printed") if own else JointLaw.from_pretrained(options.law)
    tables = all_tables(law)
    chosen = [find(tables, options.name)] if options.name else tables
    data = [table.to_dict() for table in chosen] if options.json else None
    show(data, options.json, Group(*(table.render(options.differing) for table in chosen)))


if __name__ == "__main__":
    main()
