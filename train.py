"""`accelerate launch train.py --config FILE.yaml [--section.field value ...]`; see training/run/main.py."""

import sys

from training.run.main import main

if __name__ == "__main__":
    sys.exit(main())
