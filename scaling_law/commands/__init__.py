"""The shell command `scaling-law`."""
