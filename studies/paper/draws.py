"""The draws of the published law: refits of simulated runs, for intervals that the paper does not give.

A parametric bootstrap by this package, not the authors': the 270 listed runs get the published law's losses plus
independent Gaussian noise, and are refitted from its coefficients. docs/studies/paper.md lists what they leave out.
`python -m studies.paper.draws FILE.npy` makes the file again that the package ships (20 seconds).
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray

from hub.base.atomic import write_bytes
from hub.base.commands import App, Version
from hub.base.errors import InputError
from scaling_law import JointLaw, Runs, fit, published_design

N_DRAWS = 1000
SEED = 0

app = App(single=True)


def noise_level() -> float:
    """Return the standard deviation of the simulated losses, nats: the paper's RMSE, enlarged for its fit."""
    n_runs = len(published_design().tokens)
    law = JointLaw.published()
    n_coefficients = len(law.coefficients)
    # The published law has both.
    assert law.conditions is not None
    assert law.conditions.rmse is not None
    return law.conditions.rmse * float(np.sqrt(n_runs / (n_runs - n_coefficients)))


def make_draws(n_draws: int = N_DRAWS, seed: int = SEED) -> NDArray[np.float64]:
    """Refit `n_draws` simulations: coefficients [n_draws, 11] in the order of `JointLaw`.

    Fewer draws are the first of more. ValueError for fewer than one draw, RuntimeError for a refit that did not
    converge.
    """
    if n_draws < 1:
        raise InputError(f"n_draws={n_draws!r} must be at least 1")
    law = JointLaw.published()
    design = published_design()
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
        raise InputError(f"output={str(output)!r}: the suffix must be .npy")
    content = io.BytesIO()
    np.save(content, make_draws(draws, seed), allow_pickle=False)
    write_bytes(output, content.getvalue())
    print(f"wrote {output}: {draws} draws, noise {noise_level():.5f} nats, seed {seed}")


if __name__ == "__main__":
    app()
