"""How each part measures one case: with the training loop, and with the functions of the other benchmarks.

A measure gives each number to `keep` as soon as it has it, so that what fails later does not cost it.
"""

from __future__ import annotations

import importlib
import json
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from filelock import FileLock
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks import checkpoints as checkpoint_benchmark
from benchmarks.gpu.cases import Options
from benchmarks.gpu.kit import Keep, Skipped
from benchmarks.model_speed import DEVICE, by_itself, config_of, fields_of, matmul_bound
from benchmarks.model_speed import ours as switch_config
from benchmarks.report import ROOT, in_turns
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

WARM_UP = 3  # steps; a compiled model is compiled in the first two
GAPS, LONGEST_NAME = 5, 80
OF_A_RECORD = ("n_active", "n_total", "experts", "tokens", "eval_loss", "eval_loss_standard_error", "status")
OF_A_RECORD += ("tokens_per_second", "mfu", "peak_memory_bytes")


def installed(module: str) -> ModuleType:
    """The module. Raises Skipped where it is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        raise Skipped(f"{module.partition('.')[0]} is not installed") from None


def suite(options: Options, work: Path, keep: Keep) -> None:
    """The outcome of each test of `tests/gpu`, and the deviations from the CPU that it measured."""
    pytest, failures = installed("pytest"), []

    class Outcomes:
        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.when != "call" and report.passed:
                return
            name = report.nodeid.partition("::")[2]
            keep(**{name: {"outcome": report.outcome} | dict(report.user_properties)})
            if report.failed:
                crash = getattr(report.longrepr, "reprcrash", None)
                failures.append(f"{name}: {crash.message.splitlines()[0] if crash else 'error'}")

    tests = [f"{ROOT / 'tests' / 'gpu'}/test_device.py::{test}" for test in options["tests"]]
    arguments = ["-q", "-p", "no:cacheprovider", "-o", "addopts=", "--rootdir", str(ROOT), *tests]
    status = pytest.main(arguments, plugins=[Outcomes()])
    if status != pytest.ExitCode.OK:
        raise RuntimeError("; ".join(failures) or f"pytest ended with {status.name}")


def shape_of(options: Options) -> Namespace:
    """A case's shape as `benchmarks.model_speed` takes it."""
    return Namespace(
        width=options["width"],
        layers=options["blocks"],
        length=options.get("length", options.get("prompt", 0) + options.get("new", 0) + 1),
        batch=options.get("micro_batch", options.get("batch")),
        vocab=options["vocab"],
    )


