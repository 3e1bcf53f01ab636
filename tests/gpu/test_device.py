"""The model and its training on the device that is there, a GPU or else the CPU, beside the plain loop on the CPU.

On a CPU (`make test-slow`) they run what a GPU would: experts in buffers. Part 1 of the GPU kit runs them and keeps
the deviations that they record. Tolerances are relative: of a gradient by its norm, of a loss by its value.
"""

import copy
import itertools
import os
import warnings
from functools import partial
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import transformers
from accelerate.state import AcceleratorState
from packaging.version import Version
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from modeling_switch_moe import SwitchMoeConfig, SwitchMoeForCausalLM
from tests.model_classes import CLASSES
from tests.training.run.test_causal_model import EVERY, batch, config_of
from training.run.checkpoint import CheckpointWriter, load, newest_intact
from training.run.model import build_model
from training.run.progress import Progress
from training.run.step import add_gradients, train_step
from training.run.timing import arguments_of_steps, session_on_random_tokens

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
pytestmark = [] if ON_GPU else pytest.mark.slow
# fp32 sums in another order; bf16 has 8 bits, and a token whose two best experts are nearly equal may change sides.
LOSS, GRADIENT = {"fp32": 1e-5, "bf16": 1e-2}, {"fp32": 1e-4, "bf16": 8e-2}
VOCABULARY, LENGTH, SEQUENCES = 211, 32, 8
CHANGES = {"dense": {"num_experts": 1}, "E4": {}, "dropless": {"capacity_factor": None}}


def build(seed: int = 0, **changes) -> SwitchMoeForCausalLM:
    """A small model with a router that is sharp enough to load its experts unevenly."""
    torch.manual_seed(seed)
    fields = {"vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    fields |= {"num_experts": 4, "capacity_group_tokens": 64}
    model = SwitchMoeForCausalLM(SwitchMoeConfig(**fields | changes))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "router" in name:
                parameter.mul_(8)
    return model


def ids() -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (SEQUENCES, LENGTH), generator=torch.Generator().manual_seed(1))


def as_on_a_gpu(model: SwitchMoeForCausalLM) -> SwitchMoeForCausalLM:
    """A copy on the device, with the implementation of the experts that `auto` means on a GPU."""
    model = copy.deepcopy(model).to(DEVICE)
    if not ON_GPU:
        model.set_experts_implementation("capacity" if model.config.capacity_factor else "grouped_mm")
    return model


def backward(model, precision: str = "fp32", **options):
    """Output and gradients, on the CPU, of one training step's passes."""
    model.train().zero_grad()
    tokens = ids().to(model.device)
    with torch.autocast(model.device.type, dtype=torch.bfloat16, enabled=precision == "bf16"):
        output = model(tokens, labels=tokens, use_cache=False, **options)
    output.loss.backward()
    return output, {name: parameter.grad.cpu() for name, parameter in model.named_parameters()}


