"""The SLURM array script: valid for bash, and run for real with stand-ins for srun and scontrol."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

import training
from hub import RunRecord
from training.configuration.arguments import ConfigurationError
from training.sweep import __main__ as sweep_module
from training.sweep.file import Sweep
from training.sweep.run import Attempt, state
from training.sweep.slurm import script

CONFIGS = Path(training.__file__).parent / "configs" / "accelerate"


@pytest.fixture
def sweep_file(tiny, tmp_path):
    """Two tiny trunks. One sequence a micro-batch, so that two processes can share the smallest batch."""
    base = tiny(run__micro_batch_sequences=1).to_dict()
    path = tmp_path / "sweep file.yaml"  # a blank must survive the shell
    path.write_text(
        yaml.safe_dump({"base": base, "output_dir": str(tmp_path / "runs"), "grid": {"model.experts": [1, 4]}})
    )
    return path


@pytest.fixture
def cluster(tmp_path):
    """A folder for PATH with an `srun` that starts a command on every "node" of this machine, and a `scontrol`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "srun").write_text(
        "#!/bin/bash\n"
        "while [[ $1 == --* ]]; do shift; done\n"
        "children=()\n"
        'for ((i = 0; i < SLURM_NNODES; i++)); do SLURM_NODEID=$i "$@" & children+=($!); done\n'
        "trap 'kill -TERM \"${children[@]}\"' TERM\n"
        'status=0; for child in "${children[@]}"; do wait "$child" || status=$?; done; exit "$status"\n'
    )
    (folder / "scontrol").write_text(
        '#!/bin/bash\nif [ "$1" = show ]; then echo 127.0.0.1; else echo "$@" >> "$SCONTROL_LOG"; fi\n'
    )
    for program in folder.iterdir():
        program.chmod(0o755)
    return folder


def start(text: str, cluster, tmp_path, task: int, nodes: int = 1) -> subprocess.Popen:
    path = tmp_path / "job.sh"
    path.write_text(text)
    environment = {
        **os.environ,
        "PATH": f"{cluster}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path(training.__file__).parent.parent),
        "OMP_NUM_THREADS": "1",
        "ACCELERATE_USE_CPU": "true",
        "SLURM_ARRAY_JOB_ID": "77",
        "SLURM_ARRAY_TASK_ID": str(task),
        "SLURM_JOB_ID": str(os.getpid()),  # the port is made from it
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_NNODES": str(nodes),
        "SCONTROL_LOG": str(tmp_path / "scontrol.log"),
    }
    return subprocess.Popen(["bash", str(path)], env=environment, start_new_session=True)


def test_the_script_is_bash_and_asks_for_what_was_given(sweep_file):
    options = ["--time", "12:00:00", "--partition", "long", "--account", "abc", "--at-most", "3"]
    options += ["--sbatch", "--mem=64G", "--setup", "module load cuda"]
    shown = CliRunner().invoke(sweep_module.app, ["slurm", str(sweep_file), "--gpus", "4", *options])
    assert shown.exit_code == 2  # four processes cannot share a batch of two sequences
    assert "run.micro_batch_sequences: 1 cuts the batch of 2 sequences" in shown.output
    for nodes, gpus in (("1", "2"), ("2", "1")):
        words = ["slurm", str(sweep_file), "--nodes", nodes, "--gpus", gpus, *options]
        shown = CliRunner().invoke(sweep_module.app, words)
        assert shown.exit_code == 0, shown.output
        checked = subprocess.run(["bash", "-n"], input=shown.output, text=True, capture_output=True, check=False)
        assert checked.returncode == 0, checked.stderr
        asked = f"--nodes={nodes} --array=0-1%3 --time=12:00:00 --partition=long --account=abc --mem=64G --requeue"
        lines = [f"#SBATCH {option}" for option in [*asked.split(), "--signal=B:TERM@180"]]
        assert {*lines, "module load cuda"} <= set(shown.output.splitlines())


def test_jobs_that_make_no_sense_are_refused(sweep_file):
    sweep = Sweep.load(sweep_file)
    with pytest.raises(ConfigurationError, match="--nodes: 2 nodes need --gpus"):
        script(sweep, sweep_file, gpus=0, nodes=2)
    with pytest.raises(ConfigurationError, match="--sbatch: 'mem=1G'"):
        script(sweep, sweep_file, sbatch=("mem=1G",))


@pytest.mark.slow
def test_a_stopped_task_saves_goes_back_into_the_queue_and_goes_on(sweep_file, cluster, tmp_path):
    values = yaml.safe_load(sweep_file.read_text())
    values["base"]["schedule"]["tokens"] = [20_000]  # long enough to be stopped in between
    sweep_file.write_text(yaml.safe_dump(values))
    sweep = Sweep.load(sweep_file)
    other, run = sweep.runs
    text = script(sweep, sweep_file, gpus=0)
    job = start(text, cluster, tmp_path, task=1)
    log = run.folder / "trunk" / "log.jsonl"
    deadline = time.monotonic() + 200
    while not (log.exists() and log.stat().st_size > 1000):
        assert time.monotonic() < deadline
        assert job.poll() is None, (run.folder / "output.log").read_text()
        time.sleep(0.1)
    assert state(run) == "running"
    job.send_signal(signal.SIGTERM)
    assert job.wait(timeout=150) == 128 + signal.SIGTERM
    assert (tmp_path / "scontrol.log").read_text() == "requeue 77_1\n"
    assert Attempt.load(run.folder).stopped
    assert list((run.folder / "trunk").glob("step*"))  # the checkpoint of the stop
    assert state(run) == "waiting"
    assert start(text, cluster, tmp_path, task=1).wait(timeout=300) == 0
    assert (state(run), state(other)) == ("finished", "waiting")


@pytest.mark.slow
def test_several_nodes_train_one_run(sweep_file, cluster, tmp_path):
    sweep = Sweep.load(sweep_file)
    text = script(sweep, sweep_file, gpus=1, nodes=2, accelerate_config=CONFIGS / "cpu_two_processes.yaml")
    assert start(text, cluster, tmp_path, task=0, nodes=2).wait(timeout=300) == 0
    assert sweep.runs[0].complete
    record = RunRecord.load(sweep.runs[0].finished()[0])
    assert record.hardware.startswith("2 x ")
