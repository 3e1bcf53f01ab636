"""What laws say of the comparisons of docs/granularity.md, written down once, before the runs.

python -m scaling_law.report.granularity docs/granularity --predict
"""

from __future__ import annotations

import argparse
from pathlib import Path

from scaling_law.report.granularity.prediction import predict, save

PREDICTION = "prediction.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--predict", action="store_true", required=True, help="ask the laws, once")
    options = parser.parse_args()
    print(save(predict(), options.folder / PREDICTION))


if __name__ == "__main__":
    main()
