"""A run in a process that is not its own: again with other settings, in a thread, beside another, after an error."""

import json
import logging
import multiprocessing
import os
import random
import signal
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from accelerate import Accelerator, notebook_launcher
from accelerate.state import AcceleratorState, GradientState, PartialState
from huggingface_hub.utils import are_progress_bars_disabled
from safetensors.torch import load_file

from modeling_switch_moe import SwitchMoeConfig, SwitchMoeForCausalLM
from tests.conftest import free_port
from tests.training import ranks
from tests.training.ranks import save_configuration
from training.run import devices, passes, process
from training.run import main as main_module
from training.run.main import main

SHORT = {"schedule.tokens": [512], "schedule.warmup_tokens": 128, "schedule.batch_ramp": ["0:2"]}


@pytest.fixture
def train(tiny, tmp_path):
    """A function: call `main` for a run in a folder of this name; returns its exit status."""

    def call(name: str, *flags: str, **changes) -> int:
        arguments = tiny(**{**SHORT, "run.output_dir": str(tmp_path / name), **changes})
        return main(["--config", str(save_configuration(arguments)), *flags])

    return call


def weights(folder: Path) -> dict[str, torch.Tensor]:
    (path,) = folder.glob("tokens*/model/model.safetensors")
    return load_file(path)


def assert_same(one: Path, other: Path) -> None:
    expected = weights(one)
    assert expected.keys() == weights(other).keys()
    for name, weight in weights(other).items():
        assert torch.equal(weight, expected[name]), name


def test_runs_one_after_the_other_have_nothing_of_each_other(train, tmp_path):
    assert train("first") == 0
    assert train("bf16", run__precision="bf16", model__experts=2) == 0
    assert train("other", run__seed=1, run__compile=False) == 0
    assert train("again") == 0
    assert_same(tmp_path / "first", tmp_path / "again")
    records = [json.loads(path.read_text()) for path in tmp_path.glob("*/tokens*/model/run.json")]
    assert sorted((record["precision"], record["experts"], record["seed"]) for record in records) == [
        ("bf16", 2, 0),
        ("fp32", 4, 0),
        ("fp32", 4, 0),
        ("fp32", 4, 1),
    ]


def test_after_an_error_the_next_run_works(train, monkeypatch):
    def fail(*_):
        raise MemoryError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(main_module, "train_step", fail)
        assert train("run", run__precision="bf16") == 3
    assert train("other") == 0


def test_a_thread_trains_and_leaves_the_signals_alone(train, tmp_path):
    statuses = []
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    thread = threading.Thread(target=lambda: statuses.append(train("in a thread")))
    thread.start()
    thread.join()
    assert statuses == [0]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == handlers
    assert train("here") == 0
    assert_same(tmp_path / "in a thread", tmp_path / "here")


def test_two_at_once_are_refused(train, monkeypatch, capsys):
    step, is_training, go_on = main_module.train_step, threading.Event(), threading.Event()

    def wait(*arguments):
        is_training.set()
        assert go_on.wait(60)
        return step(*arguments)

    statuses = []
    with monkeypatch.context() as patch:
        patch.setattr(main_module, "train_step", wait)
        thread = threading.Thread(target=lambda: statuses.append(train("first")))
        thread.start()
        assert is_training.wait(120)
        assert train("second") == 2
        go_on.set()
        thread.join()
    assert statuses == [0]
    assert "error: train.py: another thread of this process is training; wait" in capsys.readouterr().err
    assert train("second") == 0


def test_the_compiler_is_given_back_as_it_was():
    config = SwitchMoeConfig(vocab_size=32, d_model=16, n_heads=2, n_blocks=1)
    dynamo = torch._dynamo.config
    with dynamo.patch(skip_fwd_side_effects_in_bwd_under_checkpoint=False):
        with process.borrow_process():
            passes.compile_blocks(SwitchMoeForCausalLM(config))
            assert dynamo.skip_fwd_side_effects_in_bwd_under_checkpoint
        assert not dynamo.skip_fwd_side_effects_in_bwd_under_checkpoint


