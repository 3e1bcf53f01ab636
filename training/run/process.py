"""The settings of a process that a run changes, and gives back: a notebook or a server may train, and train again.

A run finds the process as a fresh one, whatever its caller has set: default dtype and device, gradients, TF32.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
import transformers.utils.logging
from accelerate.state import AcceleratorState, GradientState, PartialState
from huggingface_hub import utils as hub_utils

from training.configuration.arguments import ConfigurationError

_training = threading.Lock()

Setter = Callable[[Any], object]


@contextmanager
def borrow_process() -> Iterator[None]:
    """Train in this process; afterwards all of its settings are as they were.

    Raises ConfigurationError where another thread of this process is training.
    """
    if not _training.acquire(blocking=False):
        raise ConfigurationError(
            "train.py: another thread of this process is training; wait for its end, or start another process"
        )
    with ExitStack() as stack:
        stack.callback(_training.release)
        # A run that failed may have left some memory.
        _free_memory()
        stack.callback(_free_memory)
        stack.enter_context(warnings.catch_warnings())
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        # Compiled blocks set it.
        stack.enter_context(torch._dynamo.config.patch(skip_fwd_side_effects_in_bwd_under_checkpoint=False))
        for value, set_value in _settings():
            stack.callback(set_value, value)
        stack.enter_context(_own_accelerate_state())
        stack.enter_context(_without_bars_of_libraries())
        _set_defaults()
        yield


def _settings() -> list[tuple[Any, Setter]]:
    """Read all settings: each value with the function that sets it, to be called in reverse order."""
    cudnn = torch.backends.cudnn
    matmul = torch.backends.cuda.matmul
    # torch adds it to its module when it is imported, which mypy does not see.
    mkldnn = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    settings: list[tuple[Any, Setter]] = [
        (dict(os.environ), _set_environment),
        (sys.excepthook, lambda hook: setattr(sys, "excepthook", hook)),
        (threading.excepthook, lambda hook: setattr(threading, "excepthook", hook)),
        (random.getstate(), random.setstate),
        (np.random.get_state(), np.random.set_state),  # noqa: NPY002 (of libraries)
        (torch.get_rng_state(), torch.set_rng_state),
        (torch.get_default_dtype(), torch.set_default_dtype),
        (torch.get_num_threads(), torch.set_num_threads),
        (matmul.fp32_precision, lambda value: setattr(matmul, "fp32_precision", value)),
        (mkldnn.fp32_precision, lambda value: setattr(mkldnn, "fp32_precision", value)),
        # It sets the two before it, too.
        (_matmul_precision(), torch.set_float32_matmul_precision),
        (cudnn.deterministic, lambda value: setattr(cudnn, "deterministic", value)),
        (cudnn.benchmark, lambda value: setattr(cudnn, "benchmark", value)),
    ]
    if torch.are_deterministic_algorithms_enabled():
        warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
        settings.append((True, partial(torch.use_deterministic_algorithms, warn_only=warn_only)))
    if torch.get_default_device().type != "cpu":
        settings.append((torch.get_default_device(), torch.set_default_device))
    # To ask would start CUDA.
    if torch.cuda.is_initialized():
        settings.append((torch.cuda.get_rng_state_all(), torch.cuda.set_rng_state_all))
    return settings


def _matmul_precision() -> str:
    """Read the precision of fp32 products; "highest" where the caller has set that of one backend alone."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return "highest"


def _set_defaults() -> None:
    """Set the defaults that decide numbers, as torch sets them when it is imported."""
    if torch.get_default_device().type != "cpu":
        torch.set_default_device(None)
    if torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(False)
    torch.set_default_dtype(torch.float32)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.deterministic = torch.backends.cudnn.benchmark = False


def _set_environment(values: dict[str, str]) -> None:
    for name in os.environ.keys() - values.keys():
        del os.environ[name]
    os.environ.update(values)


@contextmanager
def _own_accelerate_state() -> Iterator[None]:
    """Begin without the Accelerator of a run before or of the caller, and restore it.

    The caller's PartialState is the run's, too: it may have started the process group.
    """
    states = [state._shared_state for state in (AcceleratorState, GradientState, PartialState)]
    before = [dict(state) for state in states]
    for state in states[:2]:
        state.clear()
    try:
        yield
    finally:
        for state, values in zip(states, before, strict=True):
            state.clear()
            state.update(values)


@contextmanager
def _without_bars_of_libraries() -> Iterator[None]:
    """Hide the bars of transformers and huggingface_hub, which would break that of the training.

    HF_HUB_DISABLE_PROGRESS_BARS=0 keeps those of the Hub.
    """
    log_of_transformers = transformers.utils.logging
    libraries = [(log_of_transformers.disable_progress_bar, log_of_transformers.enable_progress_bar)]
    if not log_of_transformers.is_progress_bar_enabled():
        libraries = []
    if not hub_utils.are_progress_bars_disabled():
        libraries.append((hub_utils.disable_progress_bars, hub_utils.enable_progress_bars))
    with warnings.catch_warnings():
        # A warning says that the environment decides.
        warnings.simplefilter("ignore")
        for hide, _ in libraries:
            hide()
    try:
        yield
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _, show in libraries:
                show()


def _free_memory() -> None:
    """Free the memory of a run, also in the compiler, which compiles a block only for so many shapes in a process."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
