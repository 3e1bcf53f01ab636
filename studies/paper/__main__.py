"""Print every table of the paper (printed value, ours, difference), and its findings asked of the law's draws.

python -m studies.paper [--law printed] [--differing]
"""

from __future__ import annotations

import argparse

from hub.base.tables import Tables, print_table
from scaling_law import JointLaw
from studies.paper.findings import findings_table
from studies.paper.study import all_tables


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--differing", action="store_true", help="only cells that differ from print")
    parser.add_argument(
        "--law", default="published", choices=("published", "printed"), help="printed: as rounded there"
    )
    options = parser.parse_args()
    law = JointLaw.published(options.law == "printed")
    tables = [table.render(options.differing) for table in all_tables(law).values()]
    if law.draws is not None:
        tables.append(findings_table(law))
    print_table(Tables(tables))


if __name__ == "__main__":
    main()
