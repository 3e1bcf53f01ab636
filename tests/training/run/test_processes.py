"""The same run on one process and on two (gloo on CPU), replicated (DDP) and sharded (FSDP2), and resumed on others.

The processes are started as the guide's commands start them.
"""

import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from transformers.distributed import expert_parallel

from benchmarks import every_class
from hub import RunRecord
from tests.model_classes import BIAS, CLASSES, DENSE, NOISY, SHAPE, TOP_K
from tests.test_training_guide import COMMANDS
from tests.training import ranks
from tests.training.run.test_run import lines_of
from training import ConfigurationError, Run
from training.configuration.arguments import RunArguments
from training.run import checkpoint, main, sharding
from training.run.devices import make_accelerator
from training.run.step import train_step

ROOT = Path(__file__).parents[3]
CANNOT_DIVIDE = sharding.problem_of_libraries()
divides = pytest.mark.skipif(CANNOT_DIVIDE is not None, reason=f"expert and tensor parallelism: {CANNOT_DIVIDE}")
HALF = {"run.precision": "bf16", "model.capacity_factor": 2.0}
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


def on_four(arguments, *flags: str, replicas: int = 1) -> None:
    """Sharded over four processes, or over the half of them for each of two replicas (HSDP)."""
    environment = environment_of_shards(4, replicas)
    assert ranks.run_ranks(arguments, *flags, world=4, environment=environment) == [0] * 4


def environment_of_shards(world: int, replicas: int = 1) -> dict[str, str]:
    words, file = ["--num_processes", str(world), "--num_machines", "1"], "one_node_fsdp2"
    if replicas > 1:
        file, sizes = "multi_node_hsdp", {"dp_replicate": replicas, "dp_shard": world // replicas}
        for name, size in sizes.items():
            words += [f"--parallelism_config_{name}_size", str(size)]
    return guides_environment(file, *words) | {"ACCELERATE_USE_CPU": "true"}


def on_shards(function, *inputs, replicas: int = 1) -> None:
    """Call a function in two processes that share a model, for each of the replicas."""
    world = 2 * replicas
    environment = environment_of_shards(world, replicas)
    assert ranks.run_together(function, *inputs, world=world, environment=environment) == [0] * world


def divided(arguments, *flags: str, tensor: int = 1) -> None:
    """Sharded over four processes, each two of which divide the experts and, with `tensor` 2, heads and widths."""
    on_four(arguments, "--run.expert_parallel", "2", "--run.tensor_parallel", str(tensor), *flags)


def alone(arguments, *flags: str) -> None:
    """In a process of its own: Accelerate keeps one precision per process."""
    process = ranks.start(arguments, *flags)
    assert ranks.wait_for(process) == 0


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


def assert_as_one(one, other) -> None:
    """Close, and to 1e-6 in the losses and 1e-5 in the gradient norms of all steps."""
    assert_close(one, other)
    on_all = measured(other)
    for step, ((loss, norm, *_), _) in measured(one).items():
        assert on_all[step][0][0] == pytest.approx(loss, rel=0, abs=1e-6)
        assert on_all[step][0][1] == pytest.approx(norm, rel=1e-5)


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
        pytest.param({"model.experts": 1, "model.n_heads": 2}, id="dense", marks=pytest.mark.slow),
        pytest.param({"model": BIAS}, id="balanced by a bias", marks=pytest.mark.slow),
        # The first batches have fewer sequences than the micro-batches of one process, and one for each of two.
        pytest.param({"schedule.batch_ramp": ["0:2", "512:4"]}, id="ramp", marks=pytest.mark.slow),
        # Each micro-batch draws masks of its own.
        pytest.param({"model": NOISY, "run.micro_batch_sequences": 2}, id="dropout", marks=pytest.mark.slow),
    ],
)
def test_two_processes_train_what_one_trains(gentle, changes):
    """Each with micro-batches of its own size: only the capacity group decides what is dropped."""
    common = {"schedule.tokens": [1280], "schedule.batch_ramp": ["0:4"]}
    one, two, shards, parts = (
        gentle(name, **{**common, "run.micro_batch_sequences": micro, **changes})
        for name, micro in (("one", 4), ("two", 2), ("shards", 1), ("parts", 1))
    )
    assert Run(one).execute() == 0
    replicated(two)
    sharded(shards)
    others = [two, shards]
    if not CANNOT_DIVIDE:
        divided = "expert" if one.model.experts > 1 else "tensor"
        sharded(parts, f"--run.{divided}_parallel", "2")
        others.append(parts)
    assert changes or min(numbers[-1] for numbers, _ in measured(one).values()) > 0
    for other in others:
        assert_close(one, other)
        ((record, _),) = results(other).values()
        assert record.hardware.startswith("2 x ")


