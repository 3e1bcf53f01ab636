"""`python -m training.run --config X.yaml`: train.py where that is not at hand."""

import sys

from training.configuration.reading import answer_help

if __name__ == "__main__":
    answer_help(sys.argv[1:])
    # It imports torch, for which --help does not wait.
    from training.run.main import main

    sys.exit(main())
