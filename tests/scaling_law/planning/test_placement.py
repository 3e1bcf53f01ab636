"""Layouts on GPUs of a known memory: the fastest that fits, for every question the same, and train.py takes it."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
import yaml

from scaling_law import Architecture, JointLaw, Limits, Throughput, scale_out
from scaling_law.machine import training_memory
from scaling_law.machine.layout import ENGINES, RESERVED, DoesNotFit, Option
from scaling_law.planning.budget import Cluster
from scaling_law.size.ladder import PaperLadder
from scaling_law.size.recipe import BatchRamp, RampStage
from tests.conftest import sweep
from tests.scaling_law.synthetic import PAPER_RAMP
from training import from_dict

H100 = Throughput.assumed("h100")


def test_the_largest_micro_batch_that_fits():
    a = Architecture(1536, 8)
    found = Cluster(8, H100).place(a)
    assert (found.sharding, found.gradient_checkpointing) == ("fsdp2", False)
    assert found.memory.total <= 80e9 - RESERVED

    def total(size, sharding):
        settings = {"passes": 512 // (8 * size), "sharding": sharding, "devices": 8}
        return training_memory(a, size, 512, **settings).total

    assert found.memory.total == total(found.micro_batch_sequences, "fsdp2")
    assert total(found.micro_batch_sequences, "ddp") > 80e9 - RESERVED  # else it would not be sharded
    assert total(2 * found.micro_batch_sequences, "fsdp2") > 80e9 - RESERVED or found.micro_batch_sequences == 64


def test_small_models_are_whole_on_each_gpu_and_large_ones_compute_activations_again():
    small = Cluster(8, H100).place(Architecture(512, 8))
    assert (small.micro_batch_sequences, small.sharding) == (64, "ddp")
    assert str(small).endswith("of each GPU, micro-batches of 64 sequences, DDP")
    assert Cluster(1, H100).place(Architecture(512)).sharding == "none"
    large = Cluster(8, Throughput.assumed("rtx-4090")).place(Architecture(3520))
    assert large.gradient_checkpointing
    assert "gradient checkpointing" in str(large)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("gpus", "length"), [(1, 512), (64, 4096), (96, 32_768)])
def test_no_layout_trains_models_whose_state_alone_does_not_fit(engine, gpus, length):
    """A question in hours leaves them out before it looks at layouts."""
    throughput = Throughput.assumed("rtx-4090", engine=engine)
    cluster = Cluster(gpus, throughput, engine=engine, ramp=BatchRamp.constant(4 * gpus, length))
    widths, experts = np.meshgrid(64 * np.arange(1.0, 200.0, 9.0), [1.0, 2.0, 8.0, 64.0])
    models = PaperLadder().widths(widths.ravel(), experts.ravel())
    fits = cluster.steps(models).fits
    may_fit = cluster.may_fit(models)
    assert fits.any()
    assert not may_fit.all()
    assert not (fits & ~may_fit).any()


def test_fields_that_are_crossed_with_the_rest_cost_what_each_option_costs():
    """Costs of all options at once are those of each option alone."""
    models = PaperLadder().widths(64.0 * np.arange(4, 100, 12), np.array([1.0, 8.0, 16.0, 6.0] * 2))
    for engine in ENGINES:
        cluster = Cluster(32, Throughput.assumed("h100", engine=engine), engine=engine, ramp=PAPER_RAMP)
        steps = cluster.steps(models)
        for place, option in enumerate(cluster.options()):
            chosen = steps.option == place
            exchange = sum(cluster.communication(models, option, max(cluster.batches)).values())
            expected = np.broadcast_to(exchange, chosen.shape)[chosen]
            np.testing.assert_array_equal(steps.costs[-1].exchange[chosen], expected)
        totals = [cluster.memory(models, option).total for option in cluster.options()]
        assert (steps.least >= np.min(totals, axis=0)).all()


def test_what_cannot_be_trained_is_refused():
    with pytest.raises(ValueError, match=r"d_model 2048, E = 32 .*cannot be trained on 8 × .* has 78 GB free"):
        Cluster(8, H100).place(Architecture(2048, 32))
    with pytest.raises(ValueError, match="gpus=6 cannot share batches of 512 sequences equally"):
        Cluster(6, H100).place(Architecture(512))
    assert Cluster(8, Throughput("a GPU", "bf16", {"flops": 1e-14})).place(Architecture(1728, 32)) is None
    six = BatchRamp((RampStage(0, 96),), 512)
    assert Cluster(6, H100, ramp=six).place(Architecture(512)).micro_batch_sequences == 16


def test_the_plan_of_a_cluster_is_a_configuration_that_train_py_takes():
    made = JointLaw.published().plan(hours=24, gpus=8, throughput=H100, experts=[8])
    assert made.placement == Cluster(8, H100).place(made.architecture)
    arguments = from_dict(yaml.safe_load(made.to_yaml()))
    assert arguments.run.micro_batch_sequences == made.placement.micro_batch_sequences
    arguments.check_processes(8)
    assert made.to_dict()["placement"]["memory"]["optimizer"] > 0
    assert "placement" not in made.configuration()
    assert "Compute-bound (100 % of step time)" in str(made.summary())


def test_a_plan_divides_experts_as_its_layout_does():
    measured = JointLaw.published().plan(hours=24, gpus=8, throughput=replace(H100, is_assumed=False), experts=[8])
    assert measured.placement
    assert "limited by" not in str(measured.summary())  # a measured step has all its parts in it
    moe = JointLaw.published().plan(hours=72, gpus=64, throughput=H100, experts=[32])
    arguments = from_dict(yaml.safe_load(moe.to_yaml()))
    assert arguments.run.expert_parallel == moe.placement.ep > 1


def test_an_optimum_goes_over_what_the_gpus_can_train():
    """And says where their memory, not time, decides the size."""
    cluster = Cluster(8, H100)
    table = JointLaw.published().optimal(hours=960, gpus=8, throughput=H100, integral=True, batch=PAPER_RAMP)
    (note,) = [warning for warning in table.warnings if "largest model that the memory" in warning]
    named = [float(e) for e in note.partition(":")[0].removeprefix("E = ").split(", ")]
    assert table.placement == cluster.place(table.best.architecture)
    assert table.placement.advice == (
        "Compute-bound (75 % of step time): more GPUs, a larger batch or fewer FLOPs would shorten the run."
    )
    assert f"best row: {table.placement}. {table.placement.advice}" in table.summary().title
    facts = table.to_dict()
    assert facts["bottleneck"] == table.placement.bottleneck
    assert facts["best"]["layout"] == table.placement.ways
    for row in table:
        assert cluster.place(row.architecture)
        if row.experts in named:
            with pytest.raises(DoesNotFit):
                cluster.place(Architecture(row.architecture.d_model + 64, int(row.experts)))
    assert named == [16, 32]
    # The model of 32 experts stops training before the hours end, where it would no longer be trusted.
    assert [row.limited_by for row in table] == ["time", "time", "time", "time", "memory", "evidence"]
    measured = replace(H100, is_assumed=False)  # steps that were measured hold for models of any size
    free = JointLaw.published().optimal(hours=960, gpus=8, throughput=measured, integral=True, batch=PAPER_RAMP)
    assert any(
        warning.startswith("E = 2, 4, 8, 16, 32: training takes more memory than 8 ×") for warning in free.warnings
    )


def test_batches_are_rounded_up_to_what_gpus_can_share():
    table = JointLaw.published().optimal(hours=72, gpus=6, throughput=H100)
    assert [stage.sequences for stage in table.ramp.stages] == [384]  # 6 times a power of two
    slower = [JointLaw.published().optimal(hours=72, gpus=n, gpu="h100", experts=[32]).best.loss for n in (6, 8)]
    assert slower == sorted(slower, reverse=True)
    many = JointLaw.published().optimal(hours=2, gpus=2048, gpu="h100", experts=[1])
    (stage,) = many.ramp.stages
    assert stage.sequences % 2048 == 0
    assert any(f"batches of {stage.sequences:,} sequences, which 2048 GPUs can" in text for text in many.warnings)
    assert not Cluster.of(gpus=8, gpu="h100").warnings(Architecture(512), 1e10)[1:]


@pytest.mark.parametrize("experts", sweep([None, [4, 32]], [[4, 32]]))
def test_a_plan_is_the_best_that_the_gpus_can_train(experts):
    """Against every width of every E: the best of those that fit."""
    law, cluster = JointLaw.published(), Cluster(4, H100)
    asked = {"hours": 960, "gpus": 4, "throughput": H100, "batch": PAPER_RAMP}
    made = law.plan(**asked, experts=experts, force=True)  # of D 38 times that of the runs with E = 32
    losses = {}
    for e in experts or (1, 2, 4, 8, 16, 32):
        for d in range(1024, 4096, 64):
            a = Architecture(d, e)
            tokens = float(cluster.tokens(a, 960 * 3600.0))
            if tokens:
                losses[e, d] = float(law.loss(a.n_active, tokens, e))
            else:
                with pytest.raises(DoesNotFit):
                    cluster.place(a)
    best = min(losses, key=losses.get)
    assert (made.architecture.experts, made.architecture.d_model) == best
    assert made.placement == cluster.place(made.architecture)
    assert any(warning.startswith(f"best row (E = {best[0]}): N_act") for warning in made.warnings)


def test_a_budget_of_flops_is_planned_for_what_fits():
    """The widest model of its E, or another E, with a warning."""
    made = JointLaw.published().plan(flops=3e21, gpus=4, throughput=H100, experts=[4, 32])
    assert made.placement
    assert re.match(
        r"E = 32 at its best size \(d_model \d+, .* takes more memory than 4 × NVIDIA H100", made.warnings[0]
    )


@pytest.mark.parametrize("count", sweep([200, 50], [50]))
def test_every_question_takes_the_same_step(count):
    """The optimum's search over widths, a plan's time and `scale_out`, to the last digits."""
    random, law = np.random.default_rng(0), JointLaw.published()
    for _ in range(count):
        d_model, e = 64 * int(random.integers(4, 48)), int(random.choice([1, 2, 8, 32]))
        gpus, gpu = int(random.choice([1, 8, 64])), str(random.choice(["h100", "a100", "gb200", "rtx-4090"]))
        model, throughput = Architecture(d_model, e), Throughput.assumed(gpu)
        cluster = Cluster(gpus, throughput, ramp=BatchRamp((RampStage(0, 512),), 512))
        (row,) = scale_out(model, [gpus], gpu, batch=512 * 512, sequence_length=512).rows
        steps = [cluster.seconds(work, 512.0 * 512) for work in (model, Limits().widths(d_model, e))]
        expected = np.inf if row.step_seconds is None else row.step_seconds * throughput.overhead_of(gpus)
        assert steps == pytest.approx([expected] * 2, rel=1e-12)
    row = law.optimal(hours=24, gpus=8, gpu="h100", experts=[8], integral=True).best
    made = law.plan(hours=24, gpus=8, gpu="h100", experts=[8])
    assert made.time.hours == pytest.approx(24 * made.tokens / row.tokens, rel=1e-3)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("d_model", "e", "gpus"), [(1728, 32, 8), (512, 1, 8), (4992, 1, 8), (8192, 1, 64)])
def test_the_fastest_layout_is_chosen(d_model, e, gpus, engine):
    """Against every option by hand: the longer of compute and communication, of those that fit."""
    a, layouts = Architecture(d_model, e), replace(Cluster(gpus, H100), engine=engine)
    seconds = {}
    for option in layouts.options():
        held = layouts.memory(a, option).total <= 80e9 - RESERVED
        if held and e % option.ep == 0 and a.heads % option.tp == 0 and a.blocks >= option.pp:
            micro_batches = 512 // (option.micro_batch_sequences * option.dp * option.fsdp)
            compute = float(layouts.compute(a, 512, layouts.gpu_share(option)))
            compute *= 4 / 3 if option.gradient_checkpointing else 1
            compute *= math.ceil(a.blocks / option.pp) / (a.blocks / option.pp)  # the longest stage
            compute *= (micro_batches + option.pp - 1) / micro_batches
            seconds[option] = max(compute, float(sum(layouts.communication(a, option, 512).values())))
    placed = layouts.place(a)
    chosen = {name: value for name, value in vars(placed).items() if name not in ("memory", "seconds")}
    assert seconds[Option(**chosen)] == pytest.approx(min(seconds.values()), rel=1e-12)
    assert placed.step_seconds == pytest.approx(min(seconds.values()), rel=1e-12)


def test_gpus_without_memory_for_any_model_are_refused():
    tiny = Throughput("NVIDIA L4", "bf16", {"flops": 1e-14}, memory_bytes=2.1e9)
    with pytest.raises(DoesNotFit, match="cannot be trained on 1 × NVIDIA L4"):
        JointLaw.published().plan(hours=24, gpus=1, throughput=tiny)
