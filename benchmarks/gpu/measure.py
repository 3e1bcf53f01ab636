"""How each part measures one case: with the training loop, and with the functions of the other benchmarks.

A measure gives each number to `keep` as soon as it has it, so that what fails later does not cost it.
"""

from __future__ import annotations

import importlib
import json
import math
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

Interval = tuple[float, float, str]
WARM_UP = 3  # steps; a compiled model is compiled in the first two
GAPS = 5
LONGEST_NAME = 80
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
    pytest = installed("pytest")
    failures = []

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
    """Whole training steps: the shape, tokens/s, MFU, peak memory, and how long the device had nothing to do."""
    if options["model"] == "matmul":
        shape = shape_of(options)
        spent = in_turns({"": matmul_bound(shape, options["precision"])}, options["rounds"])[""]
        keep(seconds=spent, tokens_per_second=shape.batch * shape.length / spent)
        return
    if "backend" in options:
        torch.compile = partial(torch.compile, backend=options["backend"])
    LOOPS[options.get("loop", "train.py")](options, work, StepClock(options, keep))


class StepClock:
    """Measures the steps of any training loop, which calls `tick` after each and stops where it returns False.

    The first `WARM_UP` steps compile. `rounds` are timed together, as a run makes them: nothing but the loop itself
    waits for the device in between. Then two are traced, of which the first starts the tracer.
    """

    def __init__(self, options: Options, keep: Keep) -> None:
        self.options, self.keep, self.ends = options, keep, [time.perf_counter()]
        self.steps = WARM_UP + options["rounds"] + 2
        self.seconds = 0.0
        self._trace = profile()

    def tick(self, loss: float | None = None) -> bool:
        """End a step, whose loss is given where the loop reads it; return whether another is wanted."""
        step = len(self.ends)
        if not WARM_UP < step < self.steps - 2:
            finish(DEVICE)
        self.ends.append(time.perf_counter())
        if loss is not None and not math.isfinite(loss):
            raise RuntimeError(f"step {step} diverged: loss {loss}")
        if step == 1:
            self.keep(first_loss=loss)
        if step == WARM_UP:
            self.keep(seconds_to_fourth_step=self.ends[-1] - self.ends[0])
        if step == self.steps - 2:
            self._keep_speed()
        if step > self.steps - 2:
            traced = stop_trace(self._trace)
        if step == self.steps:
            self._keep_kernels(traced)
        elif step >= self.steps - 2:
            self._trace = start_trace()
        return step < self.steps

    def _keep_speed(self) -> None:
        o, a = self.options, arguments_of(self.options)
        arch, peak = architecture(a.model, o["vocab"]), devices.peak_flops(DEVICE)
        flops = flops_per_token(model_config(a, o["vocab"], 0), arch, o["length"]).multiplied
        self.seconds = (self.ends[self.steps - 2] - self.ends[WARM_UP]) / o["rounds"]
        micro_batch_tokens = o["micro_batch"] * o["length"]
        speed = micro_batch_tokens * o["passes"] / self.seconds
        memory = torch.cuda.max_memory_allocated(DEVICE) if DEVICE.type == "cuda" else None
        measurement = Measurement(
            arch, o["length"], micro_batch_tokens * o["passes"], micro_batch_tokens, self.seconds, memory
        )
        self.keep(measurement=measurement._asdict() | {"architecture": arch.to_dict()})
        self.keep(micro_batches=o["passes"], n_active=arch.n_active, n_total=arch.n_total, peak_memory_bytes=memory)
        self.keep(seconds=self.seconds, tokens_per_second=speed, mfu=flops * speed / peak if peak else None)

    def _keep_kernels(self, intervals: list[Interval]) -> None:
        gaps = idle(intervals)
        kernel_seconds = gaps["busy_seconds"]
        host_seconds = max(0.0, self.seconds - kernel_seconds)
        self.keep(kernels=len(intervals), kernel_seconds=kernel_seconds, host_seconds=host_seconds)
        self.keep(host_share=host_seconds / self.seconds, gaps=gaps["gaps"])


