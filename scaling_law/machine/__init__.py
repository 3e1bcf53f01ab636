"""Hardware: GPUs by name, step times, memory in training, communication between GPUs, and the cost of serving.

Everything here is about one model on given devices; which model to train on them is asked in `scaling_law.planning`.
"""

from scaling_law.machine.efficiency import Efficiency, published_runs
from scaling_law.machine.gpus import GPUS, Gpu
from scaling_law.machine.memory import TrainingMemory, training_memory
from scaling_law.machine.serving import decode_seconds
from scaling_law.machine.throughput import ModelWork

__all__ = [
    "GPUS",
    "Efficiency",
    "Gpu",
    "ModelWork",
    "TrainingMemory",
    "decode_seconds",
    "published_runs",
    "training_memory",
]
