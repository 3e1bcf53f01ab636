"""Budgets in hours: against step-by-step sums, brute force over widths, and one draw at a time."""

import json

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hub.base.tables import as_text
from scaling_law import Architecture, JointLaw, Limits, Throughput, published, scale_out
from scaling_law.machine.layout import MEGATRON, TRAIN_PY
from scaling_law.planning.budget import Cluster
from scaling_law.size.recipe import BatchRamp, RampStage
from tests.conftest import examples
from tests.scaling_law.synthetic import PAPER_RAMP

LIMITS = Limits()
RATES = {"steps": 0.02, "flops": 1 / 4e14, "routed_flops": 1 / 4e14, "weights": 1e-12, "update": 1e-11}


@pytest.fixture(scope="module")
def law():
    return JointLaw.published()


@pytest.fixture(scope="module")
def measured():
    """Step times with an overhead and costs per parameter, which no MFU has, and 30 draws."""
    draws = np.array([*RATES.values()]) * np.random.default_rng(0).lognormal(0, 0.1, (30, len(RATES)))
    return Throughput("a GPU", "bf16", RATES, draws=draws, devices=8)


def test_time_is_the_sum_of_the_steps(measured):
    ramp = BatchRamp((RampStage(0, 8), RampStage(40_960, 16), RampStage(122_880, 32)), 512)
    cluster = Cluster(4, measured, ramp=ramp)
    for model in (Architecture(256, 8), Architecture(256)):
        for n in (3, 10, 15, 20, 40):
            batches = [ramp.sequences(step) * 512 for step in range(n)]
            steps = [measured.step_seconds(model, batch, sequence_length=512, devices=4) for batch in batches]
            assert ramp.tokens(n) == sum(batches)
            assert cluster.seconds(model, ramp.tokens(n)) == pytest.approx(sum(steps))
            assert cluster.tokens(model, sum(steps)) == pytest.approx(ramp.tokens(n))
            drawn = cluster.tokens(model, sum(steps), drawn=True)
            np.testing.assert_allclose(cluster.seconds(model, drawn[7], drawn=True)[7], sum(steps))


@pytest.mark.parametrize(("name", "experts"), [(None, [1, 2, 8, 32]), ("abnar", [1, 16]), ("chinchilla", [1])])
def test_no_width_is_better(law, measured, name, experts):
    law = published(name) if name else law
    table = law.optimal(hours=24, gpus=8, throughput=measured, experts=experts, force=True, integral=False)
    cluster, limits = table.budget.cluster, Limits.of(law)
    for row in table:
        widths = row.d_model * np.exp(np.linspace(-1, 1, 4001))
        sizes = limits.variables(widths, row.experts, 1.0)
        tokens = cluster.tokens(limits.widths(widths, row.experts), 24 * 3600)
        losses = law.evaluate(tuple(law.coefficients.values()), sizes | {"tokens": tokens})
        assert row.loss <= losses.min() + 1e-9
        assert row.d_model == pytest.approx(widths[np.argmin(losses)], rel=2e-3)
        assert cluster.seconds(limits.widths(row.d_model, row.experts), row.tokens) == pytest.approx(24 * 3600)


@pytest.mark.parametrize(
    ("hours", "gpus", "batch"),
    [
        pytest.param(72, 8, "2M", marks=pytest.mark.slow),
        pytest.param(20, 8, "500K", marks=pytest.mark.slow),
        (20, 8, PAPER_RAMP),
        pytest.param(200, 16, PAPER_RAMP, marks=pytest.mark.slow),
    ],
)
def test_no_width_is_better_where_the_layout_changes(law, hours, gpus, batch):
    """The loss jumps with the width where another layout becomes the fastest, or the only one that fits."""
    table = law.optimal(
        hours=hours,
        gpus=gpus,
        gpu="h100",
        batch=batch,
        experts=[4, 8, 16],
        force=True,
        integral=False,
    )
    cluster = table.budget.cluster
    widths = np.geomspace(100, 30_000, 4000)
    n_active = LIMITS.variables(widths, 1.0, 1.0)["n_active"]
    for row in table:
        models = LIMITS.widths(widths, row.experts)
        tokens = cluster.tokens(models, hours * 3600)
        trains = tokens > 0
        losses = law.loss(
            n_active[trains],
            tokens[trains],
            row.experts,
        )
        assert row.loss <= losses.min() + 1e-6


