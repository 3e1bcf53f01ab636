"""A matched experiment: equal memory and FLOPs to the parameter, the law's predictions, and the losses beside them."""

import pytest

from scaling_law import ExtrapolationError, JointLaw, Runs, fit
from scaling_law.planning.matched import MatchedPlan, measured, plan_matched
from tests.scaling_law.synthetic import synthetic_runs

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


def test_by_the_rule_widths_are_multiples_of_64(fitted):
    plan = plan_matched(fitted, FLOPS, (2,))
    assert all(m.architecture.d_model == 64 * m.architecture.blocks for m in plan.models)
    assert plan.models[1].architecture.n_total <= 1.005 * plan.models[0].architecture.n_total


def test_what_cannot_fit_is_refused(fitted):
    with pytest.raises(ValueError, match="experts=1024: no model has at most"):
        plan_matched(fitted, 1e15, (1024,), vocab_size=64)
    chinchilla = fit(synthetic_runs().subset(synthetic_runs().experts == 1), "chinchilla").bootstrap(4)
    with pytest.raises(ValueError, match="a joint law is needed"):
        plan_matched(chinchilla, FLOPS)


def test_models_beyond_the_guard_are_refused_unless_forced(fitted):
    with pytest.raises(ExtrapolationError, match="N_act"):
        plan_matched(fitted, 1e28, (2,))
    plan = plan_matched(fitted, 1e28, (2,), force=True)
    assert any("do not act" in warning for warning in plan.warnings)
    assert "do not act" in plan._repr_html_()
    assert plan.to_dataframe().n_active.tolist() == [m.architecture.n_active for m in plan.models]


def test_a_saved_plan_is_the_same_and_what_is_none_is_refused(fitted, tmp_path):
    plan = plan_matched(fitted, FLOPS, (2,))
    assert MatchedPlan.load(plan.save(tmp_path / "plan.json")) == plan
    for text in ("{}", "[]", "no json", '{"format": "matched_experiment", "version": 2}'):
        (tmp_path / "broken.json").write_text(text)
        with pytest.raises(ValueError, match=r"broken\.json: not the plan of a matched experiment"):
            MatchedPlan.load(tmp_path / "broken.json")


def test_measured_losses_come_to_their_model_with_every_seed(fitted):
    plan = plan_matched(fitted, FLOPS, (2,))
    dense, moe, _ = plan.models
    n = [dense.architecture.n_active, moe.architecture.n_active, moe.architecture.n_active]
    d = [dense.tokens * 0.995, moe.tokens, moe.tokens]  # training rounds tokens to whole batches
    assert measured(plan, Runs.from_columns(n, d, [1, 2, 2], [2.0, 1.9, 1.91])) == [[2.0], [1.9, 1.91], []]


def test_a_sweep_trains_each_architecture_of_the_plan_once(fitted, tmp_path):
    from training.configuration.arguments import ConfigurationError
    from training.sweep.file import Sweep

    plan = plan_matched(fitted, FLOPS, (2, 4))
    plan.save(tmp_path / "plan.json")
    values = {"sweep": "matched", "from": "plan.json", "grid": {"run.seed": [0, 1]}}
    sweep = Sweep.from_dict(values, tmp_path / "out", tmp_path)
    assert [len(run.branches) for run in sweep.runs] == [1, 1, 2, 2, 2, 2]
    assert {(run.arguments.model.experts, run.arguments.run.seed) for run in sweep.runs} == {
        (e, seed) for e in (1, 2, 4) for seed in (0, 1)
    }
    (tmp_path / "plan.json").write_text((tmp_path / "plan.json").read_text().replace('"low"', '"lower"'))
    with pytest.raises(ConfigurationError, match=r"plan\.json: not the plan of a matched experiment"):
        Sweep.from_dict(values, tmp_path / "out", tmp_path)
