"""Sweeps on a real SLURM, to the last record: what stops a task there, and how it goes on."""

import os
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import psutil
import pytest
import yaml

import training
from hub import RunRecord, load_records
from tests.conftest import wait_for
from tests.slurm.cluster import NODES, PATH
from tests.training.sweep import commands
from training import Sweep
from training.sweep.slurm import Slurm
from training.sweep.status import Attempt

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1800)]
CONFIGS = Path(training.__file__).parent / "configs" / "accelerate"
command, status = (partial(called, "sweep file.yaml") for called in (commands.command, commands.status))
ON_CPU = ("--gpus", "0", "--time", "60")


@pytest.fixture
def sweep(tiny, tmp_path, cluster, monkeypatch):
    """Two trunks on CPU, which take a few seconds each and save at their first branch point."""
    base = tiny(run__micro_batch_sequences=1, schedule__tokens=[1280, 12_000]).to_dict()
    values = {"sweep": "tiny", "base": base, "output_dir": str(tmp_path / "runs"), "grid": {"model.experts": [1, 4]}}
    (tmp_path / "sweep file.yaml").write_text(yaml.safe_dump(values))  # a blank must survive the shell
    for name, value in {
        "PATH": PATH,
        "SLURM_CONF": cluster.environment["SLURM_CONF"],
        "PYTHONPATH": str(Path(training.__file__).parents[1]),
        "OMP_NUM_THREADS": "1",
        "ACCELERATE_USE_CPU": "true",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    yield Sweep.load("sweep file.yaml")
    cluster("scancel", "--me")
    wait_for("an empty queue", lambda: not cluster("squeue", "--noheader"))


def jobs_of(run):
    return Slurm().queue([run])[run.name]


def job_of(run):
    return jobs_of(run)[-1].id


def first_line(run):
    """Of the log: it has the run's wall time, so it is another one where a run began anew."""
    log = run.folder / "trunk" / "log.jsonl"
    return log.read_text().partition("\n")[0] if log.exists() else ""


class Held:
    """The training process of a run, stopped after it has saved a checkpoint, so that it does not finish meanwhile."""

    def __init__(self, run):
        self.run = run

        def found():
            for process in psutil.process_iter(["cmdline"]):
                words = process.info["cmdline"] or []
                if str(run.folder / "launch.yaml") in words and words[1].endswith("train.py"):  # not its launcher
                    self.process = process
                    return True
            return False

        wait_for(f"a checkpoint of {run.name}", lambda: list(run.folder.glob("trunk/step*")))
        wait_for(f"the process of {run.name}", found)
        self.process.suspend()

    def is_asked_to_stop(self):
        pending = Path(f"/proc/{self.process.pid}/status").read_text().partition("ShdPnd:")[2].split()[0]
        return int(pending, 16) >> (signal.SIGTERM - 1) & 1

    def release(self):
        self.process.resume()


def test_an_array_outlives_its_time_limit_and_the_failure_of_a_node(sweep, cluster, tmp_path):
    assert "is slurm job" in command("run", "--on", "slurm", *ON_CPU)
    assert "was skipped: it is queued" in command("run", "--on", "slurm", *ON_CPU)
    assert {one["engine"] for one in status().values()} == {"slurm"}
    processes = [Held(run) for run in sweep.runs]
    held = {cluster.job(job_of(one.run), "NodeList"): (one.run, one) for one in processes}
    begun = {run.name: first_line(run) for run in sweep.runs}
    (late, of_late), (lost, _) = held[NODES[0]], held[NODES[1]]
    now = status()[late.name]
    assert (now["state"], now["queue"]) == ("running", "running")
    assert now["device_seconds"] > 0

    hours, minutes, _ = cluster.job(job_of(late), "RunTime").split(":")
    cluster("scontrol", "update", f"JobId={job_of(late)}", f"TimeLimit={60 * int(hours) + int(minutes) + 2}")
    cluster.kill_node(NODES[1])
    wait_for("the warning before the time limit", of_late.is_asked_to_stop)
    of_late.release()
    wait_for("its end", lambda: Attempt.load(late.folder))
    assert Attempt.load(late.folder).stopped
    cluster.start_again(job_of(late), TimeLimit="60")
    wait_for("the failure to be noticed", lambda: cluster.job(job_of(lost), "JobState") == "PENDING")
    assert status()[lost.name]["queue"] == "pending (BeginTime)"
    cluster.start_node(NODES[1])
    cluster.start_again(job_of(lost))

    wait_for("the runs", lambda: all(run.complete for run in sweep.runs))
    assert {run.name: first_line(run) for run in sweep.runs} == begun  # resumed, not begun anew
    assert {cluster.job(job_of(run), "Restarts") for run in sweep.runs} == {"1"}
    assert {name: one["state"] for name, one in status().items()} == {run.name: "finished" for run in sweep.runs}
    assert len(load_records(sweep.folder)) == 4
    command("run", "--on", "slurm", *ON_CPU)
    assert [len(jobs_of(run)) for run in sweep.runs] == [1, 1]  # nothing is left to submit


def test_what_is_cancelled_saves_and_stays_away(sweep, cluster):
    run, other = sweep.runs
    command("run", "--on", "slurm", "--at-most", "1", *ON_CPU)
    running = next(one for one in sweep.runs if one.name in _running(cluster, sweep))
    Held(running).release()
    assert {line.split()[0] for line in command("cancel").splitlines()} == {f"{run.name}:", f"{other.name}:"}
    wait_for("an empty queue", lambda: not cluster("squeue", "--noheader"))
    assert Attempt.load(running.folder).stopped
    assert cluster.job(job_of(running), "Restarts") == "0"
    assert {one["state"] for one in status().values()} == {"waiting"}
    assert {one["queue"] for one in status().values()} == {"cancelled"}


def _running(cluster, sweep):
    wait_for("a task", lambda: any(cluster.job(job_of(run), "JobState") == "RUNNING" for run in sweep.runs))
    return [run.name for run in sweep.runs if cluster.job(job_of(run), "JobState") == "RUNNING"]


@pytest.mark.slow
def test_a_preempted_task_makes_room_and_goes_on(sweep, cluster, tmp_path):
    run = sweep.runs[0]
    command("run", "--on", "slurm", "--only", run.name, *ON_CPU)
    held, begun = Held(run), first_line(run)
    wrapped = ("--partition=urgent", "--nodes=2", f"--output={tmp_path}/urgent.log", "--wrap=true")
    urgent = cluster("sbatch", "--parsable", *wrapped)
    wait_for("the warning", held.is_asked_to_stop)
    held.release()
    wait_for("the urgent job", lambda: cluster.job(urgent, "JobState") == "COMPLETED")
    assert not run.complete
    cluster.start_again(job_of(run))
    wait_for("the run", lambda: run.complete)
    assert first_line(run) == begun


@pytest.fixture
def five(sweep, tmp_path):
    """A sweep of five runs, of which the cluster takes four in an array."""
    values = yaml.safe_load((tmp_path / "sweep file.yaml").read_text())
    values |= {"grid": {"run.seed": [*range(5)]}, "overrides": [{"set": {"schedule.tokens": [1280]}}]}
    (tmp_path / "sweep file.yaml").write_text(yaml.safe_dump(values))
    return Sweep.load("sweep file.yaml")


def started(**environment):
    words = [sys.executable, "-m", "training.sweep", "run", "sweep file.yaml", "--on", "slurm", *ON_CPU]
    return subprocess.Popen(words, env={**os.environ, **environment}, stdout=subprocess.DEVNULL)


def tasks(cluster):
    """Of all arrays in the queue, whether they wait or run."""
    return cluster("squeue", "--array", "--noheader", "--format=%i").split()


def test_two_submits_at_once_queue_each_run_of_a_sweep_larger_than_an_array_once(five, cluster):
    cluster("scontrol", "update", "PartitionName=all", "State=DOWN")  # what waits cannot end meanwhile
    try:
        assert [submit.wait(timeout=600) for submit in [started(), started()]] == [0, 0]
        assert sorted(tasks(cluster)) == sorted(job_of(run) for run in five.runs)
        assert sorted(job_of(run).partition("_")[2] for run in five.runs) == ["0", "0", "1", "2", "3"]
        assert len(command("cancel").splitlines()) == 5
        wait_for("an empty queue", lambda: not tasks(cluster))
    finally:
        cluster("scontrol", "update", "PartitionName=all", "State=UP")


@pytest.mark.slow
def test_jobs_of_a_submit_that_was_killed_are_found_and_cancelled(sweep, cluster, tmp_path):
    (tmp_path / "bin").mkdir()
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.write_text(f'#!/bin/bash\n{shutil.which("sbatch", path=PATH)} "$@"\nkill -KILL $PPID\n')
    sbatch.chmod(0o755)
    assert started(PATH=f"{sbatch.parent}:{PATH}").wait(timeout=600) == -signal.SIGKILL
    (array,) = {task.partition("_")[0] for task in tasks(cluster)}
    wait_for("a task", lambda: "RUNNING" in cluster("squeue", "--noheader", "--format=%T"))
    assert {one["engine"] for one in status().values()} == {"slurm"}
    assert {job_of(run) for run in sweep.runs} == {f"{array}_0", f"{array}_1"}
    assert "was skipped: it is queued" in command("run", "--on", "slurm", *ON_CPU)
    assert {task.partition("_")[0] for task in tasks(cluster)} == {array}
    assert command("cancel").count("cancelled (slurm)") == 2
    wait_for("an empty queue", lambda: not tasks(cluster))


@pytest.mark.slow
def test_a_sweep_larger_than_an_array_runs_whole(five, cluster):
    command("run", "--on", "slurm", "--at-most", "2", *ON_CPU)
    wait_for("an array behind another", lambda: "pending (Dependency)" in {one["queue"] for one in status().values()})
    wait_for("the runs", lambda: all(run.complete for run in five.runs))
    assert {one["state"] for one in status().values()} == {"finished"}
    assert {len(jobs_of(run)) for run in five.runs} == {1}


def test_two_nodes_train_one_run(sweep, cluster):
    run = sweep.runs[1]
    settings = ("--nodes", "2", "--accelerate-config", str(CONFIGS / "cpu_two_processes.yaml"))
    words = ["run", "--on", "slurm", "--only", run.name, "--gpus", "1", "--time", "10:00", *settings, "--dry-run"]
    script = command(*words).replace("#SBATCH --gpus-per-node=1\n", "")  # there are none here
    Path("job.sh").write_text(script)
    cluster("sbatch", "job.sh")
    wait_for("the run", lambda: run.complete)
    assert RunRecord.load(run.finished()[0]).hardware.startswith("2 x ")
