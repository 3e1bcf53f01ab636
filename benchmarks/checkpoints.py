"""Seconds to save, verify and load a checkpoint, beside `torch.save` and `torch.load` of the same state.

    python -m benchmarks.checkpoints [--d-model 512] [--experts 4] [--folder .] [--rounds 3]

Bounds, on the same bytes: for the copy that training waits for, a copy in memory; for the writing, the disk alone with
`fsync`; for verifying and loading, reading one file of that size, which lies in the page cache as the checkpoint does.
The peer's save is synced to the disk too; it keeps no checksum, and training waits for all of it. The last row is the
part of the training time that saving takes at the default interval.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from benchmarks.report import Options, Report, benchmark, in_turns, seconds
from hub.base import atomic
from scaling_law.size.architecture import VOCAB_SIZE
from training.configuration.arguments import RunArguments
from training.run import checkpoint
from training.run.checkpoint import CheckpointWriter
from training.run.progress import Progress
from training.run.step import Session
from training.run.timing import arguments_of_steps, finish, session_on_random_tokens, timed_step


def make_session(d_model: int, experts: int) -> Session:
    """Make a session and a step, after which the moments are there."""
    run = {"precision": "fp32", "micro_batch_sequences": 1}
    model = {"d_model": d_model, "experts": experts}
    session = session_on_random_tokens(arguments_of_steps(run, model, sequence_length=64), VOCAB_SIZE)
    timed_step(session)
    return session


def write_bytes(path: Path, size: int) -> None:
    """Write random bytes, since zeros would be too kind to a file system that compresses."""
    block = os.urandom(1 << 24)
    with path.open("wb") as file:
        for start in range(0, size, len(block)):
            file.write(block[: size - start])
    atomic.sync(path)


def torch_save(path: Path, session: Session) -> None:
    """Save weights and moments by torch."""
    torch.save({"model": session.model.state_dict(), "optimizer": session.optimizers[0].state_dict()}, path)
    atomic.sync(path)


def torch_load(path: Path, session: Session) -> None:
    """Load weights and moments by torch."""
    state = torch.load(path, weights_only=True)
    session.model.load_state_dict(state["model"])
    session.optimizers[0].load_state_dict(state["optimizer"])


def safetensors_of(session: Session) -> dict[str, torch.Tensor]:
    """Return weights and moments under one name each."""
    tensors = {f"model.{name}": tensor for name, tensor in session.model.state_dict().items()}
    for number, moments in session.optimizers[0].state_dict()["state"].items():
        for name, tensor in moments.items():
            tensors[f"optimizer.{number}.{name}"] = tensor
    return tensors


def safetensors_save(path: Path, session: Session) -> None:
    """Save weights and moments by safetensors."""
    save_file(safetensors_of(session), path)
    atomic.sync(path)


def safetensors_load(path: Path, session: Session) -> None:
    """Load weights and moments by safetensors."""
    state = load_file(path)
    with torch.no_grad():
        for name, tensor in safetensors_of(session).items():
            tensor.copy_(state[name])


def measure(session: Session, folder: Path, rounds: int) -> tuple[int, dict[str, float]]:
    """Return the bytes of the state, and measure the median seconds of each way."""
    # Weights and two moments in fp32.
    size = 12 * sum(parameter.numel() for parameter in session.model.parameters())
    memory = torch.ones(size // 4)
    writer = CheckpointWriter(session)
    path = checkpoint.path_of(folder, 0)
    raw = folder / "bytes"
    torch_file = folder / "state.pt"
    safetensors_file = folder / "state.safetensors"

    def save() -> None:
        shutil.rmtree(path, ignore_errors=True)
        writer.save(folder, Progress(step=0))

    works = {
        "the disk alone": lambda: write_bytes(raw, size),
        "torch.save": lambda: torch_save(torch_file, session),
        "copy": save,
        "thread": writer.wait,
        "verify": lambda: checkpoint.find_damage(path),
        "load": lambda: checkpoint.load(path, session),
        "torch.load": lambda: torch_load(torch_file, session),
        "safetensors.save": lambda: safetensors_save(safetensors_file, session),
        "safetensors.load": lambda: safetensors_load(safetensors_file, session),
        "sha256 in one thread": lambda: hashlib.sha256(raw.read_bytes()),
        "reading the bytes": raw.read_bytes,
        "memcpy": memory.clone,
    }

    def to_the_end(work: Callable[[], object]) -> float:
        return seconds(lambda: (work(), finish(session.accelerator.device)))

    return size, in_turns(works, rounds, to_the_end)


@benchmark(
    {
        "--d-model": (512, 64),
        "--experts": (4, 2),
        "--folder": (Path, None, "on the disk to measure; None: the temporary folder"),
        "--rounds": (3, 1),
    }
)
def main(report: Report, options: Options) -> None:
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        size, times = measure(make_session(options.d_model, options.experts), Path(folder), options.rounds)
    times["both"] = times["copy"] + times["thread"]
    state = f"{size / 1e6:,.0f} MB"
    note = "weights, moments, checksums; durable"
    report.add_of(times, f"save {state}: training waits", "torch.save", "memcpy", "copy")
    report.add_of(times, f"save {state}: until it is on the disk", "torch.save", "the disk alone", "both", note)
    report.add_of(times, f"verify {state}", "sha256 in one thread", "reading the bytes", "verify")
    report.add_of(times, f"load {state} to resume", "torch.load", "reading the bytes", "load")
    interval = RunArguments().checkpoint_seconds
    lost_percent = {name: 100 * times[name] / (interval + times[name]) for name in ("copy", "both", "memcpy")}
    report.add(
        f"training time lost, saving every {interval:.0f} s",
        lost_percent["copy"],
        "%",
        peer=("without a thread", lost_percent["both"]),
        bound=("memcpy", lost_percent["memcpy"]),
    )


if __name__ == "__main__":
    main()
