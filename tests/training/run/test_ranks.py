"""Two ranks train what one process trains, with DDP and with FSDP2, as the guide's commands start them."""

import json
from pathlib import Path

import pytest
import torch

from tests.test_training_guide import COMMANDS
from tests.training import ranks
from tests.training.run.test_processes import assert_close, results
from training.configuration.arguments import ConfigurationError
from training.run.devices import make_accelerator
from training.run.main import Run

ROOT = Path(__file__).parents[3]


def guides_environment(file: str, *flags: str) -> dict[str, str]:
    """What the guide's command with this configuration file adds to the environment of each rank."""
    (command,) = [command for command in COMMANDS if f"{file}.yaml" in command]
    words = command.partition("accelerate launch ")[2].partition(" train.py")[0].split()
    words[words.index("--config_file") + 1] = str(ROOT / f"training/configs/accelerate/{file}.yaml")
    return ranks.launched_environment(*words, *flags)


def measured(arguments) -> list[list[float]]:
    """Of every step what must not depend on how the batch is spread."""
    names = ("loss", "gradient_norm", "balance_loss", "z_loss", "drop_rate")
    lines = []
    for log in sorted(Path(arguments.run.output_dir).glob("*/log.jsonl")):
        lines += [[line[name] for name in names] for line in map(json.loads, log.read_text().splitlines())]
    return lines


@pytest.fixture
def gentle(tiny, tmp_path):
    """Runs at a rate where rounding errors do not grow, with capacity, balance loss and accumulation."""

    def build(name, micro):
        changes = {"run.output_dir": str(tmp_path / name), "run.micro_batch_sequences": micro}
        changes |= {"model.capacity_group_tokens": 32, "run.eval_sequences": 5, "schedule.tokens": [1280]}
        return tiny(**changes, **{"schedule.batch_ramp": ["0:4"], "optimizer.learning_rate": 0.001})

    return build


def test_two_ranks_train_what_one_process_trains(gentle):
    """Each with micro-batches of its own size: only the capacity group decides what is dropped."""
    one, replicated, sharded = gentle("one", 4), gentle("replicated", 2), gentle("sharded", 1)
    assert Run(one).execute() == 0
    assert ranks.run_ranks(replicated, environment=guides_environment("cpu_two_processes")) == [0, 0]
    environment = guides_environment("one_node_fsdp2", "--num_processes", "2")
    assert environment["ACCELERATE_USE_FSDP"] == "true"
    assert ranks.run_ranks(sharded, environment=environment | {"ACCELERATE_USE_CPU": "true"}) == [0, 0]
    for other in (replicated, sharded):
        for found, expected in zip(measured(other), measured(one), strict=True):
            assert found == pytest.approx(expected, rel=1e-4)
            assert found[-1] == expected[-1] > 0
        assert_close(results(one), results(other))
        ((record, _),) = results(other).values()
        assert record.hardware.startswith("2 x ")


def test_ranks_that_would_train_alone_are_refused(gentle, monkeypatch):
    """As on a machine whose accelerator Accelerate does not spread over processes."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    with pytest.raises(ConfigurationError, match="accelerate launch: 2 processes were started, and each"):
        make_accelerator(gentle("alone", 1).run)
