"""docs/studies/hours.md: predicted against published times of public training runs, each lab left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from scaling_law.figures import drawing
from scaling_law.machine import Efficiency
from scaling_law.machine.efficiency import TERMS
from scaling_law.machine.efficiency import write as write_rates
from scaling_law.machine.layout import MEGATRON, TRAIN_PY
from studies.common import FloatArray, Page, Part, rms
from studies.hours import engine
from studies.hours.fit import efficiency_of, fit_rates, leave_labs_out, spreads
from studies.hours.runs import Timed, derive, read, seconds
from studies.hours.trials import TRIALS, misses_of

RUNS = Path(__file__).with_name("runs.csv")
# Group → rms of ln(predicted / published) that was wanted, labs left out.
GOALS = {
    "dense, steady state": 0.20,
    "MoE, steady state": 0.30,
    "dense, whole runs": 0.30,
    "MoE, whole runs": 0.35,
}
# The mean of ln(predicted / published) that a group may have, either way.
BIAS = 0.20
# Standard deviations of 90 % intervals.
NORMAL = 1.645
COLOURS = {"dense": "#0072B2", "MoE": "#D55E00"}


@dataclass(frozen=True)
class Results:
    """The rows that the page shows, and their errors, computed when they are asked for."""

    rows: Sequence[Timed]

    @cached_property
    def misses(self) -> tuple[FloatArray, FloatArray]:
        """ln(predicted / published) of each row by the fit to other labs, and the standard deviation foreseen."""
        return leave_labs_out(self.rows)

    @cached_property
    def groups(self) -> dict[str, Any]:
        """Group → mask of the rows."""
        group_of_row = np.array([row.group for row in self.rows])
        without_goal = sorted(set(group_of_row) - set(GOALS))
        return {name: group_of_row == name for name in (*GOALS, *without_goal)}

    @cached_property
    def public(self) -> Efficiency:
        """The rates of all rows."""
        return efficiency_of(self.rows)

    @cached_property
    def steps(self) -> list[engine.Step]:
        """The steps of PyTorch's engine."""
        return engine.read()

    @cached_property
    def engine_misses(self) -> tuple[FloatArray, FloatArray]:
        """ln(predicted / measured) of each of these steps by a fit without its model, and the deviation foreseen."""
        return engine.misses(self.steps, self.public)


def engines() -> dict[str, Efficiency]:
    """Fit the rates of each engine to its rows."""
    public = efficiency_of(read(RUNS))
    return {MEGATRON: public, TRAIN_PY: engine.efficiency_of(engine.read(), public)}


def take(tables: Sequence[Path]) -> list[Path]:
    """Derive the runs from a public table, and the rates that the library ships from them."""
    table, *of_torchtitan = tables
    derive(table, RUNS)
    for torchtitan_table in of_torchtitan:
        engine.derive(torchtitan_table)
    return [RUNS, engine.RUNS, write_rates(engines())]


def errors(r: Results) -> Iterator[Part]:
    """List the errors of each group beside its goal."""
    yield "rows", "n", "labs", "rms", "wanted", "", "mean", "90 % interval holds"
    error, width = r.misses
    is_inside = np.abs(error) <= NORMAL * width
    for group, mask in r.groups.items():
        group_error = error[mask]
        group_rms = rms(group_error)
        labs = {row.lab for row, is_in_group in zip(r.rows, mask, strict=True) if is_in_group}
        goal = ""
        verdict = ""
        if group in GOALS:
            goal = f"{GOALS[group]:.2f}"
            is_met = group_rms <= GOALS[group] and abs(group_error.mean()) <= BIAS
            verdict = "met" if is_met else "missed"
        yield (
            group,
            len(group_error),
            len(labs),
            f"{group_rms:.2f}",
            goal,
            verdict,
            f"{group_error.mean():+.2f}",
            f"{np.mean(is_inside[mask]):.0%}",
        )
    is_large = np.any([r.groups[group] for group in GOALS], axis=0)
    is_other_lab = np.array([row.lab != "DeepSeek" for row in r.rows])
    moe_error = error[r.groups["MoE, whole runs"] & is_other_lab]
    yield (
        "Errors are ln(predicted / published). At 0.5B parameters and above, 90 % intervals hold "
        f"{np.mean(is_inside[is_large]):.0%} of {is_large.sum()} rows. "
        f"MoE whole runs without DeepSeek's: rms {rms(moe_error):.2f}, mean {moe_error.mean():+.2f}."
    )


