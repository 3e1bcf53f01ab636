"""The loss of runs not yet trained: `forecast` answers by one law under a prior.

`promote` says whether a win survives scale, by `trends`. `live` forecasts a run while it trains, and `diagnose` says
whether it is as fast as it should be.
"""
