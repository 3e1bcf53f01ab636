"""`accelerate launch train.py --config FILE.yaml [--section.field value ...]`; see training/run/main.py."""

import sys

# `run.main` imports torch, for which neither --help nor an error waits, and Accelerate, which reads variables.
from training import run
from training.run.attempt import parse_or_exit

if __name__ == "__main__":
    arguments = parse_or_exit(sys.argv[1:])
    sys.exit(run.main.main(arguments))
