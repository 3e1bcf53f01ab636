"""The measures of each part: with the training loop, and with the functions of the other benchmarks.

A measure gives each number to `keep` as soon as it has it, so that what fails later does not cost it.
"""

from __future__ import annotations

import importlib
import itertools
import json
import math
import os
import re
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
import transformers
from accelerate import PartialState
from accelerate.utils import DistributedType
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
from scaling_law.machine.throughput import Measurement
from training.configuration.arguments import TrainingArguments
from training.configuration.reading import from_dict
from training.data.text import TextSource
from training.data.tokenizer import load_tokenizer, train_tokenizer
from training.demo import corpus
from training.run import devices
from training.run.inputs import training_data
from training.run.main import main as train
from training.run.model import architecture, flops_per_token, model_config
from training.run.step import Session, train_step
from training.run.timing import (
    LEARNING_RATE,
    arguments_of_steps,
    finish,
    peak_bytes,
    session_on_random_tokens,
    timed_step,
)
from training.sweep.file import Sweep
from training.sweep.run import write_configuration

# The start and end (µs) of a kernel, and its name.
Interval = tuple[float, float, str]
# A time in seconds, or an event of the device.
TimeMark = Any
# Steps that are not timed: a compiled model is compiled in the first two.
WARM_UP = 3
GAPS = 5
DEAREST = 30
LONGEST_NAME = 120
# Group of kernels → what their names contain, on a GPU or, in a smoke test, those of a CPU's operators. The first that
# fits counts. A fused kernel is named after all its operators, and after the product or attention that it prepares.
FUSED = "triton_(poi|per|red)_fused"
KERNEL_GROUPS = {
    "optimizer": "multi_tensor_apply|[Aa]dam|_foreach_",
    "attention": f"^(?!{FUSED}).*(fmha|flash|sdpa|scaled_dot_product|ScaledDotProduct|cudnn::fusion)",
    "products": f"^(?!{FUSED}).*(nvjet|gemm|cutlass|cublas|splitK|_grouped_mm|::b?mm|addmm|linear|matmul|[Mm]mBack)",
    "softmax": "softmax|logsumexp|nll_loss|cross_entropy|exp_kernel",
    "norms": "layer_norm|LayerNorm|GammaBeta|rsqrt|pow_sum",
    "routing": "sort|topk|TopK|scatter|gather|index|cumsum|kernel_scan|histogram|bincount|masked_fill|argmax|one_hot",
    "casts": f"copy_kernel|Memcpy|aten::(to|copy_)$|{FUSED}_(_to_copy|transpose|_?(unsafe_)?view|clone|t|_)+[0-9]+$",
}
RECORD_FIELDS = (
    "n_active",
    "n_total",
    "experts",
    "tokens",
    "eval_loss",
    "eval_loss_standard_error",
    "status",
    "tokens_per_second",
    "mfu",
    "peak_memory_bytes",
)


def import_installed(module: str) -> ModuleType:
    """Import a module. Raises Skipped where it is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        raise Skipped(f"{module.partition('.')[0]} is not installed") from None


def suite(options: Options, work: Path, keep: Keep) -> None:
    """Keep the outcome of each test of `tests/gpu`, and the deviations from the CPU that it measured.

    Raises Skipped where all of them were.
    """
    pytest = import_installed("pytest")
    failures: list[str] = []
    reasons: list[str] = []
    outcomes: set[str] = set()

    class Outcomes:
        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.when != "call" and report.passed:
                return
            name = report.nodeid.partition("::")[2]
            keep(**{name: {"outcome": report.outcome, **dict(report.user_properties)}})
            outcomes.add(report.outcome)
            if report.skipped:
                reasons.append(report.longrepr[2])
            if report.failed:
                crash = getattr(report.longrepr, "reprcrash", None)
                message = crash.message.splitlines()[0] if crash else "error"
                failures.append(f"{name}: {message}")

    tests = [f"{file_of(test)}::{test}" for test in options["tests"]]
    arguments = ["-q", "-p", "no:cacheprovider", "-o", "addopts=", "--rootdir", str(ROOT), *tests]
    status = pytest.main(arguments, plugins=[Outcomes()])
    if status != pytest.ExitCode.OK:
        raise RuntimeError("; ".join(failures) or f"pytest ended with {status.name}")
    if outcomes == {"skipped"}:
        raise Skipped(reasons[0])


def file_of(test: str) -> Path:
    """Return the file in `tests/gpu` that has a test of this name."""
    definition = f"def {test.partition('[')[0]}("
    files = (ROOT / "tests" / "gpu").glob("test_*.py")
    return next(file for file in files if definition in file.read_text(encoding="utf-8"))


def shape_of(options: Options) -> Namespace:
    """Return a case's shape as `benchmarks.model_speed` takes it."""
    return Namespace(
        width=options["width"],
        layers=options["blocks"],
        length=options.get("length", options.get("prompt", 0) + options.get("new", 0) + 1),
        batch=options.get("micro_batch", options.get("batch")),
        vocab=options["vocab"],
    )


