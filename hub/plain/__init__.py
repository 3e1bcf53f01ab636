"""What everything stands on, and knows nothing of runs: atomic files, errors, JSON, quantities, text and tables."""
