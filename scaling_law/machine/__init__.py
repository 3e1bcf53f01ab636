"""Hardware: GPUs by name, step times, memory in training, communication between GPUs, and the cost of serving.

Everything here is about one model on given devices; which model to train on them is asked in `scaling_law.planning`.
"""

from scaling_law.machine.memory import TrainingMemory, training_memory
from scaling_law.machine.serving import decode_seconds

__all__ = ["TrainingMemory", "decode_seconds", "training_memory"]
