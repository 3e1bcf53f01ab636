"""A released model in the terms of a law: its sizes, the loss that the law predicts, and the law's own choice.

The law's E is `Architecture.experts_equivalent`; a warning names what this leaves out of the architecture.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

from hub.base.errors import InputError, reason_of
from hub.base.fields import UNREAD, Field, field, reads
from hub.base.notices import about
from hub.base.tables import Table
from hub.base.types import Fields, Strings
from hub.base.units import format_bytes, format_count, format_flops
from scaling_law.answer.answer import Answer, plain
from scaling_law.formulas.conditions import ExtrapolationError, RangeCheck
from scaling_law.formulas.law import percentile_interval
from scaling_law.law import JointLaw, Law
from scaling_law.machine.gpus import named_gpu
from scaling_law.planning.limits import of_law
from scaling_law.planning.optimal import optimal
from scaling_law.planning.optimal_table import OptimalTable
from scaling_law.planning.plan import describe_experts
from scaling_law.planning.question import Context, Count, Force, RunTokens
from scaling_law.size.architecture import EXPERT_VARIABLES, Architecture
from scaling_law.size.arrays import Interval
from scaling_law.size.config_fields import Precision
from scaling_law.size.model_configs import Model, read_model

SCAN = "The scan of a state counts 4 FLOPs per element and token; kernels that scan in chunks do more."
OTHER_CORPUS = "The loss is for the law's corpus, tokenizer and recipe, not the model's."


@dataclass(frozen=True)
class PredictedLoss:
    """The loss that a law predicts for a model trained on `tokens` tokens, in nats per token.

    `optimum` is the law's own choice for the same training FLOPs (6 N_act D), with no more bytes of weights and KV
    cache. It is None where there is none, or where models of this E are too far from the law's runs to compare:
    `refusal` then says why. `trusted`: no further outside the runs of the law than backtests support; `beyond_guard`:
    too far to look at.
    """

    tokens: float
    training_flops: float
    loss: float
    loss_interval: Interval | None
    trusted: bool
    refusal: str | None
    optimum: OptimalTable | None
    beyond_guard: bool = False


@dataclass(frozen=True, eq=False, repr=False)
class Description(Answer):
    """A model as a law sees it. `law` is the law's provenance.

    `context` is the length of a sequence, in positions, for FLOPs with attention and for the KV cache, which holds
    `kv_tokens` over all sequences.
    """

    model: Model
    law: str
    bytes_per_parameter: float = 2.0
    context: float | None = None
    prediction: PredictedLoss | None = None
    kv_tokens: float | None = None
    bytes_per_kv: float = 2.0

    @property
    def warnings(self) -> Strings:
        """The warnings of the prediction and of the law's own choice."""
        return self.notes

    @property
    def trusted(self) -> bool:
        """True unless the model is too far from the law's runs, or was not understood."""
        return super().trusted and not self.model.unread

    @property
    def verdict(self) -> str:
        """The sizes and the predicted loss, in a sentence."""
        a = self.architecture
        sizes = f"{format_count(a.n_active)} active of {format_count(a.n_total)} parameters"
        text = f"{self.model.name}: E = {a.experts_equivalent:.3g}, {sizes}"
        if self.prediction is None:
            return text
        return f"{text}: loss {self.prediction.loss:.3f} on {format_count(self.prediction.tokens)} tokens"

    @property
    def architecture(self) -> Architecture:
        """The architecture of the model."""
        return self.model.architecture

    def facts(self) -> Fields:
        """Return plain JSON values: model, architecture, variables of laws, FLOPs, bytes, prediction, warnings.

        With a context, `training_exact` and `inference_exact` have all matrix products of a token at that sequence
        length: attention without the causal half, with windows, chunks and selections (`Architecture.forward_flops`).
        `kv_cache` holds `kv_tokens` in sequences of `context`; a long sequence takes `kv_cache_per_sequence` and, for
        each token, `kv_cache_per_token`. `checkpoint` is there if its weights are neither in bf16 nor in fp16.
        """
        facts = {
            "model": self.model.name,
            "model_type": self.model.model_type,
            "architecture": self.architecture.to_dict(),
            "variables": self.architecture.variables(),
            "parameters": self.model.parameters,
            "left_out": dict(self.model.left_out),
            "flops_per_token": self.flops_per_token(),
            "bytes": self._bytes(),
            "law": self.law,
            "prediction": plain(self.prediction),
        }
        if self.model.notes:
            facts["model_notes"] = list(self.model.notes)
        if self.model.precision is not None:
            facts["checkpoint"] = plain(self.model.precision)
        return facts

    def flops_per_token(self) -> dict[str, float]:
        """Count the FLOPs of a token, by use.

        `training` is 6 N_act and `inference` 2 N_act. With a context, `training_exact` and `inference_exact` have all
        matrix products at that sequence length, as of `Architecture.forward_flops`: a token's active weights with the
        router and the head but without lookups of embeddings, and attention without the causal half.
        """
        a = self.architecture
        flops = {
            "training": a.training_flops(1),
            "inference": a.inference_flops(1),
        }
        if self.context is not None:
            flops["training_exact"] = a.training_flops(1, self.context)
            flops["context"] = self.context
            flops["inference_exact"] = a.inference_flops(1, self.context)
        return flops

    @reads
    def mfu(
        self,
        tokens_per_second: Count,
        gpu: Annotated[str, UNREAD] = "h100",
        gpus: Annotated[float, Field(gt=0)] = 1,
    ) -> float:
        """Return the model FLOPs utilisation of a training run: its FLOP/s over the peak of its GPUs.

        The FLOPs of a token are those of `flops_per_token`: with a context all matrix products at that sequence
        length, else 6 N_act. Work that is done again for activation checkpointing does not count (Chowdhery et al.
        2022, arXiv 2204.02311, Appendix B).

        Args:
            tokens_per_second: of all GPUs together.
            gpu: such as "h100", or "peak=148T,memory=96GB"; its peak is that of dense bf16 products (`machine.gpus`).
            gpus: how many.

        ValueError for a GPU that is not listed, and for a speed beyond the peak.
        """
        speed = cast(float, tokens_per_second)
        device = named_gpu(gpu)
        peak_flops = gpus * device.peak_flops
        flops = self.flops_per_token()
        utilisation = speed * flops.get("training_exact", flops["training"]) / peak_flops
        if utilisation > 1:
            reason = f"{utilisation:.3g} times the peak of {gpus:g} {device.name}"
            raise InputError(f"tokens_per_second={speed:g} must be what these GPUs can reach: it is {reason}")
        return utilisation

    def _bytes(self) -> dict[str, float]:
        a = self.architecture
        memory_bytes = {
            "weights": a.weight_bytes(self.bytes_per_parameter),
            "kv_cache_per_token": a.kv_bytes_per_token(self.bytes_per_kv),
            "kv_cache_per_sequence": a.kv_bytes_per_sequence(self.bytes_per_kv),
        }
        kv_tokens = self.kv_tokens or self.context
        if kv_tokens is not None:
            memory_bytes["kv_cache"] = a.kv_cache_bytes(kv_tokens, self.bytes_per_kv, self.context)
        memory_bytes["training_state"] = a.training_state_bytes
        return memory_bytes

    def summary(self) -> Table:
        """Show the model, and the prediction if there is one."""
        model = self.model
        a = self.architecture
        lines = {"architecture": shape_of(a)}
        if a.spans or a.attention_blocks is not None:
            lines["attention"] = attention_of(a)
        lines["experts"] = describe_experts(a)
        sizes = {"active": (a.n_active, a.n_active_non_embedding), "total": (a.n_total, a.n_total_non_embedding)}
        for name, (size, inner_size) in sizes.items():
            lines[name] = f"{format_count(size)}, {format_count(inner_size)} without embedding and head"
        if a.lookup_parameters:
            lines["looked up"] = f"{format_count(a.lookup_parameters)} in tables beside the embedding, in no product"
        lines["exact"] = f"{model.parameters:,} parameters, with {_enumerate(model.left_out, format_count)}"
        flops = self.flops_per_token()
        context = flops.pop("context", None)
        lines["FLOPs per token"] = _enumerate(flops, format_flops)
        memory_bytes = self._bytes()
        weights = f"weights {format_bytes(memory_bytes['weights'])}, {self.bytes_per_parameter:g} bytes a parameter"
        lines["memory"] = f"{weights}; training state {format_bytes(memory_bytes['training_state'])}"
        lines["KV cache"] = self._describe_cache(memory_bytes)
        if model.precision is not None:
            lines["checkpoint"] = _describe_checkpoint(a, model.precision)
        lines["E of the law"] = f"{a.experts_equivalent:.4g}, total over active feed-forward width"
        notes = [*model.notes]
        if context is not None:
            notes.append(f"Exact FLOPs have attention without the causal half, at {context:,.0f} positions.")
        keeps_state = any(span.once and span.cached for span in a.spans)
        if keeps_state and context is not None:
            notes.append(SCAN)
        if self.prediction is not None:
            lines.update(_predicted(a, self.prediction))
            notes.append(OTHER_CORPUS)
        title = f"{self.verdict}\n{model.model_type}  ({self.law})"
        return Table((), list(lines.items()), title=title, notes=notes, warnings=self.warnings)

    def _describe_cache(self, sizes: Mapping[str, float]) -> str:
        """Say how many bytes the cache takes for each token and sequence, and for those that are asked for."""
        text = f"{format_bytes(sizes['kv_cache_per_token'])} a token, {self.bytes_per_kv:g} bytes an element"
        if sizes["kv_cache_per_sequence"]:
            text += f"; {format_bytes(sizes['kv_cache_per_sequence'])} a sequence, once it is long"
        tokens = self.kv_tokens or self.context
        if tokens is not None:
            text += f"; {format_bytes(sizes['kv_cache'])} for {tokens:,.0f} tokens"
            sequences = tokens / min(self.context or tokens, tokens)
            if sequences > 1:
                text += f" in {sequences:,.4g} sequences"
        return text


