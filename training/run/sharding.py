"""Weights, gradients and moments sharded over the processes (FSDP2), with the numbers of one process.

The launcher may ask for several sharded replicas (HSDP). With `run.expert_parallel` a process holds whole experts, and
tokens travel to them and back; their weights are sharded further over the processes that hold the same ones. With
`run.tensor_parallel` some neighbours read the same micro-batches, each with its share of the heads and inner widths.

In bf16 the matrices of a block travel as bf16, to which autocast would round them anyway. The rest stays fp32: norms,
routers, embedding and head, and with them the residual stream and the losses. Every process has the fp32 parameters of
its blocks whole: all else of a block is gathered before it is called, and a compiler makes one graph of it. Gradients
are summed in fp32 after every micro-batch, so that whole ones exist for one block at a time, or once a step where all
fit (`training.run.memory`), as those of whole parameters are.
"""

from __future__ import annotations

import inspect
import logging
import math
import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import version
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from packaging.version import Version
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from transformers import PreTrainedModel

from hub.base.types import Strings
from modeling_switch_moe import SwitchMoeForCausalLM, expert_parallel
from training.configuration.arguments import ConfigurationError, RunArguments, TrainingArguments
from training.configuration.model_classes import ModelClassArguments
from training.run import causal_model
from training.run.model import build_model, model_config

if TYPE_CHECKING:
    from accelerate import Accelerator

# FSDP2 warns of a view of a router's gates, which nothing changes in place.
warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor", category=UserWarning)


# A weight that is divided and then sharded along the same dimension cannot be gathered in one step. This moves
# bits and adds nothing, unlike the sums in several steps of which DTensor warns, too.
logging.getLogger("torch.distributed.tensor._redistribute").addFilter(
    lambda record: "sequential all_gather operations" not in record.getMessage()
)
# Largest share of a parameter over the mean share; above it another dimension is cut.
_UNEVEN = 1.1
# Largest share of a block's weights that every process has whole; of a block with more all are gathered in fp32.
_MOST_REPLICATED = 0.25

SINGLE = MixedPrecisionPolicy(cast_forward_inputs=False)
HALF = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)

# Expert and tensor parallelism carry out the plans of classes by functions of transformers that may change with any
# version: `problem_of_libraries` looks at their arguments, and `_check_divided` at what they did.
_DISPATCHED = "ep_dispatch_experts"
# The oldest versions with which this is tested.
_OLDEST_VERSIONS = {"transformers": "5.23", "accelerate": "1.15"}
# Style of norms whose gradients are summed over the heads of all processes, in every micro-batch.
_OF_SOME_HEADS = "replicated_with_grad_allreduce"
# Styles by which heads and inner widths are divided here.
_STYLES = {
    *("colwise", "rowwise", "colwise_gather_output", "rowwise_split_input"),
    *(_OF_SOME_HEADS, "mla_kv_a_proj"),
}
# Classes whose plans fail, or give other gradients.
_WRONG_PLANS = ("apertus", "doge", "dots3_note_text", "gemma3n_text")


@dataclass(frozen=True)
class Layout:
    """The way in which processes share a model: `replicas` of it, each sharded over `shards` processes.

    Of the shards, each `experts` neighbours hold different experts, and each `tensor` neighbours different heads and
    inner widths for the same micro-batches; 1: all weights are sharded alike.
    """

    replicas: int
    shards: int
    experts: int = 1
    tensor: int = 1
    # Type of the devices.
    device: str = "cpu"

    @classmethod
    def of(cls, accelerator: Accelerator, run: RunArguments) -> Layout:
        """Return the layout that the launcher and the configuration ask for."""
        mesh = accelerator.parallelism_config
        replicas = mesh.dp_replicate_size if mesh else 1
        shards = accelerator.num_processes // replicas
        return cls(replicas, shards, run.expert_parallel, run.tensor_parallel, accelerator.device.type)

    @property
    def readers(self) -> int:
        """Processes, or groups of `tensor` neighbours, that read different micro-batches."""
        return self.replicas * self.shards // self.tensor

    @property
    def is_divided(self) -> bool:
        """True if processes hold different experts, or different heads and inner widths."""
        return max(self.experts, self.tensor) > 1

    def mesh(self, dimension: str = "", size: int = 1) -> DeviceMesh:
        """Arrange all processes by replica and share of a weight. Collective.

        With a `dimension`, also by which of its `size` shares is theirs.
        """
        sizes = {}
        if self.replicas > 1:
            sizes["replicas"] = self.replicas
        sizes["shards"] = self.shards // size
        if dimension:
            sizes[dimension] = size
        return init_device_mesh(self.device, tuple(sizes.values()), mesh_dim_names=tuple(sizes))

    def __str__(self) -> str:
        replicas = f"{self.replicas} replicas, each " if self.replicas > 1 else ""
        experts = f", experts divided among {self.experts}" if self.experts > 1 else ""
        tensor = f", heads and inner widths among {self.tensor}" if self.tensor > 1 else ""
        return f"{replicas}sharded over {self.shards} processes{experts}{tensor}"

    @property
    def fsdp_dimensions(self) -> Strings:
        """The dimensions of a mesh over which FSDP2 replicates and shards."""
        return ("replicas", "shards") if self.replicas > 1 else ("shards",)


