"""Simulated laboratories: forecasts of runs whose law is known, inside the public population and outside of it.

A laboratory has 3 to 6 sizes, each twice the last, at 3 to 5 ratios D/N from 5 to 160, and runs that scatter by 0.2 to
1 %. Inside, its interaction law is drawn from the population in other units. Outside, one part of such a law is then
another: the constant (times or over 1.5), the exponents (times or over 1.5), the interaction (q = 0.35 or 2.5), or a
floor that the losses approach above the constant. It is asked for one run each at N×10, D×10, C×10 and C×30 of its
largest run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scaling_law import Law, Runs, fit, forecast, prior
from scaling_law.fitting.prior import OTHER_CORPUS, for_kind, law_of
from studies.common import FloatArray, Part, read_csv, rms, rows_of, write_csv
from studies.forecasts.methods import FRESH, SEEDS

RECORDS = Path(__file__).with_name("simulated.csv")
INSIDE = "inside"
OUTSIDE = ("constant", "exponents", "interaction", "floor")
LABS = 300
# N and D of the models that are asked, over those of the largest run.
MODELS = np.array([(10, 1), (1, 10), (10**0.5, 10**0.5), (30**0.5, 30**0.5)])
NAMES = ("N×10", "D×10", "C×10", "C×30")
# Laws whose losses leave these limits are of no laboratory.
LOSSES = (1.0, 10.0)
# A floor lies this far above the constant, and bends as the root of this power.
FLOOR = 1.15
BEND = 12.0


@dataclass(frozen=True)
class Simulated:
    """A laboratory: errors of its forecasts and of the better fresh fit, and whether intervals held (1) or not."""

    truth: str
    seed: int
    runs: int
    error: float
    better: float
    larger_n: int
    larger_d: int
    larger_c: int
    largest_c: int

    @property
    def held(self) -> FloatArray:
        """1 for each of `MODELS` whose interval held its run, else 0."""
        return np.array([self.larger_n, self.larger_d, self.larger_c, self.largest_c], float)


def simulate(truth: str, seed: int) -> Simulated | None:
    """Forecast for one laboratory; None where its losses are of none, or no fresh form can be fitted."""
    rng = np.random.default_rng((seed, len(truth)))
    loss = _draw_loss(truth, rng)
    sizes = np.exp(rng.uniform(np.log(3e7), np.log(3e8))) * 2.0 ** np.arange(rng.integers(3, 7))
    ratios = np.geomspace(5, 160, rng.integers(3, 6))
    n, ratio = (values.ravel() for values in np.meshgrid(sizes, ratios))
    losses = loss(n, n * ratio)
    if losses.min() < LOSSES[0] or losses.max() > LOSSES[1]:
        return None
    noise = np.exp(rng.uniform(np.log(0.002), np.log(0.01)))
    noisy_losses = losses * np.exp(noise * rng.standard_normal(len(n)))
    runs = Runs.from_columns(n, n * ratio, 1.0, noisy_losses, "run")
    largest = int(np.argmax(runs.flops))
    models = {"n_active": n[largest] * MODELS[:, 0], "tokens": n[largest] * ratio[largest] * MODELS[:, 1]}
    expected = loss(models["n_active"], models["tokens"])
    errors = []
    for kind in FRESH:
        try:
            errors.append(rms(fit(runs, kind).law.loss(**models) - expected))
        except ValueError:
            continue
    if not errors:
        return None
    rows = forecast(runs, models).rows
    new_runs = expected * np.exp(noise * rng.standard_normal(len(MODELS)))
    is_inside = [int(row["low"] <= new_run <= row["high"]) for row, new_run in zip(rows, new_runs, strict=True)]
    error = rms(np.array([row["loss"] for row in rows]) - expected)
    return Simulated(truth, seed, len(n), max(error, SEEDS), max(min(errors), SEEDS), *is_inside)


def _draw_loss(truth: str, rng: np.random.Generator) -> Callable[[Any, Any], FloatArray]:
    """Draw the loss of a laboratory as a function of N and D."""
    population = for_kind(prior("public").in_units(*OTHER_CORPUS), "interaction")
    x = rng.multivariate_normal(population.mean, population.covariance)
    law: Law = law_of(population.coordinates.natural(x), "interaction")
    values = law.coefficients
    factor = 1.5 if rng.random() < 0.5 else 1 / 1.5
    changes: dict[str, float] = {}
    if truth == "constant":
        changes = {"c": values["c"] * factor}
    elif truth in ("exponents", "interaction"):
        # The terms stay what they are at 1B parameters and 20B tokens.
        q = values["q"] if truth == "exponents" else (2.5 if factor > 1 else 0.35)
        stretch = factor if truth == "exponents" else 1.0
        for scale, exponent, reference in (("a", "x", 1e9), ("b", "y", 2e10)):
            steepness = values[exponent] * values["q"] * stretch
            term = (values[scale] * reference ** -values[exponent]) ** values["q"]
            changes[exponent] = steepness / q
            changes[scale] = term ** (1 / q) * reference ** (steepness / q)
        changes["q"] = q
    changed = law.replace(**changes)
    if truth != "floor":
        return lambda n, d: np.asarray(changed.loss(n, d))
    floor = FLOOR * values["c"]
    return lambda n, d: np.asarray((changed.loss(n, d) ** BEND + floor**BEND) ** (1 / BEND))


def write(count: int = LABS) -> Path:
    """Simulate so many laboratories inside, and so many outside, and write the records."""
    records = _simulate_labs((INSIDE,), count)
    records += _simulate_labs(OUTSIDE, count)
    return write_csv(RECORDS, rows_of(records, Simulated))


def _simulate_labs(truths: tuple[str, ...], count: int) -> list[Simulated]:
    """Simulate laboratories of these truths in turn, until there are so many."""
    records: list[Simulated] = []
    seed = 0
    while len(records) < count:
        record = simulate(truths[seed % len(truths)], seed)
        if record is not None:
            records.append(record)
        seed += 1
    return records


def read() -> list[Simulated]:
    """Read the records."""
    return read_csv(RECORDS, Simulated)


def simulated(records: list[Simulated]) -> Iterator[Part]:
    """List the errors and the shares of runs in their intervals, inside and outside."""
    yield (
        "laboratories",
        "number",
        "error over the better fresh fit's",
        "largest",
        *(f"in 90 %, {name}" for name in NAMES),
    )
    groups: dict[str, list[Simulated]] = {}
    for truth in (INSIDE, *OUTSIDE):
        groups[truth] = [record for record in records if record.truth == truth]
    groups["all outside"] = [record for record in records if record.truth != INSIDE]
    for name, group in groups.items():
        ratios = np.array([record.error / record.better for record in group])
        shares = np.mean([record.held for record in group], axis=0)
        mean = float(np.exp(np.log(ratios).mean()))
        yield name, len(group), f"{mean:.2f}", f"{ratios.max():.1f}", *(f"{share:.0%}" for share in shares)