def test_limits_and_sizes_that_exist(law, measured):
    asked = {"hours": 72, "gpus": 8, "throughput": measured, "experts": [1, 32]}
    table = law.optimal(**asked, memory="24GB", integral=True)
    row = table[32]
    assert row.limited_by == "memory"
    assert row.memory_bytes <= 24e9
    assert row.architecture.d_model % 64 == 0
    free = law.optimal(**asked, integral=True)
    assert free[1].limited_by == "time"
    assert law.optimal(**asked).rows == free.rows
    fractional = law.optimal(**asked, integral=False)[1].d_model
    assert free[1].d_model in (64 * np.floor(fractional / 64), 64 * np.ceil(fractional / 64))


def test_equal_throughput_per_flop_gives_the_answer_for_flops(law):
    """Where time is proportional to 6 N D, hours are FLOPs."""
    same = Throughput("a GPU", "bf16", {"flops": 1e-15}, draws=None)
    table = law.optimal(hours=100, gpus=8, throughput=same, sequence_length=512)
    for row in table:
        assert row.loss == pytest.approx(law.optimal(row.training_flops, [row.experts]).best.loss, abs=2e-3)
        assert row.training_flops == pytest.approx(100 * 3600 * 8e15, rel=0.1)  # scores of attention, embedding
    assert table.reordered is None
    assert table.equal_flops.flops == table.flops == table.best.training_flops


def test_draws_of_law_and_throughput_are_joint(law, measured):
    """Of a law without ranges, whose draws have no error of extrapolation."""
    few = law.replace(draws=law.draws[:60], conditions=None)
    table = few.optimal(hours=72, gpus=8, throughput=measured, experts=[1, 8])
    row, cluster = table[8], table.budget.cluster
    tokens = cluster.tokens(LIMITS.widths(row.d_model, 8), 72 * 3600, drawn=True)
    expected = [JointLaw(*few.draws[i]).loss(row.n_active, tokens[i % 30], 8) for i in range(60)]
    np.testing.assert_allclose(table.draw_losses[:, 1], expected)
    assert table.comparison.win_shares[1.0] + table.comparison.win_shares[8.0] == pytest.approx(1)
    certain = Throughput("a GPU", "bf16", RATES, devices=8)
    narrow = few.optimal(hours=72, gpus=8, throughput=certain, experts=[8]).best.loss_interval
    assert np.diff(row.loss_interval) > np.diff(narrow)
    bare = law.replace(draws=None).optimal(hours=72, gpus=8, throughput=measured, experts=[8])
    assert bare.draw_losses.shape == (30, 1)


def test_a_slow_moe_changes_the_order(law):
    table = law.optimal(hours=72, gpus=8, gpu="h100")
    assert table.reordered.startswith("Ranking by wall clock (72 h): E = 32, 16, 1, 8, 4, 2; at equal compute (")
    assert table.reordered.endswith(" FLOPs): 32, 16, 8, 4, 2, 1")
    assert table.reordered in table.warnings
    assert any("assumed, not measured: rates of" in warning for warning in table.warnings)
    assert len([line for line in str(table).splitlines() if "⚠" in line]) == 1
    assert "72 hours on 8 × NVIDIA H100 SXM (bf16, assumed)" in str(table)
    data = json.loads(json.dumps(table.to_dict()))
    assert data["budget"]["throughput"]["is_assumed"]
    assert data["equal_flops"]["best"]["experts"] == 32


def test_the_default_e_are_those_of_the_law_in_any_budget(law):
    """Larger E only when asked: their rows are told, and not named best."""
    hours = law.optimal(hours=72, gpus=8, gpu="h100")
    money = law.optimal(money=1440, price=2.5, gpus=8, gpu="h100")
    flops = law.optimal(hours.best.training_flops)
    for table in (hours, money, flops):
        assert [row.experts for row in table] == [1, 2, 4, 8, 16, 32]
        assert (table.best.experts, table.trusted) == (32, True)
        assert table.largest.startswith("E = 32 is the largest compared (the fitted range ends there); a larger one")
    asked = law.optimal(hours=72, gpus=8, gpu="h100", experts="1-512")
    assert [row.experts for row in asked] == [2**k for k in range(10)]
    assert (asked.best.experts, asked.trusted) == (32, True)
    assert asked.verdict.endswith("E = 128 is 0.015 lower outside the trusted region")
    beyond = law.optimal(hours=72, gpus=8, gpu="h100", experts=[64, 128])
    assert (beyond.best.experts, beyond.trusted) == (128, False)
    assert beyond.verdict.endswith("; not trusted: no run of the law has E beyond 1 to 32")
    full = law.optimal(hours=1, gpus=1, gpu="h100", max_parameters="9M", experts="1-128", force=True)
    assert (full.best.experts, full.experts_that_do_not_fit) == (64, (128,))


