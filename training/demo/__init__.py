"""The whole loop on this machine; `python -m training.demo --help`."""
