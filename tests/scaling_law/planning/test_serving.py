"""Hours that train and serve, against the sum of both for every model; and the split of a budget."""

import numpy as np
import pytest

from hub.base.tables import as_text
from scaling_law import JointLaw, Limits
from scaling_law.machine.serving import decode_seconds

CLUSTER = {"gpu": "h100", "gpus": 8}
SERVED = {"inference_tokens": 1e11, "decode_batch": 32, "kv_tokens": 65_536}


@pytest.fixture(scope="module")
def law():
    return JointLaw.published()


def serving_hours(model, gpus=8):
    return 1e11 * decode_seconds(model, "h100", 32, 65_536 / 32) / gpus / 3600


def test_no_model_that_exists_trains_and_serves_better_in_the_hours(law):
    table = law.optimal(hours=300, experts=[1, 8], force=True, **CLUSTER, **SERVED)
    cluster, limits = table.budget.cluster, Limits.of(law, kv_tokens=65_536)
    widths = limits.ladder.rungs(1e4)
    for row in table:
        left = np.array([300 - serving_hours(limits.architecture(width, row.experts)) for width in widths])
        models = limits.widths(widths[left > 0], row.experts)
        # Time by time, where the search takes the times of all models at once.
        tokens = [
            float(cluster.tokens(limits.widths(width, row.experts), 3600 * hours))
            for width, hours in zip(widths[left > 0], left[left > 0], strict=True)
        ]
        losses = law.loss(models.n_active, np.array(tokens), row.experts)
        assert row.loss == pytest.approx(losses.min(), abs=1e-9)
        assert row.d_model == widths[np.argmin(losses)]
        training = float(cluster.seconds(limits.widths(row.d_model, row.experts), row.tokens)) / 3600
        assert training + serving_hours(row.architecture) == pytest.approx(300, rel=1e-6)
        assert row.serving_share == pytest.approx(serving_hours(row.architecture) / 300, rel=1e-6)


def test_more_to_serve_never_gives_a_lower_loss(law):
    question = {"hours": 300, "kv_tokens": 65_536, "decode_batch": 32, **CLUSTER}
    losses = [law.optimal(**question, inference_tokens=served).trusted_loss for served in (0.0, 1e9, 1e11, 3e11)]
    assert losses == sorted(losses)
    assert losses[0] == law.optimal(hours=300, kv_tokens=65_536, **CLUSTER).trusted_loss


def test_the_split_is_printed_and_planned(law):
    table = law.optimal(hours=300, price=2, **CLUSTER, **SERVED)
    share = table.best.serving_share
    assert f"{1 - share:.0%} training, {share:.0%} serving" in as_text(table)
    assert table.best.price_per_million == pytest.approx(1e6 * table.best.decode_seconds * 2 / 3600)
    plan = law.plan(hours=300, **CLUSTER, **SERVED)
    spent = plan.gpu_hours / 8 + serving_hours(plan.architecture)
    assert spent <= 300
    assert plan.serving_share == pytest.approx(serving_hours(plan.architecture) / spent, rel=1e-3)
    assert f"{share:.0%} serving" in as_text(plan)


def test_the_split_of_flops(law):
    row = law.optimal(1e21, inference_tokens=1e11).best
    assert row.serving_share == pytest.approx(row.inference_flops / (row.inference_flops + row.training_flops))
    assert law.optimal(1e21).best.serving_share is None


def test_hours_that_serving_takes_whole_are_refused(law):
    question = {"hours": 24, **CLUSTER, "kv_tokens": 65_536}
    with pytest.raises(
        ValueError,
        match=r"hours=24 are too few for one training step: .* h to serve inference_tokens=1e",
    ):
        law.optimal(**question, inference_tokens=1e15, decode_batch=32)
    with pytest.raises(ValueError, match="give a budget of flops, not of hours, or decode_batch"):
        law.optimal(**question, inference_tokens=1e9)
