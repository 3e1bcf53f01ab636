"""The loss of runs not yet trained: `forecasters` are the laws, `stack` weighs them, `forecast` answers.

`live` forecasts a run while it trains. `ledger` keeps forecasts and their scores.
"""
