"""Muon for the hidden matrices and AdamW for the rest: every expert by itself, and the loop's promises."""

import math
import re
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.utils._python_dispatch import TorchDispatchMode

from hub import RunRecord
from modeling_switch_moe import SwitchMoeConfig
from scaling_law import Architecture
from scaling_law.machine.memory import saved_bytes, training_memory
from tests.training import ranks
from tests.training.run.test_causal_model import EVERY, config_of
from tests.training.run.test_processes import alone, divided, divides, measured, replicated, results, sharded
from tests.training.run.test_run import assert_same_weights, finish, folders
from training import Run
from training.configuration.arguments import OptimizerArguments
from training.run import optimizers
from training.run.model import build_model
from training.run.optimizers import StackedMuon, build_optimizers, hidden_matrices
from training.run.step import add_gradients, train_step
from training.run.timing import session_on_random_tokens

CPU = torch.device("cpu")
MUON = OptimizerArguments(name="muon")
REST = re.compile(r"embed|lm_head|norm|bias|router|gate\.weight|sinks")


@pytest.mark.parametrize(
    "kind",
    [
        *("deepseek_v3", "gpt_oss", "llama4_text"),
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("llama", "qwen3_moe", "qwen2_moe", "mixtral")),
    ],
)
def test_muon_has_the_hidden_matrices_and_adamw_the_rest(kind):
    model = build_model(config_of(EVERY[kind]), seed=0)
    muon, adamw = build_optimizers(model, MUON, CPU)
    held = [p for one in (muon, adamw) for group in one.param_groups for p in group["params"]]
    assert len(held) == len(set(held)) == len(list(model.parameters()))
    names = {parameter: name for name, parameter in model.named_parameters()}
    of_adamw = {names[p] for group in adamw.param_groups for p in group["params"]}
    assert of_adamw == {name for name in names.values() if REST.search(name)}


@pytest.mark.parametrize("experts", [1, 4])
@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_the_bytes_of_a_state_are_those_that_are_predicted(experts, name):
    """But for norms, which laws leave out, and counters of steps."""
    model = build_model(SwitchMoeConfig(vocab_size=300, hidden_size=64, num_attention_heads=1, num_experts=experts), 0)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    state_bytes = total_bytes = 0
    for optimizer in build_optimizers(model, OptimizerArguments(name=name), CPU):
        optimizer.step()
        for parameter, state in optimizer.state.items():
            counted = [tensor.nbytes for tensor in state.values() if tensor.shape == parameter.shape]
            total_bytes += sum(counted)
            state_bytes += sum(counted) if parameter.ndim > 1 else 0
    arch = Architecture(64, experts, 8, 1, 300)
    assert training_memory(arch, 1, 32, optimizer=name).optimizer == state_bytes
    shared = training_memory(arch, 1, 32, optimizer=name, sharding="fsdp2", devices=2)
    assert shared.optimizer == state_bytes / 2
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert saved_bytes(parameters, arch.n_total_non_embedding, name) == 4 * parameters + total_bytes


@pytest.mark.parametrize(("kind", "pairs"), [("qwen3_moe", True), ("llama4_text", False)])
def test_gate_and_up_are_matrices_of_their_own_where_they_lie_above_one_another(kind, pairs):
    model = build_model(config_of(EVERY[kind]), seed=0)
    matrices, gate_ups = hidden_matrices(model)
    names = {parameter: name for name, parameter in model.named_parameters()}
    stacked = {name for name in names.values() if "gate_up_proj" in name}
    assert stacked
    assert {names[p] for p in gate_ups} == (stacked if pairs else set())
    assert stacked <= {names[p] for p in (*matrices, *gate_ups)}


SETTINGS = {"weight_decay": 0.1, "momentum": 0.9}
STEPS = 3


def drawn(*shapes: tuple[int, ...], seed: int = 0) -> list[torch.Tensor]:
    draws = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=draws) for shape in shapes]


def step(optimizer, parameters, gradients) -> None:
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    for group in optimizer.param_groups:
        group["lr"] = 0.02
    optimizer.step()


