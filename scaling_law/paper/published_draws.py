"""The draws of the published law: refits of simulated runs, for intervals that the paper does not give.

The paper prints coefficients without errors and did not publish its losses, so these draws are this package's, not
the authors'. They are a parametric bootstrap of the fit: the 270 runs of the paper's listing get the losses of the
published law plus Gaussian noise, independent for each run, and each such table is refitted as `scaling_law.fit` fits
runs (equal weights, the default bounds), from the published coefficients. The noise is so large that the refits leave
the paper's RMSE of 0.0062 nats on average. What the intervals therefore leave out:

- Errors that runs of one trunk share. Noise per run counts every run as a measurement of its own; if half of its
  variance belonged to the trunk, intervals inside the fitted range would be 1.5 times as wide, if all of it did 1.9.
- Errors of the form itself. Far outside the fitted range the law may be wrong by much more than the draws spread.

Runs of up to 32 experts hardly determine E_max: a third of the refits end at its bound (E_max − E_start = 1e5), and
95 % above 30. Judge the draws by the losses they predict, not by single coefficients.

`python -m scaling_law.paper.published_draws FILE.npy` makes the file again that the package ships (20 seconds).
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray

from hub.plain.atomic import write_bytes
from hub.plain.commands import App, Version
from scaling_law.fitting.fitting import fit
from scaling_law.paper.published import RMSE, published_law
from scaling_law.runs.table import Runs
from scaling_law.size.recipe import published_design

N_DRAWS, SEED = 1000, 0

app = App(single=True)


def noise_level() -> float:
    """Standard deviation of the simulated losses, nats: the paper's RMSE, enlarged for the coefficients fitted."""
    n, fitted = len(published_design().tokens), len(published_law().coefficients)
    return RMSE * float(np.sqrt(n / (n - fitted)))


def make_draws(n_draws: int = N_DRAWS, seed: int = SEED) -> NDArray[np.float64]:
    """Coefficients of `n_draws` refits, [n_draws, 11], in the order of `JointLaw`; fewer draws are the first of more.

    Raises:
        ValueError: fewer than one draw.
        RuntimeError: a refit that did not converge.
    """
    if n_draws < 1:
        raise ValueError(f"n_draws={n_draws!r} must be at least 1")
    law, design = published_law(), published_design()
    columns = (design.n_active, design.tokens, design.experts)
    noise = np.random.default_rng(seed).normal(0.0, noise_level(), (n_draws, len(design.tokens)))
    draws = np.empty((n_draws, len(law.coefficients)))
    for i, errors in enumerate(noise):
        simulated = Runs.from_columns(*columns, law.loss(*columns) + errors, design.trunk)
        result = fit(simulated, starts=[law], outliers="keep")
        if not result.status.converged:
            raise RuntimeError(f"draw {i} of seed {seed}: the refit did not converge")
        draws[i] = tuple(result.law.coefficients.values())
    return draws


@app.command()
def main(
    output: Annotated[Path, typer.Argument(help="The .npy file to write: float64, [draws, 11].")],
    draws: Annotated[int, typer.Option(min=1, help="Number of refits.")] = N_DRAWS,
    seed: Annotated[int, typer.Option(help="Of the simulated noise.")] = SEED,
    version: Version = False,
) -> None:
    """Make the draws of the published law again."""
    if output.suffix != ".npy":
        raise ValueError(f"output={str(output)!r}: the suffix must be .npy")
    made = make_draws(draws, seed)
    content = io.BytesIO()
    np.save(content, made, allow_pickle=False)
    write_bytes(output, content.getvalue())
    print(f"wrote {output}: {len(made)} draws, noise {noise_level():.5f} nats, seed {seed}")


if __name__ == "__main__":
    app()
