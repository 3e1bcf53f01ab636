"""Sizes: parameters, FLOPs, memory, step times, the batch ramp, and the runs of the paper."""

from scaling_law.size.architecture import LatentAttention
from scaling_law.size.recipe import ROWS
from scaling_law.size.serving import decode_seconds
from scaling_law.size.training_memory import TrainingMemory, training_memory

__all__ = ["ROWS", "LatentAttention", "TrainingMemory", "decode_seconds", "training_memory"]