def test_a_megatron_like_engine_is_asked_by_name(law):
    """The same models in the same hours see more tokens by its layouts, where these are faster at equal rates."""
    hours = {"hours": 2000, "gpus": 64, "gpu": "h100", "mfu": 0.4, "experts": [1], "integral": True}
    hours |= {"batch": "64K", "sequence_length": 512}
    row = law.optimal(**hours)[1]
    table = law.optimal(**hours, engine="megatron")
    assert table.budget.cluster.engine == MEGATRON
    tokens = float(table.budget.cluster.tokens(LIMITS.widths(row.d_model, 1), 2000 * 3600.0))
    assert tokens > 1.02 * row.tokens
    assert table[1].loss < row.loss
    assert "(bf16, assumed, megatron)" in str(table)
    with pytest.raises(ValueError, match="engine='megatrom' is unknown: did you mean 'megatron'"):
        law.optimal(**hours, engine="megatrom")
    with pytest.raises(ValueError, match=r"engine='megatron': a plan is a run of train\.py"):
        law.plan(hours=2000, gpus=64, gpu="h100", engine="megatron")


def test_answers_carry_the_same_uncertainty_of_time_and_loss(law):
    """A plan's loss in hours is that of `optimal`; hours of a run of `reach` are those of the plan's step times."""
    gpus = {"gpus": 8, "gpu": "h100", "experts": [8]}
    row = law.optimal(hours=72, **gpus, integral=True).best
    made = law.plan(hours=72, **gpus)
    assert made.loss_interval == pytest.approx(row.loss_interval)
    assert made.loss_interval[0] < made.loss < made.loss_interval[1]
    low, high = made.gpu_hours_interval
    assert low < made.gpu_hours < high
    assert high / low > 1.3
    fixed = law.plan(row.training_flops, **gpus)
    assert fixed.loss_interval == pytest.approx(
        np.quantile(law.loss_draws(fixed.architecture.n_active, float(fixed.tokens), 8.0), [0.025, 0.975])
    )
    within = law.reach(row.loss, hours=72, **gpus).best
    fewest = law.reach(row.loss, **gpus).best
    for answer in (within, fewest):
        assert answer["loss_interval"][0] < row.loss < answer["loss_interval"][1]
        assert answer["hours_interval"][0] < answer["hours"] < answer["hours_interval"][1]
    widths = [answer["loss_interval"][1] - answer["loss_interval"][0] for answer in (fewest, within)]
    assert widths[0] < widths[1]  # of the law alone, and of what the hours hold, too
    beyond = law.reach(1.2, **gpus).rows[0]
    assert (beyond["loss_interval"], beyond["hours_interval"]) == (None, None)
    sure = law.replace(draws=None)
    assert sure.reach(2.4, **gpus).best["loss_interval"] is None


def test_money_is_hours_at_a_price(law, measured):
    asked = {"gpus": 8, "throughput": measured, "experts": [1]}
    table = law.optimal(money=2400, price=2.5, **asked)
    assert table.budget.hours == pytest.approx(120)
    assert table.best == law.optimal(hours=120, **asked).best
    assert law.optimal(hours=120, price=2.5, **asked).budget.money == pytest.approx(2400)


def test_a_file_and_a_name_stand_for_throughputs(law, measured, tmp_path):
    path = measured.save(tmp_path / "throughput.json")
    from_file = law.optimal(hours=72, gpus=8, throughput=str(path), experts=[8]).best
    assert from_file == law.optimal(hours=72, gpus=8, throughput=measured, experts=[8]).best
    assert Cluster.of(gpus=8, gpu="h100").throughput == Throughput.assumed("h100")


def test_e_between_those_that_exist_is_trained_without_expert_parallelism(law):
    losses = [law.optimal(hours=72, gpus=8, gpu="h100", mfu=0.4, experts=[e]).best.loss for e in (2, 2.5, 3)]
    assert losses == sorted(losses, reverse=True)


def test_plan_in_hours(law, measured):
    made = law.plan(hours=10, gpus=8, throughput=measured, price=2.0, experts=[8])
    best = law.optimal(hours=10, gpus=8, throughput=measured, experts=[8], integral=True).best
    assert made.architecture == best.architecture
    assert best.tokens - 512 * 512 <= made.tokens <= best.tokens
    assert made.time.hours == pytest.approx(10, rel=2e-3)  # whole steps
    assert made.gpu_hours == pytest.approx(8 * made.time.hours)
    assert made.to_dict()["time"]["money"] == pytest.approx(2 * made.gpu_hours)
    assert ": 10 hours on 8 × a GPU (bf16)" in str(as_text(made))
    branched = law.plan(hours=10, gpus=8, throughput=measured, experts=[8], branches=4)
    assert branched.time.hours == pytest.approx(1.175 * 10, rel=2e-2)
    timed = law.plan(1e20, gpus=8, throughput=measured, experts=[8])
    assert timed.training_flops == law.plan(1e20, experts=[8]).training_flops
    assert timed.time.hours == pytest.approx(timed.gpu_hours / 8)


