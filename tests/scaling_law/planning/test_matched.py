"""A matched experiment: equal memory and FLOPs to the parameter, the law's predictions, and the losses beside them."""

import pytest

from scaling_law import ExtrapolationError, JointLaw, Runs, fit
from scaling_law.report.matched import MatchedPlan, measured, plan_matched
from tests.scaling_law.synthetic import synthetic_runs
from training.sweep.file import Sweep

FLOPS = 1e20


@pytest.fixture(scope="module")
def fitted():
    return fit(synthetic_runs(), starts=[JointLaw.published()]).bootstrap(40)


def test_memory_and_budget_are_the_dense_models(fitted):
    plan = plan_matched(fitted, FLOPS, (2, 4, 8), n_blocks=12)
    dense, *moes = plan.models
    best = fitted.law.compute_optimal(FLOPS, 1.0)
    assert dense.architecture.n_active == pytest.approx(float(best.n_active), rel=0.05)
    assert [m.architecture.experts for m in moes] == [2, 2, 4, 4, 8, 8]
    for model in moes:
        assert 0.95 < model.architecture.n_total / dense.architecture.n_total <= 1.005
        assert model.architecture.blocks == 12
    for model in plan.models:
        assert model.low < model.loss < model.high
        assert model.loss == fitted.law.loss(model.architecture.n_active, model.tokens, model.architecture.experts)
        if model.role == "same FLOPs":
            assert model.architecture.training_flops(model.tokens) == pytest.approx(FLOPS, rel=1e-6)
        else:
            assert model.tokens == model.architecture.experts * dense.tokens


def test_what_cannot_fit_or_be_trusted_is_refused(fitted):
    with pytest.raises(ValueError, match="experts=1024: no model has at most"):
        plan_matched(fitted, 1e15, (1024,), vocab_size=64)
    chinchilla = fit(synthetic_runs().subset(synthetic_runs().experts == 1), "chinchilla").bootstrap(4)
    with pytest.raises(ValueError, match="a joint law is needed"):
        plan_matched(chinchilla, FLOPS)
    with pytest.raises(ExtrapolationError, match="N_act"):
        plan_matched(fitted, 1e28, (2,))
    assert any("do not act" in warning for warning in plan_matched(fitted, 1e28, (2,), force=True).warnings)


def test_a_saved_plan_is_the_same_and_what_is_none_is_refused(fitted, tmp_path):
    plan = plan_matched(fitted, FLOPS, (2,))
    assert MatchedPlan.load(plan.save(tmp_path / "plan.json")) == plan
    assert plan.to_dataframe().n_active.tolist() == [m.architecture.n_active for m in plan.models]
    for text in ("[]", "no json", '{"format": "matched_experiment", "version": 2}'):
        (tmp_path / "broken.json").write_text(text)
        with pytest.raises(ValueError, match=r"broken\.json: not the plan of a matched experiment"):
            MatchedPlan.load(tmp_path / "broken.json")


def test_measured_losses_come_to_their_model_with_every_seed(fitted):
    plan = plan_matched(fitted, FLOPS, (2,))
    dense, moe, _ = plan.models
    assert all(m.architecture.d_model == 64 * m.architecture.blocks for m in plan.models)  # the rule without n_blocks
    n = [dense.architecture.n_active, moe.architecture.n_active, moe.architecture.n_active]
    d = [dense.tokens * 0.995, moe.tokens, moe.tokens]  # training rounds tokens to whole batches
    assert measured(plan, Runs.from_columns(n, d, [1, 2, 2], [2.0, 1.9, 1.91])) == [[2.0], [1.9, 1.91], []]


def test_a_sweep_trains_each_architecture_of_the_plan_once(fitted, tmp_path):
    plan_matched(fitted, FLOPS, (2, 4)).save(tmp_path / "plan.json")
    values = {"sweep": "matched", "from": "plan.json", "grid": {"run.seed": [0, 1]}}
    sweep = Sweep.from_dict(values, tmp_path / "out", tmp_path)
    found = [(run.arguments.model.experts, run.arguments.run.seed, len(run.branches)) for run in sweep.runs]
    assert sorted(found) == [(1, 0, 1), (1, 1, 1), (2, 0, 2), (2, 1, 2), (4, 0, 2), (4, 1, 2)]
