"""Sweeps as Hugging Face Jobs: what is sent, against a stand-in for the service, whose jobs run on this machine."""

import inspect
import json
import shutil
import sys
from functools import partial
from pathlib import Path

import pytest
import yaml
from huggingface_hub import HfApi
from typer.testing import CliRunner

from tests.hub.conftest import loopback, online, the_hub  # noqa: F401
from tests.hub.loopback_jobs import HARDWARE
from tests.training.sweep import commands
from training import Sweep
from training.sweep import __main__ as sweep_module
from training.sweep.engine import Job
from training.sweep.hf_jobs import HfJobs

command, status = (partial(called, "sweep.yaml") for called in (commands.command, commands.status))
OPTIONS = ("--on", "hf-jobs", "--flavor", "cpu-basic", "--bucket", "org/runs", "--package", "git+https://host/code")


@pytest.fixture
def bucket(the_hub, corpus, tokenizer_folder, tmp_path):  # noqa: F811
    """The folder of the bucket org/runs, which has text and a tokenizer."""
    folder = the_hub.jobs.buckets["org/runs"] = tmp_path / "bucket"
    shutil.copytree(corpus, folder / "corpus")
    shutil.copytree(tokenizer_folder, folder / "tokenizer")
    return folder


@pytest.fixture
def sweep(tiny, tmp_path, monkeypatch):
    """Two trunks of one branch, on the data in the bucket."""
    data = {"dataset": "/runs/corpus", "tokenizer": "/runs/tokenizer"}
    base = tiny(schedule__tokens=[1280], **{f"data__{name}": path for name, path in data.items()}).to_dict()
    values = {"sweep": "tiny", "base": base, "output_dir": str(tmp_path / "here"), "grid": {"model.experts": [1, 4]}}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(values))
    monkeypatch.chdir(tmp_path)
    return Sweep.load("sweep.yaml")


def job_of(run):
    return Job.of(run)[-1].id.partition("/")[2]


def test_a_specification_is_what_the_client_takes(sweep):
    engine = HfJobs("a100x4", "org/runs", "git+https://host/code", "1-12", setup=("export A=1",))
    given = engine.specification(sweep, sweep.runs[0])
    inspect.signature(HfApi.run_job).bind(None, **given)  # raises TypeError for a name that it does not have
    (volume,) = given["volumes"]
    assert volume.to_dict() == {"type": "bucket", "source": "org/runs", "mountPath": "/runs"}
    assert (given["timeout"], given["namespace"]) == (36 * 3600, "org")
    assert given["command"][2].startswith("set -eu\nexport A=1\nmkdir")
    configuration = json.loads(given["env"]["CONFIG"])
    assert configuration["run"]["output_dir"] == given["env"]["FOLDER"] == f"/runs/tiny/{sweep.runs[0].name}"
    printed = command("run", *OPTIONS, "--dry-run").splitlines()
    assert [json.loads(line)["labels"]["run"] for line in printed] == [run.name for run in sweep.runs]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"--bucket": "runs"}, "--bucket: 'runs'; it must be OWNER/NAME"),
        ({"--package": ""}, "--package: missing; --on hf-jobs needs it"),
        ({"--time": "1:2:3:4"}, "--time: '1:2:3:4'; it must be minutes, hours:minutes:seconds or days-hours"),
        ({"--gpus": "4"}, "--gpus: --on hf-jobs does not take it; it takes --flavor"),
    ],
)
def test_what_makes_no_sense_is_refused(sweep, changes, message):
    options = dict(zip(OPTIONS[::2], OPTIONS[1::2], strict=True)) | changes
    words = [word for option in options.items() for word in option]
    assert message in command("run", *words, "--dry-run", exit_code=2)


def test_data_that_no_job_can_read_is_refused(sweep, tiny, tmp_path):
    values = yaml.safe_load((tmp_path / "sweep.yaml").read_text())
    values["base"]["data"]["dataset"] = str(tmp_path)
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(values))
    said = command("run", *OPTIONS, "--dry-run", exit_code=2)
    assert f"data.dataset: '{tmp_path}'; a job reads the Hub, or the bucket below /runs" in " ".join(said.split())


