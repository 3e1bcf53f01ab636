"""docs/studies/diagnose.md: each public run left out, judged as it is and at half its speed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from scaling_law import Architecture, diagnose
from scaling_law.forecasting import diagnose as diagnosing
from scaling_law.forecasting.diagnose import LIKE, SLOW, PublicRun
from scaling_law.machine import GPUS, Efficiency
from studies.common import Page, Part
from studies.hours.fit import fit_rates
from studies.hours.runs import Timed, read
from studies.hours.study import RUNS

# What is wanted of all rows: the share that is flagged, and that of rows at half their speed.
MOST_FLAGGED = 0.10
LEAST_FLAGGED_AT_HALF = 0.70
# maxtext #1256: the width of an expert, experts, those of a token, and the MFU on a TPU v5p without attention.
MAXTEXT: dict[str, tuple[int, int, int, float]] = {
    "8 experts, 2 active": (14336, 8, 2, 0.504),
    "56 experts, 14 active": (2048, 56, 14, 0.28),
}
# Megatron-LM #1841: widths of an expert, experts, and those of a token, of which we know the feed-forward width alone.
MEGATRON = ((8640, 8, 2), (8640, 16, 1), (1080, 64, 8))


@dataclass(frozen=True)
class Results:
    """The public rows, and how each is judged by the others."""

    rows: Sequence[Timed]

    @cached_property
    def public(self) -> list[PublicRun]:
        """Each row with its speed over that which all others lead to expect."""
        runs = []
        for i, row in enumerate(self.rows):
            remaining_rows = [*self.rows[:i], *self.rows[i + 1 :]]
            parameters, covariance = fit_rates(remaining_rows)
            rates = Efficiency(parameters, covariance, np.zeros(5), len(remaining_rows), 0)
            runs.append(_judge(row, rates))
        return runs

    @cached_property
    def has_experts(self) -> np.ndarray:
        return np.array([run.has_experts for run in self.public])

    def flagged(self, factor: float) -> np.ndarray:
        """Return whether each row is said to be low at this factor of its speed, by the other rows [n]."""
        weights = np.log([run.weights for run in self.public])
        speeds = np.array([run.relative_speed for run in self.public])
        verdicts = []
        for i in range(len(speeds)):
            is_alike = self.has_experts == self.has_experts[i]
            is_alike[i] = False
            distances = np.where(is_alike, np.abs(weights - weights[i]), np.inf)
            nearest = np.argsort(distances, kind="stable")[: min(LIKE, is_alike.sum())]
            verdicts.append(np.mean(speeds[nearest] < factor * speeds[i]) < SLOW)
        return np.array(verdicts)


def _judge(row: Timed, rates: Efficiency) -> PublicRun:
    """Return a row with its MFU, and its speed over that by these rates, as `diagnose` computes both."""
    gpu = GPUS[row.gpu]
    expected_seconds = rates.step_seconds(row.work, gpu, row.gpus, row.precision)
    return PublicRun(
        name=row.name,
        gpu=gpu.name,
        gpus=row.gpus,
        precision=row.precision,
        has_experts=row.routed_blocks > 0,
        weights=float(round(row.n_multiplied)),
        mfu=round(float(row.work["flops"]) * row.tokens_per_second / gpu.peak_flops, 4),
        relative_speed=round(expected_seconds * row.tokens_per_second, 4),
        source=row.source,
    )


def ship(r: Results) -> Path:
    """Write the public runs that `diagnose` compares with."""
    return diagnosing.write(r.public)


def verdicts(r: Results) -> Iterator[Part]:
    """List the shares of public rows that are said to be low, as they are and slowed down."""
    yield "rows", "n", "as published", "at 0.7 of the speed", "at half", "at a third"
    shares = [r.flagged(factor) for factor in (1.0, 0.7, 0.5, 1 / 3)]
    masks = {"dense": ~r.has_experts, "MoE": r.has_experts, "all": np.ones(len(r.public), bool)}
    for name, mask in masks.items():
        yield name, int(mask.sum()), *(f"{share[mask].mean():.0%}" for share in shares)


def speeds(r: Results) -> Iterator[Part]:
    """List how speeds of public runs lie around what the others lead to expect."""
    yield "rows", "n", "5 %", "median", "95 %", "MFU, 5 %", "median", "95 %"
    for name, mask in {"dense": ~r.has_experts, "MoE": r.has_experts}.items():
        runs = [run for run, is_shown in zip(r.public, mask, strict=True) if is_shown]
        of_speed = np.quantile([run.relative_speed for run in runs], [0.05, 0.5, 0.95])
        of_mfu = np.quantile([run.mfu for run in runs], [0.05, 0.5, 0.95])
        yield name, len(runs), *(f"{x:.2f}" for x in of_speed), *(f"{x:.0%}" for x in of_mfu)


def mixtral(d_expert: int, experts: int, active: int) -> Architecture:
    """Return Mixtral-8x7B with other experts."""
    return Architecture(
        4096,
        experts,
        32,
        32,
        32000,
        experts_per_token=active,
        n_kv_heads=8,
        head_dim=128,
        gated=True,
        d_expert=d_expert,
    )


def finer_experts(r: Results) -> Iterator[Part]:
    """List the MFU that is expected of a Mixtral with finer experts, beside maxtext #1256 on a TPU v5p."""
    yield "Mixtral-8x7B", "maxtext #1256, without attention", "expected on 64 H100s", "judged on a TPU v5p"
    for name, (d_expert, experts, active, mfu) in MAXTEXT.items():
        model = mixtral(d_expert, experts, active)
        expected = diagnose(model, tokens_per_second=1e5, gpu="h100", gpus=64).expected_mfu
        on_tpu = diagnose(model, tokens_per_second=1e5, gpu="tpu-v5p", gpus=64).decision
        yield name, f"{mfu:.1%}", f"{expected:.0%}", on_tpu


