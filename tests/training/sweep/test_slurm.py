"""The SLURM script: valid for bash, and what it does at SLURM's signals; tests/slurm runs it on a real cluster."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys

import pytest
import yaml
from filelock import FileLock

from tests.conftest import wait_for
from tests.training.sweep.commands import command, status
from training import ConfigurationError, Sweep
from training.sweep import slurm
from training.sweep.engine import EngineError, seconds_of
from training.sweep.slurm import ARRAYS, Slurm
from training.sweep.status import status as status_of


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


CLUSTER = """
import os, re, signal, sys, time
from pathlib import Path

folder, program, words = Path({folder!r}), Path(sys.argv[0]).name, sys.argv[1:]
arrays = sorted(folder.glob("*.sh"), key=lambda path: int(path.stem))
if program == "sbatch":
    script, array = sys.stdin.read(), len(arrays) + 1
    if (folder / "slow").exists():
        time.sleep(2)
    if int(re.search("--array=0-([0-9]+)", script)[1]) >= {largest}:
        sys.exit("sbatch: error: Batch job submission failed: Invalid job array specification")
    while (folder / f"{{array}}.sh").exists():
        array += 1
    (folder / f"{{array}}.sh").write_text(script)
    (folder / f"{{array}}.words").write_text(" ".join(words))
    if (folder / "deadly").exists():
        os.kill(os.getppid(), signal.SIGKILL)
    print(array)
if program == "squeue":
    (form,) = [word.removeprefix("--format=") for word in words if word.startswith("--format=")]
    for path in arrays:
        script = path.read_text()
        name, last = (re.search(f"--{{option}}", script)[1] for option in ("job-name=(.*)", "array=0-([0-9]+)"))
        for i in range(int(last) + 1):
            job = f"{{path.stem}}_{{i}}"
            state = "CANCELLED" if (folder / job).exists() else "PENDING"
            told = {{"%i": job, "%A": path.stem, "%T": state, "%r": "Priority", "%j": name}}
            print(re.sub("%.", lambda field: told[field[0]], form))
if program == "scancel":
    for job in words:
        (folder / job).touch()
if program == "scontrol":
    if words == ["show", "config"]:
        print("MaxArraySize            = {largest}\\nSchedulerParameters     = defer,max_array_tasks=1000")
    elif words[:2] == ["write", "batch_script"] and words[3] == "-":
        print((folder / f"{{words[2]}}.sh").read_text(), end="")
    else:
        sys.exit(f"scontrol: error: {{words}}")
"""


@pytest.fixture
def cluster(tmp_path, programs):
    """A SLURM of files in a folder, with each array's script; `slow` delays sbatch, and `deadly` kills its caller."""
    folder = tmp_path / "cluster"
    folder.mkdir()
    program = CLUSTER.format(folder=str(folder), largest=4)
    for name in ("sbatch", "squeue", "scancel", "scontrol"):
        (tmp_path / "bin" / name).write_text(f"#!{sys.executable}\n{program}")
        (tmp_path / "bin" / name).chmod(0o755)
    return folder


def tasks(cluster):
    """The name of the run of every task of the cluster, sorted."""
    scripts = [path.read_text() for path in cluster.glob("*.sh")]
    return sorted(line.strip() for text in scripts for line in text.split("RUNS=(\n")[1].split("\n)")[0].splitlines())


def shown(sweep_file, *words, exit_code=0):
    return command(sweep_file, "run", "--on", "slurm", *words, exit_code=exit_code)


def submitted(sweep_file, count):
    """The exit codes of `run --on slurm` in processes of their own, which begin together."""
    context = multiprocessing.get_context("fork")  # as they import nothing
    submits = [context.Process(target=shown, args=(sweep_file, "--gpus", "0")) for _ in range(count)]
    for submit in submits:
        submit.start()
    for submit in submits:
        submit.join(120)
    return [submit.exitcode for submit in submits]


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
        ({"sbatch": ("--job-name=mine",)}, "--sbatch: '--job-name=mine'; .* neither --job-name nor --array"),
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


def test_states_are_those_of_the_queue(sweep_file, programs, tmp_path):
    (first, second) = Sweep.load(sweep_file).runs
    programs("sbatch", "cat > $(dirname $0)/script; echo '12;cluster'")
    programs("squeue", "")
    programs("scontrol", "echo MaxArraySize = 1001")
    shown(sweep_file, "--gpus", "0")
    ((name, names),) = json.loads((first.folder.parent / ARRAYS).read_text()).items()
    assert sorted(names) == [first.name, second.name]
    assert f"#SBATCH --job-name={name}\n" in (tmp_path / "bin" / "script").read_text()
    told = {"PENDING|Priority": "waiting", "RUNNING|None": "running", "TIMEOUT|TimeLimit": "failed"}
    for line, state in {**told, "CANCELLED|None": "waiting", "COMPLETED|None": "waiting"}.items():
        programs("squeue", f"echo '12_{names.index(first.name)}|{line}|{name}'")
        jobs = Slurm().queue([first, second])
        assert status_of(first, jobs[first.name]).state == state
        assert (len(jobs[first.name]), jobs[second.name]) == (1, [])  # it has forgotten the other


