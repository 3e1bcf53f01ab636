"""How many functions and modules of ours a command runs through, from the shell to its answer.

    python -m benchmarks.paths [--list optimal]

Functions are counted once however often they are called; modules are those in which they stand. Each path has a
process of its own. Exit status 1: a path is longer than it may be.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
from rich import print as show

from benchmarks.report import ROOT
from hub.base.tables import Table

PACKAGES = ("scaling_law", "hub", "training", "modeling_switch_moe")
OWN = (*(f"{ROOT / package}{os.sep}" for package in PACKAGES), str(ROOT / "train.py"))
# Set in a function, and not in the body of a class.
CO_OPTIMIZED = 1


@dataclass(frozen=True)
class PathToAnswer:
    """A command, the files that it reads, and the most functions and modules that it may run through."""

    command: str
    prepare: Callable[[], None] | None = None
    most_functions: int | None = None
    most_modules: int | None = None


def write_runs() -> None:
    """Write a table of 60 runs on the published law, with a little noise."""
    from scaling_law import JointLaw

    law = JointLaw.published()
    noise = np.random.default_rng(0).normal(scale=0.003, size=60)
    lines = []
    for i in range(60):
        n_active = 1e7 * 2 ** (i % 5)
        tokens = 2e8 * 2 ** (i // 5 % 4)
        experts = 4 ** (i // 20)
        loss = float(law.loss(n_active, tokens, experts)) * np.exp(noise[i])
        lines.append(json.dumps({"n_active": n_active, "tokens": tokens, "experts": experts, "loss": loss}))
    Path("runs.jsonl").write_text("\n".join(lines) + "\n")


def write_training() -> None:
    """Write a corpus, its tokenizer and the configuration of a run of 16K tokens."""
    from training.data.text import TextSource
    from training.data.tokenizer import train_tokenizer

    lines = []
    for i in range(200):
        words = [f"word{i * j % 97}" for j in range(200)]
        lines.append(json.dumps({"text": " ".join(words)}))
    Path("corpus").mkdir()
    Path("corpus/train.jsonl").write_text("\n".join(lines) + "\n")
    train_tokenizer(TextSource("corpus").documents(), 300, Path("tokenizer"), progress=False)
    configuration = {
        "run": {"output_dir": "run", "precision": "fp32", "micro_batch_sequences": 4, "eval_sequences": 8},
        "model": {"d_model": 64, "experts": 4},
        "data": {"dataset": "corpus", "tokenizer": "tokenizer", "sequence_length": 64, "held_out_per_mille": 100},
        "schedule": {"tokens": [16384], "warmup_tokens": 1024, "batch_ramp": ["0:4"]},
        "optimizer": {"learning_rate": 0.01},
    }
    # YAML contains JSON.
    Path("run.yaml").write_text(json.dumps(configuration))


PATHS = {
    "loss": PathToAnswer("scaling-law loss --n-active 1B --tokens 20B --experts 8"),
    "optimal": PathToAnswer("scaling-law optimal --flops 1e22 --memory 80GB", None, 160, 18),
    "optimal in hours": PathToAnswer("scaling-law optimal --gpu h100 --gpus 8 --hours 72"),
    "reach": PathToAnswer("scaling-law reach --loss 2.2 --memory 24GB"),
    "speedup": PathToAnswer("scaling-law speedup --flops 1e21 --experts 8"),
    "plan": PathToAnswer("scaling-law plan --flops 1e20 --memory 24GB"),
    "fit": PathToAnswer("scaling-law fit runs.jsonl", write_runs, 220, 30),
    "forecast": PathToAnswer("scaling-law forecast runs.jsonl --n-active 1B --tokens 20B --experts 16", write_runs),
    "train.py": PathToAnswer("train.py --config run.yaml", write_training, 400, 45),
}


def run(command: str) -> None:
    """Run a command of ours in this process. An answer that is not to be trusted has status 1."""
    program, *arguments = command.split()
    sys.argv = [program, *arguments]
    try:
        if program == "train.py":
            import runpy

            runpy.run_path(str(ROOT / program), run_name="__main__")
        else:
            from scaling_law.commands.cli import main

            main()
    except SystemExit as end:
        if end.code not in (None, 0, 1):
            raise


def trace(command: str) -> list[tuple[str, str]]:
    """Run a command; returns the module and the name of each function of ours that it called."""
    codes: set[CodeType] = set()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            codes.add(frame.f_code)

    sys.setprofile(note)
    threading.setprofile(note)
    try:
        run(command)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    functions = []
    for code in codes:
        is_function = code.co_flags & CO_OPTIMIZED and not code.co_name.startswith("<")
        if is_function and code.co_filename.startswith(OWN):
            module = str(Path(code.co_filename).relative_to(ROOT))
            functions.append((module, f"{code.co_firstlineno} {code.co_name}"))
    return sorted(functions)


def measure(name: str) -> list[tuple[str, str]]:
    """Trace a path in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "functions.json"
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, "-m", "benchmarks.paths", "--trace", name, "--to", str(result)]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        if not result.exists():
            raise SystemExit(f"{name}: {done.stderr}")
        return [tuple(function) for function in json.loads(result.read_text())]


def main() -> int:
    """Measure every path, print the table, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", metavar="PATH", choices=PATHS, help="list the functions of one path")
    parser.add_argument("--trace", choices=PATHS, help=argparse.SUPPRESS)
    parser.add_argument("--to", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.trace:
        path = PATHS[options.trace]
        if path.prepare is not None:
            path.prepare()
        options.to.write_text(json.dumps(trace(path.command)))
        return 0
    if options.list:
        for module, function in measure(options.list):
            print(f"{module}:{function}")
        return 0
    rows = []
    too_long = []
    for name, path in PATHS.items():
        functions = measure(name)
        modules = {module for module, _ in functions}
        rows.append((name, len(functions), path.most_functions, len(modules), path.most_modules))
        if len(functions) > (path.most_functions or np.inf) or len(modules) > (path.most_modules or np.inf):
            too_long.append(name)
    show(Table(("path", "functions", "at most", "modules", "at most"), rows))
    if too_long:
        print(f"longer than they may be: {', '.join(too_long)}", file=sys.stderr)
    return 1 if too_long else 0


if __name__ == "__main__":
    sys.exit(main())
