"""The tables of the cards: one run in full, a sweep's runs, and a run's neighbours in its sweep.

Every cell is escaped by `hub.plain.markdown.table`.
"""

from __future__ import annotations

from collections.abc import Iterable

from hub.plain.tables import Table
from hub.plain.units import format_count, format_decimal
from hub.record.names import branch_name, repo_name
from hub.record.run_record import RunRecord

_NEIGHBOURS = 6  # runs shown on either side
_PREDICTION = "Loss in nats/token that a scaling law predicts for this run:"
_HEADER = ("Run", "Active", "Total", "E", "Tokens", "Held-out loss", "Training loss", "Status", "Revision")


def run_table(record: RunRecord) -> str:
    """Size, experts, tokens, losses and recipe of one run."""
    rows = [*_size_rows(record), *_result_rows(record), *_recipe_rows(record), *_cost_rows(record)]
    return Table(("", "Value"), rows).markdown()


def sweep_table(records: Iterable[RunRecord]) -> str:
    """One row per record."""
    return Table(_HEADER, [_row(record) for record in records]).markdown()


def repo_table(records: Iterable[RunRecord]) -> str:
    """One row per revision of a repository."""
    header = ("Revision", "Tokens", "Held-out loss", "Training loss", "Status")
    rows = [
        (
            record.branch or branch_name(record),
            format_count(record.tokens),
            format_decimal(record.eval_loss),
            format_decimal(record.train_loss),
            record.status,
        )
        for record in records
    ]
    return Table(header, rows).markdown()


def place_in_sweep(record: RunRecord, siblings: Iterable[RunRecord], predicted_loss: float | None) -> str:
    """Heading, the loss that a law predicts, and the final runs nearest in size, experts and tokens.

    Empty if nothing of it is known. `predicted_loss` in nats per token.
    """
    key = (record.run_id, record.tokens)
    others = [other for other in siblings if other.status == "final" and (other.run_id, other.tokens) != key]
    parts = [] if predicted_loss is None else [_prediction(record, predicted_loss)]
    if others:
        ordered = sorted([*others, record], key=lambda r: (r.n_active, r.experts, r.tokens, r.run_id))
        at = next(position for position, other in enumerate(ordered) if other is record)
        near = ordered[max(0, at - _NEIGHBOURS) : at + _NEIGHBOURS + 1]
        rows = [_row(other, mark="→ " if other is record else "") for other in near]
        parts.append(Table(_HEADER, rows).markdown())
    return "\n\n".join(["## Its place in the sweep", *parts]) if parts else ""


def _prediction(record: RunRecord, predicted_loss: float) -> str:
    measured = record.eval_loss if record.eval_loss is not None else record.train_loss
    off = f" (measured − predicted = {measured - predicted_loss:+.4f})" if measured is not None else ""
    return f"{_PREDICTION} {predicted_loss:.4f}{off}."


def prediction_of(place: str) -> str:
    """The paragraph with the predicted loss in what `place_in_sweep` returned; empty without one."""
    return next((line for line in place.splitlines() if line.startswith(_PREDICTION)), "")


def _row(record: RunRecord, mark: str = "") -> tuple[object, ...]:
    return (
        mark + record.run_id,
        format_count(record.n_active),
        format_count(record.n_total),
        record.experts,
        format_count(record.tokens),
        format_decimal(record.eval_loss),
        format_decimal(record.train_loss),
        record.status,
        f"{record.repo or repo_name(record)}@{record.branch or branch_name(record)}",
    )


def _size_rows(record: RunRecord) -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = [("Run", f"{record.run_id} ({record.status})")]
    if record.parent_run_id is not None:
        rows.append(
            ("Branched from", f"{record.parent_run_id} after {format_count(record.branch_point_tokens)} tokens")
        )
    return [
        *rows,
        ("Experts E (one active per token)", record.experts),
        ("Active parameters", f"{format_count(record.n_active)} ({record.n_active:,})"),
        ("Total parameters", f"{format_count(record.n_total)} ({record.n_total:,})"),
        ("Width, blocks, heads", f"{record.d_model}, {record.n_blocks}, {record.n_heads}"),
        ("Vocabulary, sequence length", f"{record.vocab_size:,}, {record.sequence_length:,}"),
        ("Training tokens D", f"{format_count(record.tokens)} ({record.tokens:,}), {record.steps:,} steps"),
        ("Tokens per active parameter", f"{record.tokens / record.n_active:.4g}"),
    ]


