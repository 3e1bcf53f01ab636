"""The two sizes of the demo, and how its law is fitted."""

from __future__ import annotations

from dataclasses import dataclass

from scaling_law import FitResult, Law, Runs, fit


@dataclass(frozen=True)
class Scale:
    """Size of a demo: its sweep file, the bytes of text it takes, draws of the law, and the budget it asks for.

    The runs that `where` selects count for the law: before so many tokens, a model knows little more than pairs of
    letters, and its loss follows no power law. The best model for `flops` lies inside the sizes and tokens of the
    sweep.
    """

    sweep: str
    corpus_bytes: int
    where: str
    draws: int
    flops: float


def fit_law(runs: Runs) -> FitResult[Law]:
    """Fit the joint law under the public prior: so few runs do not identify all of its coefficients."""
    return fit(runs, kind="joint", prior="public")


FULL = Scale("demo.yaml", 12_000_000, "D >= 990K", 500, 1e12)
FAST = Scale("demo-fast.yaml", 2_000_000, "D >= 74K", 100, 7e10)