@reads
def describe(
    source: str | Path | Any,
    tokens: Annotated[RunTokens | None, field("Training tokens: 15T. [default: no loss is predicted]")] = None,
    *,
    law: Law | None = None,
    context: Annotated[Context | None, field("Length of a sequence, for attention and the KV cache: 4k.")] = None,
    kv_tokens: Annotated[Context | None, field("Tokens in the KV cache, in sequences of --context: 64k.")] = None,
    bytes_per_parameter: Annotated[
        float, Field(gt=0), field("2 for bf16, 1 for fp8, 0.5 for 4 bits.", rare=True)
    ] = 2.0,
    bytes_per_kv: Annotated[float, Field(gt=0), field("Bytes of a KV cache element.", rare=True)] = 2.0,
    revision: Annotated[str | None, field("Branch, tag or commit.")] = None,
    force: Force = False,
) -> Description:
    """Describe a model in the terms of `law` (None: the paper's) and, given its tokens, predict its loss.

    Args:
        source: "org/model" on the Hub, a folder, a config.json, a mapping, or a configuration of transformers; nothing
            but config.json is read.
        tokens: training tokens, a number or text such as "15T"; None predicts no loss.
        context: length of a sequence, a number or text such as "4k": for FLOPs with attention, and for the KV cache.
        kv_tokens: tokens in the KV cache over all sequences, each of `context` (None: one sequence); with it, the
            law's own choice has no more bytes of weights and cache together.
        force: ask for the law's own choice beyond its range guard, too.

    The prediction is never refused, however far outside of the law's runs: see `trusted` and `warnings`.
    FileNotFoundError and ValueError as `size.model_configs.read_model`.
    """
    model = read_model(source, revision)
    law = law or JointLaw.published()
    a = model.architecture
    warnings = [*model.warnings]
    ignored = ", ".join(unknown_parts(a, law))
    if ignored:
        warnings.append(f"E = {a.experts_equivalent:.3g} stands for {a.experts} experts; the law ignores {ignored}")
    prediction = None
    check = None
    if tokens is not None:
        variables = of_law(law, {**a.variables(), "tokens": tokens})
        check = law.check(**variables)
        sizes = {
            "bytes_per_parameter": bytes_per_parameter,
            "bytes_per_kv": bytes_per_kv,
            "kv_tokens": kv_tokens or 0.0,
            "context": context,
        }
        prediction = _predict(law, a, variables, check, sizes, force)
        warnings += check.warnings
        if prediction.optimum is not None:
            for warning in prediction.optimum.warnings:
                warnings.append(about("the law's choice", warning, "the law's choice extrapolates"))
    columns = {
        "model": [model.name],
        "experts": a.experts_equivalent,
        "n_active": a.n_active,
        "n_total": a.n_total,
        "tokens": prediction and prediction.tokens,
        "loss": prediction and prediction.loss,
        "trusted": (prediction is None or prediction.trusted) and not model.unread,
    }
    return Description(
        model,
        columns=columns,
        law=law.conditions.provenance if law.conditions else "fitted law",
        bytes_per_parameter=bytes_per_parameter,
        bytes_per_kv=bytes_per_kv,
        context=cast(float, context),
        kv_tokens=cast(float, kv_tokens),
        prediction=prediction,
        check=check,
        notes=tuple(warnings),
    )


