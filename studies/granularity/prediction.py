"""What the laws of the shelf say of each comparison, written down before the runs.

A law is asked for the ratio of two losses, which does not depend on the unit: its own losses are per token of another
corpus. Where it cannot tell the two models apart by the variables that it has, or was fitted at one E and is asked of
two, it cannot say.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from hub.base import strict_json
from scaling_law import Architecture, Law, PublishedLaw, laws
from scaling_law.formulas import EfficiencyLeverage
from scaling_law.law.describe import unknown_parts
from studies.common import LEVEL, write_once
from studies.granularity.contenders import ALL, CONTENDERS, TOKENS, Contender

FORMAT, SAME = "granularity_prediction", "takes both for the same model"


@dataclass(frozen=True)
class Prediction:
    """What one law says of one comparison at D `tokens`.

    `ratio` is the loss over that of the model compared with, `low` to `high` its 95 % interval (None: the law has
    none). `leverage`, of laws that have no loss, is how many times the compute the other model needs for the same
    loss. Both are None where the law cannot say, and `why` says why.
    """

    law: str
    contender: str
    tokens: float
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    leverage: float | None = None
    why: str = ""


def predict() -> tuple[Prediction, ...]:
    """Every law of the shelf that answers a loss or a leverage, on every comparison."""
    shelf = [law for law in laws().entries if law.answers in ("loss", "leverage")]
    return tuple(_said(law, contender, tokens) for law in shelf for contender in CONTENDERS for tokens in TOKENS)


def _said(entry: PublishedLaw, contender: Contender, tokens: float) -> Prediction:
    other, said = ALL[contender.against], Prediction(entry.name, contender.name, tokens)
    if contender.optimizer != other.optimizer:
        return replace(said, why="has no optimizer among its variables")
    if not entry.published:
        return replace(said, why="its coefficients are not public")
    law, pair = entry.law(), (contender.architecture, other.architecture)
    if isinstance(law, EfficiencyLeverage):
        one, two = (_leverage(law, architecture, tokens) for architecture in pair)
        return replace(said, why=SAME) if one == two else replace(said, leverage=one / two)
    assert isinstance(law, Law)
    if why := _cannot_say(law, *pair):
        return replace(said, why=why)
    every = [architecture.variables() | {"tokens": tokens} for architecture in pair]
    first, second = ({name: variables[name] for name in law.variables} for variables in every)
    said = replace(said, ratio=float(law.loss(**first) / law.loss(**second)))
    if law.draws is None:
        return said
    low, high = map(float, np.quantile(law.loss_draws(**first) / law.loss_draws(**second), LEVEL))
    return replace(said, low=low, high=high)


def _cannot_say(law: Law, one: Architecture, two: Architecture) -> str:
    """Why a law has no ratio of these two; "" if it has."""
    if unknown := unknown_parts(one, law) or unknown_parts(two, law):
        return f"ignores {', '.join(unknown)}"
    first, second = ({name: a.variables().get(name) for name in law.variables} for a in (one, two))
    if first == second:
        return SAME
    low, high = law.conditions.fitted_limits().get("E", (0.0, 1.0)) if law.conditions else (0.0, 1.0)
    if low == high and one.experts_equivalent != two.experts_equivalent:
        return f"was fitted at E = {low:g} alone"
    return ""


def _leverage(law: EfficiencyLeverage, a: Architecture, tokens: float) -> float:
    """Leverage over a dense model as the law counts it: FLOPs without embeddings, G = 2 d_model / d_expert."""
    if a.experts == 1:
        return 1.0
    flops, granularity = 6.0 * a.n_active_non_embedding * tokens, 2.0 * a.d_model / a.d_expert
    return float(law.leverage(1.0 / a.experts_equivalent, granularity, flops, force=True))


def write(path: Path) -> Path:
    """Ask the laws and write what they say; FileExistsError if that is done."""
    said = [{k: v for k, v in asdict(one).items() if v not in (None, "")} for one in predict()]
    return write_once(path, FORMAT, {"predictions": said})


def load(path: Path) -> tuple[Prediction, ...]:
    """What `write` wrote."""
    return tuple(Prediction(**fields) for fields in strict_json.read(path, FORMAT, 1)["predictions"])
