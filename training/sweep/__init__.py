"""Many runs from one file; `python -m training.sweep --help`."""
