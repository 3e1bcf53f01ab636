"""`python -m training.run --config X.yaml`: train.py where that is not at hand."""

import sys

# It imports torch, for which --help does not wait, and Accelerate, which reads variables, where it is used.
from training import run
from training.configuration.reading import answer_help
from training.configuration.variables import exit_on_unreadable_variables

if __name__ == "__main__":
    answer_help(sys.argv[1:])
    exit_on_unreadable_variables()
    sys.exit(run.main.main())
