"""One training run: `main` has the loop, `inputs` what it reads, `step` one update, `results` the model and record."""
