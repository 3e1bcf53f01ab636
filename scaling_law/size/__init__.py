"""Sizes: architectures and their parameters and FLOPs, model configurations, the batch ramp, the paper's runs, and
normal draws."""

from scaling_law.size.architecture import LatentAttention, active_parameters, affordable_tokens, width_of_total
from scaling_law.size.draws import draw_normal
from scaling_law.size.recipe import ROWS, BatchRamp, RampStage

__all__ = [
    "ROWS",
    "BatchRamp",
    "LatentAttention",
    "RampStage",
    "active_parameters",
    "affordable_tokens",
    "draw_normal",
    "width_of_total",
]