def test_a_machine_without_slurm_and_a_refused_job_are_told(sweep_file, programs, monkeypatch):
    programs("sbatch", "echo 'sbatch: error: invalid account' >&2; exit 1")
    programs("squeue", "")
    programs("scontrol", "echo MaxArraySize = 1001")
    assert "slurm: sbatch failed: sbatch: error: invalid account" in shown(sweep_file, "--gpus", "0", exit_code=1)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(EngineError, match="has no squeue"):
        Slurm().queue(Sweep.load(sweep_file).runs)


def test_two_submits_at_once_send_each_run_once(sweep_file, cluster):
    (cluster / "slow").touch()
    assert submitted(sweep_file, 2) == [0, 0]
    names = sorted(run.name for run in Sweep.load(sweep_file).runs)
    assert tasks(cluster) == names
    assert sorted(command(sweep_file, "cancel").splitlines()) == [f"{name}: cancelled (slurm)" for name in names]
    assert len(list(cluster.glob("*_*"))) == 2


def test_jobs_of_a_submit_that_was_killed_are_found(sweep_file, cluster):
    runs = Sweep.load(sweep_file).runs
    (cluster / "deadly").touch()
    assert submitted(sweep_file, 1) == [-signal.SIGKILL]
    (cluster / "deadly").unlink()
    queues = {name: (one["engine"], one["queue"]) for name, one in status(sweep_file).items()}
    assert queues == {run.name: ("slurm", "pending (Priority)") for run in runs}
    assert "was skipped: it is queued" in shown(sweep_file, "--gpus", "0")
    assert len(tasks(cluster)) == 2
    assert command(sweep_file, "cancel").count("cancelled (slurm)") == 2
    assert {path.name for path in cluster.glob("*_*")} == {"1_0", "1_1"}
    assert command(sweep_file, "cancel") == ""
    shown(sweep_file, "--gpus", "0")
    assert len(tasks(cluster)) == 4


def test_every_job_of_a_run_that_has_several_is_seen_and_cancelled(sweep_file, cluster):
    """`sbatch` of a script that was sent already."""
    shown(sweep_file, "--gpus", "0")
    (run, other) = Sweep.load(sweep_file).runs
    first = Slurm().queue([run])[run.name][0].id
    subprocess.run("sbatch", input=(cluster / "1.sh").read_text(), text=True, check=True, stdout=subprocess.DEVNULL)
    (cluster / first).touch()  # the first one is cancelled; the other is not
    queues = {name: one["queue"] for name, one in status(sweep_file).items()}
    assert queues == {run.name: "pending (Priority)", other.name: "pending (Priority); pending (Priority)"}
    command(sweep_file, "cancel")
    assert {path.name for path in cluster.glob("*_*")} == {"1_0", "1_1", "2_0", "2_1"}


def test_another_sweep_and_other_jobs_are_left_alone(sweep_file, cluster, tmp_path):
    shown(sweep_file, "--gpus", "0")
    values = yaml.safe_load(sweep_file.read_text())
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(values | {"output_dir": str(tmp_path / "others")}))
    shown(tmp_path / "other.yaml", "--gpus", "0")
    assert len(tasks(cluster)) == 4
    assert command(tmp_path / "other.yaml", "cancel").count("cancelled") == 2
    assert {path.name for path in cluster.glob("*_*")} == {"2_0", "2_1"}
    (name, _) = [run.name for run in Sweep.load(sweep_file).runs]
    assert command(sweep_file, "cancel", "--only", name) == f"{name}: cancelled (slurm)\n"


def test_a_sweep_larger_than_the_largest_array_is_several(sweep_file, cluster):
    values = yaml.safe_load(sweep_file.read_text())
    sweep_file.write_text(yaml.safe_dump(values | {"grid": {"run.seed": [*range(9)]}}))
    shown(sweep_file, "--gpus", "0", "--at-most", "2")
    runs = Sweep.load(sweep_file).runs
    assert tasks(cluster) == sorted(run.name for run in runs)
    jobs = Slurm().queue(runs)
    assert sorted(jobs[run.name][0].id for run in runs) == [f"{1 + i // 4}_{i % 4}" for i in range(9)]
    sent = [(cluster / f"{array}.words").read_text() for array in (1, 2, 3)]  # no more than two at a time in all
    assert sent == ["--parsable", "--parsable --dependency=afterany:1", "--parsable --dependency=afterany:2"]
    assert command(sweep_file, "cancel").count("cancelled") == 9
    shown(sweep_file, "--gpus", "0")
    assert (cluster / "6.words").read_text() == "--parsable"


def test_a_submit_that_does_not_end_is_told(sweep_file, cluster, monkeypatch):
    monkeypatch.setattr(slurm, "LOCK_SECONDS", 0.1)
    folder = Sweep.load(sweep_file).folder
    folder.mkdir()
    with FileLock(folder / slurm.LOCK):
        said = shown(sweep_file, "--gpus", "0", exit_code=1)
    assert "another `run` has been submitting it for 0.1 s" in said
    assert not tasks(cluster)
