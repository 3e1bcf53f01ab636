"""The line that a plan prints starts its run: in every layout, on processes of this machine (gloo)."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from scaling_law import JointLaw
from scaling_law.planning.budget import Cluster
from scaling_law.planning.launch import FILES, count_machines
from scaling_law.size.recipe import RampStage
from tests.conftest import free_port
from tests.training import ranks
from training import load_tokenizer

ROOT = Path(__file__).parents[3]
# As train.py, but for FSDP2 on a CPU, where Accelerate would train with DDP without saying so.
TRAIN = """
import os, sys
from accelerate import PartialState
from accelerate.utils import DistributedType
from training.run.main import main

if os.environ.get("ACCELERATE_USE_FSDP") == "true":
    PartialState(cpu=True).distributed_type = DistributedType.MULTI_GPU
sys.exit(main())
"""
TINY = {"batch": [RampStage(0, 4)], "sequence_length": 32, "force": True}
# Devices with too little memory, or too slow links, for simpler layouts of a tiny model.
LAYOUTS = {
    "DDP": "peak=1T,memory=2.1GB,link=100GB",
    "FSDP2, EP 2": "peak=1T,memory=2.1GB,link=10GB",
    "FSDP2, weights not resharded": "peak=1T,memory=2.005GB,link=100GB",
}


def planned(gpu, gpus=2, vocab_size=300):
    cluster = {"gpu": gpu, "gpus": gpus, "mfu": 0.4}
    return JointLaw.published().plan(3e10, [8], vocab_size=vocab_size, learning_rate=1e-3, **cluster, **TINY)


def launcher_of(made):
    """The printed line, and what `accelerate launch` makes of it: the environment of the processes."""
    line = made.launch("my run.yaml")
    before, _, after = line.removeprefix("accelerate launch ").partition(" train.py ")
    assert after == "--config 'my run.yaml'"
    words = before.replace("$RANK", "1").replace("$ADDRESS", "10.0.0.1").split()
    words[words.index("--config_file") + 1] = str(ROOT / words[words.index("--config_file") + 1])
    return line, ranks.launched_environment(*words)


@pytest.fixture
def dry_run(tmp_path, tokenizer_folder):
    """A function: start the line of a plan, on each of its machines, with --dry-run; what the first prints."""
    for name in ("training", "modeling_switch_moe"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "train.py").write_text(TRAIN)

    def run(made, machines=1):
        (tmp_path / "run.yaml").write_text(made.to_yaml())
        line = f"{made.launch('run.yaml')} --dry-run --data.tokenizer {tokenizer_folder} --run.precision fp32"
        port = f"--main_process_port {free_port()}"
        if machines > 1:
            line = line.replace("--main_process_port 29500", port)
        else:
            line = line.replace("accelerate launch", f"accelerate launch {port}")
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        environment |= {"HF_HOME": str(tmp_path / "home"), "ACCELERATE_USE_CPU": "true", "ADDRESS": "127.0.0.1"}
        started = [
            subprocess.Popen(
                ["bash", "-c", line],
                cwd=tmp_path,
                env=environment | {"RANK": str(rank)},
                **{"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT},
            )
            for rank in range(machines)
        ]
        outputs = [process.communicate(timeout=500)[0] for process in started]
        assert [process.returncode for process in started] == [0] * machines, "\n".join(outputs)
        return re.sub(" +", " ", outputs[0])

    return run


def assert_started(made, ways, shown):
    """A dry run of the plan is of its model, and in its layout."""
    assert f"{made.architecture.n_active:,} active, {made.architecture.n_total:,} total" in shown
    assert "One step, measured on 2 x" in shown
    divided = ", experts divided among 2" * ("EP 2" in ways)
    assert (f"sharded over 2 processes{divided}" in shown) == ("FSDP2" in ways)


@pytest.mark.slow
@pytest.mark.parametrize("ways", LAYOUTS)
def test_the_line_of_a_plan_starts_it(dry_run, tokenizer_folder, ways):
    made = planned(LAYOUTS[ways], vocab_size=len(load_tokenizer(str(tokenizer_folder))))
    assert made.placement.ways == ways
    assert_started(made, ways, dry_run(made))


def train_into(output: Path, config: Path, flags: tuple[str, ...]) -> None:
    """Train as a rank does; what it prints is in a file of this rank."""
    with output.with_suffix(f".{os.environ['RANK']}").open("w") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    ranks._train(config, flags)


@pytest.mark.parametrize("ways", ["FSDP2, EP 2"])
def test_the_environment_of_the_line_starts_a_plan(tmp_path, tokenizer_folder, ways):
    """Here its processes need not import anything; with its own launcher it is slow."""
    made = planned(LAYOUTS[ways], vocab_size=len(load_tokenizer(str(tokenizer_folder))))
    assert made.placement.ways == ways
    (tmp_path / "run.yaml").write_text(made.to_yaml())
    flags = "--dry-run", "--data.tokenizer", str(tokenizer_folder), "--run.precision", "fp32"
    environment = launcher_of(made)[1] | {"ACCELERATE_USE_CPU": "true", "COLUMNS": "200"}
    inputs = train_into, tmp_path / "output.txt", tmp_path / "run.yaml", flags
    assert ranks.run_together(*inputs, environment=environment) == [0, 0]
    assert_started(made, ways, re.sub(" +", " ", (tmp_path / "output.0").read_text()))


@pytest.mark.slow
def test_the_line_for_several_machines_starts_on_each(dry_run, tokenizer_folder):
    made = planned(LAYOUTS["FSDP2, EP 2"] + ",node=1", vocab_size=len(load_tokenizer(str(tokenizer_folder))))
    assert "One step, measured on 2 x" in dry_run(made, machines=2)


def test_every_layout_has_its_file_its_processes_and_its_machines():
    plain, link = planned("h100", 4), "peak=1T,memory=2.1GB,link=100GB"
    assert JointLaw.published().plan(1e20).launch("a.yaml") == "accelerate launch train.py --config a.yaml"
    for made, file, processes, machines in (
        (planned("h100", 1), "single_gpu", 1, 1),
        (planned(link, 4), "one_node_ddp", 4, 1),
        (planned(f"{link},node=2", 4), "multi_node_ddp", 4, 2),
        (replace(plain, placement=replace(plain.placement, sharding="fsdp2", dp=1, fsdp=4)), "one_node_fsdp2", 4, 1),
    ):
        line, _ = launcher_of(made)
        assert f"{FILES}/{file}.yaml" in line
        assert (f"--num_processes {processes} " in line) == (processes > 1)
        assert (f"--num_machines {machines} --machine_rank $RANK --main_process_ip $ADDRESS" in line) == (machines > 1)


def test_replicas_of_shards_and_weights_that_stay_are_the_launchers():
    made = planned("peak=1T,memory=2.1GB,node=2", 4)
    hybrid = replace(made.placement, sharding="fsdp2", dp=2, fsdp=2, reshard=False)
    line, environment = launcher_of(replace(made, placement=hybrid))
    assert f"{FILES}/multi_node_hsdp.yaml --num_processes 4 --num_machines 2 " in line
    sizes = {name: environment[f"PARALLELISM_CONFIG_DP_{name}_SIZE"] for name in ("REPLICATE", "SHARD")}
    assert sizes == {"REPLICATE": "2", "SHARD": "2"}
    assert environment["FSDP_RESHARD_AFTER_FORWARD"] == "false"
    _, kept = launcher_of(replace(made, placement=replace(hybrid, reshard=True)))
    assert kept["FSDP_RESHARD_AFTER_FORWARD"] == "true"


@pytest.mark.parametrize(
    ("gpu", "gpus", "machines"),
    [
        ("h100", 1, 1),
        ("h100", 8, 1),
        ("h100", 12, 2),
        ("h100", 64, 8),
        ("gh200", 8, 2),
        ("gb200", 72, 18),
        ("h100", 9, 3),
    ],
)
def test_machines_have_equally_many_gpus(gpu, gpus, machines):
    """A rack of 72 is of machines with four each."""
    cluster = Cluster.of({"batch": [RampStage(0, gpus)]}, gpu=gpu, gpus=gpus)
    assert count_machines(cluster) == machines
