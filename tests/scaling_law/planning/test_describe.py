"""A released model beside a law: sizes, E, the loss with its range, and the law's own choice."""

import pytest

from hub.base.errors import InputError
from hub.base.tables import as_text
from scaling_law import describe
from scaling_law import published as shelf
from tests.scaling_law.configs import MIXTRAL, QWEN3_MOE, SWITCH


def test_a_model_of_the_paper_is_itself(published):
    description = describe(SWITCH, tokens=16e9)
    assert description.warnings[0].startswith("the law's choice")  # none about the model itself
    n, d = description.architecture.n_active, 16e9
    p = description.prediction
    assert (p.loss, p.training_flops) == (published.loss(n, d, 8), 6 * n * d)
    assert p.loss_interval[0] < p.loss < p.loss_interval[1]
    assert p.trusted
    best = p.optimum.best
    assert best.loss < p.loss
    assert best.weight_bytes <= description.architecture.weight_bytes() * (1 + 1e-9)
    assert best.training_flops == pytest.approx(p.training_flops)


def test_what_the_law_ignores_is_named():
    description = describe(MIXTRAL)
    assert description.architecture.experts_equivalent == 4
    assert description.warnings == ("E = 4 stands for 8 experts; the law ignores top-2 routing, granularity 2",)
    assert (description.prediction, description.trusted) == (None, True)
    text = as_text(description)
    assert "12.9B, 12.6B without embedding and head" in text
    assert "loss" not in text


def test_tokens_may_be_text_and_the_prediction_has_its_range():
    description = describe(MIXTRAL, tokens="2T", context="4k")
    assert description.prediction.tokens == 2e12
    assert any("D 2T is outside the fitted" in warning for warning in description.warnings)
    exact = description.to_dict()["flops_per_token"]["training_exact"]
    assert exact == description.architecture.training_flops(1, 4096)
    assert "recipe, not the model's." in as_text(description)


def test_far_outside_the_law_refuses_to_choose():
    small = SWITCH | {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 768}
    description = describe(small, tokens=10_000 * 60e6)
    assert description.prediction.tokens / description.architecture.n_active > 10_000
    assert not description.trusted
    assert description.prediction.optimum is None
    assert "too far from the runs of this law" in description.prediction.refusal
    assert "not to be trusted" in as_text(description)
    assert describe(small, tokens=10_000 * 60e6, force=True).prediction.optimum is not None


def test_no_choice_is_named_where_the_models_own_experts_were_not_compared(published):
    """At 36T tokens all E near 16 are beyond the guard: the best of those left is no answer to such a model."""
    description = describe(QWEN3_MOE, tokens="36T")
    p, own = description.prediction, description.architecture.experts_equivalent
    limits = {"memory": description.architecture.weight_bytes(), "vocab_size": 151936}
    assert own not in {row.experts for row in published.optimal(p.training_flops, **limits).compared}
    assert p.optimum is None
    assert p.refusal.startswith("E = 16 of the model cannot be compared: too far from the runs of this law to answer")
    assert "the law's choice    none: E = 16 of the model" in as_text(description)
    compared = describe(QWEN3_MOE, tokens="1T")
    # The model itself is not trusted, so it may be better than the best that is.
    assert (compared.prediction.trusted, compared.prediction.optimum.trusted) == (False, True)
    assert "(+0.0099), the best that is trusted" in as_text(compared)
    assert describe(QWEN3_MOE, tokens="1T", force=True).prediction.optimum.best.loss < compared.prediction.loss
    forced = describe(QWEN3_MOE, tokens="36T", force=True).prediction
    assert own in {row.experts for row in forced.optimum.compared}


def test_a_law_without_experts_chooses_for_any_model():
    assert describe(QWEN3_MOE, tokens="1T", law=shelf("besiroglu"), force=True).prediction.optimum is not None


def test_mfu_is_the_flops_of_a_run_over_the_peak_of_its_gpus():
    description = describe(MIXTRAL, context="4k")
    flops = description.architecture.training_flops(1, 4096)
    assert description.flops_per_token()["training_exact"] == flops
    assert description.mfu("100K", "h100", 16) == pytest.approx(1e5 * flops / (16 * 989e12))
    assert description.mfu(1000, "peak=148T,memory=96GB") == pytest.approx(1000 * flops / 148e12)
    short = describe(MIXTRAL)
    assert short.mfu(1000) == pytest.approx(1000 * 6 * short.architecture.n_active / 989e12)
    for options, message in (
        ({"tokens_per_second": 1e9}, "times the peak of 1 NVIDIA H100 SXM"),
        ({"tokens_per_second": -1}, "tokens_per_second=-1 must be positive"),
        ({"tokens_per_second": 1, "gpu": "abacus"}, "gpu='abacus' is unknown"),
    ):
        with pytest.raises(InputError, match=message):
            description.mfu(**options)
