"""Print every table of the paper (printed value, ours, difference), and its findings asked of the law's draws.

python -m studies.paper [--law printed] [--differing]
python -m studies.paper --figures FOLDER [--law LAW] [--suffix png | svg | pdf]

--figures draws every figure of the paper that follows from a law instead.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from hub.base.tables import Tables, print_table
from scaling_law import JointLaw
from studies.paper.figures import draw_all
from studies.paper.findings import findings_table
from studies.paper.study import all_tables


def _choose(name: str) -> JointLaw:
    """Choose the published law, as recovered or as printed, or that of a folder."""
    if name in ("published", "printed"):
        return JointLaw.published(rounded=name == "printed")
    return JointLaw.from_pretrained(name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--differing", action="store_true", help="only cells that differ from print")
    parser.add_argument("--law", default="published", help="published, printed (as rounded there), or a law's folder")
    parser.add_argument("--figures", type=Path, metavar="FOLDER", help="draw the figures instead")
    parser.add_argument("--suffix", default="png", choices=("png", "svg", "pdf"), help="of the figures")
    options = parser.parse_args()
    law = _choose(options.law)
    if options.figures is not None:
        print(*draw_all(law, options.figures, options.suffix), sep="\n")
        return
    tables = [table.render(options.differing) for table in all_tables(law).values()]
    if law.draws is not None:
        tables.append(findings_table(law))
    print_table(Tables(tables))


if __name__ == "__main__":
    main()
