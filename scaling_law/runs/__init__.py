"""Tables of runs: where they are read from, their columns, and which runs share a trunk."""