@pytest.mark.parametrize("most", [1, 300, 2**20], ids="{} numbers together".format)
@pytest.mark.parametrize("adjust", ["match_rms_adamw", "original"])
def test_each_expert_is_updated_as_a_matrix_by_itself(adjust, most, monkeypatch):
    """As torch's Muon updates the same matrices apart, to the bit: wide, tall and square ones, however they batch."""
    monkeypatch.setattr(optimizers, "_CACHED", most)
    shapes = (16, 9), (48, 80), (16, 9), (3, 8, 12), (2, 16, 9), (3, 18, 8), (5, 96, 48)
    start, pairs = drawn(*shapes), 2

    def split(tensors):
        """The matrices of `tensors`, of which the last ones hold two each."""
        singles = [matrix for t in tensors[:-pairs] for matrix in (t.unbind() if t.ndim == 3 else [t])]
        return singles + [half.contiguous() for t in tensors[-pairs:] for expert in t for half in expert.chunk(2)]

    together = [torch.nn.Parameter(tensor.clone()) for tensor in start]
    apart = [torch.nn.Parameter(matrix.clone()) for matrix in split(start)]
    one = StackedMuon(together[:-pairs], together[-pairs:], **SETTINGS, adjust_lr_fn=adjust)
    other = torch.optim.Muon(apart, **SETTINGS, adjust_lr_fn=adjust)
    for seed in range(1, 1 + STEPS):
        gradients = drawn(*shapes, seed=seed)
        step(one, together, gradients)
        step(other, apart, split(gradients))
    for found, expected in zip(split([p.data for p in together]), apart, strict=True):
        assert torch.equal(found, expected)


def test_a_step_launches_as_much_for_many_experts_as_for_few():
    """Operators of a step of four stacks; torch's Muon takes fifteen products and more for each of their matrices."""

    class Launched(TorchDispatchMode):
        number = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.number += 1
            return function(*args, **(kwargs or {}))

    launched = []
    for experts in (2, 64):
        parameters = [torch.nn.Parameter(tensor) for tensor in drawn(*[(experts, 16, 8)] * 4)]
        optimizer = StackedMuon(parameters, [], **SETTINGS)
        with Launched() as mode:
            step(optimizer, parameters, drawn(*[(experts, 16, 8)] * 4))
        launched.append(mode.number)
    assert launched[0] == launched[1] < 100


# Shape, and the dimension that is cut: of experts evenly and not, of matrices, and of a gate above an up projection.
CUT = [((4, 16, 8), 0), ((3, 8, 8), 0), ((1, 8, 8), 0), ((2, 8, 9), 1), ((15, 9), 0), ((9, 12), 1), ((2, 16, 8), 1)]


def updated(gradients: list[list[torch.Tensor]], parameters: list[torch.nn.Parameter]) -> list[torch.Tensor]:
    optimizer = StackedMuon(parameters[:-1], parameters[-1:], **SETTINGS)
    for each in gradients:
        step(optimizer, parameters, each)
    return [*parameters, *(optimizer.state[parameter]["momentum_buffer"] for parameter in parameters)]


def update_shares() -> None:
    """On two processes: updates of shares are those of one process, to the bit, and experts need no communication."""
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("replicate", "shard"))  # as with HSDP
    shapes = [shape for shape, _ in CUT]
    placements = [[Replicate(), Shard(dimension)] for _, dimension in CUT]
    steps = [drawn(*shapes, seed=seed) for seed in range(1 + STEPS)]
    expected = updated(steps[1:], [torch.nn.Parameter(tensor) for tensor in drawn(*shapes)])
    start, *gradients = (
        [distribute_tensor(tensor, mesh, where) for tensor, where in zip(tensors, placements, strict=True)]
        for tensors in steps
    )
    with CommDebugMode() as messages:
        found = updated(gradients, [torch.nn.Parameter(tensor) for tensor in start])
    for share, whole in zip(found, expected, strict=True):
        assert torch.equal(share.full_tensor(), whole)
    assert messages.get_total_counts() == STEPS * sum(len(shape) == 2 or cut > 0 for shape, cut in CUT)
    dist.destroy_process_group()


def test_sharded_parameters_are_updated_as_whole_ones():
    assert ranks.run_together(update_shares) == [0, 0]


def test_gradients_are_divided_as_a_step_reads_them():
    weights = [torch.nn.Parameter(values) for values in drawn((8, 16), (3, 8, 16))]
    others = [torch.nn.Parameter(weight.detach().clone()) for weight in weights]
    gradients = drawn((8, 16), (3, 8, 16), seed=1)
    dividing, plain = (StackedMuon(parameters, [], **SETTINGS) for parameters in (weights, others))
    dividing.grad_scale, dividing.found_inf = torch.tensor(4.0), torch.tensor(0.0)
    step(dividing, weights, gradients)
    step(plain, others, [gradient / 4 for gradient in gradients])
    assert all(map(torch.equal, weights, others))


