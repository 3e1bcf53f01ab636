"""Sizes: architectures and their parameters and FLOPs, model configurations, the batch ramp, and the paper's runs."""

from scaling_law.size.architecture import LatentAttention, active_parameters, affordable_tokens, width_of_total
from scaling_law.size.recipe import ROWS, BatchRamp, RampStage

__all__ = [
    "ROWS",
    "BatchRamp",
    "LatentAttention",
    "RampStage",
    "active_parameters",
    "affordable_tokens",
    "width_of_total",
]
