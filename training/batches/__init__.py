"""From the token cache to the micro-batches of one process: a pure function of seed and position."""
