"""The base of all packages, independent of runs: atomic files, errors, JSON, quantities, text and tables."""
