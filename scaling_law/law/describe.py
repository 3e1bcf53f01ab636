"""A released model in the terms of a law: what it is, what the law predicts for it, and what it would have chosen.

The law's E is `Architecture.experts_equivalent`; what this leaves out of the architecture is named in a warning.
"""

from __future__ import annotations

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
from scaling_law.planning.optimal_table import OptimalTable, optimal
from scaling_law.planning.plan import experts_of
from scaling_law.size.architecture import EXPERT_VARIABLES, Architecture
from scaling_law.size.model_configs import Model, read_model

OTHER_CORPUS = "The loss is for the law's corpus, tokenizer and recipe, not the model's."


@dataclass(frozen=True)
class PredictedLoss:
    """What a law says of a model trained on `tokens` tokens; losses in nats per token.

    `optimum` is the law's own choice for the same training FLOPs (6 N_act D) with no more bytes of weights, and None
    where there is none, or where models of this E are too far from the law's runs to compare: `refusal` then says why.
    `trusted`: no further outside the runs of the law than backtests support; `beyond_guard`: too far to look at.
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
    """A model as a law sees it. `law` is the law's provenance; `context`, in positions, that of exact FLOPs."""

    model: Model
    law: str
    bytes_per_parameter: float = 2.0
    context: float | None = None
    prediction: PredictedLoss | None = None

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
        """Plain JSON values: model, architecture, variables of laws, FLOPs, bytes, prediction, warnings."""
        a, m = self.architecture, self.model
        flops = {"training": a.training_flops(1), "inference": a.inference_flops(1)}
        if self.context is not None:
            flops |= {"training_exact": a.training_flops(1, self.context), "context": self.context}
            flops |= {"inference_exact": a.inference_flops(1, self.context)}
        memory = {"weights": a.weight_bytes(self.bytes_per_parameter), "kv_cache_per_token": a.kv_cache_bytes(1)}
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
        memory = zip(("weights", "bf16 KV cache per token", "training state"), facts["bytes"].values(), strict=True)
        lines = {
            "architecture": shape_of(a),
            "experts": experts_of(a),
            "active": f"{format_count(a.n_active)}, {format_count(a.n_active_non_embedding)} {apart}",
            "total": f"{format_count(a.n_total)}, {format_count(a.n_total_non_embedding)} {apart}",
            "exact": f"{m.parameters:,} parameters, with {left_out}",
            "FLOPs per token": _flops(**facts["flops_per_token"]),
            "memory": ", ".join(f"{name} {format_bytes(value)}" for name, value in memory),
            "E of the law": f"{a.experts_equivalent:.4g}, total over active feed-forward width",
        }
        notes = ["Only the language model is counted."] if m.text_only else []
        if self.prediction is not None:
            lines |= _predicted(a, self.prediction)
            notes.append(OTHER_CORPUS)
        title = f"{self.verdict}\n{m.model_type}  ({self.law})"
        return Table((), list(lines.items()), title=title, notes=notes, warnings=self.warnings)


def describe(
    source: str | Path | Any,
    tokens: float | str | None = None,
    *,
    law: Law | None = None,
    context: float | str | None = None,
    bytes_per_parameter: float = 2.0,
    revision: str | None = None,
    force: bool = False,
) -> Description:
    """What a model is in the terms of `law` (None: the paper's), and given its tokens, what the law says of it.

    Args:
        source: "org/model" on the Hub, a folder, a config.json, a mapping, or a configuration of transformers; nothing
            but config.json is read.
        tokens: training tokens, a number or text such as "15T"; None predicts no loss.
        context: sequence length for exact FLOPs, attention included: a number or text such as "4k".
        force: ask for the law's own choice beyond its range guard, too.

    The prediction is never refused, however far outside of the law's runs: see `trusted` and `warnings`.
    FileNotFoundError and ValueError as `size.model_configs.read_model`.
    """
    model, law = read_model(source, revision), law or JointLaw.published()
    positions = parse_context(context, "context") if isinstance(context, str) else context
    if positions is not None:
        positions = float(positive("context", positions))
    provenance = law.conditions.provenance if law.conditions else "fitted law"
    size = float(positive("bytes_per_parameter", bytes_per_parameter))
    warnings, predicted, check = ignored(model.architecture, law), None, None
    if tokens is not None:
        d = parse_tokens(float(positive("tokens", tokens)))
        at = of_law(law, model.architecture.variables() | {"tokens": d})
        check = law.check(**at)
        predicted = _predict(law, model.architecture, at, check, size, force)
        warnings += check.warnings
        if predicted.optimum is not None:
            warnings += [f"the law's choice: {warning}" for warning in predicted.optimum.warnings]
    return Description(model, provenance, size, positions, predicted, check=check, notes=tuple(warnings))


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
    law: Law, a: Architecture, at: dict[str, float], check: RangeCheck, bytes_per_parameter: float, force: bool
) -> PredictedLoss:
    tokens = float(at["tokens"])
    flops, refusal, optimum = a.training_flops(tokens), None, None
    limits: dict[str, Any] = {"memory": a.weight_bytes(bytes_per_parameter), "vocab_size": a.vocab_size}
    limits |= {"force": force, "bytes_per_parameter": bytes_per_parameter}
    try:
        optimum = optimal(law, flops, **limits)
    except ValueError as error:  # also where every answer is beyond the range guard
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


def _flops(training: float, inference: float, context: float | None = None, **exact: float) -> str:
    text = f"{format_flops(training)} of training (6 N), {format_flops(inference)} of inference"
    if context is None:
        return text
    return f"{text}; at {context:,.0f} positions exactly {' and '.join(map(format_flops, exact.values()))}"


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
