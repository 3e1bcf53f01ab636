"""`python -m training.release`: the command `scaling-law release`."""

import sys

from scaling_law.commands.cli import app

app(["release", *sys.argv[1:]])
