"""What a run shows, logs and tells its trackers can neither end nor delay it; a closed terminal has it save."""

import errno
import fcntl
import logging
import os
import signal
import sys
import threading
from pathlib import Path

import pytest
from accelerate.tracking import LOGGER_TYPE_TO_CLASS

from hub.base import disk
from hub.base.disk import FullDiskError
from hub.base.units import format_bytes
from tests.training import ranks
from tests.training.ranks import save_configuration
from tests.training.run.test_faults import wait_for
from tests.training.run.test_run import lines_of
from training import Run
from training.run import checkpoint, results
from training.run import log as log_module
from training.run.checkpoint import CheckpointError
from training.run.log import LineFile, StepTrace
from training.run.main import main
from training.run.progress import Progress
from training.sweep.run import stop_on_signals

SHORT = {"schedule.tokens": [512], "schedule.warmup_tokens": 128, "schedule.batch_ramp": ["0:2"]}


def models(arguments) -> list[Path]:
    return list(Path(arguments.run.output_dir).glob("tokens*/model/model.safetensors"))


# -- the step log and the trace


def test_lines_that_a_full_disk_does_not_take_are_written_later(tmp_path, caplog):
    class Disk:
        def __init__(self, room):
            self.room, self.content = room, b""

        def write(self, data):
            if not self.room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            part = bytes(data[: self.room])
            self.content += part
            self.room -= len(part)
            return len(part)

        def close(self):
            pass

    log = LineFile(tmp_path / "log.jsonl")
    log.write("first")
    log._file.close()
    log._file = full = Disk(room=4)
    for line in ("second", "third"):
        log.write(line)
    assert full.content == b"seco"
    assert caplog.text.count("its lines are kept until there is room, and training continues") == 1
    assert f"{tmp_path / 'log.jsonl'}: the disk is full: " in caplog.text
    full.room = 100
    log.write("fourth")
    assert full.content == b"second\nthird\nfourth\n"
    assert (tmp_path / "log.jsonl").read_bytes() == b"first\n"
    full.room = 0
    log.write("last")
    log.close()
    assert "lacks its last lines: 5 bytes could not be written" in caplog.text


def test_a_trace_that_cannot_be_written_is_a_warning(tmp_path, caplog):
    (tmp_path / "profile").touch()  # in the place of the folder
    trace = StepTrace(tmp_path / "profile" / "trace.json.gz", [0, 1])
    trace(0)
    trace(1)
    assert "trace.json.gz could not be written: " in caplog.text


# -- trackers


