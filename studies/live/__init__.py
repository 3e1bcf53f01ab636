"""docs/studies/live.md: final losses forecast while runs train, on trunks that the forecasts have not seen."""
