"""Which model for this budget: read the question, find the best width for each E, and say what each is worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from typing_extensions import Unpack

from hub.base.errors import InputError, given
from hub.base.fields import reads
from hub.base.notices import Notice
from hub.base.types import Fields, Strings
from hub.base.units import format_bytes, format_count, format_flops
from scaling_law.answer.answer import columns_of, rows_of
from scaling_law.formulas import Formula
from scaling_law.formulas.accuracy import Task, describe_accuracies, parse_tasks, predict_accuracies
from scaling_law.formulas.conditions import RangeCheck
from scaling_law.formulas.law import percentile_interval
from scaling_law.machine.gpus import named_gpu
from scaling_law.machine.serving import seconds_of_token
from scaling_law.planning.budget import Budget, Cluster, read_gpus, read_question
from scaling_law.planning.limits import Limits, explain_ignored_design
from scaling_law.planning.optimal_table import EVIDENCE, OptimalRow, OptimalTable
from scaling_law.planning.optimum import (
    BestModels,
    WidthOptimum,
    drawn_losses,
    explain_undiscounted,
    list_experts,
    optimal_widths,
    parse_experts,
    why_no_optimum,
)
from scaling_law.planning.question import (
    Accuracy,
    BudgetFlops,
    ClusterFields,
    DecodeBatch,
    Force,
    Integral,
    QuestionFields,
    RateLaw,
    RunFields,
    SeveralExperts,
    pick,
)
from scaling_law.planning.trusted import find_trusted, spend_enough
from scaling_law.rates.law import DEFAULT_LAW, LearningRateLaw
from scaling_law.size.architecture import affordable_tokens, inference_flops, training_flops
from scaling_law.size.arrays import BoolArray, FloatArray


@reads
def optimal(
    law: Formula,
    flops: BudgetFlops = None,
    experts: SeveralExperts = None,
    *,
    decode_batch: DecodeBatch = None,
    integral: Integral = None,
    learning_rate_law: RateLaw = None,
    force: Force = False,
    accuracy: Accuracy = (),
    **question: Unpack[QuestionFields],
) -> OptimalTable:
    """Find the best model for each E under compute and memory limits, and the best of all.

    Args:
        flops: of training (6 N_act D) and inference (2 N_act D_inf); a number or text such as "1e22".
        hours, money: of training, instead of flops, on `gpus` GPUs; money by a `price` per GPU-hour. With
            `inference_tokens` and a `decode_batch` they hold serving, too, at the rate of decoding.
        gpu, mfu, throughput: how fast they train: a GPU such as "h100", by rates of public runs or an MFU that is
            given; or a `Throughput` or throughput.json.
            Beside flops, `gpus` say the hours and the MFU of each row.
        decode_batch: with a gpu, also the cost of serving so many sequences at once (`machine.serving`), which hold
            `kv_tokens` together.
        experts: one E or several; None asks for those of `default_experts`.
        integral: only architectures that exist, d_model = 64 n_blocks = 64 n_heads. None: where GPUs are named.
        learning_rate_law: one, or its name or file; None: the public grids' at the paper's recipe.
        sequence_length, batch: of the run, 4096 and "4M" tokens, or a ramp such as "0:128,0.5B:256". None: the
            batch with which the paper's ramp ends, above the FLOPs of its largest run that of Step Law, and sequences
            of 4,096 tokens for models larger than the paper's. Step times depend on them, and rates by laws that have
            a batch on the last one.
        force: compare answers beyond the range guard, too.
        accuracy: tasks whose accuracy to expect at each loss: "arc_easy,hellaswag" (docs/answers.md#accuracy).
        question: the fields of `Limits`: memory="80GB" and so on.

    Answers with the best trusted model where some trusted one spends at least half of the budget: the trusted region
    limits models as memory does. Else with the best model without that limit, and the best trusted one as `edge`.

    ValueError where nothing fits, the law has no optimum, or not exactly one budget is given; ExtrapolationError
    where no answer is within the range guard. Ludziejewski et al. 2025, Section "Compute and Memory Optimality".
    """
    tasks = parse_tasks(accuracy)
    named_gpus, fields = _read_gpus(flops, decode_batch, question)
    budget, limits = read_question(law, flops, **fields)
    budget = replace(budget, decode_batch=decode_batch)
    if named_gpus is not None:
        # These GPUs share the batches.
        budget = replace(budget, rule=named_gpus.rule)
    candidates = _read_candidates(law, experts, limits, bool(integral))
    if integral is None:
        is_whole = np.all(candidates == np.round(candidates)) or limits.like is not None
        integral = bool(is_whole) and (budget.cluster or named_gpus or limits.like) is not None
    optimum = _find_optimum(law, budget, limits, candidates, integral)
    optima = optimum.take(lambda values: values[optimum.fits])
    check = limits.check(law, optima.variables)
    is_trusted = check.trusted
    # The best trusted model of each E: its optimum, or one that spends less.
    trusted = optima.only(is_trusted)
    if not (force or check.unknown or is_trusted.all()):
        trusted = find_trusted(law, budget, optima.experts, limits, integral).replaced(is_trusted, optima)
    limited_by = np.where(optimum.free < limits.ladder.smallest, "smallest", "time" if budget.cluster else "compute")
    limited_by = np.where(optimum.truncated, "memory", limited_by)[optimum.fits]
    is_answer = spend_enough(budget, limits, trusted) & trusted.fits
    models = optima.replaced(is_answer, trusted)
    limited_by = np.where(is_answer & ~is_trusted, EVIDENCE, limited_by)
    lowest = np.argsort(trusted.loss, kind="stable")[: int(trusted.fits.any())]
    edge_models = trusted.take(lambda values: values[lowest])
    if not is_answer.any() and check.beyond.all():
        check.refuse(force, _describe_trusted(edge_models))
    cluster = budget.cluster
    rates = LearningRateLaw.named(learning_rate_law) if isinstance(learning_rate_law, str) else learning_rate_law
    most_tokens = np.where(limited_by == EVIDENCE, models.tokens, np.inf)
    draws = drawn_losses(law, budget, models, limits, most_tokens)
    trains = question.get("gpus") is not None

    def columns_of_models(models: BestModels, limited_by: NDArray[np.str_], draws: FloatArray | None) -> Fields:
        return {
            **_columns(limits, models, limited_by, integral),
            **_costs(budget, named_gpus, trains, limits, models),
            **_worth(models, limits.check(law, models.variables), tasks, draws),
            **_learning_rates(rates, budget, limits, models),
        }

    columns = columns_of_models(models, limited_by, draws)
    edge = None
    if lowest.size and not is_answer.any():
        limited_by_trust = np.where(is_trusted, limited_by, EVIDENCE)[lowest]
        edge = OptimalRow(*rows_of(columns_of_models(edge_models, limited_by_trust, None)))
    table = OptimalTable(
        columns=columns,
        edge=edge,
        trusted_losses=_losses(trusted, trusted.fits),
        losses_without_evidence=_losses(optima, ~check.beyond),
        flops=float("nan") if budget.flops is None else budget.flops,
        budget=budget,
        limits=limits,
        integral=integral,
        experts_that_do_not_fit=tuple(candidates[optimum.exists & ~optimum.fits].tolist()),
        law=law.conditions.provenance if law.conditions else "fitted law",
        experts_without_optimum={e: why_no_optimum(law, e) for e in candidates[~optimum.exists].tolist()},
        forced=force,
        formula=law,
        draw_losses=draws,
        check=limits.check(law, models.variables),
        cluster=named_gpus,
        notes=(
            *_explain_smallest(budget, limits, models.experts, limited_by, force),
            *describe_accuracies(tasks, models.loss.tolist()),
            *explain_undiscounted(law, models.experts, limits),
            *explain_ignored_design(law, limits),
        ),
    )
    table = replace(table, largest=_explain_largest(table, candidates, law, experts is None))
    if cluster is None:
        return _with_training_memory(table, named_gpus) if named_gpus and trains else table
    equal_flops = optimal(
        law,
        table.best.training_flops + table.best.inference_flops,
        limits.to_question(candidates),
        force=not table.trusted,
        integral=integral,
        learning_rate_law=rates,
        **pick(RunFields, question),
        **limits.to_fields(),
    )
    return _with_training_memory(replace(table, flops=equal_flops.flops, equal_flops=equal_flops), cluster)


def _read_candidates(law: Formula, experts: ArrayLike | None, limits: Limits, integral: bool) -> FloatArray:
    """Read the E to compare: each once, in the order asked for."""
    counts = np.atleast_1d(parse_experts(law, experts, limits))
    if counts.ndim != 1:
        raise InputError(f"experts={counts.tolist()!r} must be one number or a list of them")
    candidates = np.array(list(dict.fromkeys(counts.tolist())))
    if integral and limits.like is None and np.any(candidates != np.round(candidates)):
        raise InputError(given("experts", candidates), ": ", given("integral", True), " needs whole numbers")
    return candidates


def _find_optimum(
    law: Formula, budget: Budget, limits: Limits, candidates: FloatArray, integral: bool
) -> WidthOptimum:
    """Find the best width of each E. InputError says what would be needed where none fits."""
    smallest = limits.ladder.smallest
    served = limits.inference_tokens
    n_active = limits.widths(smallest, 1.0).n_active
    if budget.flops is not None and affordable_tokens(budget.flops, n_active, served) <= 0:
        serving = format_flops(float(inference_flops(n_active, served)))
        raise InputError(
            f"nothing fits: inference_tokens={served:g} alone cost at least {serving} FLOPs of flops={budget.flops:g}"
        )
    optimum = optimal_widths(law, budget, candidates, limits, integral)
    if not optimum.fits.any():
        lowest = float(candidates[optimum.exists].min())
        memory = float(limits.memory_bytes(smallest, lowest))
        parameters = format_count(float(limits.widths(smallest, lowest).n_total))
        model = f"the smallest model (d_model {smallest:g}, E = {lowest:.5g})"
        need = f"at least {format_bytes(memory)} ({memory:.0f} bytes) with its KV cache"
        raise InputError(f"nothing fits: {model} has {parameters} parameters and needs {need}")
    return optimum


def _losses(models: BestModels, where: BoolArray) -> dict[float, float]:
    """Return E → loss of some of the models."""
    return dict(zip(models.experts[where].tolist(), models.loss[where].tolist(), strict=True))


def _describe_trusted(best: BestModels) -> str:
    """Name the best trusted model as the alternative to an answer that is refused; empty where there is none."""
    if not best.experts.size:
        return ""
    n_active = format_count(float(best.n_active[0]))
    tokens = format_count(float(best.tokens[0]))
    model = f"E = {best.experts[0]:.5g}, {n_active} active on {tokens} tokens"
    return f"; the best model that can be trusted is {model}, with a loss of {best.loss[0]:.3f}"


def _columns(limits: Limits, models: BestModels, limited_by: NDArray[np.str_], integral: bool) -> Fields:
    """Return the columns that follow from the widths."""
    d_model = models.d_model
    experts = models.experts
    tokens = models.tokens
    widths = limits.widths(d_model, experts)
    n_active = widths.n_active
    architectures = None
    if integral:
        architectures = list(map(limits.architecture, d_model.tolist(), experts.tolist()))
    weight_bytes = limits.bytes_per_parameter * widths.n_total
    kv_cache_bytes = limits.kv_bytes(d_model)
    return {
        **limits.routed_column(experts),
        "experts": experts,
        "d_model": d_model,
        "n_active": n_active,
        "n_total": widths.n_total,
        "tokens": np.round(tokens) if integral else tokens,
        "tokens_per_parameter": tokens / n_active,
        "weight_bytes": weight_bytes,
        "kv_cache_bytes": kv_cache_bytes,
        "memory_bytes": weight_bytes + kv_cache_bytes,
        "training_flops": training_flops(n_active, tokens),
        "inference_flops": inference_flops(n_active, limits.inference_tokens),
        "limited_by": limited_by,
        "epochs": tokens / limits.unique_tokens if limits.unique_tokens else None,
        "architecture": architectures,
    }


def _worth(models: BestModels, check: RangeCheck, tasks: Sequence[Task], draws: FloatArray | None) -> Fields:
    """Return the columns of what the law says of the models: loss, interval, accuracy, and how far it extrapolates."""
    checks = list(map(check.row, range(models.loss.size)))
    intervals = [None] * models.loss.size if draws is None else list(map(percentile_interval, draws.T))
    accuracies = {}
    if tasks:
        losses = zip(models.loss.tolist(), intervals, strict=True)
        accuracies["accuracy"] = [predict_accuracies(tasks, loss, interval, 0.95) for loss, interval in losses]
    return {
        "loss": models.loss,
        "loss_interval": intervals,
        "warnings": [check.warnings for check in checks],
        "trusted": check.trusted,
        "distrust": [check.distrust for check in checks],
        "beyond_guard": check.beyond,
        **accuracies,
    }


def _learning_rates(law: LearningRateLaw | None, budget: Budget, limits: Limits, models: BestModels) -> Fields:
    """Return the columns of the batches, and of the peak rates for the last batch of each run."""
    law = law or LearningRateLaw.published(DEFAULT_LAW)
    tokens = models.tokens.tolist()
    rows = []
    for d_model, experts, run_tokens in zip(models.d_model, models.experts.tolist(), tokens, strict=True):
        model = limits.widths(d_model, experts)
        ramp = budget.rule.run(float(model.n_active), run_tokens)
        batch_tokens = ramp.last_batch_tokens(run_tokens)
        peak = law.peak(float(law.counted(model)), experts, run_tokens, batch_tokens)
        row = {
            "sequence_length": ramp.sequence_length,
            "batch_tokens": batch_tokens,
            "learning_rate": peak.learning_rate,
            "learning_rate_interval": peak.interval,
            "learning_rate_law": law.source,
            "learning_rate_batch": peak.batch_tokens,
            "learning_rate_from": law,
            "learning_rate_warnings": peak.warnings,
        }
        rows.append(row)
    return columns_of(rows)


def _read_gpus(
    flops: float | str | None, decode_batch: float | None, fields: QuestionFields
) -> tuple[Cluster | None, QuestionFields]:
    """Read the GPUs that train or serve what FLOPs buy, None where none are named; and the fields of the budget."""
    if flops is None or fields.get("hours") is not None or fields.get("money") is not None:
        return None, fields
    # One GPU is enough to say what a token takes.
    cluster = read_gpus(fields, None if decode_batch is None else 1)
    budget_fields: Any = {name: value for name, value in fields.items() if name not in ClusterFields.__annotations__}
    return cluster, budget_fields


def _costs(
    budget: Budget,
    named_gpus: Cluster | None,
    trains: bool,
    limits: Limits,
    models: BestModels,
) -> Fields:
    """Return the columns of training and serving on the GPUs of the budget, or on those named beside FLOPs."""
    cluster = budget.cluster or named_gpus
    decode_batch = budget.decode_batch
    tokens = models.tokens
    columns: Fields = dict.fromkeys(("hours", "mfu", "layout", "decode_seconds"))
    if limits.inference_tokens:
        training, serving = budget.costs(models.d_model, models.experts, tokens, limits)
        columns["serving_share"] = serving / (serving + training)
    if cluster is None:
        if decode_batch is not None:
            raise InputError(given("decode_batch", decode_batch), " needs a gpu that serves, such as gpu='h100'")
        return columns
    widths = limits.widths(models.d_model, models.experts)
    if trains:
        seconds = cluster.seconds(widths, tokens)
        columns["mfu"] = cluster.mfu(widths, tokens, seconds)
        columns["hours"] = seconds / 3600.0 if budget.cluster is None else None
        layouts = []
        for d_model, experts, count in zip(models.d_model, models.experts, tokens, strict=True):
            layouts.append(cluster.describe_layout(limits.widths(d_model, experts), float(count)))
        columns["layout"] = layouts
    if decode_batch is not None:
        gpu = named_gpu(cluster.throughput.device)
        cache = limits.kv_bytes(models.d_model)
        seconds = seconds_of_token(widths, gpu, decode_batch, cache, limits.bytes_per_parameter)
        columns["decode_seconds"] = seconds
        if cluster.price is None:
            columns["gpu_seconds_per_million"] = 1e6 * seconds
        else:
            columns["price_per_million"] = 1e6 * seconds * cluster.price / 3600.0
    return columns


def _explain_smallest(
    budget: Budget, limits: Limits, every_e: FloatArray, limited_by: NDArray[np.str_], force: bool
) -> Strings:
    """Say for which E the optimum is smaller than the smallest model, which is taken instead.

    InputError for hours in which every optimum is, whose step times nobody knows, unless `force`.
    """
    experts = every_e[limited_by == "smallest"]
    if not experts.size:
        return ()
    width = limits.ladder.smallest
    n_active = format_count(float(limits.widths(width, 1.0).n_active))
    smallest = f"d_model {width:g} with a vocabulary of {limits.vocab_size:,} (N_act {n_active})"
    is_assumed = budget.cluster is not None and budget.cluster.throughput.is_assumed
    if is_assumed and experts.size == every_e.size and not force:
        raise InputError(
            f"hours={budget.hours:g} are too few: every compute optimum on {budget.cluster} is smaller than "
            f"{smallest}, whose step times are unknown; give more hours, fewer gpus or a smaller vocab_size"
        )
    subject = f"E = {list_experts(experts)}"
    reason = f"the compute optimum is smaller than {smallest}, which is taken instead; the vocabulary decides its size"
    return (Notice(f"{subject}: {reason}", f"{subject} at the smallest width"),)


def _explain_largest(table: OptimalTable, candidates: FloatArray, law: Formula, by_default: bool) -> str | None:
    """Say that the best E is the largest of several, so that a larger one may be better; None where it is not."""
    best = table.best.experts
    if candidates.size == 1 or best < candidates.max():
        return None
    limit = "the default list" if by_default else "the list asked for"
    if law.conditions and law.conditions.fitted_limits().get("E", (0, 0))[1] == best:
        limit = "the fitted range"
    return f"E = {best:.5g} is the largest compared ({limit} ends there); a larger one may be better"


def _with_training_memory(table: OptimalTable, cluster: Cluster) -> OptimalTable:
    """Say what GPUs can train of each row, in the next smaller size that exists, and of the size above."""
    best = table.best
    experts = table.experts
    if table.limits.like is None:
        experts = np.ceil(experts)
    d_model, next_width = table.limits.ladder.beside(table.d_model)
    try:
        fits = cluster.fits_run(table.limits.widths(d_model, experts), table.tokens)
        next_size_fits = cluster.fits_run(table.limits.widths(next_width, experts), table.tokens)
    except ValueError:
        # `plan` says which GPUs cannot share a batch equally.
        fits = next_size_fits = np.full(len(table), True)
    notes = [*table.notes, *cluster.warnings(table.limits.widths(best.d_model, best.experts), best.tokens)]
    if not fits.all():
        subject = f"E = {list_experts(experts[~fits])}"
        need = f"training takes more memory than {cluster.hardware} have"
        advice = "a limit on total parameters leaves such models out"
        notes.append(Notice(f"{subject}: {need}; {advice}", f"{subject} cannot be trained in this memory"))
    limited_by = table.limited_by
    is_largest = fits & ~next_size_fits
    if table.budget.cluster is not None and is_largest.any():
        limit = f"the largest model that the memory of {cluster.hardware} can train"
        # The column "limited by" says so.
        notes.append(Notice(f"E = {list_experts(experts[is_largest])}: {limit}"))
        limited_by = np.where(is_largest & (limited_by != EVIDENCE), "memory", limited_by)
    return replace(table, columns={**table.columns, "limited_by": limited_by}, notes=tuple(notes))
