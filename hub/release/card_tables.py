"""The tables of the cards: one run in full, a sweep's runs, and a run's neighbours in its sweep.

Every cell is escaped by `hub.plain.tables.Table.markdown`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hub.plain.tables import Table
from hub.plain.units import format_count, format_decimal
from hub.record.names import branch_name, repo_name
from hub.record.run_record import RunRecord

_NEIGHBOURS = 6  # runs shown on either side
_PREDICTION = "Loss in nats/token that a scaling law predicts for this run:"
_HEADER = ("Run", "Active", "Total", "E", "Tokens", "Held-out loss", "Training loss", "Status", "Revision")

Row = tuple[str, object]  # name and value; None is shown as "–"


def run_table(record: RunRecord) -> str:
    """Size, experts, tokens, losses and recipe of one run."""
    rows = [*_measured(record), *_recipe(record), *_cost(record)]
    return Table(("", "Value"), rows).markdown()


def runs_table(records: Iterable[RunRecord], title: str | None = None) -> Table:
    """One row per record."""
    return Table(_HEADER, [_row(record) for record in records], title=title)


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
    parts = []
    if predicted_loss is not None:
        measured = record.eval_loss if record.eval_loss is not None else record.train_loss
        off = f" (measured − predicted = {measured - predicted_loss:+.4f})" if measured is not None else ""
        parts.append(f"{_PREDICTION} {predicted_loss:.4f}{off}.")
    if others:
        ordered = sorted([*others, record], key=lambda r: (r.n_active, r.experts, r.tokens, r.run_id))
        at = next(position for position, other in enumerate(ordered) if other is record)
        near = ordered[max(0, at - _NEIGHBOURS) : at + _NEIGHBOURS + 1]
        parts.append(Table(_HEADER, [_row(other, "→ " if other is record else "") for other in near]).markdown())
    return "\n\n".join(["## Its place in the sweep", *parts]) if parts else ""


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


def _measured(record: RunRecord) -> Iterator[Row]:
    yield "Run", f"{record.run_id} ({record.status})"
    if record.parent_run_id is not None:
        yield "Branched from", f"{record.parent_run_id} after {format_count(record.branch_point_tokens)} tokens"
    yield "Experts E (one active per token)", record.experts
    yield "Active parameters", f"{format_count(record.n_active)} ({record.n_active:,})"
    yield "Total parameters", f"{format_count(record.n_total)} ({record.n_total:,})"
    yield "Width, blocks, heads", f"{record.d_model}, {record.n_blocks}, {record.n_heads}"
    yield "Vocabulary, sequence length", f"{record.vocab_size:,}, {record.sequence_length:,}"
    yield "Training tokens D", f"{format_count(record.tokens)} ({record.tokens:,}), {record.steps:,} steps"
    yield "Tokens per active parameter", f"{record.tokens / record.n_active:.4g}"
    yield "Held-out loss (nats/token, dropless)", format_decimal(record.eval_loss)
    window = f" over {format_count(record.train_loss_window_tokens)} tokens" if record.train_loss is not None else ""
    yield "Training loss (nats/token)", f"{format_decimal(record.train_loss)}{window}"
    if record.experts > 1:
        yield "Tokens dropped by the router", format_decimal(record.drop_rate)
        yield "Largest expert load over the mean", format_decimal(record.expert_load_max_over_mean, 3)


def _recipe(record: RunRecord) -> Iterator[Row]:
    schedule, optimizer = record.schedule, record.optimizer
    lengths = (schedule.warmup_tokens, schedule.decay_tokens, schedule.horizon_tokens)
    warmup, decay, horizon = map(format_count, lengths)
    ramp = [f"{stage.sequences} from {format_count(stage.from_tokens)}" for stage in schedule.batch_ramp]
    yield "Peak learning rate", f"{schedule.peak_learning_rate:.4g} ({schedule.learning_rate_law})"
    yield "Schedule (tokens)", f"warm-up {warmup}, decay {decay}, horizon {horizon}"
    yield "Global batch (sequences)", " → ".join(ramp) or None
    if record.micro_batch_sequences:
        yield "Micro-batch (sequences)", record.micro_batch_sequences
    if record.experts > 1:  # a dense model does not route
        if record.capacity_factor is not None:
            yield "Expert capacity", f"factor {record.capacity_factor:g}" if record.capacity_factor else "dropless"
        if record.capacity_group_tokens is not None:
            yield "Capacity group (tokens)", f"{record.capacity_group_tokens:,}"
        balance, z = record.balance_loss_coefficient, record.z_loss_coefficient
        if balance is not None and z is not None:
            yield "Auxiliary losses (coefficients)", f"balance {balance:g}, z {z:g}"
    clip = "–" if optimizer.gradient_clip_norm is None else f"{optimizer.gradient_clip_norm:g}"
    betas = f"beta {optimizer.beta1:g}/{optimizer.beta2:g}, epsilon {optimizer.epsilon:g}"
    on = {None: "", "all": " on all parameters", "matrices": " on matrices"}[optimizer.weight_decay_on]
    yield "Optimizer", f"{optimizer.name}, {betas}, weight decay {optimizer.weight_decay:g}{on}, clip {clip}"
    if record.initialization:
        yield "Initialization", record.initialization
    if record.final_norm is not None:
        yield "Norm before the head", "yes" if record.final_norm else "no"
    attention = "" if record.attention_precision is None else f", attention {record.attention_precision}"
    yield "Precision, seed", f"{record.precision}{attention}, {_known(record.seed)}"
    revision, fingerprint = _known(record.dataset.revision), _known(record.dataset.fingerprint)
    yield "Data", f"{record.dataset.id} (revision {revision}, fingerprint {fingerprint})"
    yield "Tokenizer", f"{record.tokenizer.id} (fingerprint {_known(record.tokenizer.fingerprint)})"


def _cost(record: RunRecord) -> Iterator[Row]:
    speed = f"{format_count(record.tokens_per_second)} tokens/s, MFU {format_decimal(record.mfu, 3)}"
    hours = "–" if record.wall_time_seconds is None else f"{record.wall_time_seconds / 3600:.3g} h"
    yield "Training compute", f"{record.training_flops:.4g} FLOPs, {speed}"
    yield "Hardware, wall time", f"{_known(record.hardware)}, {hours}"


def _known(value: object) -> object:
    return "–" if value is None else value
