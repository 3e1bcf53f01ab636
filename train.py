"""`accelerate launch train.py --config FILE.yaml [--section.field value ...]`; see training/run/main.py."""

import sys

from training.configuration.reading import answer_help

if __name__ == "__main__":
    answer_help(sys.argv[1:])
    # It imports torch, for which --help does not wait.
    from training.run.main import main

    sys.exit(main())