def unknown_parts(a: Architecture, law: Law) -> list[str]:
    """Name the features of this architecture for which the law has no variable."""
    names = {*law.variables}
    features = []
    if not names & {"granularity", "experts_per_token", "active_experts"}:
        if a.experts_per_token > 1:
            features.append(f"top-{a.experts_per_token} routing")
        if a.granularity > 1:
            features.append(f"granularity {a.granularity:.3g}")
    if a.shared_experts and "shared_ratio" not in names:
        plural = "s" if a.shared_experts > 1 else ""
        features.append(f"{a.shared_experts} shared expert{plural}")
    if a.dense_blocks:
        features.append(f"{a.dense_blocks} dense of {a.blocks} blocks")
    return features


def _predict(
    law: Law,
    a: Architecture,
    variables: dict[str, float],
    check: RangeCheck,
    sizes: Fields,
    force: bool,
) -> PredictedLoss:
    tokens = float(variables["tokens"])
    flops = a.training_flops(tokens)
    weight_bytes = a.weight_bytes(sizes["bytes_per_parameter"])
    cache_bytes = a.kv_cache_bytes(sizes["kv_tokens"], sizes["bytes_per_kv"], sizes["context"])
    limits = {name: size for name, size in sizes.items() if name != "context"}
    limits.update(memory=weight_bytes + cache_bytes, vocab_size=a.vocab_size, force=force)
    optimum = None
    refusal: str | None
    try:
        optimum = optimal(law, flops, **limits)
        refusal = _refuse_own_experts(law, a, flops, limits)
    # Every answer may be beyond the range guard.
    except ValueError as error:
        refusal = _reason_of(error)
    return PredictedLoss(
        tokens=tokens,
        training_flops=flops,
        loss=float(law.loss(**variables)),
        loss_interval=None if law.draws is None else percentile_interval(law.loss_draws(**variables)),
        trusted=bool(check.trusted),
        refusal=refusal,
        optimum=None if refusal else optimum,
        beyond_guard=bool(check.beyond),
    )