def settings() -> dict:
    """List what a run may change in its process."""
    return {
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)],
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "excepthook": sys.excepthook,
        "streams": (sys.stdout, sys.stderr),
        "filters": list(warnings.filters),
        "logging": (logging.root.level, list(logging.root.handlers), logging.getLogger("training").level),
        "verbosity": transformers.logging.get_verbosity(),
        "bars": (transformers.logging.is_progress_bar_enabled(), are_progress_bars_disabled()),
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "threads": torch.get_num_threads(),
        "gradients": torch.is_grad_enabled(),
        "tf32": (
            torch.get_float32_matmul_precision(),
            torch.backends.cuda.matmul.allow_tf32,
            torch.backends.cuda.matmul.fp32_precision,
        ),
        "deterministic": (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.backends.cudnn.deterministic,
            torch.backends.cudnn.benchmark,
        ),
        "random": (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()),  # noqa: NPY002
        "accelerate": [dict(state._shared_state) for state in (AcceleratorState, GradientState, PartialState)],
    }


@pytest.mark.parametrize("ends", ["done", "error"])
def test_the_process_is_given_back_as_it_was(train, monkeypatch, tmp_path, ends):
    """Whatever the caller has set before decides no number of the run, and holds afterwards."""
    assert train("plain") == 0
    before = settings()
    with torch.no_grad():
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")
        torch.set_float32_matmul_precision("medium")
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cudnn.benchmark = True
        warnings.simplefilter("error", ResourceWarning)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        monkeypatch.setattr(sys, "excepthook", lambda *_: None)
        monkeypatch.setenv("SOME_SETTING", "1")
        try:
            changed = settings()
            if ends == "error":
                monkeypatch.setattr(main_module, "train_step", lambda *_: 1 / 0)
                with pytest.raises(ZeroDivisionError):
                    train("changed")
            else:
                assert train("changed") == 0
                assert_same(tmp_path / "plain", tmp_path / "changed")
            assert settings() == changed
        finally:
            signal.signal(signal.SIGTERM, before["signals"][1])
            torch.backends.cudnn.benchmark = False
            torch.use_deterministic_algorithms(False)
            torch.set_float32_matmul_precision("highest")
            torch.set_default_device(None)
            torch.set_default_dtype(torch.float32)


def test_an_accelerator_of_the_caller_keeps_its_state(train):
    theirs = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=4)
    try:
        assert train("run") == 0
        assert (theirs.mixed_precision, theirs.gradient_accumulation_steps) == ("bf16", 4)
        assert (theirs.gradient_state.num_steps, theirs.device.type) == (4, "cpu")
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()


def test_the_bars_of_libraries_are_hidden_and_shown_again(monkeypatch):
    monkeypatch.setattr(sys.modules["huggingface_hub.utils.tqdm"], "HF_HUB_DISABLE_PROGRESS_BARS", None)
    transformers.logging.enable_progress_bar()
    try:
        with process.borrow_process():
            assert not transformers.logging.is_progress_bar_enabled()
            assert are_progress_bars_disabled()
        assert transformers.logging.is_progress_bar_enabled()
        assert not are_progress_bars_disabled()
    finally:
        transformers.logging.disable_progress_bar()


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
@pytest.mark.parametrize(("method", "status"), [("fork", 1), ("forkserver", 0)])
def test_a_fork_is_seen_however_it_was_launched(method, status):
    """It lacks the threads of OpenMP that its parent started, and Accelerate does not always say that it forks."""
    process = multiprocessing.get_context(method).Process(target=exit_with_1_in_a_fork)
    process.start()
    assert ranks.wait_for(process) == status


def exit_with_1_in_a_fork() -> None:
    sys.exit(int(devices.is_fork()))


def train_in_a_fork(config: Path) -> None:
    assert main(["--config", str(config)]) == 0


def train_from_a_notebook(configs: list[Path]) -> None:
    torch.set_num_threads(2)  # whose threads a fork does not have
    train_in_a_fork(configs[0])
    for processes, config in enumerate(configs[1:], start=1):
        arguments = {"num_processes": processes, "use_port": str(free_port())}
        notebook_launcher(train_in_a_fork, (config,), **arguments)


@pytest.mark.slow
def test_a_notebook_trains_and_launches_one_process_and_two(tiny, tmp_path):
    changes = SHORT | {"run.micro_batch_sequences": 1}
    runs = [tiny(**changes, run__output_dir=str(tmp_path / str(number))) for number in range(3)]
    configs = [save_configuration(arguments) for arguments in runs]
    process = ranks.SERVER.Process(target=ranks._call, args=({}, train_from_a_notebook, configs))
    process.start()
    assert ranks.wait_for(process) == 0
    assert_same(tmp_path / "0", tmp_path / "1")
    (record,) = [json.loads(path.read_text()) for path in tmp_path.glob("2/tokens*/model/run.json")]
    assert record["hardware"].startswith("2 x ")