def train_py(options: Options, work: Path, clock: StepClock) -> None:
    """Steps of `train.py`, and the optimizers' share of them."""
    session = session_of(options)
    wanted = True
    while wanted:
        result = train_step(session, 0, session.schedule.learning_rate(0))
        wanted = clock.tick(result.loss)
    clock.keep(optimizer_share=optimizer_seconds(session) / clock.seconds)


def peer_of(options: Options) -> torch.nn.Module:
    """A class of transformers as its users have it, with its own losses."""
    with DEVICE:
        config = model_config(arguments_of(options), options["vocab"], 0)
        config.use_cache = False
        return by_itself(config, options["implementation"]).train()


def plain_loop(options: Options, work: Path, clock: StepClock) -> None:
    """The loop that one writes in plain torch: autocast, fused AdamW, gradients clipped, each block compiled."""
    model, size = peer_of(options), (options["micro_batch"], options["length"])
    if options["compile"]:
        for block in (part for part in model.modules() if type(part).__name__ in model._no_split_modules):
            block.compile(dynamic=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=DEVICE.type == "cuda")
    wanted = True
    while wanted:
        total = torch.zeros((), device=DEVICE)
        for _ in range(options["passes"]):
            tokens = torch.randint(options["vocab"], size).to(DEVICE)
            with torch.autocast(DEVICE.type, dtype=torch.bfloat16, enabled=options["precision"] == "bf16"):
                loss = model(tokens, labels=tokens).loss / options["passes"]
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        wanted = clock.tick(total.item())


def transformers_trainer(options: Options, work: Path, clock: StepClock) -> None:
    """The steps of transformers' `Trainer`, whose `torch_compile` compiles the whole model."""

    # The class of callbacks imports peft and what that finds, so it is named here.
    class Tick(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
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
    spent = [0.0] * rounds

    def timed(step: Callable[..., Any], number: int) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            finish(DEVICE)
            started = time.perf_counter()
            result = step(*args, **options)
            finish(DEVICE)
            spent[number] += time.perf_counter() - started
            return result

        return run

    for number in range(rounds):
        with ExitStack() as patches:
            for optimizer in session.optimizers:
                patches.enter_context(mock.patch.object(optimizer, "step", timed(optimizer.step, number)))
            timed_step(session)
    return median(spent)


def idle(intervals: Iterable[Interval], longest: int = GAPS) -> dict[str, Any]:
    """Seconds in which one of the intervals (start, end, name; µs) ran, and the longest gaps in which none did."""
    ordered = sorted(intervals)
    if not ordered:
        return {"busy_seconds": 0.0, "gaps": []}
    gaps, (first, last, after) = [], ordered[0]
    for start, end, name in ordered[1:]:
        if start > last:
            gaps.append({"microseconds": round(start - last, 1), "after": after, "before": name})
        last, after = max((last, after), (end, name))
    busy = last - first - sum(gap["microseconds"] for gap in gaps)
    gaps.sort(key=lambda gap: -gap["microseconds"])
    return {"busy_seconds": busy * 1e-6, "gaps": gaps[:longest]}


def start_trace() -> profile:
    """Trace kernels and copies of a GPU, or on a CPU operators: tracing these, too, would slow a GPU's host."""
    activity = ProfilerActivity.CUDA if DEVICE.type == "cuda" else ProfilerActivity.CPU
    trace = profile(activities=[activity])
    trace.start()
    return trace


def stop_trace(trace: profile) -> list[Interval]:
    """Start, end (µs) and name of each kernel and copy, or operator of a CPU, that was traced."""
    trace.stop()
    on_gpu = DEVICE.type == "cuda"
    wanted = DeviceType.CUDA if on_gpu else DeviceType.CPU
    return [
        (event.time_range.start, event.time_range.end, event.name[:LONGEST_NAME])
        for event in trace.events()
        if event.device_type == wanted and not event.is_user_annotation and (on_gpu or event.cpu_parent is None)
    ]


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