def _refuse_own_experts(law: Law, a: Architecture, flops: float, limits: Fields) -> str | None:
    """Say why the law cannot compare models of this E with others, if it cannot.

    A choice among the others would say nothing of this model.
    """
    if not EXPERT_VARIABLES & {*law.variables}:
        return None
    try:
        optimal(law, flops, [a.experts_equivalent], **limits)
    except ValueError as error:
        return f"E = {a.experts_equivalent:.3g} of the model cannot be compared: {_reason_of(error)}"
    return None


def _reason_of(error: ValueError) -> str:
    """Say why there is no answer, without advice, which Python and the shell word differently."""
    return error.reason if isinstance(error, ExtrapolationError) else reason_of(error)


def shape_of(a: Architecture) -> str:
    """Describe width, blocks, heads and vocabulary."""
    latent_attention = a.latent_attention
    heads = f"{a.heads} heads of {a.head_dim}"
    if latent_attention is not None:
        heads += f", latent attention of rank {latent_attention.kv_rank}"
    elif a.n_kv_heads < a.heads:
        heads += f", {a.n_kv_heads} key-value heads"
    text = f"d_model {a.d_model}, {a.blocks} blocks, {heads}, vocabulary {a.vocab_size:,}"
    return f"{text}, tied embeddings" if a.tied_embeddings else text


