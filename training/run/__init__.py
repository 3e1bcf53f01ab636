"""One training run: `main` has the loop, `inputs` what it reads, `model` what it trains, `step` one update, `progress`
what is remembered from step to step, `results` the model and record."""
