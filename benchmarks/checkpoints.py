"""Seconds to save, verify and load a checkpoint, beside `torch.save` of the same state and beside the bare disk.

    python benchmarks/checkpoints.py [--d-model 512] [--experts 4] [--folder .] [--repeats 3]

Prints medians, MB/s, ratios, and the share of the training time that saving takes at the default interval.
"""

import argparse
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import torch
from accelerate import Accelerator

from modeling_switch_moe import SwitchMoeConfig
from training import checkpoint
from training.arguments import OptimizerArguments, RunArguments
from training.checkpoint import Progress
from training.checkpoint_writer import CheckpointWriter
from training.model import build_model, build_optimizer


def make_session(d_model: int, experts: int) -> SimpleNamespace:
    accelerator = Accelerator()
    blocks = d_model // 64
    config = SwitchMoeConfig(
        vocab_size=50257,
        hidden_size=d_model,
        num_hidden_layers=blocks,
        num_attention_heads=blocks,
        num_experts=experts,
    )
    model = build_model(config, seed=0)
    optimizer = build_optimizer(model, OptimizerArguments(), accelerator.device)
    model, optimizer = accelerator.prepare(model, optimizer)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    return SimpleNamespace(accelerator=accelerator, model=model, optimizer=optimizer)


def seconds(function) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def write_bytes(path: Path, size: int) -> None:
    """The disk alone: zeros would be too kind to a file system that compresses."""
    block = os.urandom(1 << 24)
    with path.open("wb") as file:
        for _ in range(size // len(block)):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())


def torch_save(path: Path, session) -> None:
    torch.save({"model": session.model.state_dict(), "optimizer": session.optimizer.state_dict()}, path)
    with path.open("rb") as file:
        os.fsync(file.fileno())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--d-model", type=int, default=512)
    parser.add_argument("--experts", type=int, default=4)
    parser.add_argument("--folder", default=None, help="on the disk to measure; default: the temporary folder")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    session = make_session(options.d_model, options.experts)
    writer = CheckpointWriter(session)
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    times: dict[str, list[float]] = {}
    try:
        for repeat in range(options.repeats):
            path = checkpoint.path_of(folder, repeat)
            measured = {
                "disk": lambda: write_bytes(folder / "bytes", size),  # noqa: B023
                "torch.save": lambda: torch_save(folder / "state.pt", session),
                "save: copy": lambda: writer.save(folder, Progress(step=repeat)),  # noqa: B023
                "save: thread": writer.wait,
                "verify": lambda: checkpoint.find_damage(path),  # noqa: B023
                "load": lambda: checkpoint.load(path, session),  # noqa: B023
            }
            size = 12 * sum(p.numel() for p in session.model.parameters())
            for name, function in measured.items():
                times.setdefault(name, []).append(seconds(function))
            shutil.rmtree(path)
    finally:
        shutil.rmtree(folder)
    print(f"d_model {options.d_model}, E = {options.experts}: {size / 1e6:,.0f} MB of weights and Adam's moments")
    medians = {name: statistics.median(values) for name, values in times.items()}
    for name, median in medians.items():
        speed, ratio = size / 1e6 / median, median / medians["disk"]
        print(f"  {name:<11} {median:7.2f} s  {speed:7.0f} MB/s  {ratio:5.2f} x the disk")
    interval = RunArguments().checkpoint_seconds
    for name, spent in (("with", medians["save: copy"]), ("without", medians["save: copy"] + medians["save: thread"])):
        print(f"  saving every {interval:.0f} s {name} a thread stops training for {spent / (interval + spent):.2%}")


if __name__ == "__main__":
    main()
