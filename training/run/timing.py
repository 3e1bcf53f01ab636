"""Time and memory of steps on random tokens, for the dry run and throughput files."""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch

from hub.base.types import Fields
from training.configuration.arguments import TrainingArguments
from training.configuration.reading import from_dict
from training.data.batches import inputs_and_targets
from training.run import devices
from training.run.step import Session, StepResult, make_session, train_step

T = TypeVar("T")
# At this rate the model of a run that is only timed stays as it was drawn. At the rate of a run, random tokens make it
# diverge within ten steps, and on a CPU subnormal probabilities then make the head several times slower, of some
# shapes and not of others.
LEARNING_RATE = 1e-6


@dataclass(frozen=True)
class RandomTokens:
    """Uniformly drawn ids instead of `TrainingData`, with the methods of a tokenizer that a session calls."""

    vocab_size: int
    sequence_length: int
    eos_token_id: int = 0

    def get_vocab(self) -> dict[str, int]:
        """Return the largest id alone."""
        return {"": self.vocab_size - 1}

    def micro_batches(
        self, position: int, sequences: int, size: int, rank: int, world_size: int, device: torch.device
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        # The processes of a reader have the same generator.
        generator = np.random.default_rng(rank)
        shape = (size, self.sequence_length + 1)
        for _ in range(rank, sequences // size, world_size):
            yield inputs_and_targets(generator.integers(self.vocab_size, size=shape), device)


def arguments_of_steps(run: Fields, model: Fields, sequence_length: int, passes: int = 1) -> TrainingArguments:
    """Return the arguments of a run that only makes single steps, of so many passes.

    `run` and `model` are sections of the configuration.
    """
    sequences = run["micro_batch_sequences"] * passes
    return from_dict(
        {
            "run": {"output_dir": "unused", **run},
            "model": model,
            "data": {"sequence_length": sequence_length},
            "schedule": {"batch_ramp": [f"0:{sequences}"], "tokens": ["1T"], "warmup_tokens": 0},
            "optimizer": {"learning_rate": LEARNING_RATE},
        }
    )


def session_on_random_tokens(a: TrainingArguments, vocab_size: int) -> Session:
    """Make a session in training mode that needs no text and no tokenizer."""
    data = RandomTokens(vocab_size, a.data.sequence_length)
    session = make_session(a, devices.make_accelerator(a.run), data, data)
    session.model.train()
    return session


def timed_step(session: Session) -> tuple[StepResult, float]:
    """Make one step, the first of the schedule; returns it with its wall seconds to the end of all work.

    Raises RuntimeError where loss or gradient is not finite: the step made no update, and took less time.
    """
    device = session.accelerator.device
    finish(device)
    started = time.perf_counter()
    result = train_step(session, 0, session.schedule.learning_rate(0))
    finish(device)
    seconds = time.perf_counter() - started
    if not result.is_finite:
        raise RuntimeError(f"a timed step diverged: loss {result.loss}, gradient norm {result.gradient_norm}")
    return result, seconds


def finish(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_bytes(device: torch.device, work: Callable[[], T]) -> tuple[T, int]:
    """Return the result of `work`, and the peak bytes of tensors while it ran, beyond those before it.

    On a GPU the allocator counts them. On a CPU torch's profiler does, which sees a tensor's end only if it saw its
    beginning: `work` must make the model, too.
    """
    # Tensors from before must not end meanwhile.
    release(device)
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        return work(), torch.cuda.max_memory_allocated(device) - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        result = work()
    changes = (event.nbytes() for event in profile.profiler.kineto_results.events() if event.name() == "[memory]")
    return result, max(itertools.accumulate(changes), default=0)


def release(device: torch.device) -> None:
    """Free memory that no tensor uses any more."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
