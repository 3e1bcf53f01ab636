"""Peak learning rates: `law` gives that of a model, `surface` fits one from a grid of rates and batches."""
