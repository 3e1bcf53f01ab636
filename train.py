"""`accelerate launch train.py --config FILE.yaml [--section.field value ...]`; see training/run.py."""

import sys

from training.run import main

if __name__ == "__main__":
    sys.exit(main())