def slow(r: Results) -> Iterator[Part]:
    """List what is said of Megatron-LM #1841, 6.3 % MFU on 16 A100s, for experts that it may have had."""
    yield "experts of d\\_model 2880, 24 blocks", "expected MFU", "90 % of public runs", "said of 6.3 %"
    for d_expert, experts, active in MEGATRON:
        model = Architecture(2880, experts, 24, 24, 32000, experts_per_token=active, gated=True, d_expert=d_expert)
        mfu_of_a_token = diagnose(model, tokens_per_second=1.0, gpu="a100", gpus=16).mfu
        answer = diagnose(model, tokens_per_second=0.063 / mfu_of_a_token, gpu="a100", gpus=16)
        name = f"{experts} of width {d_expert}, {active} active"
        interval = f"{answer.expected_low or 0:.0%} to {answer.expected_high or 0:.0%}"
        yield name, f"{answer.expected_mfu:.0%}", interval, answer.decision


def diagnosed(r: Results) -> Iterator[Part]:
    """List every row with its MFU and its speed over that which the others lead to expect."""
    yield "name", "gpu", "gpus", "precision", "weights", "mfu", "speed_over_expected", "flagged", "flagged_at_half"
    for run, *flags in zip(r.public, r.flagged(1.0), r.flagged(0.5), strict=True):
        yield (
            run.name,
            run.gpu,
            run.gpus,
            run.precision,
            f"{run.weights:.4g}",
            run.mfu,
            run.relative_speed,
            *map(int, flags),
        )


def values(r: Results) -> dict[str, str]:
    """Return the numbers in the page's sentences."""
    return {
        "rows": str(len(r.public)),
        "flagged": f"{r.flagged(1.0).mean():.0%}",
        "half": f"{r.flagged(0.5).mean():.0%}",
    }


CLAIMS = {
    "at most a tenth of public rows is flagged": lambda r: r.flagged(1.0).mean() <= MOST_FLAGGED,
    "most rows are flagged at half their speed": lambda r: r.flagged(0.5).mean() >= LEAST_FLAGGED_AT_HALF,
    "rows with experts are, too": lambda r: r.flagged(0.5)[r.has_experts].mean() >= LEAST_FLAGGED_AT_HALF,
}

PAGE = Page(
    lambda: Results(read(RUNS)),
    blocks=(verdicts, speeds, slow, finer_experts),
    tables=(diagnosed,),
    values=values,
    claims=CLAIMS,
)
