"""docs/studies/demo_runs.md: its numbers from the records by a second way."""

import json
import re

import numpy as np
import pytest

import hub
from hub.base.units import parse_count
from scaling_law import JointLaw, fit, load_runs
from studies.demo_runs import study
from studies.demo_runs.crossings import Gaps, format_interval
from tests.guides import DOCS, text_of
from training.demo.loop import PAGES

PAGE_AS_WRITTEN = text_of(DOCS / "studies" / "demo_runs.md")
PAGE = " ".join(re.sub(r"<!-- =\S* -->|<!-- = -->", "", PAGE_AS_WRITTEN).split())
RECORDS = [json.loads(line) for line in text_of(study.RECORDS).splitlines()]
SEEDS = sorted({record["seed"] for record in RECORDS})
NEW_SEEDS = [seed for seed in SEEDS if seed != study.CHOSEN_ON]


@pytest.fixture(scope="module")
def losses():
    """(seed, d_model, E, D) → loss, of the runs that count."""
    return {
        (r["seed"], r["d_model"], r["experts"], r["tokens"]): r["eval_loss"] for r in RECORDS if r["tokens"] >= 990_000
    }


def test_all_runs_are_of_one_sweep_and_every_seed_has_the_same(losses):
    models = [{key[1:] for key in losses if key[0] == seed} for seed in SEEDS]
    assert all(runs == models[0] for runs in models)
    assert {record["sweep"] for record in RECORDS} == {"demo"}
    assert f"With each of {len(models[0]) * len(NEW_SEEDS)} runs of three new seeds" in PAGE
    assert (len(SEEDS), len(NEW_SEEDS)) == (4, 3)


def test_the_scatter_of_seeds(losses):
    runs = {key[1:] for key in losses}
    variances = [np.var([losses[(seed, *run)] for seed in SEEDS], ddof=1) for run in runs]
    assert f"scatters over seeds by {np.sqrt(np.mean(variances)):.3f}" in PAGE


def test_the_nearest_runs(losses):
    new = {key: loss for key, loss in losses.items() if key[0] in NEW_SEEDS}
    twin = [losses[seed, d, 9 - e, t] - loss for (seed, d, e, t), loss in new.items() if d < 96]
    tokens = sorted({key[3] for key in losses})
    nearest = []
    for (seed, d, e, t), loss in new.items():
        others = [losses[seed, d, e, u] for u in tokens if u != t and (seed, d, e, u) in losses]
        # Their tokens double; of two that are as near, the first counts.
        nearest.append((others[1] if t == tokens[-1] else others[0]) - loss)
    errors = [f"{np.sqrt(np.mean(np.square(values))):.3f}" for values in (twin, nearest)]
    assert number("run-nearest") == " to ".join(errors)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_run_that_the_demo_leaves_out(losses, seed):
    runs = [record for record in RECORDS if record["seed"] == seed and record["tokens"] >= 990_000]
    runs.sort(key=lambda record: (record["experts"], record["d_model"], record["tokens"]))
    longest = runs.pop()
    law = fit(load_runs(runs), prior="public").law
    predicted = float(law.loss(longest["n_active"], longest["tokens"], longest["experts"]))
    measured = f"{longest['eval_loss']:.3f}"
    assert re.search(rf"\| {seed} \| [\d.]+ \| [\d.]+ \| {measured} \| {predicted:.3f} \(", PAGE)


def test_the_demo_ends_with_the_coverage_of_this_page():
    assert f"with a whole model left out its intervals held {number('model-held')} losses" in PAGES


def number(name):
    """The number that the page's study has written under this name."""
    return re.search(rf"<!-- ={name} -->(.*?)<!--", PAGE_AS_WRITTEN)[1]


def test_crossings_are_where_the_losses_cross():
    law = JointLaw.published().replace(a=5.2, alpha=-0.11, b=9200.0, beta=-0.71, c=0.1, conditions=None)
    first = [record for record in hub.load_records(study.RECORDS) if record.seed == SEEDS[0]]
    by_law = [
        record.replaced(eval_loss=float(law.loss(record.n_active, record.tokens, record.experts))) for record in first
    ]
    for gaps in Gaps.of(by_law):
        true = law.speedup(gaps.experts, n_active=gaps.n_active).rows[0]["tokens"]
        assert parse_count(gaps.crossing) == pytest.approx(true, rel=0.1)  # the loss is no straight line in ln D


@pytest.mark.parametrize(("gap", "text"), [(-0.1, "before 250K"), (0.1, "after 2M")])
def test_a_crossing_outside_the_runs_is_not_guessed(gap, text):
    between = (250_000, 2_000_000)
    assert Gaps(32, 56_000, 8, dict.fromkeys(between, gap)).crossing == text
    assert format_interval(0.0, np.inf, between) == "anywhere"
    assert format_interval(5e5, np.inf, between) == "500K to after 2M"
