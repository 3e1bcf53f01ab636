"""What tuning the peak learning rate at 1M and 2M bytes, where experts begin to pay, would change.

The mean loss over seeds is taken as a parabola in ln rate for each size, E and D, weighted by the precision of the
means. Its least value between the rates tried stands for the model tuned at that D.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from studies.common import FloatArray
from studies.crossing.cells import DRAWS, Cells, Gap
from studies.crossing.laws import Value, counted, geometric
from studies.crossing.records import TUNED_AT, Sweep

FEWEST = 3  # rates that make a parabola
STEPS = 201  # of a grid in ln rate


@dataclass(frozen=True)
class Grid:
    """Mean losses of one size, E and D at several rates [k], over that used, with their standard errors."""

    d_model: int
    experts: int
    tokens: float
    rates: FloatArray
    seeds: FloatArray
    losses: FloatArray
    errors: FloatArray

    def best(self, losses: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The best rate, over that used, and what it gains (nats), for losses [..., k]."""
        x = np.log(self.rates)
        at = np.linspace(x.min(), x.max(), STEPS)
        parabola = np.linalg.pinv(np.vander(x, 3) / self.errors[:, None]) / self.errors
        coefficients = losses @ parabola.T
        curve = coefficients @ np.vander(at, 3).T
        return np.exp(at[curve.argmin(axis=-1)]), coefficients[..., -1] - curve.min(axis=-1)

    def drawn(self) -> tuple[FloatArray, FloatArray]:
        """`best` of draws of the means."""
        rng = np.random.default_rng((self.d_model, self.experts, int(self.tokens)))
        return self.best(self.losses + self.errors * rng.normal(size=(DRAWS, len(self.rates))))


def grids_of(sweep: Sweep) -> list[Grid]:
    """Grids at D below that at which the rates in use were tuned."""
    scatter, short = Cells.of(sweep.counted), sweep.every.subset(sweep.every.tokens < TUNED_AT)
    grids = []
    for rate in sweep.rates:
        model = short.subset((short["d_model"] == rate.d_model) & (short.experts == rate.experts))
        for tokens in np.unique(model.tokens):
            runs = model.subset(model.tokens == tokens)
            rates, of = np.unique(runs["learning_rate"], return_inverse=True)
            if len(rates) < FEWEST:
                continue
            seeds = np.bincount(of).astype(float)
            k = np.searchsorted(scatter.tokens, tokens)
            error = np.sqrt(scatter.scatter[rate.experts > 1][0][k, k] / seeds)
            losses = np.bincount(of, runs.loss) / seeds
            grids.append(Grid(rate.d_model, rate.experts, float(tokens), rates / rate.used, seeds, losses, error))
    return grids


def tuned(gap: Gap, grids: Sequence[Grid]) -> Gap:
    """The gap with both of its models at their best rates, at the D that have grids of both."""
    mean, draws = gap.mean.copy(), gap.draws.copy()
    for sign, experts in ((-1, gap.experts), (1, 1)):
        for grid in grids:
            if (grid.d_model, grid.experts) == (gap.d_model, experts):
                at = gap.tokens == grid.tokens
                mean[at] += sign * grid.best(grid.losses)[1]
                draws[:, at] += sign * grid.drawn()[1][:, None]
    return replace(gap, mean=mean, draws=draws)


def moved(gaps: Sequence[Gap], grids: Sequence[Grid]) -> Value:
    """Crossings at the best rates over those at the rates in use, the geometric mean over sizes that have grids."""
    sizes = {(grid.d_model, grid.experts) for grid in grids}
    pairs = [(tuned(gap, grids), gap) for gap in gaps if {(gap.d_model, gap.experts), (gap.d_model, 1)} <= sizes]
    drawn = [counted(a, a.drawn) / counted(b, b.drawn) for a, b in pairs]
    return geometric([counted(a, a.crossing) / counted(b, b.crossing) for a, b in pairs], drawn)
