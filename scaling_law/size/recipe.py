"""How the paper's runs were trained (Ludziejewski et al. 2025, Section "Model Hyperparameters"): every value, once.

Where the text and the code of the runs differ, both are here. The defaults of `train.py` are `PAPER`; so are those of
plans, of presets and of the published learning-rate law.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from scaling_law.size.batch_ramp import RampStage


@dataclass(frozen=True)
class Recipe:
    """A training recipe. Tokens, shares, coefficients; `batch_ramp` in sequences of `sequence_length` tokens.

    `learning_rate` holds (intercept, slope of ln N, slope of ln E) of the law of the peak rate: "code" as the runs
    used it, "paper" as the text prints it. `capacity_factor` is that of training; balance and z-loss are summed over
    layers.
    """

    sequence_length: int = 512
    batch_ramp: tuple[RampStage, ...] = (
        RampStage(0, 128),
        RampStage(500_000_000, 256),
        RampStage(1_000_000_000, 512),
    )
    warmup_tokens: int = 130_000_000
    decay_fraction: float = 0.2
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    decay_all: bool = True
    gradient_clip: float = 0.1
    capacity_factor: float = 1.0
    balance_loss: float = 0.01
    z_loss: float = 0.001
    dataset: str = "HuggingFaceFW/fineweb-edu"
    tokenizer: str = "openai-community/gpt2"
    experts: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    learning_rate: dict[str, tuple[float, float, float]] = field(
        default_factory=lambda: {
            "code": (8.391640956, -0.8121798244, -0.25),
            "paper": (8.39, -0.81, -0.25),
        }
    )


PAPER = Recipe()
