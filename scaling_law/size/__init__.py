"""Sizes: parameters, FLOPs, memory, the batch ramp, and the runs of the paper."""
