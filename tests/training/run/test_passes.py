"""Compiled blocks: one graph for all, none after the first steps, and the numbers of eager ones."""

from functools import partialmethod

import pytest
import torch
from torch._dynamo.utils import counters

from tests.model_classes import CLASSES, SHAPE
from tests.training.run.test_causal_model import config_of
from training.run import passes
from training.run.evaluation import HeldOut, evaluate
from training.run.model import build_model
from training.run.step import train_step
from training.run.timing import arguments_of_steps, session_on_random_tokens

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
# Blocks that differ have graphs of their own: dense ones among those with experts.
GRAPHS = {"deepseek_v3": 2}


@pytest.fixture
def compiler(monkeypatch):
    """Compile without generating code; a block that is compiled too often is an error and not just a warning."""
    torch._dynamo.reset()
    counters.clear()
    compile_module = partialmethod(torch.nn.Module.compile, backend="aot_eager")
    monkeypatch.setattr(torch.nn.Module, "compile", compile_module)
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        yield
    torch._dynamo.reset()


def session_of(section, compiled=True, precision="bf16", passes_a_step=2):
    run = {"precision": precision, "micro_batch_sequences": 2, "gradient_checkpointing": False, "compile": compiled}
    a = arguments_of_steps(run, section | {"capacity_group_tokens": 2 * LENGTH}, LENGTH, passes_a_step)
    return session_on_random_tokens(a, VOCABULARY)


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


def test_a_block_that_does_not_compile_runs_without(compiler, caplog):
    session, eager = session_of(KINDS["llama"]), session_of(KINDS["llama"], compiled=False)
    block = session.model.model.layers[0]
    forward = block.forward

    def reads_a_value(hidden_states, *inputs, **options):
        sign = 1.0 if hidden_states.sum() > 0 else -1.0
        return forward(hidden_states * sign * sign, *inputs, **options)

    block.forward = reads_a_value
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
