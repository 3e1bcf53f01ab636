"""docs/studies/hours.md: predicted against published times of public training runs. The runs lie here, in runs.csv."""
