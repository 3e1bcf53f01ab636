"""What a run survives: kills at any moment, signals, a full disk, damaged checkpoints, too little memory."""

import json
import logging
import math
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest
import torch
from torch.distributed.checkpoint import FileSystemWriter

from tests.model_classes import DENSE, NOISY, SHARED, TOP_K
from tests.training import ranks
from tests.training.ranks import save_configuration
from tests.training.run.test_run import assert_same_weights, finish, lines_of, poison, weights
from tests.training.token_caches import flip_a_bit
from training import Run
from training.run import checkpoint
from training.run import progress as training_progress
from training.run import step as training_step
from training.run.devices import StopSignal
from training.run.dry_run import OutOfMemory, smaller_micro_batches
from training.run.main import main
from training.run.progress import Progress

ROOT = Path(__file__).parents[3]


def models(folder) -> dict[str, bytes]:
    return {path.parts[-3]: path.read_bytes() for path in Path(folder).glob("*/model/model.safetensors")}


# -- kills and signals, in processes of their own


@pytest.fixture
def start():
    """A function that starts a run in a process which has already imported everything."""
    started = []

    def begin(arguments):
        started.append(ranks.start(arguments))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.join()


def wait_for(condition, process, seconds=120):
    is_alive = process.is_alive if hasattr(process, "is_alive") else lambda: process.poll() is None
    end = time.monotonic() + seconds
    while not condition() and is_alive() and time.monotonic() < end:
        time.sleep(0.002)


@pytest.mark.parametrize(
    "model",
    [
        pytest.param({"d_model": 64, "experts": 4}, id="ours"),
        pytest.param(NOISY, id="dropout and jitter"),
        *(pytest.param(section, id=section["type"], marks=pytest.mark.slow) for section in (DENSE, TOP_K, SHARED)),
    ],
)
def test_kills_at_telling_moments_change_nothing(tiny, tmp_path, start, model):
    """While a checkpoint is written, between two steps of the trunk, and in the decay."""
    undisturbed = tiny(model=model, schedule__tokens=[1280], run__output_dir=str(tmp_path / "undisturbed"))
    start(undisturbed).join(300)  # with one thread, as those that are killed
    # A checkpoint after every step.
    arguments = tiny(model=model, schedule__tokens=[1280], run__checkpoint_seconds=1e-6)
    folder = Path(arguments.run.output_dir)
    for moment in (
        lambda: [*(folder / "trunk").glob(".step*.tmp")],
        lambda: max(checkpoint.steps(folder / "trunk"), default=0) >= 6,
        lambda: [*folder.glob("tokens*/log.jsonl")],
    ):
        process = start(arguments)
        wait_for(moment, process)
        assert process.is_alive()
        process.kill()
        process.join()
        assert not models(folder)
    (folder / ".config.yaml.0.tmp").touch()  # as a kill leaves it
    process = start(arguments)
    process.join(300)
    assert process.exitcode == 0
    assert models(folder) == models(undisturbed.run.output_dir)
    assert not [*folder.rglob(".*.tmp"), *folder.rglob(".*.old")]


@pytest.mark.slow
def test_twenty_kills_at_random_moments_change_nothing(tiny, tmp_path, start):
    """A checkpoint after every step, so that many of the kills meet its writing or pruning, or the finish."""
    for name in ("first", "undisturbed"):  # the first one waits for the server of processes to import everything
        arguments = tiny(run__output_dir=str(tmp_path / name), run__checkpoint_seconds=1e-6)
        process, began = start(arguments), time.monotonic()
        wait_for((tmp_path / name / "config.yaml").exists, process)
        startup = time.monotonic() - began
        process.join(300)
        training = time.monotonic() - began - startup
        assert process.exitcode == 0
    expected = models(tmp_path / "undisturbed")
    assert len(expected) == 2

    generator, kills, series = random.Random(7), 0, 0
    while kills < 20:
        assert series < 50, f"{kills} kills only: the runs end before them"
        arguments = tiny(run__output_dir=str(tmp_path / f"series{series}"), run__checkpoint_seconds=1e-6)
        while True:
            process = start(arguments)
            process.join(startup + generator.uniform(-0.1, 0.4) * training)
            if not process.is_alive():
                assert process.exitcode == 0
                break
            process.kill()
            process.join()
            kills += 1
        folder = Path(arguments.run.output_dir)
        assert models(folder) == expected
        assert not [*folder.rglob(".*.tmp"), *folder.rglob(".*.old")]
        series += 1


