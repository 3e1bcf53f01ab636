"""Sizes: architectures and their parameters and FLOPs, model configurations, the batch ramp, and the paper's runs."""

from scaling_law.size.architecture import LatentAttention
from scaling_law.size.recipe import ROWS, BatchRamp, RampStage

__all__ = ["ROWS", "BatchRamp", "LatentAttention", "RampStage"]