def attention_of(a: Architecture) -> str:
    """Describe which positions the blocks attend to."""
    blocks_by_action = Counter[str]()
    follows_selection = False
    for span in a.all_spans:
        keys = "keys" if span.stride == 1 else f"keys of {span.stride} positions each"
        visible = f"all {keys}" if span.limit is None else f"at most {span.limit:,} {keys}"
        if span.once:
            blocks_by_action["keep a state"] += span.blocks if span.cached else 0
        elif span.multiplied:
            verb = "choose among" if follows_selection and span.cached else "see"
            blocks_by_action[f"{verb} {visible}"] += span.blocks
        follows_selection = span.limit is not None and not span.cached
    phrases = [f"{blocks} of {a.blocks} blocks {action}" for action, blocks in blocks_by_action.items() if blocks]
    return ", ".join(phrases) or "no block has keys, and no state is known"


def _enumerate(amounts: Mapping[str, float], form: Callable[[float], str]) -> str:
    """Write amounts behind their names, without those that are 0."""
    return ", ".join(f"{name.replace('_', ' ')} {form(amount)}" for name, amount in amounts.items() if amount)


def _describe_checkpoint(a: Architecture, precision: Precision) -> str:
    """Name the precision of the checkpoint's weights, and their bytes where these are known."""
    size = precision.bytes_per_parameter
    if size is None:
        return precision.name
    return f"{precision.name}: --bytes-per-parameter {size:g} gives {format_bytes(a.weight_bytes(size))}"


def _predicted(a: Architecture, prediction: PredictedLoss) -> dict[str, str]:
    """Write the lines of a prediction."""
    tokens = f"{format_count(prediction.tokens)} tokens"
    ratio = f"{format_count(prediction.tokens / a.n_active)} per active parameter"
    loss = f"{prediction.loss:.4f}"
    if prediction.loss_interval:
        low, high = prediction.loss_interval
        loss += f" ({low:.4f}…{high:.4f})"
    loss += " nats per token"
    if not prediction.trusted:
        loss += ", not to be trusted"
    return {
        "training": f"{tokens}, {ratio}, {format_flops(prediction.training_flops)} FLOPs",
        "predicted loss": loss,
        "the law's choice": _choice(prediction),
    }


def _choice(prediction: PredictedLoss) -> str:
    if prediction.optimum is None:
        return f"none: {prediction.refusal}"
    best = prediction.optimum.best
    sizes = f"{format_count(best.n_active)} active of {format_count(best.n_total)}"
    loss = f"{best.loss:.4f} nats ({best.loss - prediction.loss:+.4f})"
    if best.trusted and not prediction.trusted:
        loss += ", the best that is trusted"
    return f"E = {best.experts:.5g}, {sizes}, {format_count(best.tokens)} tokens: {loss}"
