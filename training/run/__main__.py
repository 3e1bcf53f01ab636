"""`python -m training.run --config X.yaml`: train.py where that is not at hand."""

import sys

from training.run.main import main

if __name__ == "__main__":
    sys.exit(main())
