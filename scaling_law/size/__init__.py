"""Sizes: architectures and their parameters and FLOPs, model configurations, families of released models, the batch
ramp, the paper's runs, and normal draws."""

from scaling_law.size.architecture import LatentAttention, active_parameters, affordable_tokens, width_of_total
from scaling_law.size.draws import draw_normal
from scaling_law.size.family import Family
from scaling_law.size.model_configs import read_model, released_models, released_names
from scaling_law.size.recipe import ROWS, BatchRamp, RampStage

__all__ = [
    "ROWS",
    "BatchRamp",
    "Family",
    "LatentAttention",
    "RampStage",
    "active_parameters",
    "affordable_tokens",
    "draw_normal",
    "read_model",
    "released_models",
    "released_names",
    "width_of_total",
]
