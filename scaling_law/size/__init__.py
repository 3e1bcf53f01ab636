"""Sizes: parameters, FLOPs, memory, step times, the batch ramp, and the runs of the paper."""