def _result_rows(record: RunRecord) -> list[tuple[str, object]]:
    window = f" over {format_count(record.train_loss_window_tokens)} tokens" if record.train_loss is not None else ""
    rows: list[tuple[str, object]] = [
        ("Held-out loss (nats/token, dropless)", format_decimal(record.eval_loss)),
        ("Training loss (nats/token)", f"{format_decimal(record.train_loss)}{window}"),
    ]
    if record.experts > 1:
        rows.append(("Tokens dropped by the router", format_decimal(record.drop_rate)))
        rows.append(("Largest expert load over the mean", format_decimal(record.expert_load_max_over_mean, 3)))
    return rows


def _recipe_rows(record: RunRecord) -> list[tuple[str, object]]:
    schedule, optimizer = record.schedule, record.optimizer
    lengths = (schedule.warmup_tokens, schedule.decay_tokens, schedule.horizon_tokens)
    warmup, decay, horizon = map(format_count, lengths)
    ramp = " → ".join(f"{stage.sequences} from {format_count(stage.from_tokens)}" for stage in schedule.batch_ramp)
    clip = "–" if optimizer.gradient_clip_norm is None else f"{optimizer.gradient_clip_norm:g}"
    betas = f"beta {optimizer.beta1:g}/{optimizer.beta2:g}, epsilon {optimizer.epsilon:g}"
    decayed = {None: "", "all": " on all parameters", "matrices": " on matrices"}[optimizer.weight_decay_on]
    decay = f"weight decay {optimizer.weight_decay:g}{decayed}"
    attention = "" if record.attention_precision is None else f", attention {record.attention_precision}"
    data = f"{record.dataset.id} (revision {record.dataset.revision or '–'}"
    return [
        ("Peak learning rate", f"{schedule.peak_learning_rate:.4g} ({schedule.learning_rate_law})"),
        ("Schedule (tokens)", f"warm-up {warmup}, decay {decay}, horizon {horizon}"),
        ("Global batch (sequences)", ramp or "–"),
        *([("Micro-batch (sequences)", record.micro_batch_sequences)] if record.micro_batch_sequences else []),
        *_routing_rows(record),
        ("Optimizer", f"{optimizer.name}, {betas}, {decay}, clip {clip}"),
        *([("Initialization", record.initialization)] if record.initialization else []),
        *([] if record.final_norm is None else [("Norm before the head", "yes" if record.final_norm else "no")]),
        ("Precision, seed", f"{record.precision}{attention}, {_known(record.seed)}"),
        ("Data", f"{data}, fingerprint {_known(record.dataset.fingerprint)})"),
        ("Tokenizer", f"{record.tokenizer.id} (fingerprint {_known(record.tokenizer.fingerprint)})"),
    ]


def _routing_rows(record: RunRecord) -> list[tuple[str, object]]:
    """What is known of how training routes; nothing for a dense model, which does not."""
    if record.experts == 1:
        return []
    factor, group = record.capacity_factor, record.capacity_group_tokens
    rows: list[tuple[str, object]] = []
    if factor is not None:
        rows.append(("Expert capacity", f"factor {factor:g}" if factor else "dropless"))
    if group is not None:
        rows.append(("Capacity group (tokens)", f"{group:,}"))
    if record.balance_loss_coefficient is not None and record.z_loss_coefficient is not None:
        losses = f"balance {record.balance_loss_coefficient:g}, z {record.z_loss_coefficient:g}"
        rows.append(("Auxiliary losses (coefficients)", losses))
    return rows


def _cost_rows(record: RunRecord) -> list[tuple[str, object]]:
    speed = f"{format_count(record.tokens_per_second)} tokens/s, MFU {format_decimal(record.mfu, 3)}"
    hours = "–" if record.wall_time_seconds is None else f"{record.wall_time_seconds / 3600:.3g} h"
    return [
        ("Training compute", f"{record.training_flops:.4g} FLOPs, {speed}"),
        ("Hardware, wall time", f"{_known(record.hardware)}, {hours}"),
    ]


def _known(value: object) -> object:
    return "–" if value is None else value
