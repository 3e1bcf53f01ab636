"""How forward and backward passes run fast: weights cast once a step, compiled blocks, and CUDA graphs.

Nothing here changes what is computed, beyond the rounding of sums in another order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException
from transformers import PreTrainedModel, masking_utils

from training.run import causal_model

logger = logging.getLogger(__name__)

# A module, and the name of one of its parameters.
Matrix = tuple[nn.Module, str]
# A forward and backward pass of inputs and targets [sequences, length].
Pass = Callable[[Tensor, Tensor], Any]


# -- weights in bf16


class _Cast(torch.autograd.Function):
    """Cast an fp32 weight to bf16; the gradients of micro-batches are summed in fp32.

    After the first micro-batch a bf16 gradient is added to the fp32 one in a single pass over memory, without an fp32
    copy of it.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor) -> Tensor:
        ctx.weight = weight
        return weight.to(torch.bfloat16)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor | None:
        total = ctx.weight.grad
        if total is None:
            return gradient.float()
        total.add_(gradient)
        return None


def matrices_in_bf16(model: PreTrainedModel) -> list[Matrix]:
    """List the weights that autocast rounds to bf16 wherever they are used.

    Not those of routers, which are used in fp32, and of the head, which pads its own copy.
    """
    excluded = {*causal_model.routers(model), model.get_output_embeddings()}
    matrices: list[Matrix] = []
    for module in model.modules():
        if module not in excluded:
            matrices += [(module, name) for name in causal_model.rounded_parameters(module)]
    return matrices


@contextmanager
def cast_once(matrices: Iterable[Matrix]) -> Iterator[None]:
    """Put bf16 copies in the place of these fp32 weights: one cast for all micro-batches of a step.

    Autocast would cast each weight again in every micro-batch, in compiled blocks in each of their calls.
    """
    weights = [(module, name, module._parameters[name]) for module, name in matrices]
    try:
        for module, name, weight in weights:
            module._parameters[name] = _Cast.apply(weight)
        yield
    finally:
        for module, name, weight in weights:
            module._parameters[name] = weight


# -- compiled blocks


def compile_blocks(model: PreTrainedModel, fullgraph: bool = True) -> None:
    """Compile each repeated block, all by one graph, when it is first called; names of parameters stay as they are.

    `fullgraph`: a block that breaks into several graphs raises an error.
    """
    # What routers measure is wanted of the forward pass alone, also of a block that the backward pass recomputes.
    torch._dynamo.config.skip_fwd_side_effects_in_bwd_under_checkpoint = True
    for block in causal_model.blocks(model):
        # Its forward alone: the hooks of FSDP2, which gather the weights, run before the graph and after it.
        block.forward = torch.compile(block.forward, fullgraph=fullgraph, dynamic=False)


def try_blocks(model: PreTrainedModel, run_pass: Pass, inputs: Tensor, targets: Tensor) -> bool:
    """Make two passes, after which everything is compiled; if a block cannot be, all of them run without a compiler.

    Returns whether they are compiled. The random state stays as it was.
    """
    try:
        try:
            _run_two_passes(run_pass, inputs, targets)
        except FailOnRecompileLimitHit:
            # Blocks that were compiled for other models of this process count towards the limit, too.
            torch.compiler.reset()
            _run_two_passes(run_pass, inputs, targets)
    except (TorchDynamoException, FailOnRecompileLimitHit) as error:
        for block in causal_model.blocks(model):
            del block.forward
        reason = str(error).strip().partition("\n")[0][:200]
        logger.warning("the blocks of %s run without a compiler: %s", type(model).__name__, reason)
        return False
    return True


def _run_two_passes(run_pass: Pass, inputs: Tensor, targets: Tensor) -> None:
    """Run the pass that sets gradients and one that adds to them; a block that is compiled too often is an error."""
    on_gpu = [inputs.device] if inputs.device.type == "cuda" else []
    with torch.random.fork_rng(on_gpu), torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        for _ in range(2):
            run_pass(inputs, targets)


# -- CUDA graphs


@contextmanager
def _masks_without_reading() -> Iterator[None]:
    """Have transformers build the same attention masks in all passes, without a value read by the host.

    It looks for several sequences in a row of positions, of which there are none, and to look waits for the device.
    And before 5.20 it takes a capture for the tracing of a graph, and builds masks where it otherwise needs none:
    blocks would be compiled once more, in the middle of the capture.
    """
    originals = {name: getattr(masking_utils, name) for name in ("is_tracing", "find_packed_sequence_indices")}
    masking_utils.is_tracing = lambda *_: False
    masking_utils.find_packed_sequence_indices = lambda *_: None
    try:
        yield
    finally:
        for name, function in originals.items():
            setattr(masking_utils, name, function)