def arguments_of(options: Options) -> TrainingArguments:
    """Return the arguments of a run of this case, whose batches have `passes` micro-batches.

    All models have as many active weights.
    """
    if options["model"] == "ours":
        model = {
            "d_model": options["width"],
            "n_blocks": options["blocks"],
            "n_heads": options["width"] // 64,
            "experts": options["experts"],
            "attention_precision": options["attention"],
            "capacity_factor": options["capacity_factor"],
        }
    else:
        model = fields_of(options["model"], shape_of(options), options["experts"], options["top_k"])
    model["capacity_group_tokens"] = options["micro_batch"] * options["length"]
    run = {
        "precision": options["precision"],
        "gradient_checkpointing": options["gradient_checkpointing"],
        "compile": options["compile"],
        "micro_batch_sequences": options["micro_batch"],
    }
    arguments = arguments_of_steps(run, model, options["length"], options["passes"])
    return arguments.replaced(optimizer={"name": options["optimizer"]})


def session_of(options: Options) -> Session:
    """Make a session whose weights are drawn on the device: a CPU takes minutes for billions of them."""
    if DEVICE.type == "cpu" and "ACCELERATE_USE_FSDP" in os.environ:
        # Accelerate would train with DDP on a CPU.
        PartialState(cpu=True).distributed_type = DistributedType.MULTI_GPU
    with DEVICE:
        session = session_on_random_tokens(arguments_of(options), options["vocab"])
    if options["implementation"] != "auto":
        session.model.set_experts_implementation(options["implementation"])
    return session


def steps(options: Options, work: Path, keep: Keep) -> None:
    """Measure whole training steps: tokens/s, MFU, peak memory, and how long the device had nothing to do."""
    if options["model"] == "matmul":
        shape = shape_of(options)
        seconds = in_turns({"": matmul_bound(shape, options["precision"])}, options["rounds"])[""]
        keep(seconds=seconds, tokens_per_second=shape.batch * shape.length / seconds)
        return
    use_backend(options)
    LOOPS[options.get("loop", "train.py")](options, work, StepClock(options, keep))


def use_backend(options: Options) -> None:
    """Compile in this process by the back end of a smoke test, if these are its options."""
    if "backend" in options:
        torch.compile = partial(torch.compile, backend=options["backend"])


def mark_time() -> TimeMark:
    """Mark now, or the end of the work that the device has got so far."""
    if DEVICE.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def seconds_between(start: TimeMark, end: TimeMark) -> float:
    """Return the seconds between two marks, which the device has passed."""
    if isinstance(start, float):
        return end - start
    return start.elapsed_time(end) * 1e-3