def check_layout(a: TrainingArguments, accelerator: Accelerator) -> None:
    """Raise ConfigurationError if experts, widths or batches cannot be divided so, by these processes or at all."""
    layout = Layout.of(accelerator, a.run)
    for name, explain_problem in (("expert_parallel", _problem_of_experts), ("tensor_parallel", _problem_of_widths)):
        size = getattr(a.run, name)
        if size == 1:
            continue
        if not accelerator.is_fsdp2:
            problem: str | None = "it needs FSDP2, as in training/configs/accelerate/one_node_fsdp2.yaml"
        elif layout.shards % size:
            problem = f"it must divide the {layout.shards} processes that share a model"
        else:
            problem = problem_of_libraries() or explain_problem(a)
        if problem:
            raise ConfigurationError(f"run.{name}: {size}; {problem}")
    a.check_processes(layout.readers)


def _problem_of_experts(a: TrainingArguments) -> str | None:
    """Say why experts cannot be divided; None if they can."""
    if isinstance(a.model, ModelClassArguments):
        plan = getattr(a.model.config(1), "base_model_ep_plan", None) or {}
        if _DISPATCHED not in plan.values():
            return f"transformers has no plan by which to divide the experts of {a.model.type}"
    return None


def _problem_of_widths(a: TrainingArguments) -> str | None:
    """Say why heads and inner widths cannot be divided; None if they can."""
    from accelerate import init_empty_weights

    size = a.run.tensor_parallel
    experts = a.run.expert_parallel
    if a.model.experts > 1 and experts % size:
        return f"it must divide run.expert_parallel, {experts}: experts are not cut, but divided among processes"
    config = model_config(a, 1, 0)
    with init_empty_weights():
        model = build_model(config, 0)
    plan = _plan_of_widths(model)
    model_type = config.model_type
    if not plan or model_type in _WRONG_PLANS or not _STYLES.issuperset(plan.values()):
        return f"transformers has no plan by which train.py can divide the heads and inner widths of {model_type}"
    fields = config.to_dict()
    for name, value in fields.items():
        if "drop" in name and "classifier" not in name and isinstance(value, float) and value:
            return f"it needs model.{name} 0, which is {value}: the masks of one head would be those of another"
    sizes = {name: value for name, value in fields.items() if name.endswith("heads") and isinstance(value, int)}
    sizes.update(_cut_dimensions(model, plan))
    for name, number in sizes.items():
        if number % size:
            return f"it must divide {name}, {number}"
    return None


def _cut_dimensions(model: nn.Module, plan: dict[str, str]) -> dict[str, int]:
    """Return the size of the dimension along which the plan cuts each parameter."""
    sizes = {}
    for name, parameter in model.named_parameters():
        style = plan.get(name, "")
        if style.startswith("colwise"):
            sizes[f"a dimension of {name}"] = parameter.shape[0]
        elif style.startswith("rowwise"):
            sizes[f"a dimension of {name}"] = parameter.shape[-1]
    return sizes


def problem_of_libraries() -> str | None:
    """Say why the installed transformers cannot divide experts or widths; None if it can."""
    for library, oldest in _OLDEST_VERSIONS.items():
        installed = version(library)
        if Version(installed) < Version(oldest):
            return f"it needs {library} {oldest} or newer; {installed} is installed"
    try:
        for name, count in (("expert", 5), ("tensor", 3)):
            module = import_module(f"transformers.distributed.{name}_parallel")
            inspect.signature(getattr(module, f"apply_{name}_parallelism")).bind(*range(count))
    except (ImportError, AttributeError, TypeError) as error:
        return _install_another(f"transformers {version('transformers')} divides models in another way: {error}")
    return None