class CapturedPasses:
    """Forward and backward passes of one shape as CUDA graphs, which a GPU runs without waiting for the host.

    The first pass of a step casts the weights and writes the gradients; later ones use its casts and add to its
    gradients. These lie at fixed places, so nothing may set `grad` to None while the graphs are used.
    """

    def __init__(
        self,
        run_pass: Pass,
        matrices: Iterable[Matrix],
        inputs: Tensor,
        targets: Tensor,
        stream: torch.cuda.Stream,
    ):
        self._batch = (inputs.clone(), targets.clone())
        self._graphs = (torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph())
        # The threads that read data and write checkpoints may use the device meanwhile.
        mode = "thread_local"
        with ExitStack() as casts:
            with torch.cuda.graph(self._graphs[0], stream=stream, capture_error_mode=mode):
                casts.enter_context(cast_once(matrices))
                first = run_pass(*self._batch)
            pool = self._graphs[0].pool()
            with torch.cuda.graph(self._graphs[1], pool=pool, stream=stream, capture_error_mode=mode):
                later = run_pass(*self._batch)
        self._outputs = (first, later)

    def __call__(self, inputs: Tensor, targets: Tensor, is_first: bool) -> Any:
        """Run one pass; its result is overwritten by the next."""
        for buffer, tensor in zip(self._batch, (inputs, targets), strict=True):
            buffer.copy_(tensor)
        index = 0 if is_first else 1
        self._graphs[index].replay()
        return self._outputs[index]


class PassRunner:
    """Runner of the passes of a model's steps: compiled ones as CUDA graphs, if they are to be captured.

    Attributes:
        matrices: weights that are cast once a step.
        is_compiled: whether the model's blocks are compiled; true from the start if they are to be, until one fails.
    """

    def __init__(
        self, model: PreTrainedModel, matrices: list[Matrix], is_compiled: bool = False, captures: bool = False
    ):
        self.model = model
        self.matrices = matrices
        self.is_compiled = is_compiled
        self._is_tried = False
        # Autograd adds to a gradient on the stream that first did, which must be the one that is captured.
        self._stream = torch.cuda.Stream() if captures else None
        self._captured: CapturedPasses | None = None
        self._captured_key: Any = None

    @property
    def keeps_gradients(self) -> bool:
        """True if the gradients' memory belongs to CUDA graphs: the next step overwrites them, and needs no zeros."""
        return self._captured is not None

    def eagerly(self) -> AbstractContextManager[object]:
        """Leave the compiler out of an evaluation: blocks would be compiled again for its shapes.

        Without a capacity they would also hold buffers of E × T rows.
        """
        return torch.compiler.set_stance("force_eager") if self.is_compiled else nullcontext()

    @contextmanager
    def step(self, run_pass: Pass, key: Any) -> Iterator[Callable[..., Any]]:
        """Yield a function that runs the passes of one step; `key` names everything that `run_pass` holds fixed.

        Passes that are only tried run outside of the context that it is given.
        """
        n_passes = 0

        def run(inputs: Tensor, targets: Tensor, context: AbstractContextManager[object]) -> Any:
            nonlocal n_passes
            n_passes += 1
            if n_passes == 1:
                self._prepare(run_pass, key, inputs, targets)
                if self._captured is None:
                    casts.enter_context(cast_once(self.matrices))
            with context:
                if self._captured is None:
                    return run_pass(inputs, targets)
                return self._captured(inputs, targets, is_first=n_passes == 1)

        with _masks_without_reading(), ExitStack() as casts:
            yield run

    def _prepare(self, run_pass: Pass, key: Any, inputs: Tensor, targets: Tensor) -> None:
        """Compile before the first step, and capture the passes unless those of the last step had the same `key`."""
        if self.is_compiled and not self._is_tried:
            with self._on_stream(), cast_once(self.matrices):
                self.is_compiled = try_blocks(self.model, run_pass, inputs, targets)
            self.model.zero_grad(set_to_none=True)
        self._is_tried = True
        if not (self.is_compiled and self._stream) or self._captured_key == key:
            return
        self._captured = None
        self.model.zero_grad(set_to_none=True)
        try:
            self._captured = CapturedPasses(run_pass, self.matrices, inputs, targets, self._stream)
            self._captured_key = key
        except RuntimeError as error:
            self._stream = None
            self.model.zero_grad(set_to_none=True)
            # The capture leaves the device's generator waiting for its end.
            fresh = torch.Generator(inputs.device)
            torch.cuda.default_generators[inputs.device.index or 0].graphsafe_set_state(fresh.graphsafe_get_state())
            reason = str(error).partition("\n")[0][:200]
            logger.warning("steps run without CUDA graphs: %s", reason)

    @contextmanager
    def _on_stream(self) -> Iterator[None]:
        """Run a block on the stream that will be captured, after all work before it and before all work after it."""
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            yield
        torch.cuda.current_stream().wait_stream(self._stream)
