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
from accelerate.state import AcceleratorState, GradientState, PartialState
from huggingface_hub import utils as hub_utils
from transformers.utils import logging as bars

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
        _set_defaults()
        yield


def _settings() -> list[tuple[Any, Setter]]:
    """Read all settings: each value with the function that sets it, to be called in reverse order."""
    cudnn = torch.backends.cudnn
    attributes: tuple[tuple[Any, str], ...] = (
        (sys, "excepthook"),
        (threading, "excepthook"),
        (cudnn, "deterministic"),
        (cudnn, "benchmark"),
        (torch.backends.cuda.matmul, "fp32_precision"),
        # torch adds it to its module when it is imported, which mypy does not see.
        (torch.backends.mkldnn.matmul, "fp32_precision"),  # type: ignore[attr-defined]
    )
    settings: list[tuple[Any, Setter]] = [
        (getattr(owner, name), partial(setattr, owner, name)) for owner, name in attributes
    ]
    settings += [
        (dict(os.environ), _set_environment),
        (random.getstate(), random.setstate),
        (np.random.get_state(), np.random.set_state),  # noqa: NPY002 (of libraries)
        (torch.get_rng_state(), torch.set_rng_state),
        ((bars.is_progress_bar_enabled(), not hub_utils.are_progress_bars_disabled()), _show_bars),
        (torch.get_default_dtype(), torch.set_default_dtype),
        (torch.get_num_threads(), torch.set_num_threads),
        # It sets the precisions of the two backends, too, which come after it.
        (_matmul_precision(), torch.set_float32_matmul_precision),
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
    """Set the defaults that decide numbers, as torch sets them when it is imported, and hide bars of libraries."""
    _show_bars((False, False))
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


def _show_bars(visible: tuple[bool, bool]) -> None:
    """Show or hide the bars of transformers and those of huggingface_hub, which would break that of the training.

    HF_HUB_DISABLE_PROGRESS_BARS decides about those of the Hub where it is set.
    """
    of_transformers, of_hub = visible
    with warnings.catch_warnings():
        # A warning says that the environment decides.
        warnings.simplefilter("ignore")
        # It sets those of the Hub, too.
        (bars.enable_progress_bar if of_transformers else bars.disable_progress_bar)()
        (hub_utils.enable_progress_bars if of_hub else hub_utils.disable_progress_bars)()


def _free_memory() -> None:
    """Free the memory of a run, also in the compiler, which compiles a block only for so many shapes in a process."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