GPU_MODELS = ("h100", "a100", "gb200", "rtx-4090", "h200")


@examples(3, 80)
@given(
    gpu=st.sampled_from(GPU_MODELS),
    gpus=st.sampled_from([1, 2, 6, 8, 24, 64, 128, 1024]),
    engine=st.sampled_from([TRAIN_PY, MEGATRON]),
    experts=st.sampled_from([1, 2, 8, 32]),
    seed=st.integers(0, 2**32 - 1),
)
def test_more_hours_never_train_a_model_on_fewer_tokens(gpu, gpus, engine, experts, seed):
    """Of any width: batch and layout follow from its own tokens.

    And no longer run ends in the same hours.
    """
    random = np.random.default_rng(seed)
    cluster = Cluster.of(gpu=gpu, gpus=gpus, engine=engine)
    widths = np.exp(random.uniform(np.log(64), np.log(12_000), 20))
    models = LIMITS.widths(widths, experts)
    log_seconds = random.uniform(np.log(36), np.log(3.6e8), 8)
    budgets = np.sort(np.exp(log_seconds))
    tokens = np.array([cluster.tokens(models, seconds) for seconds in budgets])
    assert np.all(np.diff(tokens, axis=0) >= 0)
    for budget, row in zip(budgets, tokens, strict=True):
        trains = row > 0
        seconds = cluster.seconds(models, row)[trains]
        assert np.all(seconds <= budget * (1 + 1e-9))
        longer = cluster.seconds(models, row * (1 + 1e-6))[trains]
        assert np.all(longer > budget * (1 - 1e-9))


@examples(3, 30)
@given(
    gpu=st.sampled_from(GPU_MODELS),
    gpus=st.sampled_from([1, 6, 8, 64, 128]),
    hours=st.floats(2, 400),
)
def test_one_run_takes_the_same_time_in_every_question(law, gpu, gpus, hours):
    """Hours, MFU, batch and layout of `optimal`, of the `plan` of its best row and of `scale_out` of its model."""
    machine = {"gpu": gpu, "gpus": gpus}
    options = {**machine, "force": True}
    try:
        table = law.optimal(hours=hours, experts=[1, 32], **options)
    except ValueError:
        # Nothing fits, or every optimum is smaller than the smallest model.
        assume(False)

    best = table.best
    cluster = table.budget.cluster
    made = law.plan(hours=hours, experts=[best.experts], **options)
    assert made.architecture == best.architecture
    assert made.batch_ramp == table.ramp.stages
    assert made.tokens == pytest.approx(best.tokens, abs=best.batch_tokens)
    assert made.time.hours <= hours * (1 + 1e-9)

    scaled = scale_out(best.architecture, gpus, gpu, tokens=best.tokens)
    (row,) = scaled.rows
    assert row.batch_tokens == best.batch_tokens
    assert scaled.sequence_length == best.sequence_length
    seconds = float(cluster.seconds(best.architecture, best.tokens))
    assert row.hours == pytest.approx(seconds / 3600)
    assert row.mfu == pytest.approx(best.mfu, rel=1e-6)
    assert row.placement == made.placement
    assert row.placement == table.placement
    assert best.layout.removesuffix(", compiled") == (row.placement.ways or "one GPU")

    in_flops = law.optimal(best.training_flops, [best.experts], **options).best
    if in_flops.architecture == best.architecture:
        assert in_flops.hours == pytest.approx(row.hours, rel=1e-6)


def test_a_ramp_costs_what_is_said(law):
    """Its first batches take longer for each token, in the largest micro-batches that their shares hold."""
    machine = {"gpu": "h100", "gpus": 64, "experts": [1]}
    constant = law.optimal(hours=1, batch=512 * 512, sequence_length=512, **machine)
    ramped = law.optimal(hours=1, batch=PAPER_RAMP, **machine)
    (notice,) = [text for text in ramped.warnings if "the batch ramp takes" in text]
    assert notice.endswith("% longer than 512 sequences throughout")
    assert not [text for text in constant.warnings if "ramp" in text]
    assert ramped.best.loss > constant.best.loss
    model = constant.best.architecture
    cluster = ramped.budget.cluster
    steps = cluster.of_run(model, 1e10).steps(model)
    sizes = [float(share.micro_batch_tokens) for share in steps.gpu_shares]
    assert sizes[0] < sizes[-1]
    assert sizes[0] <= 512 * 128 / 64