@pytest.mark.parametrize(
    ("command", "number"),
    [
        ("python /usr/bin/accelerate launch train.py", signal.SIGTERM),
        ("bash accelerate_all.sh", None),
        ("python -m pytest", None),
        ("-bash", None),
    ],
)
def test_a_launcher_that_is_gone_is_a_signal_and_a_shell_is_not(monkeypatch, command, number):
    """What `accelerate launch` started would train on unseen after a signal that the launcher died of."""
    monkeypatch.setattr("psutil.Process.cmdline", lambda self: command.split())
    stop = StopSignal()
    monkeypatch.setattr(os, "getppid", lambda: -1)
    assert (stop.requested(), stop.number) == (number is not None, number)


@pytest.mark.slow
def test_a_signal_to_the_launcher_saves_and_ends_what_it_started(tiny):
    arguments = tiny(schedule__tokens=["1M"], run__async_checkpoints=False)
    flags = ["launch", "--cpu", "--num_processes", "1", str(ROOT / "train.py"), "--config"]
    command = [sys.executable, "-m", "accelerate.commands.accelerate_cli", *flags, str(save_configuration(arguments))]
    launcher = subprocess.Popen(command, start_new_session=True)
    trunk = Path(arguments.run.output_dir) / "trunk"
    try:
        wait_for(lambda: (trunk / "log.jsonl").exists(), launcher)
        (trainer,) = psutil.Process(launcher.pid).children()
        launcher.send_signal(signal.SIGTERM)
        launcher.wait(60)
        trainer.wait(60)
        (step,) = checkpoint.steps(trunk)
        assert checkpoint.find_damage(checkpoint.path_of(trunk, step)) is None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(launcher.pid, signal.SIGKILL)


# -- disk


@contextmanager
def files_of_at_most(size):
    """Writing beyond `size` bytes of a file fails, as on a full disk (EFBIG in the place of ENOSPC)."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_the_checkpoint_before_and_one_error(tiny, tmp_path, capsys):
    finish(tiny(schedule__tokens=[1280]))
    arguments = tiny()
    trunk = Path(arguments.run.output_dir) / "trunk"
    config = save_configuration(arguments)
    with files_of_at_most(500_000):
        assert main(["--config", str(config)]) == 3
    message = capsys.readouterr().err
    assert message.count("error:") == 1
    assert "step0000020 could not be written" in message
    assert "bytes are free there" in message
    assert checkpoint.steps(trunk) == [12]
    assert not list(trunk.glob(".*"))
    finish(arguments)
    alone = tiny(run__output_dir=str(tmp_path / "alone"))
    finish(alone)
    assert_same_weights(weights(arguments, 2560), weights(alone, 2560))


def test_a_run_on_a_damaged_branch_point_trains_it_again_from_the_one_before(tiny, caplog):
    """A bit is flipped, the file is cut off, and it is gone."""
    arguments = tiny()
    finish(arguments)
    folder, expected = Path(arguments.run.output_dir), weights(arguments, 2560)
    newest = checkpoint.path_of(folder / "trunk", checkpoint.steps(folder / "trunk")[-1])
    for damage in (flip_a_bit, lambda path: os.truncate(path, 100), Path.unlink):
        damage(next((newest / "state").glob("*.distcp")))
        shutil.rmtree(folder / "tokens002.56K-seed0")
        caplog.clear()
        finish(arguments)
        assert f"{newest} is damaged (" in caplog.text
        assert_same_weights(weights(arguments, 2560), expected)
        assert checkpoint.find_damage(newest) is None


def test_a_checkpoint_before_the_first_step_counts_no_step(tiny, tmp_path):
    """torch makes an optimizer's state by a step of its own; Adam would count it."""
    run = Run(tiny())
    run.writer.save(tmp_path, Progress())
    run.writer.wait()
    path = checkpoint.path_of(tmp_path, 0)
    assert not run.session.optimizers[0].state
    checkpoint.load(path, run.session)
    assert not run.session.optimizers[0].state