class StepClock:
    """Measures the steps of any training loop, which calls `tick` after each and stops where it returns False.

    The first `WARM_UP` steps compile. `rounds` are timed as a run makes them, by events on the device: nothing but the
    loop itself waits for it in between. Then two are traced, of which the first starts the tracer.
    """

    def __init__(self, options: Options, keep: Keep) -> None:
        self.options = options
        self.keep = keep
        self.started = time.perf_counter()
        self.step_ends: list[TimeMark] = []
        self.steps = WARM_UP + options["rounds"] + 2
        self.seconds = 0.0
        self._trace = profile()

    def tick(self, loss: float | None = None) -> bool:
        """End a step, whose loss is given where the loop reads it; return whether another step shall follow."""
        self.step_ends.append(mark_time())
        step = len(self.step_ends)
        last_timed = self.steps - 2
        if not WARM_UP < step < last_timed:
            finish(DEVICE)
        if loss is not None and not math.isfinite(loss):
            raise RuntimeError(f"step {step} diverged: loss {loss}")
        if step == 1:
            self.keep(first_loss=loss)
        if step == WARM_UP:
            self.keep(seconds_to_fourth_step=time.perf_counter() - self.started)
        if step == last_timed:
            self._keep_speed()
        if step > last_timed:
            kernels = stop_trace(self._trace)
        if step == self.steps:
            self._keep_kernels(kernels)
        elif step >= last_timed:
            self._trace = start_trace()
        return step < self.steps

    def _keep_speed(self) -> None:
        o = self.options
        arguments = arguments_of(o)
        shape = architecture(arguments.model, o["vocab"])
        timed = self.step_ends[WARM_UP - 1 :]
        self.seconds = median(itertools.starmap(seconds_between, itertools.pairwise(timed)))
        micro_batch_tokens = o["micro_batch"] * o["length"]
        tokens_per_step = micro_batch_tokens * o["passes"]
        memory = torch.cuda.max_memory_allocated(DEVICE) if DEVICE.type == "cuda" else None
        measurement = Measurement(shape, o["length"], tokens_per_step, micro_batch_tokens, self.seconds, memory)
        self.keep(measurement={**vars(measurement), "architecture": shape.to_dict()})
        self.keep(micro_batches=o["passes"], n_active=shape.n_active, n_total=shape.n_total, peak_memory_bytes=memory)
        speed = tokens_per_step / self.seconds
        flops = flops_per_token(model_config(arguments, o["vocab"], 0), shape, o["length"]).multiplied
        peak_flops = devices.peak_flops(DEVICE)
        mfu = flops * speed / peak_flops if peak_flops else None
        self.keep(seconds=self.seconds, tokens_per_second=speed, mfu=mfu)

    def _keep_kernels(self, intervals: list[Interval]) -> None:
        gaps = idle(intervals)
        kernel_seconds = gaps["busy_seconds"]
        host_seconds = max(0.0, self.seconds - kernel_seconds)
        self.keep(kernels=len(intervals), kernel_seconds=kernel_seconds, host_seconds=host_seconds)
        self.keep(host_share=host_seconds / self.seconds, gaps=gaps["gaps"])
        self.keep(group_seconds=group_seconds(intervals, host_seconds), dearest_kernels=dearest(intervals))


def train_py(options: Options, work: Path, clock: StepClock) -> None:
    """Make steps of `train.py`, and measure the optimizers' share of them."""
    session = session_of(options)
    goes_on = True
    while goes_on:
        result = train_step(session, 0, session.schedule.learning_rate(0))
        goes_on = clock.tick(result.loss)
    clock.keep(optimizer_share=optimizer_seconds(session) / clock.seconds)


def peer_of(options: Options) -> torch.nn.Module:
    """Build a class of transformers as its users have it, with its own losses."""
    with DEVICE:
        config = model_config(arguments_of(options), options["vocab"], 0)
        config.use_cache = False
        return by_itself(config, options["implementation"]).train()


def plain_loop(options: Options, work: Path, clock: StepClock) -> None:
    """Train as one does in plain torch: autocast, fused AdamW, gradients clipped, each block compiled."""
    model = peer_of(options)
    size = (options["micro_batch"], options["length"])
    if options["compile"]:
        for module in model.modules():
            if type(module).__name__ in model._no_split_modules:
                module.compile(dynamic=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=DEVICE.type == "cuda")
    goes_on = True
    while goes_on:
        total_loss = torch.zeros((), device=DEVICE)
        for _ in range(options["passes"]):
            tokens = torch.randint(options["vocab"], size).to(DEVICE)
            with torch.autocast(DEVICE.type, dtype=torch.bfloat16, enabled=options["precision"] == "bf16"):
                loss = model(tokens, labels=tokens).loss / options["passes"]
            loss.backward()
            total_loss += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        goes_on = clock.tick(total_loss.item())