@pytest.mark.slow
@divides
@pytest.mark.parametrize(
    ("replicas", "experts", "tensor"), [(2, 1, 1), (1, 4, 1), (2, 2, 1), (1, 2, 2), (1, 4, 2), (2, 2, 2)]
)
def test_four_processes_train_what_one_trains(gentle, replicas, experts, tensor):
    """In replicas of two shards, with experts and widths divided, and all of it; recomputed where experts are."""
    common = {"schedule.tokens": [1280], "schedule.batch_ramp": ["0:4"], "model.n_heads": 2}
    one, four = gentle("one", **common), gentle("four", **common)
    assert Run(one).execute() == 0
    recomputed = "--run.gradient_checkpointing", "true" if experts > 1 else "false"
    divided = "--run.expert_parallel", str(experts), "--run.tensor_parallel", str(tensor)
    on_four(four, *divided, *recomputed, replicas=replicas)
    assert_as_one(one, four)
    ((record, _),) = results(four).values()
    assert (record.expert_parallel, record.tensor_parallel) == (experts, tensor)
    saved = checkpoint.newest_intact(Path(four.run.output_dir) / "trunk")
    metadata = dcp.FileSystemReader(saved / "state").read_metadata().state_dict_metadata
    assert len(metadata["model.lm_head.weight"].chunks) == 4 // replicas
    assert len(metadata["model.model.layers.0.mlp.experts.down_proj"].chunks) == 4 // replicas


@pytest.mark.slow
@divides
@pytest.mark.parametrize(("model", "tensor"), [(None, 1), (TOP_K, 1), (TOP_K, 2)], ids=["ours", "qwen3_moe", "widths"])
def test_a_run_with_divided_experts_is_killed_and_resumes_in_other_layouts(gentle, model, tensor):
    """Killed on four processes, resumed there, then on two that divide nothing, then on one."""
    changes = {"schedule.tokens": [1280, 1920, 2560], "schedule.batch_ramp": ["0:4"], "run.checkpoint_seconds": 1e-3}
    whole, resumed = gentle("whole", model, **changes), gentle("resumed", model, **changes)
    alone(whole)
    divided = "--run.expert_parallel", "4", "--run.tensor_parallel", str(tensor)
    environment = guides_environment("one_node_fsdp2", "--num_processes", "4") | {"ACCELERATE_USE_CPU": "true"}
    inputs = (train_and_die, ranks.save_configuration(resumed), divided)
    assert ranks.run_together(*inputs, world=4, environment=environment) == [-signal.SIGKILL] * 4
    assert checkpoint.steps(Path(resumed.run.output_dir) / "trunk")
    on_four(resumed, *divided, "--schedule.tokens", "1280")
    sharded(resumed, "--schedule.tokens", "1280", "1920")
    alone(resumed)
    assert_close(whole, resumed)


