"""Plans: the numbers of the paper's schedule, and a YAML that train.py takes."""

import pytest
import yaml

from scaling_law import LearningRateLaw
from scaling_law import published as shelf
from scaling_law.size.recipe import BatchRamp, RampStage
from training import Schedule, from_dict
from training.configuration.schedule import total_tokens


def test_plan_of_a_run(published):
    made = published.plan(1e20, [4], branches=3, memory=10e9)
    a = made.architecture
    row = published.optimal(1e20, [4], memory=10e9, integral=True)[4]
    assert a == row.architecture
    assert made.tokens == pytest.approx(row.tokens, rel=1e-4)
    assert made.training_flops == 6 * a.n_active * made.tokens
    trunk = Schedule(BatchRamp(made.batch_ramp, made.sequence_length), made.warmup_tokens, 0.2, 1e-3)
    assert made.total_tokens == total_tokens([trunk.branch(tokens) for tokens in made.branches])
    assert made.total_flops == 6 * a.n_active * made.total_tokens
    assert made.total_flops / made.training_flops == pytest.approx(1.15, abs=1e-3)  # 0.2 · (1/2 + 1/4)
    eight = published.plan(1e20, [4], branches=3, memory=10e9, gpu="h100", gpus=8)
    assert (made.gpus, made.gpu, made.time, made.placement) == (8, "NVIDIA H100 SXM", None, None)
    assert made.gpu_hours == eight.gpu_hours == pytest.approx(8 * eight.time.hours)
    assert 0.2 < made.total_flops / (made.gpu_hours * 3600 * 989e12) < 0.6
    vast = published.plan(1e27, [4], force=True)
    assert (vast.gpus, vast.gpu_hours > 1e8) == (4096, True)  # that share as many sequences
    assert made.optimizer_bytes == 12 * a.n_total
    assert made.warmup_tokens == 130_000_000
    assert made.decay_tokens == pytest.approx(0.2 * made.tokens, rel=1e-4)
    assert len(made.branches) == 3
    assert made.branches[-1] == made.tokens
    assert made.branches[0] == pytest.approx(made.tokens / 4, rel=1e-4)
    assert made.learning_rate == row.learning_rate
    configuration = yaml.safe_load(made.to_yaml("sweep"))  # train.py takes it: tests/test_readme.py
    assert configuration == made.configuration("sweep")
    assert configuration["model"] == a.shape
    assert configuration["schedule"]["tokens"] == list(made.branches)
    assert configuration["optimizer"]["learning_rate"] == made.learning_rate


def test_the_loss_is_that_of_the_tokens_that_are_trained(published):
    """Whole steps, of 65,536 tokens at first, and not the tokens that the budget would buy."""
    row = published.optimal(2e14, [4], integral=True, force=True)[4]
    made = published.plan(2e14, [4], force=True)
    assert made.tokens == made.steps * 128 * 512 < row.tokens
    assert made.loss == published.loss(made.architecture.n_active, made.tokens, 4) > row.loss
    assert made.loss_interval[0] < made.loss < made.loss_interval[1]


def test_repeated_tokens_are_worth_less_in_a_plan_too(published):
    row = published.optimal(1e21, [8], integral=True, unique_tokens="1B").best
    made = published.plan(1e21, [8], unique_tokens="1B")
    assert (made.loss, made.loss_interval) == (pytest.approx(row.loss), pytest.approx(row.loss_interval))
    assert made.loss > published.loss(made.architecture.n_active, made.tokens, 8) + 0.04


def test_a_budget_below_one_step_is_overspent_aloud(published):
    assert published.plan(1e10, [1], force=True).warnings[0].startswith("one step takes 65,536 tokens, more than")


@pytest.mark.parametrize(("sequences", "flops", "gpus"), [(3, 1e20, 1), (12, 1e20, 4), (64, 1e24, 64)])
def test_without_gpus_the_hours_are_of_as_many_as_share_the_batches(published, sequences, flops, gpus):
    made = published.plan(flops, [1], batch=[RampStage(0, sequences)], force=True)
    assert (made.gpus, made.gpu_hours > 0) == (gpus, True)


def test_small_budgets_warm_up_less(published):
    made = published.plan(1e15, [1], branches=20)
    assert made.warmup_tokens == int(0.1 * made.tokens)
    assert all(t * 0.8 > made.warmup_tokens for t in made.branches)


