"""Tables of runs: where they are read from, their columns, and which runs share a trunk."""

from scaling_law.runs.readers import reader
from scaling_law.runs.tuning import best_of

__all__ = ["best_of", "reader"]
