"""How each part measures one case: with the training loop, and with the functions of the other benchmarks."""

from __future__ import annotations

import importlib
import json
import shutil
import tempfile
import time
from argparse import Namespace
from collections import defaultdict
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from filelock import FileLock

from benchmarks import checkpoints as checkpoint_benchmark
from benchmarks import model_speed
from benchmarks.gpu.cases import Options
from benchmarks.gpu.gaps import host_gaps
from benchmarks.gpu.kit import Skipped
from benchmarks.report import ROOT, in_turns
from hub import RunRecord
from modeling_switch_moe.losses import ChunkedCrossEntropy
from training.configuration.arguments import TrainingArguments
from training.configuration.reading import from_dict
from training.data.text import TextSource
from training.data.tokenizer import load_tokenizer, train_tokenizer
from training.demo import corpus
from training.run import devices
from training.run.inputs import training_data
from training.run.main import main as train
from training.run.step import Session, add_gradients
from training.run.timing import arguments_of_steps, finish, peak_bytes, session_on_random_tokens, timed_step
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
    """The section `model` of a run of this case; transformers' models with as many heads and active weights."""
    width, heads = options["width"], options["width"] // 64
    group = {"capacity_group_tokens": options["micro_batch"] * options["length"]}
    if options["model"] == "ours":
        section = {"d_model": width, "n_blocks": options["blocks"], "n_heads": heads, "experts": options["experts"]}
        precision = {"attention_precision": options["attention"]}
        return section | group | precision | {"capacity_factor": options["capacity_factor"]}
    experts = "num_local_experts" if options["model"] == "mixtral" else "num_experts"
    inner = "moe_intermediate_size" if options["model"] == "qwen3_moe" else "intermediate_size"
    return group | {
        "type": options["model"],
        "hidden_size": width,
        "num_hidden_layers": options["blocks"],
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        inner: 3 * width // options["top_k"],
        "num_experts_per_tok": options["top_k"],
        experts: options["experts"],
    }


def arguments_of(options: Options) -> TrainingArguments:
    """Of a run of this case, whose batches have `passes` micro-batches."""
    run = {name: options[name] for name in ("precision", "gradient_checkpointing", "compile")}
    run["micro_batch_sequences"] = options["micro_batch"]
    a = arguments_of_steps(run, model_section(options), options["length"], options["passes"])
    return a.replaced(optimizer={"name": options["optimizer"]})


def steps(options: Options, work: Path) -> dict[str, Any]:
    """Whole training steps: tokens/s, MFU, peak memory, the share of the optimizer and the gaps of a step."""
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
        "mfu": session.flops.multiplied * tokens / spent / peak if peak else None,
        "peak_memory_bytes": memory,
        "optimizer_share": optimizer_seconds(session) / spent,
        "n_active": arch.n_active,
        "n_total": arch.n_total,
        **host_gaps(lambda: timed_step(session), device),
    }


def optimizer_seconds(session: Session, rounds: int = 3) -> float:
    """The optimizers' part of a step, after gradients of a step."""
    add_gradients(session, 0)

    def work() -> None:
        for optimizer in session.optimizers:
            optimizer.step()
        finish(session.accelerator.device)

    return in_turns({"": work}, rounds)[""]


# -- heads


def heads(options: Options, work: Path) -> dict[str, Any]:
    """Loss and gradients of a head in bf16: seconds, peak memory, and how far they are from all logits in fp32."""
    draws = torch.Generator().manual_seed(0)
    sizes = (options["tokens"], options["width"]), (options["vocab"], options["width"])
    tensors = [torch.randn(size, generator=draws).mul(options["width"] ** -0.25).to(DEVICE) for size in sizes]
    targets = torch.randint(options["vocab"], (options["tokens"],), generator=draws).to(DEVICE)

    def passed(way: str, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        hidden, weight = (tensor.detach().to(dtype).requires_grad_() for tensor in tensors)
        loss = loss_of(way, hidden, weight, targets)
        loss.backward()
        finish(DEVICE)
        return loss.detach(), hidden.grad, weight.grad

    found, memory = peak_bytes(DEVICE, lambda: passed(options["way"], torch.bfloat16))
    expected = passed("all logits", torch.float32)
    errors = [float((one.float() - other).norm() / other.norm()) for one, other in zip(found, expected, strict=True)]
    spent = in_turns({"": lambda: passed(options["way"], torch.bfloat16)}, options["rounds"])[""]
    return {"seconds": spent, "peak_memory_bytes": memory, "loss_error": errors[0], "gradient_error": max(errors[1:])}


def loss_of(way: str, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of `hidden [T, d]` by the head `weight [V, d]`."""
    if way == "chunks":
        return ChunkedCrossEntropy.apply(hidden, weight, targets)[0] / len(targets)
    if way == "torch":
        return F.linear_cross_entropy(hidden, weight, targets)
    if way == "liger":
        return installed("liger_kernel.transformers").LigerFusedLinearCrossEntropyLoss()(weight, hidden, targets)
    if way == "cce":
        return installed("cut_cross_entropy").linear_cross_entropy(hidden, weight, targets)
    return F.cross_entropy(F.linear(hidden, weight).float(), targets)


def installed(module: str) -> ModuleType:
    """The module. Raises Skipped where it is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        raise Skipped(f"{module.partition('.')[0]} is not installed") from None


# -- data


def data(options: Options, work: Path) -> dict[str, Any]:
    """Tokens per second of shuffled micro-batches from a warm cache onto the device, one after the other."""
    run = {"output_dir": str(work / "data"), "micro_batch_sequences": options["micro_batch"]}
    section = text(options, work) | {"sequence_length": options["length"]}
    sequences = options["micro_batch"] * options["batches"]
    schedule = {"tokens": [str(sequences * options["length"])], "batch_ramp": [f"0:{options['micro_batch']}"]}
    a = from_dict({"run": run, "data": section, "schedule": schedule | {"warmup_tokens": 0}})
    batches = training_data(a, load_tokenizer(section["tokenizer"]))
    try:
        for _ in batches.micro_batches(0, sequences, 0, 1, DEVICE):  # until the cache is there
            pass
        waited, started = batches.wait_seconds, time.perf_counter()
        tokens = sum(inputs.numel() for inputs, _ in batches.micro_batches(0, sequences, 0, 1, DEVICE))
        finish(DEVICE)
        spent = time.perf_counter() - started
    finally:
        batches.tokens.close()
    return {"tokens_per_second": tokens / spent, "wait_share": (batches.wait_seconds - waited) / spent}


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
    if options["needs_data"] and not (work / "data.json").exists():
        raise Skipped("it needs text that does not repeat: give --data (make gpu-registered DATA=folder)")
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


MEASURES = {
    **{"suite": suite, "steps": steps, "heads": heads, "data": data, "decoding": decoding},
    **{"checkpoints": checkpoints, "registered": sweep, "sweep": sweep},
}
