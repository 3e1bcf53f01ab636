"""How each part measures one case: with the training loop, and with the functions of the other benchmarks."""

from __future__ import annotations

import json
import shutil
import tempfile
from argparse import Namespace
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from filelock import FileLock

from benchmarks import checkpoints as checkpoint_benchmark
from benchmarks import model_speed
from benchmarks.gpu.cases import Options
from benchmarks.gpu.gaps import host_gaps
from benchmarks.report import ROOT, in_turns
from hub import RunRecord
from training.configuration.arguments import TrainingArguments
from training.data.text import TextSource
from training.data.tokenizer import train_tokenizer
from training.demo import corpus
from training.run import devices
from training.run.main import main as train
from training.run.model import utilisation_flops
from training.run.step import Session
from training.run.timing import arguments_of_steps, peak_bytes, session_on_random_tokens, timed_step
from training.sweep.file import Sweep
from training.sweep.run import write_configuration

DEVICE = torch.device(model_speed.DEVICE)
WARM_UP = 3  # steps; a compiled model is compiled in the first two


class Failed(RuntimeError):
    """What was measured is not right; the message says what."""


# -- suite


class _Outcomes:
    """Counts of outcomes, the errors that tests measured, and what failed; a plugin of pytest."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = defaultdict(int)
        self.measured: dict[str, dict[str, Any]] = {}
        self.failures: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.partition("::")[2]
        if report.when == "call" or not report.passed:
            self.counts[report.outcome] += 1
        if report.when == "call" and report.user_properties:
            self.measured[name] = dict(report.user_properties)
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            self.failures.append(f"{name}: {crash.message.splitlines()[0] if crash else 'error'}")


def suite(options: Options, work: Path) -> dict[str, Any]:
    """The outcomes of one test of `tests/gpu`, and the deviations from the CPU that it measured."""
    outcomes = _Outcomes()
    test = f"{ROOT / 'tests' / 'gpu'}/test_device.py::{options['test']}"
    status = pytest.main(["-q", "-p", "no:cacheprovider", "--rootdir", str(ROOT), test], plugins=[outcomes])
    if status != pytest.ExitCode.OK:
        raise Failed("; ".join(outcomes.failures) or f"pytest ended with {status.name}")
    return {"outcomes": dict(outcomes.counts), "measured": outcomes.measured}


# -- steps


def shape_of(options: Options) -> Namespace:
    """A case's shape as `benchmarks.model_speed` takes it."""
    return Namespace(
        width=options["width"],
        layers=options["blocks"],
        length=options.get("length", options.get("prompt", 0) + options.get("new", 0) + 1),
        batch=options.get("micro_batch", options.get("batch")),
        vocab=options["vocab"],
        compile=False,
    )


def model_section(options: Options) -> dict[str, Any]:
    """The section `model` of a run of this case; transformers' models at top-1 with as many heads and as wide."""
    width, heads = options["width"], options["width"] // 64
    group = {"capacity_group_tokens": options["micro_batch"] * options["length"]}
    if options["model"] == "ours":
        section = {"d_model": width, "n_blocks": options["blocks"], "n_heads": heads, "experts": options["experts"]}
        precision = {"attention_precision": options["attention"]}
        return section | group | precision | {"capacity_factor": options["capacity_factor"]}
    experts = {"mixtral": "num_local_experts", "olmoe": "num_experts"}[options["model"]]
    return group | {
        "type": options["model"],
        "hidden_size": width,
        "num_hidden_layers": options["blocks"],
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "intermediate_size": 3 * width,
        "num_experts_per_tok": 1,
        experts: options["experts"],
    }


def arguments_of(options: Options) -> TrainingArguments:
    """Of a run of this case, whose batches have `passes` micro-batches."""
    run = {name: options[name] for name in ("precision", "gradient_checkpointing", "compile")}
    run["micro_batch_sequences"] = options["micro_batch"]
    return arguments_of_steps(run, model_section(options), options["length"], options["passes"])


def steps(options: Options, work: Path) -> dict[str, Any]:
    """Whole training steps, optimizer included: tokens/s, MFU, peak memory and the gaps of a step."""
    if options["model"] == "matmul":
        shape = shape_of(options)
        spent = in_turns({"": model_speed.matmul_bound(shape, options["precision"])}, options["rounds"])
        return {"seconds": spent[""], "tokens_per_second": shape.batch * shape.length / spent[""]}
    a = arguments_of(options)
    device = devices.make_accelerator(a.run).device

    def warmed_up() -> Session:
        made = session_on_random_tokens(a, options["vocab"])
        if options["implementation"] != "auto":
            made.model.set_experts_implementation(options["implementation"])
        for _ in range(WARM_UP):
            timed_step(made)
        return made

    session, memory = peak_bytes(device, warmed_up)
    spent = median(timed_step(session)[1] for _ in range(options["rounds"]))
    tokens = options["micro_batch"] * options["passes"] * options["length"]
    peak, arch = devices.peak_flops(device), session.architecture
    return {
        "seconds": spent,
        "tokens_per_second": tokens / spent,
        "mfu": utilisation_flops(arch) * tokens / spent / peak if peak else None,
        "peak_memory_bytes": memory,
        "n_active": arch.n_active,
        "n_total": arch.n_total,
        **host_gaps(lambda: timed_step(session), device),
    }


