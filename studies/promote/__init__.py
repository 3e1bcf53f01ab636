"""Does a small win survive scale? A backtest of `promote` on pairs of public and own runs."""
