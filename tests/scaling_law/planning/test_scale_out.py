"""One model on more GPUs: bytes counted by hand, and what limits each."""

import json

import numpy as np
import pytest

from hub.base.units import format_bytes
from scaling_law import Architecture, Throughput, describe, scale_out
from scaling_law.machine import GPUS, decode_seconds, training_memory
from scaling_law.machine.communication import (
    Degrees,
    Sent,
    all_to_all_bytes,
    bubble,
    communication,
)
from scaling_law.machine.layout import ENGINES, MEGATRON, MOVED_BY, TRAIN_PY, Layouts
from scaling_law.size.recipe import BatchRamp, RampStage
from tests.scaling_law.configs import QWEN3_MOE

MODEL = Architecture(2304, 8)
HEAD, DENSE, EXPERTS = 50257 * 2304, 4 * 36 * 2304**2, 9 * 8 * 36 * 2304**2  # parameters
BLOCKS = DENSE + EXPERTS


def received(sharding, passes, tokens=4096, **settings):
    """Bytes of each operation."""
    how = {name: settings.pop(name) for name in ("reshard", "recompute") if name in settings}
    sent = communication(MODEL, sharding, Degrees(**settings), passes, tokens, **how)
    return {name: float(each.received) for name, each in sent.items() if each.received}


def test_communication_is_counted_by_hand():
    # forward and backward in bf16; the embedding twice and the head once in fp32; gradients in fp32
    gathered, reduced = 4 * 7 / 8 * (2 * 2 * BLOCKS + 4 * 3 * HEAD), 4 * 7 / 8 * 4 * (BLOCKS + 2 * HEAD)
    found = received("fsdp2", 4, fsdp=8)
    assert found == pytest.approx({"all-gather": gathered, "reduce-scatter": reduced})
    kept = received("fsdp2", 4, fsdp=8, reshard=False)
    assert kept["all-gather"] == pytest.approx(4 * 7 / 8 * (2 * BLOCKS + 4 * 2 * HEAD))
    hybrid = received("fsdp2", 4, fsdp=8, dp=8)
    assert hybrid.pop("all-reduce") == pytest.approx(4 * 2 * 7 / 8 * 4 * (BLOCKS + 2 * HEAD) / 8)
    assert hybrid == pytest.approx(found)
    whole = received("ddp", 4, dp=8)
    assert whole == {"all-reduce": pytest.approx(2 * 7 / 8 * 4 * (BLOCKS + 2 * HEAD))}
    megatron = received("zero1", 4, dp=8)
    assert megatron["reduce-scatter"] == 2 * megatron["all-gather"] == pytest.approx(whole["all-reduce"] / 2)
    assert received("none", 4) == received("fsdp2", 4) == {}
    with pytest.raises(ValueError, match="passes=0 must be at least 1"):
        received("fsdp2", 0, fsdp=8)


def test_parallelism_is_counted_by_hand():
    """Of a step of 4,096 tokens for each GPU; experts divided among 4 of 8 are gathered over the 2 that share them."""
    divided = received("fsdp2", 1, fsdp=8, ep=4)
    gathered = 7 / 8 * (4 * DENSE + 12 * HEAD) + 1 / 2 * 4 * EXPERTS / 4
    assert divided["all-gather"] == pytest.approx(gathered)
    assert divided["reduce-scatter"] == pytest.approx(4 * (7 / 8 * (DENSE + 2 * HEAD) + 1 / 2 * EXPERTS / 4))
    # 4 all-reduces of 2 bytes, over blocks; a group of 4 has 4 × 4,096 tokens, and twice the backward is recomputed
    tensor = 4 * 2 * 3 / 4 * 2 * 4 * 4096 * 36 * 2304
    assert received("zero1", 1, tp=4)["tensor all-reduce"] == pytest.approx(tensor)
    assert received("zero1", 1, tp=4, recompute=True)["tensor all-reduce"] == pytest.approx(1.5 * tensor)
    # keys and values of the other, then these and their gradients
    assert received("zero1", 1, cp=2)["context ring"] == pytest.approx(3 * 2 * 2 * 4096 * 36 * 2304)
    assert received("zero1", 1, pp=4)["pipeline"] == pytest.approx(2 * 2 * 4 * 4096 * 2304)
    assert float(bubble(4, 12)) == 0.25
    assert float(bubble(1, 3)) == 0
    stages = received("zero1", 1, dp=2, pp=4)["reduce-scatter"]  # a stage has a quarter of the blocks, and an end
    assert stages == pytest.approx(1 / 2 * 4 * (BLOCKS / 4 + HEAD))


