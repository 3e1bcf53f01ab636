"""N with embeddings or without: backtests choose the count under which the runs follow a law."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from scaling_law import ChinchillaLaw, Runs, forecast, load_runs
from scaling_law.forecasting.counting import BODY, WITH, WITHOUT, count_points, with_both_counts

ROOT = Path(__file__).parents[3]
LAW = ChinchillaLaw(m=120.0, mu=-0.3, n=600.0, nu=-0.3, c=1.7)
VOCABULARY = 128_000
WIDTHS = np.array([256, 384, 512, 768, 1024, 1280])
KINDS = ("chinchilla", "prior", "prior of the constant")


def body_of(width):
    """Return N without embeddings of a model whose depth grows with its width."""
    return 12.0 * width**3 / 64


def sweep(counted: str, noise=0.002, columns=()) -> Runs:
    """Return runs of a law in this count of N."""
    width = np.repeat(WIDTHS, 3)
    ratio = np.tile([10.0, 30.0, 100.0], len(WIDTHS))
    body = body_of(width)
    n_active = body + 2 * width * VOCABULARY
    tokens = ratio * n_active
    size = body if counted == WITHOUT else n_active
    scatter = np.random.default_rng(0).standard_normal(len(size))
    loss = LAW.loss(size, tokens) * np.exp(noise * scatter)
    known = {
        "n_active_non_embedding": body,
        "d_model": width,
        "vocab_size": np.full(len(body), VOCABULARY),
    }
    kept = {name: known[name] for name in columns}
    return Runs.from_columns(n_active, tokens, 1.0, loss, "run", columns=kept)


SIZES = ("n_active_non_embedding",)
WIDE = 4096
LARGE = {"n_active": body_of(WIDE) + 2 * WIDE * VOCABULARY, "tokens": 1e12}


@pytest.mark.parametrize("truth", [WITH, WITHOUT])
def test_laws_of_the_true_count_have_the_weight(truth):
    answer = forecast(sweep(truth, columns=SIZES), LARGE, kinds=KINDS)
    assert max(answer.n_counts, key=answer.n_counts.get) == truth
    assert sum(answer.n_counts.values()) == pytest.approx(1)
    assert answer.to_dict()["n_counts"] == answer.n_counts
    assert any("without embeddings" in warning for warning in answer.warnings) == (truth == WITHOUT)
    n_counted = body_of(WIDE) if truth == WITHOUT else LARGE["n_active"]
    expected = LAW.loss(n_counted, LARGE["tokens"])
    (row,) = answer.rows
    assert row["loss"] == pytest.approx(expected, rel=0.01)
    assert row["low"] < expected < row["high"]
    assert row["n_active"] == LARGE["n_active"]


def test_a_law_that_is_silent_with_either_count_says_why():
    """Moved to losses of a simple corpus, the published law ends below zero."""
    runs = load_runs(ROOT / "studies" / "demo_runs" / "runs.jsonl")
    model = {"n_active": 1e6, "tokens": 2e7, "experts": 8}
    answer = forecast(runs, model, kinds=("chinchilla", "published"), mix="data_order")
    reasons = {answer.left_out[name] for name in ("published", f"published {WITHOUT}")}
    assert reasons == {"moved by its mean error on these runs, it ends below zero"}


def test_a_table_of_one_count_is_forecast_as_it_was():
    answer = forecast(sweep(WITHOUT), LARGE, kinds=("chinchilla",))
    assert not answer.n_counts


def test_widths_and_a_vocabulary_say_both_counts():
    by_width = with_both_counts(sweep(WITH, columns=("d_model", "vocab_size")))
    by_size = with_both_counts(sweep(WITH, columns=SIZES))
    np.testing.assert_allclose(by_width[BODY], by_size[BODY])
    assert BODY not in with_both_counts(sweep(WITH, columns=("d_model",)))
    wide = sweep(WITH, columns=("d_model",))
    known = dataclasses.replace(wide, vocab_size=VOCABULARY)
    np.testing.assert_allclose(with_both_counts(known)[BODY], by_width[BODY])


@pytest.mark.parametrize("change", [lambda body: body + 1e12, lambda body: body * np.nan])
def test_counts_that_cannot_be_are_not_used(change):
    runs = sweep(WITH, columns=SIZES)
    columns = {"n_active_non_embedding": change(runs["n_active_non_embedding"])}
    assert BODY not in with_both_counts(dataclasses.replace(runs, columns=columns))


def test_counts_that_differ_by_a_factor_tell_nothing_apart():
    runs = sweep(WITH, columns=SIZES)
    columns = {"n_active_non_embedding": 0.9 * runs.n_active}
    assert BODY not in with_both_counts(dataclasses.replace(runs, columns=columns))


def test_models_get_the_embeddings_of_the_runs_or_their_own():
    runs = with_both_counts(sweep(WITH, columns=SIZES))
    widths = np.array([300.0, 2048.0, 8192.0])
    n_active = body_of(widths) + 2 * widths * VOCABULARY
    models = Runs.from_columns(n_active, 1e11, 1.0, 2.0)
    np.testing.assert_allclose(count_points(models, runs)[BODY], body_of(widths), rtol=0.001)
    own = dataclasses.replace(models, columns={"n_active_non_embedding": n_active / 2})
    np.testing.assert_allclose(count_points(own, runs)[BODY], n_active / 2)


def test_a_model_may_say_its_own_count():
    runs = sweep(WITHOUT, columns=SIZES)
    model = LARGE | {"n_active_non_embedding": 0.5 * body_of(WIDE)}
    told = forecast(runs, model, kinds=("prior",))
    guessed = forecast(runs, LARGE, kinds=("prior",))
    assert told.rows[0]["loss"] > guessed.rows[0]["loss"]
