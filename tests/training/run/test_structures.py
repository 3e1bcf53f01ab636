"""A type of each structure: killed and resumed it ends in the same bytes; two shards train as one process does."""

import signal
from pathlib import Path
from typing import Any

import pytest

from benchmarks.every_class import section
from tests.model_classes import BIAS, NOISY
from tests.training import ranks
from tests.training.run.test_faults import models
from tests.training.run.test_processes import alone, assert_as_one, gentle, sharded, train_and_die  # noqa: F401
from training.run import checkpoint

GUIDE = Path(__file__).parents[3] / "docs/bring_your_own_architecture.md"
# By structure, the type and what differs from its tiny model in docs/tables/every_class.csv.
STRUCTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "multi-head attention, with dropout": ("gpt2", {}),
    "grouped-query attention, dense": ("llama", {}),
    "sliding windows": ("gemma3_text", {"sliding_window": 8}),
    "latent attention": ("minicpm3", {}),
    "sparse attention": ("deepseek_v32", {}),
    "linear attention (gated delta)": ("qwen3_next", {}),
    "recurrent (Mamba)": ("mamba", {}),
    "recurrent (Mamba 2)": ("mamba2", {}),
    "recurrent (xLSTM)": ("xlstm", {}),
    "recurrent and attention": ("jamba", {}),
    "stacked experts, with noise": ("mixtral", NOISY),
    "stacked experts with biases": ("gpt_oss", {"sliding_window": 8}),
    "shared experts": ("qwen2_moe", {}),
    "balanced by a bias": ("deepseek_v3", BIAS),
}
FAST = ("linear attention (gated delta)", "recurrent (Mamba)")
each_structure = pytest.mark.parametrize(
    "structure",
    [
        pytest.param(name, marks=[] if name in FAST else pytest.mark.slow, id=STRUCTURES[name][0])
        for name in STRUCTURES
    ],
)


@pytest.fixture
def build(gentle, structure):  # noqa: F811
    """Arguments of a short run of the structure's type, which saves after every step."""
    kind, changes = STRUCTURES[structure]
    fields = {name: value for name, value in section(kind).items() if "vocab_size" not in name}
    schedule = {"schedule.tokens": [1280], "schedule.batch_ramp": ["0:4"], "run.checkpoint_seconds": 1e-6}
    return lambda name: gentle(name, fields | changes, **schedule)


@pytest.mark.slow
@each_structure
def test_killed_and_resumed_it_ends_in_the_same_bytes(build):
    whole, killed = build("whole"), build("killed")
    alone(whole)
    assert ranks.run_together(train_and_die, ranks.save_configuration(killed), (), world=1) == [-signal.SIGKILL]
    assert checkpoint.steps(Path(killed.run.output_dir) / "trunk")
    alone(killed)
    assert models(killed.run.output_dir) == models(whole.run.output_dir)


@pytest.mark.slow
@each_structure
def test_two_shards_train_what_one_process_trains(build):
    one, two = build("one"), build("two")
    alone(one)
    sharded(two)
    assert_as_one(one, two)


def test_the_guide_names_the_type_of_each_structure():
    lines = [f"| {structure} | `{kind}` |" for structure, (kind, _) in STRUCTURES.items()]
    assert [line for line in lines if line not in GUIDE.read_text(encoding="utf-8")] == []
