"""One training run: model, loop, checkpoints, evaluation, records."""