def transformers_trainer(options: Options, work: Path, clock: StepClock) -> None:
    """Train by transformers' `Trainer`, whose `torch_compile` compiles the whole model."""

    # The class of callbacks imports peft and what that finds, so it is named here.
    class Tick(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = not clock.tick()

    size = (clock.steps * options["passes"] * options["micro_batch"], options["length"])
    arguments = transformers.TrainingArguments(
        output_dir=str(work / "trainer"),
        per_device_train_batch_size=options["micro_batch"],
        gradient_accumulation_steps=options["passes"],
        max_steps=clock.steps,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        bf16=options["precision"] == "bf16",
        use_cpu=DEVICE.type == "cpu",
        optim="adamw_torch_fused" if DEVICE.type == "cuda" else "adamw_torch",
        torch_compile=options["compile"],
        torch_compile_backend=options.get("backend", "inductor") if options["compile"] else None,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    rows = [{"input_ids": row, "labels": row} for row in torch.randint(options["vocab"], size)]
    trainer = transformers.Trainer(peer_of(options), arguments, train_dataset=rows, callbacks=[Tick()])
    loss = trainer.train().training_loss
    if not math.isfinite(loss):
        raise RuntimeError(f"the steps diverged: mean loss {loss}")


LOOPS = {"train.py": train_py, "plain": plain_loop, "Trainer": transformers_trainer}


def optimizer_seconds(session: Session, rounds: int = 3) -> float:
    """Measure the optimizers' part of a step, before and after which the device is waited for.

    They are timed inside of whole steps: gradients of anything else would have to be compiled anew.
    """
    seconds = [0.0] * rounds

    def timed(step: Callable[..., Any], number: int) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            finish(DEVICE)
            started = time.perf_counter()
            result = step(*args, **options)
            finish(DEVICE)
            seconds[number] += time.perf_counter() - started
            return result

        return run

    for number in range(rounds):
        with ExitStack() as patches:
            for optimizer in session.optimizers:
                patches.enter_context(mock.patch.object(optimizer, "step", timed(optimizer.step, number)))
            timed_step(session)
    return median(seconds)


def idle(intervals: Iterable[Interval], longest: int = GAPS) -> dict[str, Any]:
    """Return the seconds in which one of the intervals ran, and the longest gaps in which none did."""
    ordered = sorted(intervals)
    if not ordered:
        return {"busy_seconds": 0.0, "gaps": []}
    gaps = []
    first_start, last_end, last_name = ordered[0]
    for start, end, name in ordered[1:]:
        if start > last_end:
            gap = {"microseconds": round(start - last_end, 1), "after": last_name[:LONGEST_NAME]}
            gaps.append({**gap, "before": name[:LONGEST_NAME]})
        last_end, last_name = max((last_end, last_name), (end, name))
    busy = last_end - first_start - sum(gap["microseconds"] for gap in gaps)
    gaps.sort(key=lambda gap: -gap["microseconds"])
    return {"busy_seconds": busy * 1e-6, "gaps": gaps[:longest]}


def group_of(kernel: str) -> str:
    """Return the group that a kernel's name tells, "other" where it tells none: activations, rotations, sums."""
    for group, pattern in KERNEL_GROUPS.items():
        if re.search(pattern, kernel):
            return group
    return "other"


def group_seconds(intervals: Iterable[Interval], idle_seconds: float) -> dict[str, float]:
    """Return group → seconds of its kernels in a traced step, and the time without any as "idle"."""
    seconds = dict.fromkeys((*KERNEL_GROUPS, "other"), 0.0)
    for start, end, name in intervals:
        seconds[group_of(name)] += (end - start) * 1e-6
    return {**seconds, "idle": idle_seconds}


def dearest(intervals: Iterable[Interval], number: int = DEAREST) -> list[dict[str, Any]]:
    """Return the kernels that took most of a traced step: group, name, calls and milliseconds of all of these."""
    kernels: dict[str, dict[str, Any]] = {}
    for start, end, name in intervals:
        new = {"group": group_of(name), "kernel": name[:LONGEST_NAME], "calls": 0, "milliseconds": 0.0}
        kernel = kernels.setdefault(name, new)
        kernel["calls"] += 1
        kernel["milliseconds"] += (end - start) * 1e-3
    return sorted(kernels.values(), key=lambda kernel: -kernel["milliseconds"])[:number]


def start_trace() -> profile:
    """Trace kernels and copies of a GPU, or on a CPU operators: tracing these, too, would slow a GPU's host."""
    activity = ProfilerActivity.CUDA if DEVICE.type == "cuda" else ProfilerActivity.CPU
    trace = profile(activities=[activity])
    trace.start()
    return trace


def stop_trace(trace: profile) -> list[Interval]:
    """Return each kernel and copy, or operator of a CPU, that was traced."""
    trace.stop()
    on_gpu = DEVICE.type == "cuda"
    device_type = DeviceType.CUDA if on_gpu else DeviceType.CPU
    intervals = []
    for event in trace.events():
        is_traced = event.device_type == device_type and not event.is_user_annotation
        if is_traced and (on_gpu or event.cpu_parent is None):
            intervals.append((event.time_range.start, event.time_range.end, event.name))
    return intervals


def heads(options: Options, work: Path, keep: Keep) -> None:
    """Measure loss and gradients of a head in bf16: time, peak memory, and the distance from all logits in fp32."""
    generator = torch.Generator().manual_seed(0)
    scale = options["width"] ** -0.25

    def draw(rows: int) -> torch.Tensor:
        return torch.randn((rows, options["width"]), generator=generator).mul(scale).to(DEVICE)

    tensors = (draw(options["rows"]), draw(options["vocab"]))
    targets = torch.randint(options["vocab"], (options["rows"],), generator=generator).to(DEVICE)

    def loss_and_gradients(way: str, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        hidden, weight = (tensor.detach().to(dtype).requires_grad_() for tensor in tensors)
        loss = loss_of(way, hidden, weight, targets)
        loss.backward()
        finish(DEVICE)
        return loss.detach(), hidden.grad, weight.grad

    def measured_pass() -> tuple[torch.Tensor, ...]:
        return loss_and_gradients(options["way"], torch.bfloat16)

    values, memory = peak_bytes(DEVICE, measured_pass)
    exact_values = loss_and_gradients("all logits", torch.float32)
    errors = []
    for value, exact in zip(values, exact_values, strict=True):
        errors.append(float((value.float() - exact).norm() / exact.norm()))
    keep(peak_memory_bytes=memory, loss_error=errors[0], gradient_error=max(errors[1:]))
    keep(seconds=in_turns({"": measured_pass}, options["rounds"])[""])


def loss_of(way: str, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy of `hidden [T, d]` by the head `weight [V, d]`."""
    if way == "chunks":
        return ChunkedCrossEntropy.apply(hidden, weight, targets)[0] / len(targets)
    if way == "torch":
        if not hasattr(F, "linear_cross_entropy"):
            raise Skipped(f"torch {torch.__version__} has no linear_cross_entropy")
        return F.linear_cross_entropy(hidden, weight, targets)
    if way == "liger":
        liger = import_installed("liger_kernel.transformers")
        return liger.LigerFusedLinearCrossEntropyLoss()(weight, hidden, targets)
    if way == "cce":
        return import_installed("cut_cross_entropy").linear_cross_entropy(hidden, weight, targets)
    return F.cross_entropy(F.linear(hidden, weight).float(), targets)


def data(options: Options, work: Path, keep: Keep) -> None:
    """Measure tokens per second of shuffled micro-batches from a warm cache onto the device, one after the other."""
    section = {**text(options, work), "sequence_length": options["length"]}
    sequences = options["micro_batch"] * options["batches"]
    arguments = from_dict(
        {
            "run": {"output_dir": str(work / "data"), "micro_batch_sequences": options["micro_batch"]},
            "data": section,
            "schedule": {
                "tokens": [str(sequences * options["length"])],
                "batch_ramp": [f"0:{options['micro_batch']}"],
                "warmup_tokens": 0,
            },
        }
    )
    size = arguments.micro_batch_of(sequences, 1)
    batches = training_data(arguments, load_tokenizer(section["tokenizer"]))
    try:
        # The first pass waits until the cache is there.
        for _ in batches.micro_batches(0, sequences, size, 0, 1, DEVICE):
            pass
        wait_before = batches.wait_seconds
        started = time.perf_counter()
        tokens = sum(inputs.numel() for inputs, _ in batches.micro_batches(0, sequences, size, 0, 1, DEVICE))
        finish(DEVICE)
        seconds = time.perf_counter() - started
    finally:
        batches.tokens.close()
    keep(tokens_per_second=tokens / seconds, wait_share=(batches.wait_seconds - wait_before) / seconds)


@torch.inference_mode()
def decoding(options: Options, work: Path, keep: Keep) -> None:
    """Measure new tokens per second of all sequences together; the time of the prompt is given apart."""
    shape = shape_of(options)
    if options["model"] == "ours":
        config = switch_config(shape, options["experts"])
    else:
        config = config_of(fields_of(options["model"], shape, options["experts"]), shape)
    with DEVICE:
        model = by_itself(config, options["implementation"]).to(torch.bfloat16).eval()
    # No padding (0): generate() would mask it, and the auxiliary loss of some classes cannot take that mask.
    prompt = torch.randint(1, options["vocab"], (options["batch"], options["prompt"]), device=DEVICE)

    def generate(new_tokens: int) -> None:
        model.generate(
            prompt,
            max_new_tokens=new_tokens,
            min_new_tokens=new_tokens,
            do_sample=False,
            pad_token_id=0,
        )
        finish(DEVICE)

    works = {"prompt": lambda: generate(1), "all": lambda: generate(1 + options["new"])}
    times = in_turns(works, options["rounds"])
    seconds = max(times["all"] - times["prompt"], 1e-9)
    keep(prompt_seconds=times["prompt"], seconds_per_token=seconds / options["new"])
    keep(tokens_per_second=options["batch"] * options["new"] / seconds)
    keep(weight_bytes=sum(parameter.nbytes for parameter in model.parameters()))


def checkpoints(options: Options, work: Path, keep: Keep) -> None:
    """Measure the seconds to save, verify and load, beside torch and safetensors; see `benchmarks.checkpoints`."""
    with DEVICE:
        session = checkpoint_benchmark.make_session(options["width"], options["experts"])
    with tempfile.TemporaryDirectory(dir=work) as folder:
        size, seconds = checkpoint_benchmark.measure(session, Path(folder), options["rounds"])
    keep(bytes=size, **seconds)


def text(options: Options, work: Path) -> dict[str, Any]:
    """Return text and tokenizer of a run: of `work/data.json`, or else of this machine's documentation."""
    with FileLock(work / "data.lock"):
        settings = work / "data.json"
        user_data = json.loads(settings.read_text())["data"] if settings.exists() else None
        dataset = Path(user_data) if user_data else work / f"corpus-{options['corpus_bytes'] or 'whole'}"
        if not dataset.exists():
            print(corpus.build(dataset, max_bytes=options["corpus_bytes"]))
        tokenizer = work / f"tokenizer-{options['vocab']}-{dataset.name}"
        if not (tokenizer / "tokenizer.json").exists():
            train_tokenizer(TextSource(str(dataset)).documents(), options["vocab"], tokenizer, progress=False)
    section = {"dataset": str(dataset), "tokenizer": str(tokenizer), "cache_dir": str(work / "tokens")}
    if not user_data:
        section["validation_split"] = "validation"
    return section


def sweep(options: Options, work: Path, keep: Keep) -> None:
    """Train one trunk with its branches, by the command that any run is trained with, and keep its records, in short.

    It resumes from its checkpoints; `work/runs` keeps the models and records whole.
    """
    if options["needs_data"] and not (work / "data.json").exists():
        raise Skipped("it needs text that does not repeat: give --data (make gpu-registered DATA=folder)")
    (run,) = Sweep.from_dict({"sweep": "gpu-kit", "base": sweep_base(options, work)}, work / "runs").runs
    status = train(["--config", str(write_configuration(run))])
    records = []
    for record in run.records():
        records.append({name: getattr(record, name) for name in RECORD_FIELDS})
    keep(records=records)
    if not run.complete:
        raise RuntimeError(f"{run.name} ended with status {status}")


def sweep_base(options: Options, work: Path) -> dict[str, Any]:
    """Return the configuration of a trunk."""
    return {
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
        "data": {**text(options, work), "sequence_length": options["length"]},
        "schedule": {
            "tokens": options["tokens"],
            "warmup_tokens": options["warmup"],
            "batch_ramp": [f"0:{options['batch']}"],
        },
        "optimizer": {"learning_rate": options["learning_rate"], "beta2": 0.95, "gradient_clip": 1.0},
    }


MEASURES = {
    "suite": suite,
    "steps": steps,
    "heads": heads,
    "data": data,
    "decoding": decoding,
    "checkpoints": checkpoints,
    "registered": sweep,
    "sweep": sweep,
}
