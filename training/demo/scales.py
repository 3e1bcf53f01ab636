"""The two sizes of the demo, and how its law is fitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scaling_law import FitResult, Law, Runs, fit


@dataclass(frozen=True)
class Scale:
    """Size of a demo: its sweep file, the bytes of text it takes, draws of the law, and the budget it asks for.

    The runs that `where` selects count for the law: before so many tokens, a model knows little more than pairs of
    letters, and its loss follows no power law. The best model for `flops` lies inside the sizes and tokens of the
    sweep. `seconds` are those of each step on two idle cores.
    """

    sweep: str
    corpus_bytes: int
    where: str
    draws: int
    flops: float
    seconds: Mapping[str, float]


def fit_law(runs: Runs) -> FitResult[Law]:
    """Fit the joint law under the public prior: so few runs do not identify all of its coefficients."""
    return fit(runs, kind="joint", prior="public")


FULL = Scale(
    "demo.yaml",
    12_000_000,
    "D >= 990K",
    500,
    1e12,
    {"Corpus": 63, "Tokenizer": 2, "Sweep": 315, "Release": 2, "Fit": 2, "Ask": 2, "Use": 2},
)
FAST = Scale(
    "demo-fast.yaml",
    2_000_000,
    "D >= 74K",
    100,
    7e10,
    {"Corpus": 15, "Tokenizer": 1, "Sweep": 77, "Release": 1, "Fit": 2, "Ask": 1, "Use": 4},
)