def test_links_and_network_cards():
    h100, rack = GPUS["H100"], GPUS["GB200"]
    assert Sent(900e9, 8).seconds(h100) == pytest.approx(2)
    assert Sent(900e9, 64).seconds(h100) == pytest.approx(2.25)  # eight cards of 50 GB/s in each node
    assert Sent(900e9, 64).seconds(rack) == Sent(900e9, 128).seconds(rack) == pytest.approx(1)
    assert Sent(900e9, 8, 4).seconds(h100) == pytest.approx(9)  # two of the group in each node
    assert Sent(900e9, 8, 8).seconds(h100) == pytest.approx(18)
    tokens_out_and_back = all_to_all_bytes(MODEL, 4096, 64)
    assert tokens_out_and_back == pytest.approx(4 * 63 / 64 * 2 * 4096 * 36 * 2304)
    assert all_to_all_bytes(Architecture(2304), 4096, 64) == 0
    assert Sent(63e9, 64, is_ring=False).seconds(h100) == pytest.approx(56 / 50)
    assert Sent(45e9, 8, is_ring=False).seconds(h100) == pytest.approx(0.1)
    elsewhere = Sent(70e9, 8, 8, is_ring=False)  # all of the group but one
    assert elsewhere.seconds(h100) == pytest.approx(1.4)
    every = communication(MODEL, "fsdp2", Degrees(fsdp=8, ep=8), 1, 4096)
    assert every["all-to-all"].seconds(h100) == pytest.approx(all_to_all_bytes(MODEL, 4096, 8) / 450e9)


def test_memory_of_each_degree():
    """State, counted by hand, and activations that are divided."""
    n, settings = MODEL.n_total + 36 * 8 * 2304, {"passes": 4, "precision": "bf16"}
    alone = training_memory(MODEL, 4, 4096, **settings, sharding="ddp")
    shared = training_memory(MODEL, 4, 4096, **settings, sharding="zero1", devices=8)
    assert (shared.weights, shared.optimizer, shared.gradients) == pytest.approx((2.5 * n, n, 4 * n))
    by_experts = training_memory(MODEL, 4, 4096, **settings, sharding="zero1", devices=8, ep=8)
    rest = n - 7 / 8 * EXPERTS
    assert (by_experts.weights, by_experts.gradients) == pytest.approx((2 * rest + n / 2, 4 * rest))
    divided = training_memory(MODEL, 4, 4096, **settings, sharding="ddp", tp=2)
    assert divided.optimizer == pytest.approx(alone.optimizer / 2, rel=1e-3)  # routers are whole
    assert divided.activations == pytest.approx(alone.activations / 2, rel=1e-3)
    context = training_memory(MODEL, 4, 4096, **settings, sharding="ddp", cp=2)
    casts = 2 * BLOCKS
    assert context.activations - casts == pytest.approx((alone.activations - casts) / 2)
    stage = training_memory(MODEL, 4, 4096, **settings, sharding="ddp", pp=4)
    assert stage.optimizer == pytest.approx(8 * ((n - 2 * HEAD) / 4 + HEAD))
    assert stage.activations - casts / 4 == pytest.approx(alone.activations - casts)  # of four micro-batches
    whole, kept = (training_memory(MODEL, 1, 512, sharding="fsdp2", devices=8, reshard=way) for way in (True, False))
    assert kept.total - whole.total == pytest.approx(2 * BLOCKS * 34 / 36 + 4 * HEAD, rel=0.01)


def ways_of(option):
    """The names of `ENGINES` that an option needs, and how FSDP2 shards."""
    ways = {name for name in ("tp", "pp", "ep", "cp") if getattr(option, name) > 1}
    if option.sharding == "fsdp2":
        return ways | ({"fsdp", "hsdp"} if option.dp > 1 else {"fsdp"})
    return ways | ({option.sharding} - {"none"})