def test_a_step_is_skipped_on_the_device_as_where_the_host_decides(tiny, monkeypatch):
    """The third of four has a gradient that is not finite. Without clipping, which the device does by a division."""
    arguments = tiny(optimizer__name="muon", optimizer__gradient_clip=0.0, optimizer__learning_rate=0.01)
    models, results = [], []
    for on_device in (True, False):
        session = session_on_random_tokens(arguments, 300)
        assert session.updates_on_device
        session.updates_on_device = on_device
        weights = list(session.model.parameters())

        def poisoned(session, number, weights=weights):
            result = add_gradients(session, number)
            weights[-2].grad[0] *= math.inf if number == 2 else 1
            return result

        monkeypatch.setattr("training.run.step.add_gradients", poisoned)
        before = []
        for number in range(4):
            before.append([weight.detach().clone() for weight in weights])
            results.append(train_step(session, number, 0.01).is_finite)
        assert all(map(torch.equal, before[2], before[3]))
        assert not any(map(torch.equal, before[1], before[2]))
        models.append(weights)
    assert results == [True, True, False, True] * 2
    assert all(map(torch.equal, *models))


def test_the_rates_and_the_record_say_muon_and_the_name_too(tiny):
    run = Run(tiny(schedule__tokens=[1280], optimizer__name="muon", optimizer__muon_learning_rate=0.02))
    assert run.execute() == 0
    muon, adamw = run.session.optimizers
    assert muon.param_groups[0]["lr"] == pytest.approx(2 * adamw.param_groups[0]["lr"])
    record = RunRecord.load(folders(run.arguments)[0])
    settings = record.optimizer
    assert (settings.name, settings.muon_learning_rate, settings.muon_momentum) == ("muon", 0.02, 0.95)
    assert settings.muon_adjust_lr == "match_rms_adamw"
    assert "-muon-muonlr0.02" in record.run_id


@pytest.mark.slow
@pytest.mark.parametrize(
    "spread",
    [
        *(replicated, sharded, pytest.param(divided, marks=divides)),
        pytest.param(partial(divided, tensor=2), marks=divides, id="divided widths"),
    ],
)
def test_several_processes_train_as_one(tiny, tmp_path, spread):
    """Muon's iteration runs in bf16 here, and lengthens the directions that few tokens give."""
    sizes = {"run__micro_batch_sequences": 1, "model__capacity_group_tokens": 32}
    sizes |= {"schedule__tokens": [1280], "schedule__batch_ramp": ["0:4"], "model__n_heads": 2}
    rates = {"optimizer__name": "muon", "optimizer__learning_rate": 0.001}
    one, two = (tiny(**sizes, **rates, run__output_dir=str(tmp_path / name)) for name in ("one", "two"))
    finish(one)
    spread(two)
    found = measured(two)
    for at, (numbers, _) in measured(one).items():
        assert found[at][0][:2] == pytest.approx(numbers[:2], rel=2e-3), at
    (record, whole), (again, parts) = results(one)[1280], results(two)[1280]
    assert again.eval_loss == pytest.approx(record.eval_loss, abs=1e-4)
    for name, weight in whole.items():
        assert torch.linalg.vector_norm(parts[name] - weight) < 2e-3 * torch.linalg.vector_norm(weight), name


@pytest.mark.slow
@pytest.mark.parametrize("then", [sharded, alone])
def test_a_sharded_run_resumes_exactly_and_on_one_process(tiny, tmp_path, then):
    """The second branch resumes from the checkpoint of the first's branch point, with the momenta of Muon."""
    usual = {"optimizer__name": "muon", "optimizer__learning_rate": 0.001, "run__micro_batch_sequences": 1}
    usual["model__capacity_group_tokens"] = 32
    whole, resumed = (tiny(**usual, run__output_dir=str(tmp_path / name)) for name in ("whole", "resumed"))
    sharded(whole)
    sharded(resumed, "--schedule.tokens", "1280")
    then(resumed)
    (record, expected), (again, weights) = results(whole)[2560], results(resumed)[2560]
    if then is sharded:
        assert again.eval_loss == record.eval_loss
        assert_same_weights(weights, expected)
    else:
        assert again.eval_loss == pytest.approx(record.eval_loss, abs=1e-4)
