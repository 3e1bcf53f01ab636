"""An experiment predicted beforehand: dense and MoE models of the same total parameters, planned from a law."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hub.plain import strict_json
from hub.plain.tables import ResultTable, Table
from hub.plain.units import format_flops
from scaling_law.fitting.uncertainty import Bootstrap
from scaling_law.law import JointLaw
from scaling_law.planning.optimum import compute_optimal
from scaling_law.runs.table import Runs
from scaling_law.size.architecture import HEAD_DIM, Architecture, affordable_tokens

FloatArray = NDArray[np.float64]
Role = Literal["same FLOPs", "E times the tokens"]
FORMAT, VERSION = "matched_experiment", 1
MEMORY_TOLERANCE = 0.005  # by which an MoE may exceed the dense model's total parameters
TOKEN_TOLERANCE = 0.01  # within which a run's tokens are those of the plan: training rounds to whole batches


@dataclass(frozen=True)
class MatchedModel:
    """One model of the experiment. Tokens; loss and its 95 % interval for one new run, in nats per token."""

    architecture: Architecture
    tokens: int
    role: Role
    loss: float
    low: float
    high: float


@dataclass(frozen=True)
class MatchedPlan(ResultTable):
    """The models, the dense one first, and the provenance and coefficients of the law that predicted them."""

    flops: float
    law: str
    models: tuple[MatchedModel, ...]
    warnings: tuple[str, ...] = ()

    def save(self, path: str | Path) -> Path:
        """Write the plan as JSON, atomically."""
        models = [asdict(m) | {"architecture": m.architecture.to_dict()} for m in self.models]
        return strict_json.write(path, FORMAT, VERSION, asdict(self) | {"models": models})

    @classmethod
    def load(cls, path: str | Path) -> MatchedPlan:
        """Read what `save` wrote; ValueError for anything else."""
        try:
            data = strict_json.read(path, FORMAT, VERSION)
            models = (m | {"architecture": Architecture(**m["architecture"])} for m in data["models"])
            warnings = tuple(map(str, data.get("warnings", ())))  # plans written before had none
            return cls(float(data["flops"]), str(data["law"]), tuple(MatchedModel(**m) for m in models), warnings)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: not the plan of a matched experiment ({error})") from None

    def summary(self) -> Table:
        rows = []
        for m in self.models:
            a = m.architecture
            sizes = {"d_model": a.d_model, "n_active": a.n_active, "n_total": a.n_total, "tokens": m.tokens}
            predicted = {"loss": m.loss, "95 %": f"{m.low:.3f}…{m.high:.3f}"}
            rows.append({"experts": a.experts, "compared at": m.role} | sizes | predicted)
        title = f"{format_flops(self.flops)} FLOPs, the same memory: predicted losses"
        first = ("N_act", "tokens", "loss")
        return Table.of(rows, keys=("E", "compared at"), first=first, title=title, warnings=self.warnings)

    def to_rows(self) -> list[dict[str, Any]]:
        """One dict of plain values for each model: architecture, tokens, role, loss with its interval."""
        rows = [asdict(m) | m.architecture.to_dict() | {"n_active": m.architecture.n_active} for m in self.models]
        return [{name: value for name, value in row.items() if name != "architecture"} for row in rows]

    def configurations(self) -> list[dict[str, Any]]:
        """The sections of `train.py` of one trunk for each architecture; a sweep file takes them `from` the plan."""
        runs: dict[Architecture, list[int]] = {}
        for model in self.models:
            runs.setdefault(model.architecture, []).append(model.tokens)
        return [{"model": a.shape, "schedule": {"tokens": sorted(tokens)}} for a, tokens in runs.items()]


def plan_matched(
    fitted: Bootstrap,
    flops: float,
    experts: Sequence[int] = (2, 4),
    *,
    n_blocks: int | None = None,
    vocab_size: int | None = None,
    force: bool = False,
) -> MatchedPlan:
    """The dense model nearest the compute-optimal one for `flops`, and for each E the two MoE models beside it.

    The intervals are those of single new runs. `n_blocks` is the number of blocks and of heads of all models; None
    means d_model / 64. ValueError where no model of an E is as small as the dense one; ExtrapolationError where a
    model lies beyond the law's range guard, unless `force`.
    """
    law = fitted.law
    if not isinstance(law, JointLaw):
        raise ValueError(f"a {law.name} law cannot plan this; a joint law is needed")
    wanted = float(compute_optimal(law, flops, 1.0, force=force).n_active)
    vocabulary = law.vocab_size if vocab_size is None else vocab_size

    def predicted(a: Architecture, tokens: int, role: Role) -> MatchedModel:
        at = (a.n_active, tokens, a.experts)
        low, high = fitted.prediction_interval(*at, kind="prediction")
        return MatchedModel(a, tokens, role, float(law.loss(*at)), float(low), float(high))

    def same_flops(a: Architecture) -> MatchedModel:
        return predicted(a, round(float(affordable_tokens(flops, a.n_active))), "same FLOPs")

    sizes = _architectures(1, n_blocks, vocabulary, 4 * wanted)
    dense = same_flops(min(sizes, key=lambda a: abs(math.log(a.n_active / wanted))))
    models, n_total = [dense], dense.architecture.n_total
    for e in experts:
        fitting = _architectures(e, n_blocks, vocabulary, n_total * (1 + MEMORY_TOLERANCE))
        if not fitting:
            raise ValueError(f"experts={e}: no model has at most the {n_total:,} parameters of the dense one")
        models += [same_flops(fitting[-1]), predicted(fitting[-1], e * dense.tokens, "E times the tokens")]
    columns = ((m.architecture.n_active, m.tokens, m.architecture.experts) for m in models)
    n_active, spent, numbers = zip(*columns, strict=True)
    (check := law.check(n_active, spent, numbers)).refuse(force)
    values = ", ".join(f"{name} {value:.6g}" for name, value in law.coefficients.items())
    source = f"{law.conditions.provenance if law.conditions else law.name}: {values}"
    return MatchedPlan(flops, source, tuple(models), check.warnings)


def measured(plan: MatchedPlan, runs: Runs) -> list[list[float]]:
    """The losses of the runs of each model of the plan (nats per token), one for each seed; an empty list for none."""
    found = []
    for model in plan.models:
        own = (runs.experts == model.architecture.experts) & (runs.n_active == model.architecture.n_active)
        own &= abs(runs.tokens / model.tokens - 1) <= TOKEN_TOLERANCE
        found.append(runs.loss[own].tolist())
    return found


def _architectures(experts: int, n_blocks: int | None, vocab_size: int, largest: float) -> list[Architecture]:
    """All models of at most `largest` total parameters, by ascending width; heads have an even width."""
    found: list[Architecture] = []
    step = HEAD_DIM if n_blocks is None else 2 * n_blocks
    for d in range(step, 2**16, step):
        architecture = Architecture(d, experts, n_blocks, n_blocks, vocab_size)
        if architecture.n_total > largest:
            break
        found.append(architecture)
    return found