def test_each_engine_has_the_layouts_that_it_can_run():
    """GPUs and batches are shared without rest, and simple ways come first."""
    for engine, ways in ENGINES.items():
        able = ways | {"fsdp", "hsdp"}
        for gpus, length in ((1, 512), (8, 512), (64, 8192)):
            ramp = BatchRamp([RampStage(0, 128), RampStage(10**9, 512)], length)
            layouts = Layouts(gpus, Throughput.assumed("h100"), ramp, engine)
            seen = set()
            for option in layouts.options():
                assert ways_of(option) <= able
                assert option.dp * option.fsdp * option.tp * option.pp * option.cp == gpus
                assert 128 % (option.dp * option.fsdp) == 0
                assert 512 % (option.micro_batch_sequences * option.dp * option.fsdp) == 0
                assert option.tp <= 8
                assert length / option.cp >= 2048 or option.cp == 1
                seen |= ways_of(option)
            every = {1: set(), 8: able - {"hsdp", "cp"}, 64: able}[gpus]
            assert seen - {"tp", "pp", "ep", "cp"} >= every - {"tp", "pp", "ep", "cp"}
            assert seen >= every
            assert not layouts.options()[0].gradient_checkpointing
    assert ENGINES[TRAIN_PY] < ENGINES[MEGATRON]


def test_a_megatron_like_engine_is_never_slower():
    """At equal rates: it has every layout of train.py; and trains what train.py cannot."""
    for model, gpus in ((MODEL, 8), (MODEL, 512), (Architecture(1728, 32), 64), (Architecture(3072), 64)):
        (row,) = scale_out(model, [gpus], "h100", mfu=0.4).rows
        (other,) = scale_out(model, [gpus], "h100", mfu=0.4, engine=MEGATRON).rows
        if row.step_seconds is not None:
            assert other.step_seconds <= row.step_seconds
    crowded, faster = (scale_out(Architecture(1728, 32), [512], "h100", mfu=0.4, engine=e).rows[0] for e in ENGINES)
    assert faster.mfu > crowded.mfu
    sizes = {"batch": 64 * 4096, "sequence_length": "4k"}
    (alone,) = scale_out(Architecture(8192), [64], "h100", engine=MEGATRON, **sizes).rows
    assert ways_of(alone.placement) - ENGINES[TRAIN_PY] - {"fsdp", "hsdp"}
    assert "TP" in alone.placement.ways or "PP" in alone.placement.ways


def test_the_bottleneck_of_a_step_is_named():
    """Its parts sum to the two sides of the step; what would move it, moves it."""
    (row,) = scale_out(Architecture(1728, 32), [512], "h100", mfu=0.4).rows
    parts = row.placement.seconds
    exchanged = sum(value for name, value in parts.items() if name not in ("compute", "recomputation", "bubble"))
    assert row.step_seconds == pytest.approx(max(parts["compute"], exchanged), rel=1e-12)
    name, _, share = row.bottleneck.partition(", ")
    assert share == f"{100 * parts[name] / row.step_seconds:.0f} % of the step"
    assert (row.limited_by, row.moved_by) == ("communication", MOVED_BY[name])
    larger = scale_out(Architecture(1728, 32), [512], "h100", mfu=0.4, batch="2M").rows[0]
    assert "a larger batch" in row.moved_by
    assert larger.mfu > row.mfu
    assert {*parts} - {*MOVED_BY} == set()


def test_more_gpus_communicate_more_for_each_token():
    eight, some, many = scale_out(MODEL, (8, 64, 512), "h100", mfu=0.4).rows
    assert {row.placement.sharding for row in (eight, some, many)} == {"fsdp2"}
    assert eight.placement.ep == 1 < some.placement.ep  # as gathering all experts for few tokens takes longer
    assert many.mfu_limit < some.mfu_limit < eight.mfu_limit
    assert "| 40.0% | 100% |" in scale_out(Architecture(1728, 8), (8,), mfu=0.4).summary().markdown()  # and not 119%
    assert [row.limited_by for row in (eight, some, many)] == ["compute", "compute", "communication"]
    assert many.step_seconds == many.communication_seconds > many.compute_seconds
    assert many.mfu == pytest.approx(many.mfu_limit)
    large = scale_out(MODEL, (512,), "h100", mfu=0.4, batch="2M").rows[0]
    assert (large.limited_by, large.mfu) == ("compute", pytest.approx(0.4))


def test_what_does_not_fit_or_is_not_known_says_so():
    (row,) = scale_out(Architecture(4096, 8), (8,), "h100").rows
    assert (row.placement, row.mfu, row.limited_by) == (None, None, "memory")
    assert scale_out(MODEL, (8,), "h100").to_dict()["rows"][0]["limited_by"] == "compute"


