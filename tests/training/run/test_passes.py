"""Compiled blocks: one graph for all, none after the first steps, and the numbers of eager ones."""

import logging
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from accelerate import PartialState
from accelerate.utils import DistributedType
from torch._dynamo.utils import counters
from torch.distributed.tensor import DTensor
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from tests.model_classes import CLASSES, SHAPE
from tests.training.run.test_causal_model import config_of
from tests.training.run.test_processes import on_shards
from training.run import passes
from training.run.evaluation import HeldOut, evaluate
from training.run.model import build_model
from training.run.step import train_step, wants_compiled_blocks
from training.run.timing import arguments_of_steps, peak_bytes, session_on_random_tokens

LENGTH, VOCABULARY = 16, 96
TWELVE = SHAPE | {"num_hidden_layers": 12}
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
KINDS = {
    "ours, E = 1": {"d_model": 32, "n_heads": 2, "n_blocks": 12, "experts": 1},
    "ours, E = 8": {"d_model": 32, "n_heads": 2, "n_blocks": 12, "experts": 8},
    "llama": CLASSES["llama"] | TWELVE,
    "qwen3_moe": CLASSES["qwen3_moe"] | TWELVE,
    "deepseek_v3": CLASSES["deepseek_v3"] | TWELVE,
    "qwen2_moe": CLASSES["qwen2_moe"] | TWELVE,
    "mixtral": {
        "type": "mixtral",
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "num_key_value_heads": 2,
        **TWELVE,
    },
    "olmoe": {"type": "olmoe", "num_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 4, **TWELVE},
    "gpt_oss": {
        "type": "gpt_oss",
        **{"num_local_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 2, "head_dim": 12},
        **TWELVE,
    },
}
# Blocks that differ in a number alone: in every other one a window holds fewer tokens than a sequence has.
SHARDED = {kind: section | {"num_hidden_layers": 4} for kind, section in KINDS.items() if "type" in section} | {
    kind: KINDS[kind] | {"n_blocks": 4} for kind in ("ours, E = 1", "ours, E = 8")
}
SHARDED["gpt_oss"]["sliding_window"] = 4
ROUTED = ("deepseek_v3", "mixtral", "olmoe", "gpt_oss")
# Blocks that differ have graphs of their own: dense ones among those with experts.
GRAPHS = {"deepseek_v3": 2}


@pytest.fixture
def compiler(monkeypatch):
    """Compile without generating code; a block that is compiled too often is an error and not just a warning."""
    torch._dynamo.reset()
    counters.clear()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        yield
    torch._dynamo.reset()


def session_of(section, compiled=True, precision="bf16", passes_a_step=2, checkpointing=False):
    run = {"precision": precision, "micro_batch_sequences": 2, "compile": compiled}
    run["gradient_checkpointing"] = checkpointing
    a = arguments_of_steps(run, section | {"capacity_group_tokens": 2 * LENGTH}, LENGTH, passes_a_step)
    return session_on_random_tokens(a, VOCABULARY)


def compile_shards(kind: str, precision: str, checkpointing: bool) -> None:
    """Train compiled and eager shards as one of several ranks: one graph for all blocks, and the same losses."""
    torch.compile = partial(torch.compile, backend="aot_eager")
    state = PartialState(cpu=True)
    # On CPU Accelerate would train with DDP without saying so; this is what several GPUs would have.
    state.distributed_type = DistributedType.MULTI_GPU
    fixed = {"precision": precision, "passes_a_step": 2 * state.num_processes, "checkpointing": checkpointing}
    sessions = [session_of(SHARDED[kind], is_compiled, **fixed) for is_compiled in (False, True)]
    compiled = sessions[1]
    assert compiled.accelerator.is_fsdp2
    tolerance = 1e-6 if precision == "fp32" else 1e-3
    graphs = []
    for step in range(5):
        expected, result = (train_step(session, step, 1e-3) for session in sessions)
        graphs.append(counters["stats"]["unique_graphs"])
        assert result.loss == pytest.approx(expected.loss, rel=tolerance)
        assert result.gradient_norm == pytest.approx(expected.gradient_norm, rel=30 * tolerance)
    assert compiled.runner.is_compiled
    assert graphs == [GRAPHS.get(kind, 1)] * 5
    assert not counters["graph_break"]
    whole = [parameter for parameter in compiled.model.parameters() if not isinstance(parameter, DTensor)]
    assert bool(whole) == (precision == "bf16")
    for tensor in whole:
        copies = [torch.empty_like(tensor) for _ in range(state.num_processes)]
        torch.distributed.all_gather(copies, tensor.detach())
        assert all(torch.equal(copy, tensor) for copy in copies)


def held_out(sequences):
    tokens = torch.arange(sequences * (LENGTH + 1)).remainder(VOCABULARY).view(sequences, LENGTH + 1)
    return HeldOut(tokens.numpy(), torch.zeros(sequences, LENGTH, dtype=torch.int64).numpy())


# Each of these compiles for seconds, so one class is tried each time.
OFTEN = ("ours, E = 8",)


@pytest.mark.parametrize(
    "kind", [kind if kind in OFTEN else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
def test_twelve_blocks_are_compiled_once(compiler, kind):
    """Evaluation at other shapes between the steps compiles nothing."""
    session = session_of(KINDS[kind])
    train_step(session, 0, 1e-3)
    graphs = counters["stats"]["unique_graphs"]
    assert graphs == GRAPHS.get(kind, 1)
    for sequences in (1, 2, 3):
        with session.runner.eagerly():
            evaluate(session.model, held_out(sequences), sequences, torch.device("cpu"))
        train_step(session, sequences, 1e-3)
    assert session.runner.is_compiled
    assert counters["stats"]["unique_graphs"] == graphs
    assert not counters["graph_break"]
    assert not counters["recompile_limit"]


@pytest.mark.parametrize(
    ("kind", "precision"),
    [
        ("ours, E = 8", "bf16"),
        *(
            pytest.param(kind, precision, marks=pytest.mark.slow)
            for kind, precision in (
                ("ours, E = 8", "fp32"),
                ("ours, E = 1", "fp32"),
                ("ours, E = 1", "bf16"),
                ("qwen3_moe", "fp32"),
                ("qwen3_moe", "bf16"),
                ("deepseek_v3", "fp32"),
                ("deepseek_v3", "bf16"),
            )
        ),
    ],
)
def test_compiled_steps_have_the_losses_of_eager_ones(compiler, kind, precision):
    section = KINDS[kind]
    eager, compiled = (session_of(section, choice, precision) for choice in (False, True))
    tolerance = 1e-6 if precision == "fp32" else 1e-3
    for step in range(3):
        expected, result = (train_step(session, step, 1e-3) for session in (eager, compiled))
        assert result.loss == pytest.approx(expected.loss, rel=tolerance)
        assert result.gradient_norm == pytest.approx(expected.gradient_norm, rel=30 * tolerance)
    names = [list(session.model.state_dict()) for session in (eager, compiled)]
    assert names[0] == names[1]


@pytest.mark.parametrize("kind", ["qwen3_moe", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ROUTED)])
def test_recomputed_blocks_are_one_graph_and_keep_nothing_that_routers_measure(compiler, kind):
    section = KINDS[kind] | {"num_hidden_layers": 3}
    eager, compiled = (session_of(section, choice, "fp32", checkpointing=True) for choice in (False, True))
    for step in range(2):
        expected, result = (train_step(session, step, 1e-3) for session in (eager, compiled))
        assert result.loss == pytest.approx(expected.loss, rel=1e-6)
        assert result.gradient_norm == pytest.approx(expected.gradient_norm, rel=3e-5)
        assert torch.equal(result.routing.tokens_per_expert, expected.routing.tokens_per_expert)
        assert not any("routed" in vars(router) for router in compiled.model._routers)
    assert compiled.runner.is_compiled
    assert counters["stats"]["unique_graphs"] == GRAPHS.get(kind, 1)
    assert not counters["graph_break"]


@pytest.mark.slow
def test_compiled_blocks_are_recomputed(compiler):
    """No activations are kept: the peak is that of eager ones."""

    def work(compiled: bool, checkpointing: bool):
        session = session_of(KINDS["qwen3_moe"], compiled, "fp32", checkpointing=checkpointing)
        for step in range(3):
            train_step(session, step, 1e-3)
        return session

    peaks = {}
    for compiled, checkpointing in ((False, True), (True, True), (True, False)):
        of_case = partial(work, compiled, checkpointing)
        peaks[compiled, checkpointing] = peak_bytes(torch.device("cpu"), of_case)[1]
    assert peaks[True, True] == pytest.approx(peaks[False, True], rel=0.05)
    assert peaks[True, True] < 0.9 * peaks[True, False]


@pytest.mark.parametrize(
    ("layout", "checkpointing", "around", "line"),
    [
        ({}, False, False, None),
        ({"num_processes": 2, "is_fsdp2": True}, True, False, None),
        ({"num_processes": 2, "is_fsdp2": True, "parts": "expert"}, False, False, "divided experts and widths"),
        ({"num_processes": 2, "is_fsdp2": True, "parts": "tensor"}, False, False, "divided experts and widths"),
        ({}, True, True, "recomputed ones would keep what their routers measure"),
    ],
)
def test_blocks_are_compiled_by_themselves_unless_a_line_says_why_not(
    layout, checkpointing, around, line, monkeypatch, caplog
):
    """A `__call__` of its own recomputes a block in older versions of transformers."""
    caplog.set_level(logging.INFO)
    if around:
        monkeypatch.setattr(GradientCheckpointingLayer, "__call__", torch.nn.Module.__call__)
    fields = {"num_processes": 1, "is_fsdp2": False, "parallelism_config": None, "device": torch.device("cuda")}
    run = {"micro_batch_sequences": 1, "gradient_checkpointing": checkpointing}
    fields |= layout
    if "parts" in fields:
        run[f"{fields.pop('parts')}_parallel"] = 2
    a = arguments_of_steps(run, CLASSES["qwen3_moe"], LENGTH)
    assert wants_compiled_blocks(a, SimpleNamespace(**fields)) == (line is None)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == (line is not None)
    assert line is None or line in lines[0]


@pytest.mark.parametrize(
    ("kind", "precision", "replicas", "checkpointing"),
    [
        ("ours, E = 8", "bf16", 1, False),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("ours, E = 8", "fp32", 1, False),
                ("ours, E = 8", "bf16", 1, True),
                ("ours, E = 8", "bf16", 2, False),
                ("ours, E = 1", "bf16", 1, False),
                ("qwen3_moe", "fp32", 1, False),
                ("qwen3_moe", "bf16", 2, False),
                ("qwen3_moe", "bf16", 1, True),
                ("deepseek_v3", "bf16", 1, False),
                ("gpt_oss", "fp32", 1, False),
                ("gpt_oss", "bf16", 1, False),
            )
        ),
    ],
)
def test_shards_are_compiled_once_and_have_the_losses_of_eager_ones(kind, precision, replicas, checkpointing):
    """On two processes, or on four in two replicas."""
    on_shards(compile_shards, kind, precision, checkpointing, replicas=replicas)


def test_a_block_that_does_not_compile_runs_without(compiler, caplog, monkeypatch):
    forward = LlamaDecoderLayer.forward

    def reads_a_value(block, hidden_states, *inputs, **options):
        sign = 1.0 if hidden_states.sum() > 0 else -1.0
        return forward(block, hidden_states * sign * sign, *inputs, **options)

    monkeypatch.setattr(LlamaDecoderLayer, "forward", reads_a_value)
    session, eager = session_of(KINDS["llama"]), session_of(KINDS["llama"], compiled=False)
    losses = [train_step(each, 0, 1e-3).loss for each in (session, eager)]
    assert losses[0] == losses[1]
    assert not session.runner.is_compiled
    (line,) = [record.getMessage() for record in caplog.records if record.name == passes.__name__]
    assert line.startswith("the blocks of LlamaForCausalLM run without a compiler: ")


@pytest.mark.slow
def test_what_other_trainings_compiled_is_no_limit(compiler, caplog):
    """torch counts the graphs of all models of a process, and allows eight; here two."""
    with torch._dynamo.config.patch(recompile_limit=2):
        for width in (16, 32, 48):
            session = session_of(KINDS["ours, E = 1"] | {"n_blocks": 2, "d_model": width})
            train_step(session, 0, 1e-3)
            assert session.runner.is_compiled
    assert passes.__name__ not in {record.name for record in caplog.records}


@pytest.mark.slow
def test_a_model_with_too_many_kinds_of_blocks_runs_without_a_compiler(compiler, caplog):
    """The limit holds for one model, too: DeepSeek-V3 has two kinds of blocks."""
    with torch._dynamo.config.patch(recompile_limit=1):
        session = session_of(CLASSES["deepseek_v3"])
        train_step(session, 0, 1e-3)
    assert not session.runner.is_compiled
    (line,) = [record.getMessage() for record in caplog.records if record.name == passes.__name__]
    assert line.startswith("the blocks of DeepseekV3ForCausalLM run without a compiler: ")


def test_blocks_are_the_outermost_parts_that_the_class_keeps_whole():
    model = build_model(config_of(CLASSES["deepseek_v3"]), seed=0)
    assert passes.causal_model.blocks(model) == list(model.model.layers)