def _install_another(problem: str) -> str:
    return f"{problem}; install transformers {_OLDEST_VERSIONS['transformers']}"


def build(
    draw: Callable[[], PreTrainedModel],
    half: bool,
    layout: Layout | None = None,
    reshard_after_forward: bool = True,
    tied: bool = False,
) -> PreTrainedModel:
    """Build the model that `draw` makes, sharded over all processes. Collective.

    All get their shares from the first process. The others build the model without memory for its weights, unless
    embedding and head are one (`tied`), which emptied weights cannot be.

    Args:
        draw: makes the whole model, with its weights.
        half: gather the matrices of blocks in bf16.
        layout: by default one replica over all processes.
        reshard_after_forward: if false, the weights of blocks stay gathered until their backward pass.
        tied: embedding and head are one parameter.
    """
    from accelerate import init_empty_weights

    layout = layout or Layout(1, dist.get_world_size())
    mesh = layout.mesh()
    is_first = dist.get_rank() == 0
    is_empty = not (is_first or tied)
    with init_empty_weights(include_buffers=False) if is_empty else nullcontext():
        model = draw()
    weights = model.state_dict() if is_first else {}
    _shard(model, mesh, layout, half, reshard_after_forward)
    device = layout.device
    # Memory for this process's shares, and for what it has whole, which FSDP2 leaves where it is.
    model._apply(lambda tensor: torch.empty_like(tensor, device=device) if tensor.is_meta else tensor.to(device))
    set_model_state_dict(model, weights, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
    return model


def _shard(model: PreTrainedModel, mesh: DeviceMesh, layout: Layout, half: bool, reshard: bool) -> None:
    """Divide experts and widths, and shard every parameter but the few of a half-precision block that stay fp32.

    One group per block and one each for experts and widths that are divided, one for the embedding, one for the head,
    a root for the rest.
    """
    replicated: set[nn.Parameter] = set()
    group = partial(_group, mesh, ignored=replicated)
    divided: set[nn.Module] = set()
    if layout.experts > 1:
        divided.update(_divide_experts(model, layout, half, reshard))
    if layout.tensor > 1:
        divided.update(_divide_widths(model, mesh, layout, half, reshard))
    blocks = causal_model.blocks(model)
    for block in blocks:
        precise = _precise_parameters(model, [module for module in block.modules() if module not in divided])
        limit = _MOST_REPLICATED * sum(parameter.numel() for parameter in block.parameters())
        is_half = half and sum(parameter.numel() for parameter in precise) <= limit
        if is_half:
            replicated.update(precise)
        group(block, HALF if is_half else SINGLE, reshard)
    # Each block is gathered while the one before it computes; in the backward pass FSDP2 does so by itself.
    for block, following in pairwise(block for block in blocks if isinstance(block, FSDPModule)):
        block.set_modules_to_forward_prefetch([following])
    embedding = model.get_input_embeddings()
    head = model.get_output_embeddings()
    # Tied weights must lie in one group, the root.
    if embedding.weight is not head.weight:
        group(embedding, SINGLE, reshard)
        # The backward pass begins with the head.
        group(head, SINGLE, False)
    group(model, SINGLE, False)


def _precise_parameters(model: PreTrainedModel, modules: list[nn.Module]) -> list[nn.Parameter]:
    """List the parameters of these very modules that must stay fp32: those of routers, and what autocast leaves."""
    of_routers = causal_model.router_parameters(model)
    precise = []
    for module in modules:
        rounded = causal_model.rounded_parameters(module)
        for name, parameter in module.named_parameters(recurse=False):
            if parameter in of_routers or name not in rounded:
                precise.append(parameter)
    return precise


def _group(
    mesh: DeviceMesh,
    modules: nn.Module | list[nn.Module],
    policy: MixedPrecisionPolicy,
    reshard: bool,
    ignored: set[nn.Parameter] | None = None,
) -> None:
    """Shard the parameters of the modules that no other group has, to be gathered together; `ignored` stay whole."""

    def placement(parameter: nn.Parameter) -> Shard:
        world = mesh["shards"].size()
        if not isinstance(parameter, DTensor):
            return Shard(sharded_dimension(tuple(parameter.shape), world))
        share = parameter.to_local()
        # Rows that are divided already would be cut twice, and gathered in two steps.
        if parameter.placements == (Shard(0),) and share.ndim == 2 and share.shape[1] % world == 0:
            return Shard(1)
        return Shard(sharded_dimension(tuple(share.shape), world))

    fully_shard(
        modules,
        mesh=mesh,
        mp_policy=policy,
        reshard_after_forward=reshard,
        shard_placement_fn=placement,
        ignored_params=ignored,
    )


def _divide_experts(model: PreTrainedModel, layout: Layout, half: bool, reshard: bool) -> set[nn.Module]:
    """Leave this process its experts of each block, by the plan of the model's class, and shard those further.

    Returns the modules of experts. Tokens reach them by all-to-all among the processes that divide them. One block
    after the other: the first process's device holds all experts of a block meanwhile.
    """
    from transformers.distributed.expert_parallel import apply_expert_parallelism

    mesh = layout.mesh("experts", layout.experts)
    readers = layout.mesh("readers", layout.tensor)["readers"]
    plan = _styles_by_name(model, model.ep_plan)
    implementation = expert_parallel.NAME if isinstance(model, SwitchMoeForCausalLM) else "auto"
    modules: set[nn.Module] = set()
    for name, style in plan.items():
        if style != _DISPATCHED:
            continue
        plan_of_module = {inner: plan[inner] for inner in plan if inner.startswith(f"{name}.")}
        plan_of_module[name] = _DISPATCHED
        apply_expert_parallelism(model, mesh["experts"], readers, plan_of_module, implementation)
        module = model.get_submodule(name)
        modules.add(module)
        _check_divided("run.expert_parallel", name, module.parameters(recurse=False), layout.experts)
        # Some parameters of a module must stay fp32: those that autocast is not known to round.
        names = {name for name, _ in module.named_parameters(recurse=False)}
        policy = HALF if half and names <= {*causal_model.rounded_parameters(module)} else SINGLE
        _group(mesh[layout.fsdp_dimensions], module, policy, reshard)
        assert isinstance(module, FSDPModule)
        # An expert's gradient has the tokens of `layout.experts` processes before it is summed over the others.
        module.set_gradient_divide_factor(float(layout.readers))
        # Only NCCL can divide a sum by another number than that of its processes.
        module.set_force_sum_reduction_for_comms(mesh["shards"].size() > 1)
    return modules


def _divide_widths(
    model: PreTrainedModel, all_processes: DeviceMesh, layout: Layout, half: bool, reshard: bool
) -> set[nn.Module]:
    """Leave this process its heads and inner widths of each block, by the plan of its class, and shard those further.

    Returns the modules that are divided, and norms of single heads, which are sharded over `all_processes`;
    block after block, as `_divide_experts`.
    """
    from transformers.distributed.tensor_parallel import apply_tensor_parallelism

    mesh = layout.mesh("tensor", layout.tensor)
    plan = _plan_of_widths(model)
    divided: set[nn.Module] = set()
    for block in causal_model.blocks(model):
        inside = {*block.modules()}
        modules = {name: module for name, module in model.named_modules() if module in inside}
        block_plan = {name: style for name, style in plan.items() if _owners(name) & modules.keys()}
        apply_tensor_parallelism(model, mesh["tensor"], block_plan)
        for name, style in block_plan.items():
            if name in modules:
                continue
            parameter = model.get_parameter(name)
            # Of a row-wise product every process has the whole bias.
            if style.startswith("colwise") or (style.startswith("rowwise") and parameter.ndim > 1):
                _check_divided("run.tensor_parallel", name, [parameter], layout.tensor)
        in_plan = [modules[name] for name in block_plan if name in modules]
        cut = []
        for module in in_plan:
            if any(isinstance(parameter, DTensor) for parameter in module.parameters(recurse=False)):
                cut.append(module)
        if cut:
            _group(mesh[layout.fsdp_dimensions], cut, HALF if half else SINGLE, reshard)
        norms = [modules[name] for name in modules if block_plan.get(name) == _OF_SOME_HEADS]
        if norms:
            _group(all_processes, norms, SINGLE, reshard)
        divided.update(cut + norms)
    return divided


def _owners(name: str) -> set[str]:
    """Return the names under which a plan may have a module, or a parameter and its module."""
    return {name, name.rpartition(".")[0]}


def _styles_by_name(model: nn.Module, plan: dict[str, str]) -> dict[str, str]:
    """Name the modules and parameters for which a plan has a style, `*` being any layer's number.

    A module follows its own parameters, which are cut before its calls are changed. A parameter without a style has
    that of its module.
    """
    styles: dict[str, str] = {}
    for module_name, module in model.named_modules():
        for name, _ in module.named_parameters(module_name, recurse=False):
            parameter_name = _any_layer(name)
            style = plan.get(parameter_name) or plan.get(parameter_name.rpartition(".")[0])
            if style:
                styles[name] = style
        if _any_layer(module_name) in plan:
            styles[module_name] = plan[_any_layer(module_name)]
    return styles


def _any_layer(name: str) -> str:
    return re.sub(r"\.\d+(\.|$)", r".*\1", name)


def _check_divided(field: str, name: str, weights: Iterable[nn.Parameter], size: int) -> None:
    """Raise ConfigurationError unless this process was left its share of the weights."""
    for weight in weights:
        if not isinstance(weight, DTensor) or weight.to_local().numel() * size != weight.numel():
            problem = f"{name} was not divided by transformers {version('transformers')}"
            raise ConfigurationError(f"{field}: {size}; {_install_another(problem)}")


def _plan_of_widths(model: PreTrainedModel) -> dict[str, str]:
    """Return the style by which each parameter and module of a block is divided, but for experts."""
    plan = _styles_by_name(model, model.tp_plan)
    inside: set[nn.Module] = set()
    for block in causal_model.blocks(model):
        inside.update(block.modules())
    excluded = {name for name, module in model.named_modules() if module not in inside}
    excluded.update(name for name, style in plan.items() if style == "moe_tp_experts")
    return {name: style for name, style in plan.items() if not _owners(name) & excluded}


@torch.no_grad()
def average_gradients(model: nn.Module) -> None:
    """Average the gradients of parameters that every process has whole, after the last micro-batch. Collective.

    FSDP2 averages the others. Processes that read the same micro-batches have equal gradients, and change no mean.
    """
    gradients = [p.grad for p in model.parameters() if p.grad is not None and not isinstance(p, DTensor)]
    if gradients:
        flat = parameters_to_vector(gradients)
        dist.all_reduce(flat)
        vector_to_parameters(flat / dist.get_world_size(), gradients)


@torch.no_grad()
def clip_gradients(model: nn.Module, limit: float) -> torch.Tensor:
    """Scale the gradients of a sharded model down to a norm of `limit`, and return the norm before. Collective.

    Every process scales by the same bits: each gets the norms of all shares, unchanged, and adds them in one order. A
    sum that is reduced along one dimension of a mesh after the other may differ between processes.
    """
    shares = []
    shares_by_copies = defaultdict(list)
    for parameter in model.parameters():
        if parameter.grad is not None:
            share = parameter.grad.to_local() if isinstance(parameter.grad, DTensor) else parameter.grad
            shares.append(share)
            shares_by_copies[_count_copies(parameter.grad)].append(share)
    # A share that several processes hold counts once among all of them.
    norms = [torch.nn.utils.get_total_norm(group) / math.sqrt(copies) for copies, group in shares_by_copies.items()]
    share_norm = torch.linalg.vector_norm(torch.stack(norms))
    share_norms = [torch.empty_like(share_norm) for _ in range(dist.get_world_size())]
    dist.all_gather(share_norms, share_norm)
    norm = torch.linalg.vector_norm(torch.stack(share_norms))
    # 1e-6 as in torch's own clipping.
    factor = (limit / (norm + 1e-6)).clamp(max=1.0)
    for share in shares:
        share.mul_(factor)
    return norm


def _count_copies(gradient: torch.Tensor) -> int:
    """Count the processes that hold each element: replicas, and all for the bias of a divided row-wise product."""
    if not isinstance(gradient, DTensor):
        return dist.get_world_size()
    shards = 1
    for size, placement in zip(gradient.device_mesh.shape, gradient.placements, strict=True):
        if not placement.is_replicate():
            shards *= size
    return dist.get_world_size() // shards


def sharded_dimension(shape: tuple[int, ...], world: int) -> int:
    """Choose the dimension to cut: the first, unless that leaves shares too uneven and another divides evenly.

    Ten experts on eight processes would give two to some and none to others.
    """
    if math.ceil(shape[0] / world) * world <= _UNEVEN * shape[0]:
        return 0
    return next((dimension for dimension, size in enumerate(shape) if size % world == 0), 0)
