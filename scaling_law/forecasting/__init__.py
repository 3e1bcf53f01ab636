"""The loss of runs that do not exist: `forecasters` are the laws, `stack` weighs them, `forecast` answers.

`ledger` keeps forecasts and their scores.
"""
