"""The report on one folder of runs: results, findings, figures, page."""
