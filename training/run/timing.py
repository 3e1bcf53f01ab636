"""Time and memory of steps on random tokens, for the dry run and throughput files."""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import psutil
import torch

from training.run.step import Session, StepResult, train_step

T = TypeVar("T")
# Of runs that are only timed, so that the model stays as it was drawn. At the rate of a run, random tokens make it
# diverge within ten steps, and on a CPU subnormal probabilities then make the head several times slower, of some
# shapes and not of others.
LEARNING_RATE = 1e-6


@dataclass(frozen=True)
class RandomTokens:
    """Uniformly drawn ids instead of `TrainingData`."""

    vocab_size: int
    sequence_length: int
    micro_batch_sequences: int

    def micro_batches(self, position, sequences, rank, world_size, device) -> Iterator[tuple[torch.Tensor, ...]]:
        shape = (self.micro_batch_sequences, self.sequence_length)
        for _ in range(rank, sequences // self.micro_batch_sequences, world_size):
            ids = torch.randint(self.vocab_size, shape, device=device)
            yield ids, ids.roll(-1, 1)


class StepTimer:
    """Steps of one session, each the first of its schedule, and their wall seconds to the end of all work.

    A step raises RuntimeError where loss or gradient is not finite: it then made no update, and took less time.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.seconds: list[float] = []

    def step(self) -> StepResult:
        """Make and time one step."""
        device = self.session.accelerator.device
        finish(device)
        started = time.perf_counter()
        result = train_step(self.session, 0, self.session.schedule.learning_rate(0))
        finish(device)
        self.seconds.append(time.perf_counter() - started)
        if not result.is_finite:
            raise RuntimeError(f"a timed step diverged: loss {result.loss}, gradient norm {result.gradient_norm}")
        return result


def finish(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_bytes(device: torch.device, work: Callable[[], T]) -> tuple[T, int]:
    """The result of `work`, and the peak bytes of tensors while it ran, beyond those before it.

    On a GPU the allocator counts them. On a CPU torch's profiler does, which sees a tensor's end only if it saw its
    beginning: `work` must make the model, too.
    """
    release(device)  # what lies about from before must not end meanwhile
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        return work(), torch.cuda.max_memory_allocated(device) - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        result = work()
    changes = (event.nbytes() for event in profile.profiler.kineto_results.events() if event.name() == "[memory]")
    return result, max(itertools.accumulate(changes), default=0)


def device_memory(device: torch.device) -> int:
    """Bytes of memory: of the GPU, or of this machine."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return psutil.virtual_memory().total


def release(device: torch.device) -> None:
    """Free memory that no tensor uses any more."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