def test_a_model_is_read_and_its_run_is_timed_and_paid(tmp_path):
    """From its config.json, as of its architecture with the batch of released models."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(QWEN3_MOE))
    asked = {"gpus": [8, 64], "tokens": "1T", "price": 2.5}
    answer = scale_out(path, **asked)
    a = describe(QWEN3_MOE).architecture
    assert answer.architecture == a
    assert answer.model == str(path)
    sizes = {"batch": "4M", "sequence_length": 4096}
    assert answer.rows == scale_out(a, **asked, **sizes).rows == scale_out(QWEN3_MOE, **asked).rows
    assert answer.rows == scale_out(tmp_path, **asked).rows
    for row in answer.rows:
        placed = row.placement
        whole = training_memory(
            *(a, placed.micro_batch_sequences, 4096),
            passes=row.passes,
            gradient_checkpointing=placed.gradient_checkpointing,
            sharding="fsdp2",
            devices=row.gpus,
            reshard=placed.reshard,
            ep=placed.ep,
        )
        assert placed.memory.total == pytest.approx(whole.total)
        assert row.tokens_per_second == pytest.approx(1024 * 4096 / row.step_seconds)
        overhead = Throughput.assumed("h100").overhead_of(row.gpus)
        assert row.hours == pytest.approx(overhead * 1e12 / row.tokens_per_second / 3600)
        assert row.money == pytest.approx(2.5 * row.gpus * row.hours)
        assert row.hours_interval[0] < row.hours < row.hours_interval[1]
    eight, many = answer.rows
    assert many.hours < eight.hours < 10 * many.hours
    assert eight.placement.memory.total < 78e9
    text = " ".join(str(answer).split())
    assert "8 of 128 experts: 3.34B active of 30.5B parameters; batches of 4,194,304 tokens, sequences of 4,0" in text
    assert "step times on NVIDIA H100 SXM are assumed" in text
    assert "1T tokens: " in answer.verdict


def test_hours_of_a_given_mfu_are_the_flops_over_its_peak():
    """By hand, where one GPU neither communicates nor recomputes."""
    model = Architecture(512)
    (row,) = scale_out(model, [1], mfu=0.4, tokens=1e9).rows
    assert row.placement.ways == ""
    assert row.hours == pytest.approx(model.training_flops(1e9, context=512) / (0.4 * 989e12) / 3600)
    assert (row.hours_interval, row.money) == (None, None)


def test_what_does_not_fit_says_what_it_takes():
    answer = scale_out(QWEN3_MOE, [1, 8], tokens="1T", price=2)
    one, eight = answer.rows
    assert (one.placement, one.hours, one.money) == (None, None, None)
    assert one.least_bytes > 16 * answer.architecture.n_total
    assert eight.least_bytes < 78e9
    assert f"{format_bytes(one.least_bytes)}: does not fit" in str(answer)


def test_what_is_no_model_is_named(published):
    with pytest.raises(
        ValueError, match=r"model=None must be a model: rows .* have an architecture with integral=True"
    ):
        scale_out(published.optimal(1e21).best.architecture)
    assert scale_out(published.optimal(1e21, integral=True).best.architecture).rows
    for ask in (
        lambda: training_memory(None, 1, 512),
        lambda: decode_seconds(None, "h100", 32),
        lambda: Throughput.assumed("h100").step_seconds(None, 1e6),
    ):
        with pytest.raises(ValueError, match="=None must be a model"):
            ask()
    with pytest.raises(ValueError, match=r"price=2 is per GPU-hour: tokens=None must be given"):
        scale_out(MODEL, price=2)
    with pytest.raises(ValueError, match=r"tokens=36 has no unit: did you mean 36B or 36T\?"):
        scale_out(MODEL, tokens=36)
    with pytest.raises(FileNotFoundError, match="nowhere: no folder or Hub repo"):
        scale_out("nowhere")


@pytest.mark.parametrize("engine", [TRAIN_PY, MEGATRON])
def test_intervals_of_hours_lie_on_both_sides_where_communication_binds(engine):
    """The links' seconds are drawn as those of the work are, around what is expected."""
    rows = []
    for link in ("900GB", "0.2GB"):
        gpu = f"peak=989T,memory=80GB,bandwidth=3.35TB,link={link},node=8"
        rows += scale_out(MODEL, [8], gpu, tokens="100B", batch="256K", sequence_length=512, engine=engine).rows
    assert [row.limited_by for row in rows] == ["compute", "communication"]
    for row in rows:
        low, high = np.log(row.hours_interval)
        assert 0.5 < (np.log(row.hours) - low) / (high - np.log(row.hours)) < 2
