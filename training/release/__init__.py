"""From trained models to a release, here or on the Hub; `python -m training.release --help`."""