def test_jobs_are_submitted_once_watched_paid_for_and_cancelled(sweep, bucket, the_hub, tmp_path):  # noqa: F811
    command("run", *OPTIONS)
    command("run", *OPTIONS)
    assert len(the_hub.jobs.jobs) == 2
    assert {(one["state"], one["engine"], one["queue"]) for one in status().values()} == {
        ("waiting", "hf-jobs", "scheduling")
    }
    first, second = sweep.runs
    process = the_hub.jobs.start(job_of(first), PATH="/nowhere:/usr/bin:/bin")  # where there is no uv
    assert process.wait() == 127
    log = bucket / "tiny" / first.name / "trunk" / "log.jsonl"
    log.parent.mkdir(parents=True)
    line = {"step": 4, "tokens": 512, "loss": 2.5, "tokens_per_second": 100, "wall_seconds": 30.0, "devices": 4}
    log.write_text(json.dumps(line) + "\n")
    now = status()[first.name]
    assert (now["state"], now["queue"], now["tokens"]) == ("failed", "error", 512)
    assert now["device_seconds"] == 120
    assert now["dollars"] == pytest.approx(60 * HARDWARE["cpu-basic"][1])
    assert "spent: $0.01" in command("status")
    assert command("cancel") == f"{second.name}: cancelled (hf-jobs)\n"
    assert status()[second.name]["queue"] == "canceled"
    command("run", *OPTIONS)  # both once more
    assert len(the_hub.jobs.jobs) == 4
    assert status()[first.name]["dollars"] == pytest.approx(60 * HARDWARE["cpu-basic"][1])  # the first job's
    assert f"run {first.name} is hf-jobs job org/" in command("run", "--on", "slurm", exit_code=2)


def test_jobs_that_no_folder_here_knows_are_found_by_their_labels(sweep, bucket, the_hub, monkeypatch):  # noqa: F811
    """A submit was killed before it noted them, or another machine has sent them."""

    class Killed(BaseException):
        pass

    def add_to(job, run):
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(Job, "add_to", add_to)
        with pytest.raises(Killed):
            CliRunner().invoke(sweep_module.app, ["run", "sweep.yaml", *OPTIONS], catch_exceptions=False)
    (sent,) = [the_hub.jobs.specifications[job]["labels"]["run"] for job in the_hub.jobs.jobs]
    assert {name: (one["engine"], one["queue"]) for name, one in status().items()}[sent] == ("hf-jobs", "scheduling")
    shutil.rmtree("here")
    assert f"run {sent} was skipped: it is queued" in command("run", *OPTIONS)
    assert len(the_hub.jobs.jobs) == 2
    the_hub.jobs.buckets["org/others"] = bucket
    values = yaml.safe_load(Path("sweep.yaml").read_text())
    Path("sweep.yaml").write_text(yaml.safe_dump(values | {"output_dir": "elsewhere"}))
    command("run", *OPTIONS[:5], "org/others", *OPTIONS[6:])
    assert len(the_hub.jobs.jobs) == 4  # in another bucket, runs of the same names are others
    assert command("cancel").count("cancelled") == 2
    ended = [job["volumes"][0]["source"] for job in the_hub.jobs.jobs.values() if job["status"]["stage"] == "CANCELED"]
    assert ended == ["org/others"] * 2


def test_a_token_is_a_secret_of_jobs_that_push(sweep, bucket, the_hub, tmp_path):  # noqa: F811
    values = yaml.safe_load((tmp_path / "sweep.yaml").read_text())
    values["base"]["run"]["push_to_hub"] = "hf://org"
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(values))
    command("run", *OPTIONS, "--only", sweep.runs[0].name)
    sent = the_hub.jobs.specifications[job_of(sweep.runs[0])]
    assert list(sent["secrets"]) == ["HF_TOKEN"]
    assert "hf_" not in json.dumps({name: value for name, value in sent.items() if name != "secrets"})


@pytest.mark.slow
def test_a_job_trains_to_its_record(sweep, bucket, the_hub, tmp_path):  # noqa: F811
    (tmp_path / "bin").mkdir()
    uv = tmp_path / "bin" / "uv"  # what the image has; here it finds this project installed already
    given = "run --no-project --with git+https://host/code accelerate"
    uv.write_text(
        f'#!/bin/bash\n[ "${{*:1:5}}" = "{given}" ] || exit 2\nshift 5\n'
        f'exec {sys.executable} -m accelerate.commands.accelerate_cli "$@"\n'
    )
    uv.chmod(0o755)
    run = sweep.runs[0]
    command("run", *OPTIONS, "--only", run.name)
    process = the_hub.jobs.start(job_of(run), PATH=f"{uv.parent}:/usr/bin:/bin", ACCELERATE_USE_CPU="true")
    assert process.wait(timeout=200) == 0
    now = status()[run.name]
    assert (now["state"], now["queue"]) == ("finished", "completed")
    assert "1 records in" in command("records", "--output", "records.jsonl")
    assert not list(run.folder.rglob("*.safetensors"))  # models stay in the bucket
    command("run", *OPTIONS, "--only", run.name)
    assert len(the_hub.jobs.jobs) == 1