# -- decoding


@torch.inference_mode()
def decoding(options: Options, work: Path) -> dict[str, Any]:
    """New tokens per second of all sequences together, without the time of the prompt, which is given apart."""
    shape, experts = shape_of(options), options["experts"]
    names = {name.lower(): name for name in model_speed.PEERS}
    ours = options["model"] == "ours"
    model = model_speed.ours(shape, experts) if ours else model_speed.peer(names[options["model"]], shape, experts)
    model = model.to(torch.bfloat16).eval()
    model.set_experts_implementation(options["implementation"])
    # No padding (0): generate() would mask it, and the auxiliary loss of some classes cannot take that mask.
    prompt = torch.randint(1, options["vocab"], (options["batch"], options["prompt"]), device=DEVICE)

    def generate(new: int) -> None:
        model.generate(prompt, max_new_tokens=new, min_new_tokens=new, do_sample=False, pad_token_id=0)
        model_speed.finish()

    works = {"prompt": lambda: generate(1), "all": lambda: generate(1 + options["new"])}
    spent = in_turns(works, options["rounds"])
    seconds = max(spent["all"] - spent["prompt"], 1e-9)
    return {
        "prompt_seconds": spent["prompt"],
        "seconds_per_token": seconds / options["new"],
        "tokens_per_second": options["batch"] * options["new"] / seconds,
        "weight_bytes": sum(parameter.nbytes for parameter in model.parameters()),
    }


# -- checkpoints


def checkpoints(options: Options, work: Path) -> dict[str, Any]:
    """Seconds to save, verify and load, beside torch's and safetensors' functions; see `benchmarks.checkpoints`."""
    work.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=work))
    try:
        session = checkpoint_benchmark.make_session(options["d_model"], options["experts"])
        size, spent = checkpoint_benchmark.measure(session, folder, options["rounds"])
    finally:
        shutil.rmtree(folder)
    return {"bytes": size, "seconds": spent}


# -- sweep


def text(options: Options, work: Path) -> dict[str, Any]:
    """Text and tokenizer of a run: of `work/data.json`, or else of this machine's documentation."""
    with FileLock(work / "data.lock"):
        settings = work / "data.json"
        given = json.loads(settings.read_text())["data"] if settings.exists() else None
        data = Path(given) if given else work / "corpus"
        if not data.exists():
            print(corpus.build(data, max_bytes=options["corpus_bytes"]))
        tokenizer = work / f"tokenizer-{options['vocab']}"
        if not (tokenizer / "tokenizer.json").exists():
            train_tokenizer(TextSource(str(data)).documents(), options["vocab"], tokenizer, progress=False)
    own = {} if given else {"validation_split": "validation"}
    return {"dataset": str(data), "tokenizer": str(tokenizer), "cache_dir": str(work / "tokens")} | own


def sweep(options: Options, work: Path) -> dict[str, Any]:
    """One trunk with its branches, by the command that any run is trained with: its records, in short.

    It resumes from its checkpoints; `work/runs` keeps the models and records whole.
    """
    work.mkdir(parents=True, exist_ok=True)
    base = {
        "run": {
            "micro_batch_sequences": options["micro_batch"],
            "eval_sequences": options["eval_sequences"],
            "checkpoint_seconds": 60,
            "progress": False,
        },
        "model": {
            "d_model": options["width"],
            "experts": options["experts"],
            "capacity_factor": 0,
            "final_norm": True,
            "attention_precision": "compute",
        },
        "data": text(options, work) | {"sequence_length": options["length"]},
        "schedule": {
            "tokens": options["tokens"],
            "warmup_tokens": options["warmup"],
            "batch_ramp": [f"0:{options['batch']}"],
        },
        "optimizer": {"learning_rate": options["learning_rate"], "beta2": 0.95, "gradient_clip": 1.0},
    }
    (run,) = Sweep.from_dict({"sweep": "gpu-kit", "base": base}, work / "runs").runs
    status = train(["--config", str(write_configuration(run))])
    if not run.complete:
        raise Failed(f"{run.name} ended with status {status}")
    return {"records": [in_short(record) for record in run.records()]}


def in_short(record: RunRecord) -> dict[str, Any]:
    """What a fit reads of a record, and how fast the run was."""
    names = ("n_active", "n_total", "experts", "tokens", "eval_loss", "eval_loss_standard_error", "status")
    names += ("tokens_per_second", "mfu", "peak_memory_bytes")
    return {name: getattr(record, name) for name in names}


MEASURES = {"suite": suite, "steps": steps, "decoding": decoding, "checkpoints": checkpoints, "sweep": sweep}