def arguments_of(options: Options) -> TrainingArguments:
    """Of a run of this case, whose batches have `passes` micro-batches; all models have as many active weights."""
    width, experts = options["width"], options["experts"]
    if options["model"] == "ours":
        model = {"d_model": width, "n_blocks": options["blocks"], "n_heads": width // 64, "experts": experts}
        model |= {"attention_precision": options["attention"], "capacity_factor": options["capacity_factor"]}
    else:
        model = fields_of(options["model"], shape_of(options), experts, options["top_k"])
    model["capacity_group_tokens"] = options["micro_batch"] * options["length"]
    run = {name: options[name] for name in ("precision", "gradient_checkpointing", "compile")}
    run["micro_batch_sequences"] = options["micro_batch"]
    a = arguments_of_steps(run, model, options["length"], options["passes"])
    return a.replaced(optimizer={"name": options["optimizer"]})


def session_of(options: Options) -> Session:
    """Drawn on the device: a CPU takes minutes for billions of weights."""
    with DEVICE:
        session = session_on_random_tokens(arguments_of(options), options["vocab"])
    if options["implementation"] != "auto":
        session.model.set_experts_implementation(options["implementation"])
    return session


def steps(options: Options, work: Path, keep: Keep) -> None:
    """Whole training steps: tokens/s, MFU, peak memory, the gaps of a step and the share of the optimizer."""
    if options["model"] == "matmul":
        shape = shape_of(options)
        spent = in_turns({"": matmul_bound(shape, options["precision"])}, options["rounds"])[""]
        keep(seconds=spent, tokens_per_second=shape.batch * shape.length / spent)
        return

    def warmed_up() -> Session:
        made = session_of(options)
        for _ in range(WARM_UP):
            timed_step(made)
        return made

    session, memory = peak_bytes(DEVICE, warmed_up)
    arch, peak = session.architecture, devices.peak_flops(DEVICE)
    keep(peak_memory_bytes=memory, n_active=arch.n_active, n_total=arch.n_total)
    spent = median(timed_step(session)[1] for _ in range(options["rounds"]))
    speed = options["micro_batch"] * options["passes"] * options["length"] / spent
    keep(seconds=spent, tokens_per_second=speed, mfu=session.flops.multiplied * speed / peak if peak else None)
    keep(optimizer_share=optimizer_seconds(session) / spent)
    keep(**host_gaps(lambda: timed_step(session)))


def optimizer_seconds(session: Session, rounds: int = 3) -> float:
    """The optimizers' part of a step, after gradients of a step."""
    add_gradients(session, 0)

    def work() -> None:
        for optimizer in session.optimizers:
            optimizer.step()
        finish(DEVICE)

    spent = in_turns({"": work}, rounds)[""]
    for optimizer in session.optimizers:
        optimizer.zero_grad(set_to_none=True)
    return spent


def idle(intervals: Iterable[tuple[float, float, str]], longest: int = GAPS) -> dict[str, Any]:
    """Share of the time in which none of the intervals (start, end, name; µs) ran, and the longest such gaps."""
    ordered = sorted(intervals)
    if not ordered:
        return {"idle_share": None, "gaps": []}
    gaps, (first, last, after) = [], ordered[0]
    for start, end, name in ordered[1:]:
        if start > last:
            gaps.append({"microseconds": round(start - last, 1), "after": after, "before": name})
        last, after = max((last, after), (end, name))
    share = sum(gap["microseconds"] for gap in gaps) / ((last - first) or 1.0)
    gaps.sort(key=lambda gap: -gap["microseconds"])
    return {"idle_share": round(share, 4), "gaps": gaps[:longest]}


def host_gaps(work: Callable[[], object]) -> dict[str, Any]:
    """`idle` while `work` ran: between kernels and copies of a GPU, or on a CPU between operators.

    On a GPU only the device is traced, since tracing operators would slow the host, and not in a first pass, in which
    the tracer starts.
    """
    on_gpu = DEVICE.type == "cuda"
    for _ in range(2):
        with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as trace:
            work()
            finish(DEVICE)
    wanted = DeviceType.CUDA if on_gpu else DeviceType.CPU
    return idle(
        (event.time_range.start, event.time_range.end, event.name[:LONGEST_NAME])
        for event in trace.events()
        if event.device_type == wanted and not event.is_user_annotation and (on_gpu or event.cpu_parent is None)
    )


def heads(options: Options, work: Path, keep: Keep) -> None:
    """Loss and gradients of a head in bf16: seconds, peak memory, and how far they are from all logits in fp32."""
    draws = torch.Generator().manual_seed(0)
    sizes = (options["rows"], options["width"]), (options["vocab"], options["width"])
    tensors = [torch.randn(size, generator=draws).mul(options["width"] ** -0.25).to(DEVICE) for size in sizes]
    targets = torch.randint(options["vocab"], (options["rows"],), generator=draws).to(DEVICE)

    def passed(way: str, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        hidden, weight = (tensor.detach().to(dtype).requires_grad_() for tensor in tensors)
        loss = loss_of(way, hidden, weight, targets)
        loss.backward()
        finish(DEVICE)
        return loss.detach(), hidden.grad, weight.grad

    found, memory = peak_bytes(DEVICE, lambda: passed(options["way"], torch.bfloat16))
    expected = passed("all logits", torch.float32)
    errors = [float((one.float() - other).norm() / other.norm()) for one, other in zip(found, expected, strict=True)]
    keep(peak_memory_bytes=memory, loss_error=errors[0], gradient_error=max(errors[1:]))
    keep(seconds=in_turns({"": lambda: passed(options["way"], torch.bfloat16)}, options["rounds"])[""])


def loss_of(way: str, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of `hidden [T, d]` by the head `weight [V, d]`."""
    if way == "chunks":
        return ChunkedCrossEntropy.apply(hidden, weight, targets)[0] / len(targets)
    if way == "torch":
        if not hasattr(F, "linear_cross_entropy"):
            raise Skipped(f"torch {torch.__version__} has no linear_cross_entropy")
        return F.linear_cross_entropy(hidden, weight, targets)
    if way == "liger":
        return installed("liger_kernel.transformers").LigerFusedLinearCrossEntropyLoss()(weight, hidden, targets)
    if way == "cce":
        return installed("cut_cross_entropy").linear_cross_entropy(hidden, weight, targets)
    return F.cross_entropy(F.linear(hidden, weight).float(), targets)


def data(options: Options, work: Path, keep: Keep) -> None:
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
    keep(tokens_per_second=tokens / spent, wait_share=(batches.wait_seconds - waited) / spent)


@torch.inference_mode()
def decoding(options: Options, work: Path, keep: Keep) -> None:
    """New tokens per second of all sequences together, without the time of the prompt, which is given apart."""
    shape, experts, kind = shape_of(options), options["experts"], options["model"]
    config = switch_config(shape, experts) if kind == "ours" else config_of(fields_of(kind, shape, experts), shape)
    with DEVICE:
        model = by_itself(config, options["implementation"]).to(torch.bfloat16).eval()
    # No padding (0): generate() would mask it, and the auxiliary loss of some classes cannot take that mask.
    prompt = torch.randint(1, options["vocab"], (options["batch"], options["prompt"]), device=DEVICE)

    def generate(new: int) -> None:
        model.generate(prompt, max_new_tokens=new, min_new_tokens=new, do_sample=False, pad_token_id=0)
        finish(DEVICE)

    works = {"prompt": lambda: generate(1), "all": lambda: generate(1 + options["new"])}
    spent = in_turns(works, options["rounds"])
    seconds = max(spent["all"] - spent["prompt"], 1e-9)
    keep(prompt_seconds=spent["prompt"], seconds_per_token=seconds / options["new"])
    keep(tokens_per_second=options["batch"] * options["new"] / seconds)
    keep(weight_bytes=sum(parameter.nbytes for parameter in model.parameters()))


def checkpoints(options: Options, work: Path, keep: Keep) -> None:
    """Seconds to save, verify and load, beside torch's and safetensors' functions; see `benchmarks.checkpoints`."""
    with DEVICE:
        session = checkpoint_benchmark.make_session(options["width"], options["experts"])
    with tempfile.TemporaryDirectory(dir=work) as folder:
        size, spent = checkpoint_benchmark.measure(session, Path(folder), options["rounds"])
    keep(bytes=size, **spent)


def text(options: Options, work: Path) -> dict[str, Any]:
    """Text and tokenizer of a run: of `work/data.json`, or else of this machine's documentation."""
    with FileLock(work / "data.lock"):
        settings = work / "data.json"
        given = json.loads(settings.read_text())["data"] if settings.exists() else None
        data = Path(given) if given else work / f"corpus-{options['corpus_bytes'] or 'whole'}"
        if not data.exists():
            print(corpus.build(data, max_bytes=options["corpus_bytes"]))
        tokenizer = work / f"tokenizer-{options['vocab']}-{data.name}"
        if not (tokenizer / "tokenizer.json").exists():
            train_tokenizer(TextSource(str(data)).documents(), options["vocab"], tokenizer, progress=False)
    own = {} if given else {"validation_split": "validation"}
    return {"dataset": str(data), "tokenizer": str(tokenizer), "cache_dir": str(work / "tokens")} | own


def sweep(options: Options, work: Path, keep: Keep) -> None:
    """One trunk with its branches, by the command that any run is trained with: its records, in short.

    It resumes from its checkpoints; `work/runs` keeps the models and records whole.
    """
    if options["needs_data"] and not (work / "data.json").exists():
        raise Skipped("it needs text that does not repeat: give --data (make gpu-registered DATA=folder)")
    run = {"micro_batch_sequences": options["micro_batch"], "eval_sequences": options["eval_sequences"]}
    model = {"d_model": options["width"], "experts": options["experts"], "capacity_factor": 0, "final_norm": True}
    schedule = {"tokens": options["tokens"], "warmup_tokens": options["warmup"]}
    base = {
        "run": run | {"checkpoint_seconds": 60, "progress": False},
        "model": model | {"attention_precision": "compute"},
        "data": text(options, work) | {"sequence_length": options["length"]},
        "schedule": schedule | {"batch_ramp": [f"0:{options['batch']}"]},
        "optimizer": {"learning_rate": options["learning_rate"], "beta2": 0.95, "gradient_clip": 1.0},
    }
    (run,) = Sweep.from_dict({"sweep": "gpu-kit", "base": base}, work / "runs").runs
    status = train(["--config", str(write_configuration(run))])
    keep(records=[{name: getattr(record, name) for name in OF_A_RECORD} for record in run.records()])
    if not run.complete:
        raise RuntimeError(f"{run.name} ended with status {status}")


MEASURES = {
    **{"suite": suite, "steps": steps, "heads": heads, "data": data, "decoding": decoding},
    **{"checkpoints": checkpoints, "registered": sweep, "sweep": sweep},
}
