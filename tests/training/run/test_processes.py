"""The same run on one process and on two (gloo on CPU), replicated (DDP) and sharded (FSDP2), and resumed on others.

The processes are started as the guide's commands start them.
"""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from hub import RunRecord
from tests.model_classes import BIAS, CLASSES, NOISY
from tests.test_training_guide import COMMANDS
from tests.training import ranks
from tests.training.run.test_run import lines_of
from training import ConfigurationError, Run
from training.run.devices import make_accelerator

ROOT = Path(__file__).parents[3]
PER_STEP = ("loss", "gradient_norm", "balance_loss", "z_loss", "drop_rate")


def guides_environment(file: str, *flags: str) -> dict[str, str]:
    """What the guide's command with this configuration file adds to the environment of each rank."""
    (command,) = [command for command in COMMANDS if f"{file}.yaml" in command]
    words = command.partition("accelerate launch ")[2].partition(" train.py")[0].split()
    words[words.index("--config_file") + 1] = str(ROOT / f"training/configs/accelerate/{file}.yaml")
    return ranks.launched_environment(*words, *flags)


def replicated(arguments, *flags: str) -> None:
    assert ranks.run_ranks(arguments, *flags, environment=guides_environment("cpu_two_processes")) == [0, 0]


def sharded(arguments, *flags: str) -> None:
    environment = guides_environment("one_node_fsdp2", "--num_processes", "2")
    assert environment["ACCELERATE_USE_FSDP"] == "true"
    assert ranks.run_ranks(arguments, *flags, environment=environment | {"ACCELERATE_USE_CPU": "true"}) == [0, 0]


def alone(arguments, *flags: str) -> None:
    """In a process of its own: Accelerate keeps one precision per process."""
    process = ranks.start(arguments, *flags)
    process.join(120)
    assert process.exitcode == 0


def measured(arguments) -> dict[tuple[str, int], tuple[list[float], list | None]]:
    """What must not depend on how a batch is spread, and which experts get tokens, by (log, step)."""
    found = {}
    for log in sorted(Path(arguments.run.output_dir).glob("*/log.jsonl")):
        for line in lines_of(arguments, log.parent.name):
            numbers = [line[name] for name in PER_STEP if name in line]  # a dense model drops nothing
            found[log.parent.name, line["step"]] = numbers, line.get("tokens_per_expert")
    return found


def results(arguments) -> dict[int, tuple[RunRecord, dict]]:
    """(record, weights) by token count."""
    records = {folder: RunRecord.load(folder) for folder in Path(arguments.run.output_dir).glob("*/model")}
    return {record.tokens: (record, load_file(path / "model.safetensors")) for path, record in records.items()}


def assert_close(one, other) -> None:
    """The same steps, records and weights, beyond the rounding of sums."""
    expected, found = measured(one), measured(other)
    assert expected.keys() == found.keys()
    for step, (values, routed) in expected.items():
        assert found[step][0] == pytest.approx(values, rel=1e-4, abs=1e-7), step
        assert found[step][0][4:] == values[4:]  # the same tokens are dropped
        assert found[step][1] == routed
    expected, found = results(one), results(other)
    assert expected.keys() == found.keys()
    for tokens, (record, weights) in expected.items():
        other_record, other_weights = found[tokens]
        for name in ("eval_loss", "eval_loss_standard_error", "train_loss", "drop_rate"):
            assert getattr(other_record, name) == pytest.approx(getattr(record, name), abs=1e-6)
        for name, weight in weights.items():
            torch.testing.assert_close(other_weights[name], weight, rtol=0, atol=2e-5)


@pytest.fixture
def gentle(tiny, tmp_path):
    """Runs at a rate where rounding errors do not grow, with capacity, balance loss and accumulation."""

    def build(name, model=None, **changes):
        usual = {"model.capacity_group_tokens": 32, "run.micro_batch_sequences": 1, "optimizer.learning_rate": 0.001}
        unequal_shares = {"run.eval_sequences": 5, "run.output_dir": str(tmp_path / name)}
        return tiny(**({"model": {**model}} if model else {}), **{**usual, **unequal_shares, **changes})

    return build


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="ours"),
        pytest.param({"model.capacity_factor": 0}, id="dropless", marks=pytest.mark.slow),
        *(
            pytest.param({"model": section}, id=section["type"], marks=pytest.mark.slow)
            for section in CLASSES.values()
        ),
        pytest.param({"model": BIAS}, id="balanced by a bias", marks=pytest.mark.slow),
        # Each micro-batch draws masks of its own.
        pytest.param({"model": NOISY, "run.micro_batch_sequences": 2}, id="dropout", marks=pytest.mark.slow),
    ],
)
def test_two_processes_train_what_one_trains(gentle, changes):
    """Each with micro-batches of its own size: only the capacity group decides what is dropped."""
    common = {"schedule.tokens": [1280], "schedule.batch_ramp": ["0:4"]}
    one, two, shards = (
        gentle(name, **{**common, "run.micro_batch_sequences": micro, **changes})
        for name, micro in (("one", 4), ("two", 2), ("shards", 1))
    )
    assert Run(one).execute() == 0
    replicated(two)
    sharded(shards)
    assert changes or min(numbers[-1] for numbers, _ in measured(one).values()) > 0
    for other in (two, shards):
        assert_close(one, other)
        ((record, _),) = results(other).values()
        assert record.hardware.startswith("2 x ")


@pytest.mark.slow
@pytest.mark.parametrize(("first", "then"), [(replicated, alone), (sharded, alone), (alone, sharded)])
def test_a_run_resumes_on_other_processes(gentle, first, then):
    whole, resumed = gentle("whole"), gentle("resumed")
    alone(whole)
    first(resumed, "--schedule.tokens", "1280")
    then(resumed)
    assert_close(whole, resumed)


@pytest.mark.slow
def test_losses_stay_fp32_in_bf16(gentle):
    """Of a dense model: experts are multiplied in fp32 on a CPU, but not where they were gathered in bf16."""
    one, two = (gentle(name, **{"run.precision": "bf16", "model.experts": 1}) for name in ("one", "two"))
    alone(one)
    sharded(two)
    expected, found = measured(one), measured(two)
    assert all(loss * 64 % 1 for (loss, *_), _ in found.values())  # a bf16 loss would be a multiple of 1/64 above 2
    for step in range(1, 9):  # later, rounding errors of fp32 sums begin to flip bits of bf16 weights
        assert found["trunk", step][0][0] == pytest.approx(expected["trunk", step][0][0], abs=1e-6)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"WORLD_SIZE": "2"}, "accelerate launch: 2 processes were started, and each"),
        ({"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "1"}, "fsdp_version: 1; it must be 2"),
        (
            {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_ACTIVATION_CHECKPOINTING": "true"},
            "it must be false, use run.gradient_checkpointing",
        ),
    ],
)
def test_what_would_change_the_numbers_is_refused(gentle, monkeypatch, environment, message):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    # As on a machine whose accelerator Accelerate does not spread over processes.
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    with pytest.raises(ConfigurationError, match=message):
        make_accelerator(gentle("alone").run)
