"""The loss of runs not yet trained: `forecasters` are the laws, `stack` weighs them, `forecast` answers.

`ledger` keeps forecasts and their scores.
"""