class Tracker:
    """One of Accelerate's, of a service that fails in each way."""

    requires_logging_directory = True
    name = "tensorboard"

    def __init__(self, segment, *_, **__):
        self.segment = segment

    def start(self):
        if self.segment.startswith("tokens001"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def store_init_configuration(self, values):
        pass

    def log(self, values, step):
        if values["updates"] == 3:
            raise SystemExit("the service ended")

    def finish(self):
        raise ConnectionError("no network")


def test_trackers_that_fail_are_warnings(tiny, monkeypatch, caplog):
    monkeypatch.setitem(LOGGER_TYPE_TO_CLASS, "tensorboard", Tracker)
    arguments = tiny(run__trackers=["tensorboard"])
    assert Run(arguments).execute() == 0
    assert len(models(arguments)) == 2
    text = " ".join(caplog.messages)
    assert "tensorboard failed and gets no more lines of this run: the service ended; log.jsonl has all" in text
    assert "tensorboard could not be started: [Errno 28] No space left on device; training continues without" in text
    assert "tensorboard failed and gets no more lines of this run: no network; log.jsonl has all of them" in text


@pytest.mark.parametrize("method", ["log", "finish"])
def test_a_tracker_that_does_not_answer_is_left_alone(tiny, monkeypatch, caplog, method):
    """The model is saved while it keeps its thread waiting, and the end of the run waits a moment only."""
    caplog.set_level(logging.INFO)
    go_on = threading.Event()
    calls = dict.fromkeys(("start", "store_init_configuration", "log", "finish"), lambda *_, **__: None)
    hanging = type("Hanging", (Tracker,), {**calls, method: lambda *_, **__: go_on.wait(120)})
    monkeypatch.setitem(LOGGER_TYPE_TO_CLASS, "tensorboard", hanging)
    monkeypatch.setattr(log_module, "_CLOSE_SECONDS", 0.1)
    monkeypatch.setattr(log_module, "_MOST_CALLS", 5)
    arguments = tiny(**SHORT, run__trackers=["tensorboard"])
    assert Run(arguments).execute() == 0
    assert len(models(arguments)) == 1
    assert "run.trackers: not ready after 0 s, and left alone; log.jsonl has all lines" in caplog.text
    assert ("too slow, so that they miss lines" in caplog.text) == (method == "log")
    go_on.set()


# -- a full disk


@pytest.fixture
def nothing_free(monkeypatch):
    monkeypatch.setattr(disk, "measure_free_space", lambda folder: (1_000, 100))


def test_a_checkpoint_that_finds_no_room_says_how_much_is_missing(tiny, tmp_path, monkeypatch, nothing_free):
    run = Run(tiny())

    def fail(*_):
        raise RuntimeError("unexpected pos 704 vs 598")  # as torch says it

    monkeypatch.setattr(checkpoint._FolderWriter, "write_data", fail)
    run.writer.save(tmp_path / "trunk", Progress())
    needed = checkpoint.count_bytes(checkpoint._state_of(run.session, with_optimizer=False))
    assert needed == 4 * sum(parameter.numel() for parameter in run.session.model.parameters())
    message = (
        rf"step0000000 could not be written: the disk is full: {format_bytes(needed)} are needed and "
        r".* are missing; remove what you do not need, such as trunk/step\* of finished runs in .* or "
        r"unused token caches \(.* holds .*\), and start again"
    )
    with pytest.raises(CheckpointError, match=message):
        run.writer.wait()


def test_a_model_that_finds_no_room_is_one_clear_error(tiny, monkeypatch, nothing_free):
    """safetensors and tokenizers raise errors of their own."""
    arguments = tiny(**SHORT)
    save = results.save_model

    def fail(*inputs):
        save(*inputs)
        raise Exception("Error while serializing: I/O error: No space left on device (os error 28)")

    with monkeypatch.context() as patch:
        patch.setattr(results, "save_model", fail)
        with pytest.raises(FullDiskError, match=r"the model .*tokens.*/model could not be written: the disk is full"):
            Run(arguments).execute()
    assert not list(Path(arguments.run.output_dir).glob("tokens*/*model*"))
    assert Run(arguments).execute() == 0
    assert len(models(arguments)) == 1


# -- standard output and error


def train_into(output: str, config: Path) -> None:
    """Train with both standard streams at such a place, in a process of its own."""
    reader, writer = os.pipe()
    if output == "a pipe whose reader has gone":
        os.close(reader)
    elif output == "a pipe whose reader does not read":
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
        os.write(writer, b"x" * 4096)
    elif output == "a full disk":
        writer = os.open("/dev/full", os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(writer, descriptor)
    sys.stdout, sys.stderr = (open(descriptor, "w", closefd=False) for descriptor in (1, 2))  # noqa: SIM115
    if output == "closed":
        for descriptor in (0, 1, 2):
            os.close(descriptor)
        sys.stdout = sys.stderr = None
    status = main(["--config", str(config)])
    os._exit(status)  # as the other processes of these tests: what is left in Python's buffers is tested elsewhere


OUTPUTS = ("a pipe whose reader has gone", "a pipe whose reader does not read", "a full disk", "closed")


def test_a_run_whose_output_goes_nowhere_ends_with_its_model(tiny, tmp_path):
    """The bar, the log and the bars of libraries are shown."""
    runs = {
        output: tiny(**SHORT, run__progress=True, run__output_dir=str(tmp_path / str(number)))
        for number, output in enumerate(OUTPUTS)
    }
    shown = {"HF_HUB_DISABLE_PROGRESS_BARS": "0"}
    processes = {
        output: ranks.SERVER.Process(
            target=ranks._call, args=(shown, train_into, output, save_configuration(arguments))
        )
        for output, arguments in runs.items()
    }
    for process in processes.values():
        process.start()
    statuses = {output: ranks.wait_for(process) for output, process in processes.items()}
    assert statuses == dict.fromkeys(OUTPUTS, 0)
    assert {output: len(models(arguments)) for output, arguments in runs.items()} == dict.fromkeys(OUTPUTS, 1)


# -- signals


def train_under_nohup(config: Path) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    sys.exit(main(["--config", str(config)]))


def train_at_a_terminal(config: Path) -> None:
    # These tests may themselves run under nohup, whose choice every child inherits.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    sys.exit(main(["--config", str(config)]))


@pytest.mark.parametrize("is_ignored", [False, True])
def test_a_closed_terminal_is_a_signal_to_save_unless_it_is_ignored(tiny, is_ignored):
    arguments = tiny(**{**SHORT, "schedule.tokens": ["1M"]})
    trunk = Path(arguments.run.output_dir) / "trunk"
    train = train_under_nohup if is_ignored else train_at_a_terminal
    process = ranks.SERVER.Process(target=ranks._call, args=({}, train, save_configuration(arguments)))
    process.start()
    try:
        wait_for(lambda: len(lines_of(arguments)) > 2 if (trunk / "log.jsonl").exists() else False, process)
        os.kill(process.pid, signal.SIGHUP)
        if is_ignored:
            before = len(lines_of(arguments))
            wait_for(lambda: len(lines_of(arguments)) > before + 2, process)
            assert process.is_alive()
            os.kill(process.pid, signal.SIGTERM)
        assert ranks.wait_for(process) == 128 + (signal.SIGTERM if is_ignored else signal.SIGHUP)
        (step,) = checkpoint.steps(trunk)
        assert checkpoint.find_damage(checkpoint.path_of(trunk, step)) is None
    finally:
        process.kill()


@pytest.mark.parametrize("is_ignored", [False, True])
def test_a_closed_terminal_ends_a_sweep_unless_it_is_ignored(is_ignored):
    numbers = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
    before = [signal.getsignal(number) for number in numbers]
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN if is_ignored else signal.SIG_DFL)
        stop_on_signals()
        if is_ignored:
            signal.raise_signal(signal.SIGHUP)
        else:
            with pytest.raises(SystemExit) as ended:
                signal.raise_signal(signal.SIGHUP)
            assert ended.value.code == 128 + signal.SIGHUP
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
