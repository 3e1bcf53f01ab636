"""The loss of runs not yet trained: `forecasters` are the laws, `stack` weighs them, `forecast` answers.

`promote` says whether a win survives scale, by `trends`.
`live` forecasts a run while it trains.
"""