def test_a_checkpoint_is_of_the_step_it_was_taken_at(tiny, tmp_path, monkeypatch):
    """The thread has not begun to write when training goes on; what it writes is the copy."""
    run = Run(tiny())
    go_on, write = threading.Event(), FileSystemWriter.write_data
    monkeypatch.setattr(FileSystemWriter, "write_data", lambda *arguments: go_on.wait(60) and write(*arguments))
    before = {name: tensor.clone() for name, tensor in run.session.model.state_dict().items()}
    progress = Progress(step=3)
    run.writer.save(tmp_path, progress)
    progress.step = 4
    with torch.no_grad():
        for parameter in run.session.model.parameters():
            parameter.add_(1.0)
    go_on.set()
    run.writer.wait()
    assert checkpoint.load(checkpoint.path_of(tmp_path, 3), run.session).step == 3
    for name, tensor in run.session.model.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_only_the_pinned_and_the_newest_two_are_kept(tmp_path):
    for step in range(1, 8):
        checkpoint.path_of(tmp_path, step).mkdir()
    checkpoint.prune(tmp_path, pinned={2, 3})
    assert checkpoint.steps(tmp_path) == [2, 3, 6, 7]


# -- memory


@pytest.mark.parametrize(
    ("group", "advice"),
    [
        (32, "smaller ones with which this run can resume: 2, 1; or set run.gradient_checkpointing"),
        (128, "no smaller one holds whole capacity groups of 128 tokens and cuts the batches evenly: use"),
    ],
)
def test_out_of_memory_says_what_to_try(tiny, monkeypatch, group, advice):
    sizes = {"run.micro_batch_sequences": 4, "schedule.batch_ramp": ["0:4"], "model.capacity_group_tokens": group}
    run = Run(tiny(**sizes))
    too_large = Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."))
    monkeypatch.setattr(run.session.model, "forward", too_large)
    with pytest.raises(OutOfMemory, match=r"run.micro_batch_sequences 4 \(CUDA out of memory.*\); " + advice):
        run.execute()
    if group == 32:
        advised = {"micro_batch_sequences": 1, "gradient_checkpointing": True}
        finish(run.arguments.replaced(run=advised))  # what is advised is not refused


def test_only_micro_batches_that_the_ramp_allows_are_advised(tiny):
    arguments = tiny(run__micro_batch_sequences=4, schedule__batch_ramp=["0:12", "512:24"])
    assert [smaller_micro_batches(arguments, world) for world in (1, 2, 4)] == [[3, 2, 1], [3, 2, 1], [3, 1]]
    assert smaller_micro_batches(arguments.with_capacity_group(64), 1) == [2]


# -- losses


def test_a_spike_is_far_above_what_came_before():
    steady, falling = [3.0 + 0.01 * (i % 5) for i in range(40)], [10 - 0.1 * i for i in range(60)]
    spikes = [(steady, 3.5), ([*steady, 9.0, 9.0], 3.5)]  # earlier spikes do not hide a later one
    none = [(steady, 3.05), (steady, 1.0), ([3.0] * 40, 3.01), ([3.0] * 3, 9.0)]
    none += [(falling[:i], falling[i]) for i in range(60)]
    assert all(training_progress.is_spike(*case) for case in spikes)
    assert not any(training_progress.is_spike(*case) for case in none)


def test_spikes_and_skipped_batches_are_in_the_log_and_the_record(tiny, monkeypatch, caplog):
    caplog.set_level(logging.WARNING)
    run = Run(tiny(schedule__tokens=[2560], optimizer__learning_rate=1e-4, run__log_steps=100))
    poison(run, monkeypatch, lambda call: call == 7)
    add_gradients = training_step.add_gradients

    def without_a_loss(session, number):
        result = add_gradients(session, number)
        if session is run.session and number == 8:
            result.lm_loss.fill_(math.nan)
        return result

    monkeypatch.setattr(training_step, "add_gradients", without_a_loss)
    monkeypatch.setattr(training_progress, "_SPIKE_LEAST", 4)
    real = training_progress.is_spike
    monkeypatch.setattr(
        training_progress, "is_spike", lambda before, loss: real(before, loss + 5 * (len(before) == 15))
    )
    assert run.execute() == 0
    lines = lines_of(run.arguments)
    events = [(line["step"], "skipped_batch" in line, "loss_spike" in line) for line in lines]
    assert events == [(7, True, False), (9, True, False), (18, False, True)]
    assert [line["loss"] is None for line in lines] == [False, True, False]
    batch = lines[0]["skipped_batch"]
    assert batch["position"] == run.schedule.ramp.position(6)
    assert batch["sequences"] == run.data.indices(batch["position"], 2).tolist()
    (record,) = [json.loads(path.read_text()) for path in run.folder.glob("*/model/run.json")]
    assert (record["skipped_steps"], record["loss_spikes"]) == (2, 1)
    assert "was skipped: not finite" in caplog.text
    assert "the loss spiked to" in caplog.text