def trials(r: Results) -> Iterator[Part]:
    """List the errors of other models of a step, fitted alike."""
    yield ("added to the rates", *GOALS, "mean of MoE, whole runs")
    for trial in TRIALS:
        error = misses_of(r.rows, trial)
        rms_of_groups = [f"{rms(error[r.groups[group]]):.3f}" for group in GOALS]
        yield (trial.name, *rms_of_groups, f"{error[r.groups['MoE, whole runs']].mean():+.2f}")


def rates(r: Results) -> Iterator[Part]:
    """List the rates fitted to all rows."""
    *logs, growth, overhead = fit_rates(r.rows)[0]
    flops, routed, activations, routing, fp8, fp4, balanced = np.exp(logs)
    yield "seconds of", "rate"
    yield "FLOPs", f"{flops:.2f} / peak, an MFU of {1 / flops:.0%} of products alone"
    yield "FLOPs of models with experts, besides", f"{routed:.2f} / peak; {balanced:.2f} times that if balanced"
    yield "FLOPs in FP8, in FP4", f"{fp8:.2f} and {fp4:.2f} times those in bf16"
    yield "elements between operations (tokens × blocks × d_model)", f"{activations:.0f} bytes each, by the bandwidth"
    yield "elements sent to experts", f"{routing:.0f} bytes each, by the bandwidth"
    yield "a step on n nodes", f"n^{growth:.3f}"
    yield "a whole run on n nodes, besides", f"n^{overhead:.3f}"
    all_terms, of_activations, of_experts, small, whole_run = spreads(r.rows)
    yield "between labs (sd of ln): all of a step, and of a whole run besides", f"{all_terms:.2f}, {whole_run:.2f}"
    yield "between labs, besides: activations, what experts add", f"{of_activations:.2f}, {of_experts:.2f}"
    yield "between labs, besides: models below 0.5B, for each factor of e", f"{small:.2f}"


def engine_errors(r: Results) -> Iterator[Part]:
    """List the errors of the engine that `train.py` is, its models left out."""
    yield "steps", "n", "rms", "mean", "90 % interval holds"
    error, width = r.engine_misses
    group = np.array([step.group for step in r.steps])
    is_compiled = np.array([step.is_compiled for step in r.steps])
    is_divided = np.array([step.is_divided for step in r.steps])
    masks = {
        "train.py on one H100, compiled": (group == engine.OURS) & is_compiled,
        "train.py on one H100, not compiled": (group == engine.OURS) & ~is_compiled,
        "torchtitan, FSDP2": (group != engine.OURS) & ~is_divided,
        "torchtitan, tensor or pipeline parallelism, too": is_divided,
    }
    for name, mask in masks.items():
        holds = np.mean(np.abs(error[mask]) <= NORMAL * width[mask])
        yield name, int(mask.sum()), f"{rms(error[mask]):.2f}", f"{error[mask].mean():+.2f}", f"{holds:.0%}"
    blind = engine.misses_of_torchtitan(r.steps, r.public)
    holds = np.mean(np.abs(error) <= NORMAL * width)
    yield (
        "Errors are ln(predicted / measured), each model left out; "
        f"90 % intervals hold {holds:.0%} of {len(error)} steps. "
        f"Torchtitan's steps predicted from those of `train.py` alone: rms {rms(blind):.2f}, mean {blind.mean():+.2f}."
    )


def engine_trials(r: Results) -> Iterator[Part]:
    """List the errors of torchtitan's steps with less counted of what tensor and pipeline parallelism take."""
    yield "counted", "FSDP2, rms", "mean", "divided, rms", "mean", "divided and compiled, rms"
    without_bubble = [replace(step, bubble=0.0) for step in r.steps]
    of_eager = [replace(step, sending_seconds=0.0) if step.is_compiled else step for step in r.steps]
    neither = [replace(step, sending_seconds=0.0, bubble=0.0) for step in r.steps]
    counts = {
        "all that tensor parallelism sends, and the bubble": r.steps,
        "what it sends and does not overlap by design, and the bubble": of_eager,
        "all that it sends, no bubble": without_bubble,
        "neither": neither,
    }
    is_compiled = np.array([step.is_compiled for step in r.steps])
    is_sharded = np.array([step.gpus > 1 for step in r.steps])
    is_divided = np.array([step.is_divided for step in r.steps])
    for name, steps in counts.items():
        error, _ = engine.misses(steps, r.public)
        row = [name]
        for mask in (is_sharded & ~is_divided, is_divided):
            row += [f"{rms(error[mask]):.2f}", f"{error[mask].mean():+.2f}"]
        yield (*row, f"{rms(error[is_divided & is_compiled]):.2f}")


