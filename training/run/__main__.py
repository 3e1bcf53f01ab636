"""`python -m training.run --config X.yaml`, which is what train.py runs."""

import sys

from training.run.main import main

if __name__ == "__main__":
    sys.exit(main())
