"""A released model in the terms of a law: what it is, what the law predicts for it, and what it would have chosen.

The law's E is `Architecture.experts_equivalent`; what this leaves out of the architecture is named in a warning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hub.base.tables import Table
from hub.base.units import format_bytes, format_count, format_flops, parse_context, parse_tokens
from scaling_law.formulas.answers import ArrayAnswer, plain
from scaling_law.formulas.conditions import RangeCheck
from scaling_law.formulas.law import percentile_interval, positive
from scaling_law.law import JointLaw, Law
from scaling_law.planning.limits import of_law
from scaling_law.planning.optimal import optimal
from scaling_law.planning.optimal_table import OptimalTable
from scaling_law.planning.plan import describe_experts
from scaling_law.size.architecture import EXPERT_VARIABLES, Architecture
from scaling_law.size.model_configs import Model, read_model

SCAN = "The scan of a state counts 4 FLOPs per element and token; kernels that scan in chunks do more."
OTHER_CORPUS = "The loss is for the law's corpus, tokenizer and recipe, not the model's."


@dataclass(frozen=True)
class PredictedLoss:
    """What a law says of a model trained on `tokens` tokens; losses in nats per token.

    `optimum` is the law's own choice for the same training FLOPs (6 N_act D) with no more bytes of weights and of the
    KV cache that was asked for, and None where there is none, or where models of this E are too far from the law's
    runs to compare: `refusal` then says why. `trusted`: no further outside the runs of the law than backtests support;
    `beyond_guard`: too far to look at.
    """

    tokens: float
    training_flops: float
    loss: float
    loss_interval: tuple[float, float] | None
    trusted: bool
    refusal: str | None
    optimum: OptimalTable | None
    beyond_guard: bool = False


@dataclass(frozen=True)
class Description(ArrayAnswer):
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

    def to_rows(self) -> list[dict[str, Any]]:
        """The model, in one row."""
        a, p = self.architecture, self.prediction
        sizes = {"experts": a.experts_equivalent, "n_active": a.n_active, "n_total": a.n_total}
        answer = {"tokens": p and p.tokens, "loss": p and p.loss, "trusted": self.trusted}
        return [{"model": self.model.name, **sizes, **answer}]

    @property
    def warnings(self) -> tuple[str, ...]:
        return self.notes

    @property
    def verdict(self) -> str:
        a, p = self.architecture, self.prediction
        text = f"{self.model.name}: E = {a.experts_equivalent:.3g}, {format_count(a.n_active)} active of "
        text += f"{format_count(a.n_total)} parameters"
        return text if p is None else f"{text}: loss {p.loss:.3f} on {format_count(p.tokens)} tokens"

    @property
    def architecture(self) -> Architecture:
        return self.model.architecture

    def facts(self) -> dict[str, Any]:
        """Plain JSON values: model, architecture, variables of laws, FLOPs, bytes, prediction, warnings.

        With a context, `training_exact` and `inference_exact` have all matrix products of a token at that sequence
        length: attention without the causal half, with windows, chunks and selections (`Architecture.forward_flops`).
        `kv_cache` holds `kv_tokens` in sequences of `context`; a long sequence takes `kv_cache_per_sequence` and, for
        each token, `kv_cache_per_token`.
        """
        a, m = self.architecture, self.model
        flops = {"training": a.training_flops(1), "inference": a.inference_flops(1)}
        if self.context is not None:
            flops |= {"training_exact": a.training_flops(1, self.context), "context": self.context}
            flops |= {"inference_exact": a.inference_flops(1, self.context)}
        memory = {"weights": a.weight_bytes(self.bytes_per_parameter)}
        memory["kv_cache_per_token"] = a.kv_bytes_per_token(self.bytes_per_kv)
        memory["kv_cache_per_sequence"] = a.kv_bytes_per_sequence(self.bytes_per_kv)
        if (cached := self.kv_tokens or self.context) is not None:
            memory["kv_cache"] = a.kv_cache_bytes(cached, self.bytes_per_kv, self.context)
        return {
            "model": m.name,
            "model_type": m.model_type,
            "architecture": a.to_dict(),
            "variables": a.variables(),
            "parameters": m.parameters,
            "left_out": dict(m.left_out),
            "flops_per_token": flops,
            "bytes": memory | {"training_state": a.training_state_bytes},
            "law": self.law,
            "prediction": plain(self.prediction),
        }

    def summary(self) -> Table:
        a, m, facts = self.architecture, self.model, self.facts()
        left_out = ", ".join(f"{name} {format_count(count)}" for name, count in m.left_out.items())
        apart = "without embedding and head"
        lines = {
            "architecture": shape_of(a),
            **({"attention": attention_of(a)} if a.spans or a.attention_blocks is not None else {}),
            "experts": describe_experts(a),
            "active": f"{format_count(a.n_active)}, {format_count(a.n_active_non_embedding)} {apart}",
            "total": f"{format_count(a.n_total)}, {format_count(a.n_total_non_embedding)} {apart}",
            "exact": f"{m.parameters:,} parameters, with {left_out}",
            "FLOPs per token": _flops(**facts["flops_per_token"]),
            "memory": f"weights {format_bytes(facts['bytes']['weights'])}, training state "
            f"{format_bytes(a.training_state_bytes)}",
            "KV cache": self._cache(facts["bytes"]),
            "E of the law": f"{a.experts_equivalent:.4g}, total over active feed-forward width",
        }
        notes = ["Only the language model is counted."] if m.text_only else []
        if any(span.once and span.cached for span in a.spans) and self.context is not None:
            notes.append(SCAN)
        if self.prediction is not None:
            lines |= _predicted(a, self.prediction)
            notes.append(OTHER_CORPUS)
        title = f"{self.verdict}\n{m.model_type}  ({self.law})"
        return Table((), list(lines.items()), title=title, notes=notes, warnings=self.warnings)

    def _cache(self, sizes: Mapping[str, float]) -> str:
        """Say what the cache takes, in words."""
        kind = "bf16" if self.bytes_per_kv == 2 else f"{self.bytes_per_kv:g} bytes an element"
        text = f"{format_bytes(sizes['kv_cache_per_token'])} a token"
        if sizes["kv_cache_per_sequence"]:
            text += f" and {format_bytes(sizes['kv_cache_per_sequence'])} a sequence, once it is long"
        if "kv_cache" in sizes:
            tokens = self.kv_tokens or self.context or 0.0
            sequences = tokens / min(self.context or tokens, tokens)
            several = f" in {sequences:,.4g} sequences" if sequences > 1 else ""
            text += f"; {format_bytes(sizes['kv_cache'])} for {tokens:,.0f} tokens{several}"
        return f"{text} ({kind})"


def describe(
    source: str | Path | Any,
    tokens: float | str | None = None,
    *,
    law: Law | None = None,
    context: float | str | None = None,
    kv_tokens: float | str | None = None,
    bytes_per_parameter: float = 2.0,
    bytes_per_kv: float = 2.0,
    revision: str | None = None,
    force: bool = False,
) -> Description:
    """What a model is in the terms of `law` (None: the paper's), and given its tokens, what the law says of it.

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
    model, law = read_model(source, revision), law or JointLaw.published()
    positions, cached = _positions("context", context), _positions("kv_tokens", kv_tokens)
    provenance = law.conditions.provenance if law.conditions else "fitted law"
    sizes: dict[str, Any] = {"bytes_per_parameter": float(positive("bytes_per_parameter", bytes_per_parameter))}
    sizes["bytes_per_kv"] = float(positive("bytes_per_kv", bytes_per_kv))
    warnings, predicted, check = ignored(model.architecture, law), None, None
    if tokens is not None:
        d = parse_tokens(float(positive("tokens", tokens)))
        at = of_law(law, model.architecture.variables() | {"tokens": d})
        check = law.check(**at)
        cache = {"kv_tokens": cached or 0.0, "context": positions}
        predicted = _predict(law, model.architecture, at, check, sizes | cache, force)
        warnings += check.warnings
        if predicted.optimum is not None:
            warnings += [f"the law's choice: {warning}" for warning in predicted.optimum.warnings]
    return Description(
        model,
        provenance,
        **sizes,
        context=positions,
        kv_tokens=cached,
        prediction=predicted,
        check=check,
        notes=tuple(warnings),
    )


def _positions(name: str, value: float | str | None) -> float | None:
    """Read a number of positions, or text such as "16k"."""
    number = parse_context(value, name) if isinstance(value, str) else value
    return None if number is None else float(positive(name, number))


def ignored(a: Architecture, law: Law) -> list[str]:
    """A sentence on what the law ignores of this architecture; [] for nothing."""
    names = ", ".join(unknown_parts(a, law))
    return [f"E = {a.experts_equivalent:.3g} stands for {a.experts} experts; the law ignores {names}"] if names else []


def unknown_parts(a: Architecture, law: Law) -> list[str]:
    """What of this architecture the law has no variable for, in words."""
    names = {*law.variables}
    fine = not names & {"granularity", "experts_per_token", "active_experts"}
    finer = f"granularity {a.granularity:.3g}" if fine and a.granularity > 1 else ""
    shared = f"{a.shared_experts} shared expert{'s' * (a.shared_experts > 1)}" if "shared_ratio" not in names else ""
    top = f"top-{a.experts_per_token} routing" if fine and a.experts_per_token > 1 else ""
    parts = [top, finer, shared if a.shared_experts else ""]
    parts.append(f"{a.dense_blocks} dense of {a.blocks} blocks" if a.dense_blocks else "")
    return [part for part in parts if part]


def _predict(
    law: Law, a: Architecture, at: dict[str, float], check: RangeCheck, sizes: dict[str, Any], force: bool
) -> PredictedLoss:
    tokens = float(at["tokens"])
    flops, refusal, optimum = a.training_flops(tokens), None, None
    limits = {name: value for name, value in sizes.items() if name != "context"}
    memory = a.weight_bytes(sizes["bytes_per_parameter"])
    memory += a.kv_cache_bytes(sizes["kv_tokens"], sizes["bytes_per_kv"], sizes["context"])
    limits |= {"memory": memory, "vocab_size": a.vocab_size, "force": force}
    try:
        optimum = optimal(law, flops, **limits)
    # Every answer may be beyond the range guard.
    except ValueError as error:
        refusal = str(error)
    if optimum is not None and (refused := _own_experts_refused(law, a, flops, limits)):
        optimum, refusal = None, refused
    interval = None if law.draws is None else percentile_interval(law.loss_draws(**at))
    worth = bool(check.trusted), refusal, optimum, bool(check.beyond)
    return PredictedLoss(tokens, flops, float(law.loss(**at)), interval, *worth)


def _own_experts_refused(law: Law, a: Architecture, flops: float, limits: dict[str, Any]) -> str | None:
    """Why the law cannot compare models of this E with others: a choice among those alone would say nothing of it."""
    if not EXPERT_VARIABLES & {*law.variables}:
        return None
    try:
        optimal(law, flops, [a.experts_equivalent], **limits)
    except ValueError as error:
        return f"E = {a.experts_equivalent:.3g} of the model cannot be compared: {error}"
    return None


def shape_of(a: Architecture) -> str:
    """Width, blocks, heads and vocabulary, in words."""
    mla = a.latent_attention
    heads = f"{a.heads} heads of {a.head_dim}"
    if mla is not None:
        heads += f", latent attention of rank {mla.kv_rank}"
    elif a.n_kv_heads < a.heads:
        heads += f", {a.n_kv_heads} key-value heads"
    tied = ", tied embeddings" if a.tied_embeddings else ""
    return f"d_model {a.d_model}, {a.blocks} blocks, {heads}, vocabulary {a.vocab_size:,}{tied}"


def attention_of(a: Architecture) -> str:
    """What the blocks attend to, in words."""
    parts = Counter[str]()
    selects = False
    for span in a.all_spans:
        keys = "keys" if span.stride == 1 else f"keys of {span.stride} positions each"
        seen = f"all {keys}" if span.limit is None else f"at most {span.limit:,} {keys}"
        if span.once:
            parts["keep a state"] += span.blocks if span.cached else 0
        elif span.multiplied:
            parts[f"choose among {seen}" if selects and span.cached else f"see {seen}"] += span.blocks
        selects = span.limit is not None and not span.cached
    words = [f"{blocks} of {a.blocks} blocks {what}" for what, blocks in parts.items() if blocks]
    return ", ".join(words) or "no block has keys, and no state is known"


def _flops(training: float, inference: float, context: float | None = None, **exact: float) -> str:
    text = f"{format_flops(training)} of training (6 N), {format_flops(inference)} of inference"
    if context is None:
        return text
    counted = " and ".join(map(format_flops, exact.values()))
    return f"{text}; with attention without the causal half, at {context:,.0f} positions: {counted}"


def _predicted(a: Architecture, p: PredictedLoss) -> dict[str, str]:
    interval = " ({:.4f}…{:.4f})".format(*p.loss_interval) if p.loss_interval else ""
    mark = "" if p.trusted else ", not to be trusted"
    choice = f"none: {p.refusal}"
    if p.optimum is not None:
        best = p.optimum.best
        choice = f"E = {best.experts:g}, {format_count(best.n_active)} active of {format_count(best.n_total)}, "
        choice += f"{format_count(best.tokens)} tokens: {best.loss:.4f} nats ({best.loss - p.loss:+.4f})"
    return {
        "training": f"{format_count(p.tokens)} tokens, {format_count(p.tokens / a.n_active)} per active parameter, "
        f"{format_flops(p.training_flops)} FLOPs",
        "predicted loss": f"{p.loss:.4f}{interval} nats per token{mark}",
        "the law's choice": choice,
    }