def test_the_rate_is_that_of_the_tokens_and_the_batch_of_the_plan(published):
    law = LearningRateLaw(4.0, -0.7, -0.45, "code", "a grid", slope_d=0.1, slope_batch=0.4, regret=0.0035)
    made = published.plan(1e20, [4], batch="0:64,100M:256", learning_rate_law=law)
    batch = 256 * made.sequence_length
    assert made.learning_rate == pytest.approx(law.learning_rate(made.architecture, made.tokens, batch), rel=1e-4)
    assert made.learning_rate_batch == batch
    papers = published.plan(1e20, [4], learning_rate_law=LearningRateLaw.published())
    assert (papers.learning_rate_batch, papers.learning_rate_regret) == (None, None)
    for plan, said in {
        made: "a grid; for batches of 131,072 tokens; expected to cost 0.0035 nats",
        papers: "Ludziejewski et al. 2025, code of the runs; a law without the batch",
    }.items():
        assert dict(plan.summary().rows)["peak learning rate"].endswith(f"({said})")
        assert plan.learning_rate_interval is None


def test_by_default_the_public_law_answers_up_to_ten_times_outside_of_its_grids(published):
    """With the width of the interval between: 1.96 standard deviations of ln LR."""
    public = LearningRateLaw.published("public:ludziejewski")
    inside, outside = published.plan(1e20, [4]), published.plan(1e23, [1], force=True)
    run = (inside.architecture, inside.tokens, 512 * 512)
    assert inside.learning_rate == pytest.approx(public.learning_rate(*run), rel=1e-4)
    assert (inside.learning_rate_law, inside.learning_rate_regret) == (public.source, public.regret)
    low, high = inside.learning_rate_interval
    assert low < inside.learning_rate < high < 4 * low
    assert f"{low:.2g}…{high:.2g}" in str(inside.summary())
    assert not any("learning rate" in warning for warning in inside.warnings)
    assert inside.to_yaml().splitlines()[1] == f"# learning rate: {public.source}; for batches of 262,144 tokens"
    assert (outside.learning_rate, outside.learning_rate_interval, outside.trusted) == (None, None, False)
    assert any(w.startswith("no learning rate: too far outside the runs of its law (N ×2") for w in outside.warnings)
    assert dict(outside.summary().rows)["peak learning rate"].startswith("– (public grids")
    assert outside.to_dict()["configuration"] is None
    with pytest.raises(ValueError, match="learning_rate=None must be given"):
        outside.to_yaml()


def test_a_rate_that_is_given_is_taken_and_named(published):
    """Where the law of rates is too far from its runs, and elsewhere."""
    for flops, experts in ((1e23, [1]), (1e20, [4])):
        made = published.plan(flops, experts, force=True, learning_rate=3e-5)
        assert (made.learning_rate, made.learning_rate_law, made.learning_rate_batch) == (3e-5, "given", None)
        assert made.configuration()["optimizer"] == {"learning_rate": 3e-5}
        assert "# learning rate: given" in made.to_yaml()
        assert not any("learning rate" in warning for warning in made.warnings)
    with pytest.raises(ValueError, match="learning_rate=-1 must be positive"):
        published.plan(1e20, learning_rate=-1)


@pytest.mark.parametrize(
    ("shape", "model_type"),
    [({"granularity": 8}, "qwen3_moe"), ({"granularity": 8, "shared_ratio": 0.25}, "qwen2_moe")],
)
def test_a_fine_grained_answer_is_a_class_that_can_be_built(shape, model_type):
    """The configuration is read by train.py, and is the architecture that the law was asked about."""
    law = shelf("krajewski")
    made = law.plan(1e20, [8], force=True, **shape)
    a = made.architecture
    assert (a.experts_equivalent, a.granularity, a.active_width) == (8, 8, 3 * a.d_model)
    asked = law.optimal(1e20, [8], force=True, integral=True, **shape)[8]
    assert (a.n_active, a.n_total) == (asked.n_active, asked.n_total)
    assert made.loss == pytest.approx(asked.loss, rel=1e-4)
    with pytest.raises(ValueError, match="only unsplit top-1 experts"):
        asked.config_arguments()
    read = from_dict(yaml.safe_load(made.to_yaml("sweep")))
    assert read.model.type == model_type
    found = read.model.model(a.vocab_size).architecture
    assert (found.n_active, found.n_total, found.experts_equivalent) == (a.n_active, a.n_total, 8)
    shown = dict(made.summary().rows)
    assert shown["class"].startswith(f"{model_type}, ")
    assert shown["architecture"].endswith("E = 8")
