"""The shell command `scaling-law`."""

import gc

# Most of a short command is imports, whose objects stay: looking for garbage among them takes a tenth of it.
gc.set_threshold(100_000)