@pytest.mark.slow
@divides
@pytest.mark.parametrize(
    ("parallel", "changes"),
    [
        pytest.param(2, {}, id="adamw"),
        pytest.param(2, {"optimizer.name": "muon"}, id="muon"),
        pytest.param(2, HALF, id="bf16"),
        pytest.param(1, HALF, id="undivided, bf16"),
        pytest.param(1, {"run.precision": "bf16", "model": TOP_K, "optimizer.decay_all": False}, id="qwen3_moe, bf16"),
    ],
)
def test_shards_killed_and_resumed_in_one_layout_have_the_same_bits(gentle, parallel, changes):
    common = {"schedule.tokens": [1280], "schedule.batch_ramp": ["0:4"], "run.checkpoint_seconds": 1e-3}
    whole, resumed = gentle("whole", **common, **changes), gentle("resumed", **common, **changes)
    divided = "--run.expert_parallel", str(parallel)
    sharded(whole, *divided)
    environment = guides_environment("one_node_fsdp2", "--num_processes", "2") | {"ACCELERATE_USE_CPU": "true"}
    inputs = (train_and_die, ranks.save_configuration(resumed), divided)
    assert ranks.run_together(*inputs, environment=environment) == [-signal.SIGKILL] * 2
    sharded(resumed, *divided)
    assert measured(resumed) == measured(whole)
    ((_, weights),) = results(resumed).values()
    for name, weight in results(whole)[1280][1].items():
        assert torch.equal(weights[name], weight), name


def train_and_die(config: Path, flags: tuple[str, ...]) -> None:
    """Train as a rank does, and kill this process at its sixth step, while a checkpoint may be being written."""

    def step_or_die(session, step, rate):
        if step == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return train_step(session, step, rate)

    main.train_step = step_or_die
    ranks._train(config, flags)


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