def deviation(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """Norm of the difference over the norm, of all gradients together."""
    differences = torch.stack([(found[name] - gradient).norm() for name, gradient in expected.items()])
    return float(differences.norm() / torch.stack([gradient.norm() for gradient in expected.values()]).norm())


@pytest.mark.parametrize("output_logits", [True, False], ids=["logits", "chunks"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_losses_gradients_and_drops_equal_the_cpus(changes, precision, output_logits, record_property):
    model = build(**changes)
    model.set_experts_implementation("eager")
    expected, gradients = backward(model)
    output, found = backward(as_on_a_gpu(model), precision, output_logits=output_logits)
    losses = {name: getattr(output, name).item() for name in ("lm_loss", "balance_loss", "z_loss")}
    for name, loss in losses.items():
        assert loss == pytest.approx(getattr(expected, name).item(), rel=LOSS[precision], abs=1e-6), name
    error = deviation(found, gradients)
    record_property("gradient", error)
    record_property("loss", abs(losses["lm_loss"] / expected.lm_loss.item() - 1))
    assert error <= GRADIENT[precision]
    if precision == "fp32":
        routing, before = output.routing, expected.routing
        assert torch.equal(routing.tokens_per_expert.cpu(), before.tokens_per_expert)
        assert torch.equal(routing.dropped_tokens.cpu(), before.dropped_tokens)


def in_each_precision(names, often):
    """Parameters: every name in fp32 and bf16, of which the fast suite leaves out bf16 but for those tried `often`."""
    return [
        pytest.param(
            name,
            precision,
            id=f"{name}-{precision}",
            marks=[] if precision == "fp32" or name in often else pytest.mark.slow,
        )
        for name in names
        for precision in ("fp32", "bf16")
    ]


@pytest.mark.parametrize(("kind", "precision"), in_each_precision(EVERY, often=CLASSES))
def test_other_classes_equal_the_cpus(kind, precision, record_property):
    """Loss and gradient of each class as the loop trains it, beside its own loop over experts in fp32 on the CPU."""
    results = []
    for device, implementation, how in (("cpu", "eager", "fp32"), (DEVICE, "grouped_mm", precision)):
        model = build_model(config_of(EVERY[kind]), seed=0).to(device).train()
        if model._can_set_experts_implementation():
            model.set_experts_implementation(implementation)
        inputs, targets = (tensor.to(device) for tensor in batch())
        torch.manual_seed(0)
        with torch.autocast(model.device.type, dtype=torch.bfloat16, enabled=how == "bf16"):
            out = model(inputs, targets)
        (out.lm_loss + out.balance_loss).backward()
        named = model.named_parameters()
        results.append((out.lm_loss.item(), {name: p.grad.cpu() for name, p in named if p.grad is not None}))
    (expected, gradients), (loss, found) = results
    assert found.keys() == gradients.keys()
    error = deviation(found, gradients)
    record_property("gradient", error)
    record_property("loss", abs(loss / expected - 1))
    assert loss == pytest.approx(expected, rel=LOSS[precision])
    assert error <= GRADIENT[precision]


def waits_of(work) -> list[str]:
    """The warnings of torch, one for each time that `work` waits for the device."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # once a process: that this mode is a prototype
        torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as records:
            warnings.simplefilter("always")
            work()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return [str(record.message) for record in records if "synchroniz" in str(record.message)]


ROUTED = ("qwen3_moe", "mixtral", "olmoe", "gpt_oss", "qwen2_moe", "deepseek_v3")
# torch has no grouped matmul of fp32 on a GPU.
WAITING = [
    *itertools.product((1, 4), ("fp32", "bf16"), (False, True)),
    *((kind, "bf16", False) for kind in ROUTED),
    *((kind, "bf16", True) for kind in ("qwen3_moe", "gpt_oss", "qwen2_moe")),
]


@pytest.mark.skipif(not ON_GPU, reason="nothing waits for a CPU; test_waiting.py counts what reads a value")
@pytest.mark.parametrize(("model", "precision", "compiled"), WAITING)
def test_a_step_waits_for_nothing_but_its_loss(model, precision, compiled):
    """For the loss it waits by an event, which the mode does not count. Compiled passes are CUDA graphs."""
    if model == "gpt_oss" and Version(transformers.__version__) < Version("5.23"):
        pytest.skip("older versions copy a number for its masks from the host")
    section = switch(model) if isinstance(model, int) else EVERY[model] | {"vocab_size": VOCABULARY}
    session = session_of(0, precision, DEVICE, compiled=compiled, model=section)
    for _ in range(3):
        train_step(session, 0, 1e-3)
    assert session.runner.keeps_gradients == compiled
    waits = waits_of(lambda: train_step(session, 0, 1e-3))
    assert waits == []


@pytest.mark.parametrize("waits", [0, 1, 2])
def test_waits_are_counted_without_the_warning_that_the_mode_is_a_prototype(waits, monkeypatch):
    def set_mode(mode):
        if mode == "warn":
            warnings.warn("Synchronization debug mode is a prototype feature", stacklevel=2)
            warnings.warn("it does not detect all synchronizing operations", stacklevel=2)

    def work():
        for _ in range(waits):
            warnings.warn("called a synchronizing CUDA operation", stacklevel=2)

    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", set_mode)
    assert waits_of(work) == ["called a synchronizing CUDA operation"] * waits


class SameTokens:
    """The same batch at every step, which lies on the device."""

    sequence_length = LENGTH

    def __init__(self, device: torch.device) -> None:
        self.tokens = ids().to(device)

    def micro_batches(self, position, sequences, size, rank, world_size, device):
        for tokens in self.tokens.split(size):
            yield tokens, tokens.roll(-1, 1)


def switch(experts: int) -> dict[str, object]:
    """A small model of ours."""
    return {"d_model": 64, "experts": experts, "n_blocks": 2, "n_heads": 2, "capacity_group_tokens": 64}


def session_of(
    experts: int, precision: str, device: torch.device, optimizer: str = "adamw", compiled: bool = False, model=None
):
    """A session of `train.py` whose steps have two micro-batches; on a CPU no code is made of what is compiled."""
    run = {"precision": precision, "micro_batch_sequences": SEQUENCES // 2, "compile": compiled}
    a = arguments_of_steps(run, model or switch(experts), LENGTH, passes=2).replaced(optimizer={"name": optimizer})
    AcceleratorState._reset_state(True)  # which keeps device and precision of the session before
    compiler = torch.compile if ON_GPU else partial(torch.compile, backend="aot_eager")
    on_cpu = mock.patch.dict(os.environ, {"ACCELERATE_USE_CPU": str(device.type == "cpu").lower()})
    with on_cpu, mock.patch.object(torch, "compile", compiler):
        made = session_on_random_tokens(a, VOCABULARY)
    assert made.accelerator.device.type == device.type
    made.data = SameTokens(device)
    return made


@pytest.mark.parametrize("experts", [1, 4])
def test_training_steps_equal_the_cpus(experts, record_property):
    losses = {}
    for device in (torch.device("cpu"), DEVICE):
        session = session_of(experts, "fp32", device)
        if device != DEVICE or not ON_GPU:
            session.model.set_experts_implementation("capacity" if losses else "eager")
        losses[len(losses)] = [train_step(session, 0, 1e-3).loss for _ in range(4)]
    AcceleratorState._reset_state(True)
    expected, found = losses.values()
    error = max(abs(a / b - 1) for a, b in zip(found, expected, strict=True))
    record_property("loss", error)
    assert error <= 1e-4
    assert found[-1] < found[0] - 0.01  # it has learnt something


def state_of(session) -> list[torch.Tensor]:
    """Weights and moments, on the CPU."""
    states = [(o.state, group["params"]) for o in session.optimizers for group in o.param_groups]
    moments = [value for state, of in states for p in of for _, value in sorted(state[p].items())]
    return [tensor.detach().cpu().clone() for tensor in (*session.model.parameters(), *moments)]


@pytest.mark.parametrize(
    ("optimizer", "compiled"), [("adamw", False), ("muon", False), ("adamw", True)], ids=["adamw", "muon", "compiled"]
)
def test_steps_after_a_resume_equal_those_of_a_run_that_was_not_stopped(
    optimizer, compiled, tmp_path, record_property
):
    """From a checkpoint of the device, which its writer copies while it trains: the state to the bit, and losses.

    The steps after it are to the bit, too, wherever a whole run repeats to the bit: sums by atomic additions have no
    order.
    """

    def start():
        torch._dynamo.reset()  # as a new process compiles
        return session_of(4, "bf16", DEVICE, optimizer, compiled)

    def steps(session, number: int) -> list[float]:
        return [train_step(session, 0, 1e-3).loss for _ in range(number)]

    whole = start()
    steps(whole, 2)
    writer, saved = CheckpointWriter(whole), state_of(whole)
    writer.save(tmp_path, Progress())
    expected = steps(whole, 2)
    writer.wait()
    writer.close()
    repeats = True
    if ON_GPU:
        again = start()
        repeats = steps(again, 4)[2:] == expected and equal(state_of(again), state_of(whole))
    resumed = start()
    load(newest_intact(tmp_path), resumed)
    assert equal(state_of(resumed), saved)
    losses = steps(resumed, 2)
    AcceleratorState._reset_state(True)
    error = max(abs(a / b - 1) for a, b in zip(losses, expected, strict=True))
    record_property("loss", error)
    if repeats:
        assert losses == expected
        assert equal(state_of(resumed), state_of(whole))
    assert error <= 1e-4


def equal(state: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    """Whether two states are the same to the bit."""
    return all(torch.equal(*tensors) for tensors in zip(state, other, strict=True))


@pytest.mark.parametrize("sequences", [1, 4, 24])  # few tokens at a time take another implementation than many
def test_generated_tokens_equal_the_cpus(sequences):
    model = build().eval()
    prompt = ids()[:1, :5].repeat(sequences, 1)
    prompt = (prompt + torch.arange(sequences)[:, None]) % VOCABULARY
    options = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(prompt, **options)
    assert torch.equal(as_on_a_gpu(model).generate(prompt.to(DEVICE), **options).cpu(), expected)


MODELS = {"dense": switch(1), "E4": switch(4), "qwen3_moe": EVERY["qwen3_moe"] | {"vocab_size": VOCABULARY}}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_a_compiled_step_equals_the_eager_one_and_the_cpus(model, precision, record_property):
    """Losses and gradients of a step of `train.py`: compiled, eager on the same device, and in fp32 on the CPU."""

    def gradients_of(device, precision, compiled=False):
        torch._dynamo.reset()
        session = session_of(0, precision, device, compiled=compiled, model=model)
        result = add_gradients(session, 0)
        named = session.model.named_parameters()
        loss = float(result.lm_loss + result.balance_loss)
        return loss, {name: p.grad.float().cpu() for name, p in named if p.grad is not None}

    loss, found = gradients_of(DEVICE, precision, compiled=True)
    # bf16's products are rounded elsewhere once they are fused.
    for device, how in ((DEVICE, precision), (torch.device("cpu"), "fp32")):
        expected, gradients = gradients_of(device, how)
        error = deviation(found, gradients)
        assert found.keys() == gradients.keys()
        assert loss == pytest.approx(expected, rel=LOSS[precision])
        assert error <= GRADIENT[precision]
    AcceleratorState._reset_state(True)
    record_property("gradient", error)
    record_property("loss", abs(loss / expected - 1))


@pytest.fixture
def one_process():
    dist.init_process_group("nccl" if ON_GPU else "gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_fsdp2_on_one_device_gives_the_same_gradients(precision, record_property):
    model = as_on_a_gpu(build())
    _, expected = backward(model, precision, output_logits=False)
    mesh = init_device_mesh(DEVICE.type, (1,))
    for part in (*model.model.layers, model.lm_head, model):
        fully_shard(part, mesh=mesh)
    _, found = backward(model, precision, output_logits=False)
    error = deviation({name: gradient.full_tensor() for name, gradient in found.items()}, expected)
    record_property("gradient", error)
    assert error <= 1e-6