def top_1(r: Results) -> Iterator[Part]:
    """List the seconds of steps of `train.py` with top-1 experts over those of the dense model of that width."""
    yield "step over that of the dense model", "measured", "predicted, each model left out", "by public runs"
    error, _ = r.engine_misses
    cases: dict[tuple[str, str, bool], FloatArray] = {}
    for step, miss in zip(r.steps, error, strict=True):
        if step.group == engine.OURS:
            d_model, experts = step.model.split(", ")
            # The first case of a model is that of the default micro-batch.
            by_public_runs = step.work[: len(TERMS)] @ list(r.public.seconds(step.gpu).values())
            seconds_of_case = np.array([step.seconds, step.seconds * np.exp(miss), by_public_runs])
            cases.setdefault((d_model, experts, step.is_compiled), seconds_of_case)
    for (d_model, experts, is_compiled), seconds_of_step in cases.items():
        if experts == "1":
            continue
        compilation = "compiled" if is_compiled else "eager"
        ratios = seconds_of_step / cases[d_model, "1", is_compiled]
        yield (f"E = {experts}, d_model {d_model}, {compilation}", *[f"{ratio:.2f}" for ratio in ratios])


def engine_rates(r: Results) -> Iterator[Part]:
    """List the rates of the engine that `train.py` is."""
    parameters, _ = engine.fit(r.steps, r.public)
    rate = dict(zip(engine.NAMES, np.exp(parameters), strict=True))
    yield "seconds of", "rate"
    yield "FLOPs", f"{rate['flops']:.2f} / peak"
    yield "FLOPs of models with experts, besides", f"{rate['routed_flops']:.2f} / peak"
    yield (
        "elements between operations",
        f"{rate['activations']:.0f} bytes each, {rate['eager']:.2f} times that eagerly",
    )
    yield "elements sent to experts", f"{rate['routing']:.0f} bytes each"
    yield (
        "parameters, for every micro-batch and for every step",
        f"{rate['weights']:.0f} and {rate['update']:.0f} bytes",
    )
    yield (
        "passes through a block",
        f"{1e6 * rate['blocks']:.0f} µs, {1e6 * rate['blocks'] * rate['eager_blocks']:.0f} eagerly",
    )
    yield "a step", f"{1e3 * rate['steps']:.0f} ms"
    yield "a step of several GPUs", f"× {rate['sharded']:.2f}"


def engine_steps(r: Results) -> Iterator[Part]:
    """List every step of PyTorch's engine with its error."""
    yield (
        "name",
        "engine",
        "gpus",
        "precision",
        "recomputed",
        "compiled",
        "seconds",
        "predicted_over_measured",
        "source",
    )
    for step, error in zip(r.steps, r.engine_misses[0], strict=True):
        yield (
            step.name,
            step.group,
            step.gpus,
            step.precision,
            step.recomputed,
            step.is_compiled,
            f"{step.seconds:.5g}",
            f"{np.exp(error):.3f}",
            step.source,
        )


def hours(r: Results) -> Iterator[Part]:
    """List every row with its error."""
    yield "name", "lab", "group", "gpu", "gpus", "precision", "tokens_per_second", "predicted_over_published", "source"
    for row, error in zip(r.rows, r.misses[0], strict=True):
        yield (
            row.name,
            row.lab,
            row.group,
            row.gpu,
            row.gpus,
            row.precision,
            row.tokens_per_second,
            f"{np.exp(error):.3f}",
            row.source,
        )


def hours_predicted(r: Results) -> Any:
    """Draw tokens/s per GPU predicted by the other labs' runs against those published, whole runs apart."""
    axes = drawing.panels_or_new(None, 2, 9.6, 4.8, sharex=True, sharey=True)
    published = 1.0 / seconds(r.rows)
    predicted = np.exp(-r.misses[0]) / seconds(r.rows)
    limits = np.array([published.min() / 1.5, published.max() * 1.5])
    for ax, title in zip(axes, ("steady state", "whole runs"), strict=True):
        for model, colour in COLOURS.items():
            is_drawn = np.array([row.group.startswith(model) and row.group.endswith(title) for row in r.rows])
            style = {"color": colour, "markersize": 4, "alpha": 0.7}
            ax.plot(published[is_drawn], predicted[is_drawn], "o", label=model, **style)
        ax.plot(limits, limits, color="0.4", linewidth=0.9, zorder=0)
        ax.set_title(title, fontsize=10)
        drawing.log_axis(ax, "published tokens/s of a GPU")
        drawing.log_axis(ax, "", "y")
        ax.set(xlim=limits, ylim=limits)
    axes[0].set_ylabel("predicted, its lab left out")
    drawing.shared_legend(axes[0])
    return axes


PAGE = Page(
    lambda: Results(read(RUNS)),
    blocks=(errors, trials, rates, engine_errors, engine_trials, top_1, engine_rates),
    tables=(hours, engine_steps),
    figures=(hours_predicted,),
)
