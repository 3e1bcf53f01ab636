"""The SLURM script: valid for bash, and what it does at SLURM's signals; tests/slurm runs it on a real cluster."""

import os
import signal
import subprocess
import sys

import pytest
import yaml
from typer.testing import CliRunner

from tests.conftest import wait_for
from training.configuration.arguments import ConfigurationError
from training.sweep import __main__ as sweep_module
from training.sweep.engine import EngineError, Job, seconds_of
from training.sweep.file import Sweep
from training.sweep.slurm import Slurm
from training.sweep.status import status


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
def programs(tmp_path, monkeypatch):
    """A function: put a program of SLURM on PATH, a line of bash."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def write(name, line):
        (folder / name).write_text(f"#!/bin/bash\n{line}\n")
        (folder / name).chmod(0o755)

    return write


def shown(sweep_file, *words, exit_code=0):
    done = CliRunner().invoke(sweep_module.app, ["run", str(sweep_file), "--on", "slurm", *words])
    assert done.exit_code == exit_code, done.output
    return done.output


def test_the_script_is_bash_and_asks_for_what_was_given(sweep_file):
    options = ["--time", "12:00:00", "--partition", "long", "--account", "abc", "--at-most", "3"]
    options += ["--sbatch", "--mem=64G", "--setup", "module load cuda", "--dry-run"]
    refused = shown(sweep_file, "--gpus", "4", *options, exit_code=2)  # four cannot share a batch of two sequences
    assert "run.micro_batch_sequences: 1 cuts the batch of 2 sequences" in refused
    for nodes, gpus in (("1", "2"), ("2", "1")):
        text = shown(sweep_file, "--nodes", nodes, "--gpus", gpus, *options)
        checked = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
        assert checked.returncode == 0, checked.stderr
        asked = f"--nodes={nodes} --array=0-1%3 --time=12:00:00 --partition=long --account=abc --mem=64G --requeue"
        lines = [f"#SBATCH {option}" for option in [*asked.split(), "--signal=B:USR1@180"]]
        assert {*lines, "module load cuda"} <= set(text.splitlines())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpus": 0, "nodes": 2}, "--nodes: 2 need --gpus"),
        ({"sbatch": ("mem=1G",)}, "--sbatch: 'mem=1G'"),
        ({"time": "4"}, "--time: '4'; it must be more than 4 minutes"),
        ({"time": "soon"}, "--time: 'soon'; it must be minutes"),
    ],
)
def test_jobs_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        Slurm(**options)


def test_times_are_read_as_sbatch_reads_them():
    times = {"90": 5400, "90:30": 5430, "1:30:15": 5415, "2-1": 176400, "2-1:30": 178200, "2-1:30:15": 178215}
    assert {time: seconds_of(time) for time in times} == times


@pytest.mark.parametrize(
    ("sent", "end", "requeued"),
    [
        (signal.SIGUSR1, 143, "requeue 77_1\n"),  # stopped before its end by the time limit or preemption
        (signal.SIGUSR1, 0, ""),  # it had just finished
        (signal.SIGTERM, 143, ""),  # cancelled
    ],
)
def test_only_a_task_that_was_warned_and_not_finished_is_requeued(sweep_file, programs, tmp_path, sent, end, requeued):
    text = Slurm(gpus=0).preview(Sweep.load(sweep_file), sweep_file)
    stand_in = f"import signal, sys, time; signal.signal(15, lambda *_: sys.exit({end})); "
    stand_in += f"open({str(tmp_path / 'started')!r}, 'w'); time.sleep(60)"
    programs("python", f'echo "$@" > {tmp_path}/words; exec {sys.executable} -c {stand_in!r}')
    programs("scontrol", f'echo "$@" >> {tmp_path}/scontrol')
    ids = {"SLURM_ARRAY_JOB_ID": "77", "SLURM_ARRAY_TASK_ID": "1", "PYTHON": str(tmp_path / "bin" / "python")}
    job = subprocess.Popen(["bash", "-c", text], env={**os.environ, **ids})
    wait_for("the run", (tmp_path / "started").exists)
    job.send_signal(sent)
    assert job.wait(timeout=60) == end
    written = tmp_path / "scontrol"
    assert (written.read_text() if written.exists() else "") == requeued
    run = Sweep.load(sweep_file).runs[1]
    assert (tmp_path / "words").read_text() == f"-m training.sweep run {sweep_file} --only {run.name}\n"


def test_states_are_those_of_the_queue(sweep_file, programs):
    (first, second) = Sweep.load(sweep_file).runs
    programs("sbatch", "echo '12;cluster'")
    shown(sweep_file, "--gpus", "0")
    assert sorted(Job.of(run)[0].id for run in (first, second)) == ["12_0", "12_1"]
    told = {"PENDING|Priority": "waiting", "RUNNING|None": "running", "TIMEOUT|TimeLimit": "failed"}
    for line, state in {**told, "CANCELLED|None": "waiting", "COMPLETED|None": "waiting"}.items():
        programs("squeue", f"echo '{Job.of(first)[0].id}|{line}'")
        found = Slurm().queue([*Job.of(first), *Job.of(second)])
        assert status(first, jobs=list(found.values())).state == state
        assert len(found) == 1  # it has forgotten the other


def test_a_machine_without_slurm_and_a_refused_job_are_told(sweep_file, programs, monkeypatch):
    programs("sbatch", "echo 'sbatch: error: invalid account' >&2; exit 1")
    assert "slurm: sbatch failed: sbatch: error: invalid account" in shown(sweep_file, "--gpus", "0", exit_code=1)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(EngineError, match="has no squeue"):
        Slurm().queue([Job("slurm", "12_0")])