def mesh(**sizes: int) -> dict[str, str]:
    """What a launcher of four sharded processes sets for this `parallelism_config`."""
    asked = {f"PARALLELISM_CONFIG_{name.upper()}_SIZE": str(size) for name, size in sizes.items()}
    four = {"WORLD_SIZE": "4", "ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}
    return {**four, "ACCELERATE_USE_PARALLELISM_CONFIG": "true", **asked}


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"WORLD_SIZE": "2"}, "accelerate launch: 2 processes were started, and each"),
        ({"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "1"}, "fsdp_version: 1; it must be 2"),
        (
            {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_ACTIVATION_CHECKPOINTING": "true"},
            "^FSDP_ACTIVATION_CHECKPOINTING: true; it must be false or unset: set run.gradient_checkpointing",
        ),
        (
            mesh(dp_replicate=2, dp_shard=3),
            "dp_replicate 2, dp_shard 3, .*; dp_replicate × dp_shard must be the 4 proc",
        ),
        (mesh(dp_replicate=4), "and dp_shard at least 2"),
        (mesh(dp_shard=2, tp=2), "tp 2, .*; tp must be 1, set run.tensor_parallel"),
        (mesh(dp_shard=2, cp=2), "cp 2, .*; train.py has no context or sequence parallelism"),
        (mesh(dp_shard=4) | {"ACCELERATE_USE_FSDP": "false"}, "it needs fsdp_config.fsdp_version 2"),
        (mesh(dp_shard=4) | {"ACCELERATE_USE_CPU": "true"}, "accelerate launch: .* RANK expected, but not set"),
    ],
)
def test_what_would_change_the_numbers_is_refused(gentle, monkeypatch, environment, message):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    # As on a machine whose accelerator Accelerate does not spread over processes.
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    with pytest.raises(ConfigurationError, match=message):
        make_accelerator(gentle("alone").run)


def test_a_layout_is_what_launcher_and_configuration_ask_for():
    fields = {"num_processes": 8, "device": torch.device("cpu")}
    flat = SimpleNamespace(parallelism_config=None, **fields)
    hybrid = SimpleNamespace(parallelism_config=SimpleNamespace(dp_replicate_size=2), **fields)
    plain = sharding.Layout.of(flat, RunArguments())
    assert (str(plain), plain.readers) == ("sharded over 8 processes", 8)
    layout = sharding.Layout.of(hybrid, RunArguments(expert_parallel=4, tensor_parallel=2))
    described = "2 replicas, each sharded over 4 processes, experts divided among 4, heads and inner widths among 2"
    assert (str(layout), layout.readers) == (described, 4)


def refused(arguments, processes: int, message: str, is_fsdp2: bool = True) -> None:
    """Layouts of two replicas."""
    replicas = SimpleNamespace(dp_replicate_size=2)
    fields = {"parallelism_config": replicas, "num_processes": processes, "device": torch.device("cpu")}
    with pytest.raises(ConfigurationError, match=f"^{message}"):
        sharding.check_layout(arguments, SimpleNamespace(is_fsdp2=is_fsdp2, **fields))


def test_experts_that_cannot_be_divided_are_refused_before_data_are_read(gentle, monkeypatch):
    divided, needs = gentle("refused", **{"run.expert_parallel": 4}), "run.expert_parallel: 4; it"
    refused(divided, 8, f"{needs} needs FSDP2", is_fsdp2=False)
    refused(divided, 12, f"{needs} must divide the 6 processes that share a model")
    without_a_plan = {"type": "llama4_text", "num_local_experts": 4, "num_key_value_heads": 4, **SHAPE}
    message = "run.expert_parallel: 4; transformers has no plan by which to divide the experts of llama4_text"
    refused(gentle("refused", without_a_plan, **{"run.expert_parallel": 4}), 8, message)
    with pytest.raises(ConfigurationError, match="expert_parallel: 2; it needs FSDP2"):
        Run(gentle("alone", **{"run.expert_parallel": 2, "data.cache_dir": "unread"}))
    assert not Path("unread").exists()
    monkeypatch.setattr(sharding, "version", lambda name: "5.17.0")
    refused(divided, 8, f"{needs} needs transformers 5.23 or newer; 5.17.0 is installed")


@divides
def test_a_transformers_that_divides_in_another_way_is_refused(gentle, monkeypatch):
    """Either its functions have other arguments, or they do not do what is expected."""
    parallel = gentle("refused", **{"run.expert_parallel": 4})
    named = (
        r"run.expert_parallel: 4; transformers [0-9.]+ divides models in another way: .*; install transformers 5.23"
    )
    with monkeypatch.context() as changed:
        changed.setattr(expert_parallel, "apply_expert_parallelism", lambda model, mesh, plan: model)
        refused(parallel, 8, named)
    with monkeypatch.context() as changed:
        changed.delattr(expert_parallel, "apply_expert_parallelism")
        refused(parallel, 8, named)
    whole = torch.nn.Parameter(torch.zeros(4, 2))
    message = r"run.expert_parallel: 2; mlp.experts was not divided by transformers [0-9.]+; install transformers 5.23"
    with pytest.raises(ConfigurationError, match=message):
        sharding._check_divided("run.expert_parallel", "mlp.experts", [whole], 2)


@divides
def test_widths_that_cannot_be_divided_are_refused_before_data_are_read(gentle):
    def names(problem: str, size: int, model=None, **changes) -> None:
        asked = gentle("refused", model, **{"run.tensor_parallel": size, **changes})
        refused(asked, 2 * size, f"run.tensor_parallel: {size}; {problem}")

    names("it must divide run.expert_parallel, 1: experts are not cut", 2)
    names("it must divide run.expert_parallel, 2: ", 4, **{"run.expert_parallel": 2})
    names("it needs model.attention_dropout 0, which is 0.2", 2, NOISY, **{"run.expert_parallel": 2})
    names("it must divide num_attention_heads, 4", 3, DENSE)
    names("it must divide num_key_value_heads, 2", 4, DENSE)
    odd = DENSE | {"intermediate_size": 97}
    names("it must divide a dimension of model.layers.0.mlp.gate_proj.weight, 97", 2, odd)
    for kind in ("gpt2", "granite_swa", "gemma3n_text"):  # without a plan, by a style, and of which it is wrong
        problem = f"transformers has no plan by which train.py can divide the heads and inner widths of {kind}"
        names(problem, 2, every_class.section(kind))
