"""Plan a run from an answer: architecture, schedule, learning rate, cost, and the YAML that `train.py` takes.

The schedule is the paper's (`size.recipe.PAPER`); shorter runs branch off the same trunk.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import numpy as np
from typing_extensions import Unpack

from hub.base.errors import InputError, given
from hub.base.fields import Field, field, reads
from hub.base.tables import Table
from hub.base.types import Fields, Strings
from hub.base.units import (
    UNKNOWN,
    bracket_interval,
    format_bytes,
    format_count,
    format_ends,
    format_flops,
    format_rough,
)
from scaling_law.answer.answer import Answer
from scaling_law.formulas import Formula
from scaling_law.formulas.law import percentile_interval
from scaling_law.machine.layout import TRAIN_PY, Placement
from scaling_law.planning.budget import Budget, Cluster
from scaling_law.planning.launch import launch_line
from scaling_law.planning.limits import Limits, of_law
from scaling_law.planning.optimal import optimal
from scaling_law.planning.optimal_table import EVIDENCE, OptimalRow, OptimalTable
from scaling_law.planning.optimum import BestModels, drawn_losses
from scaling_law.planning.question import (
    Branches,
    BudgetFlops,
    DecodeBatch,
    Force,
    QuestionFields,
    RateLaw,
    SeveralExperts,
)
from scaling_law.rates.batch import GIVEN, OF_PAPER, cite
from scaling_law.rates.law import source_of_rate
from scaling_law.size.architecture import (
    ADAM_BYTES,
    GRADIENT_BYTES,
    VOCAB_SIZE,
    Architecture,
    name_size,
)
from scaling_law.size.arrays import Interval
from scaling_law.size.model_sections import model_section
from scaling_law.size.recipe import PAPER, BatchRamp, RampStage

# GPUs whose hours a plan says where none are named: as few as hold the model.
USUAL_GPU = "h100"
FEWEST_GPUS = 8
MOST_GPUS = 8192
# Sequences of a micro-batch of train.py, where nothing says more.
MICRO_BATCH = 32
# Fields of the learning rate; a row of `optimal` has all but the regret.
OF_RATE = (
    "learning_rate",
    "learning_rate_law",
    "learning_rate_batch",
    "learning_rate_regret",
    "learning_rate_interval",
)
# Share of a short run that warm-up may take.
WARMUP_SHARE = 0.1


@dataclass(frozen=True, eq=False, repr=False)
class Plan(Answer):
    """A run to launch. Tokens, FLOPs, bytes, hours.

    `branches` are the token counts of the trunk's decay branches, the longest (`tokens`) last. `loss` (nats per token)
    and `training_flops` are of that run alone; `total_*`, `gpu_hours` and `time` count the decay of every branch.
    `time` is that of the GPUs named, and `placement` how the run is laid out on them; without any, `gpu_hours` are
    those of as many H100s as hold it. Intervals hold 95 %: that of the loss is `optimal`'s, of law and step times
    where the budget is one of hours or money; that of GPU-hours is of the step times. `batch_source`: "given",
    "paper", or the published law of the batch. `learning_rate` is None where the run is too far from those of its
    law: then there is no configuration.
    """

    architecture: Architecture
    model: Fields = dataclasses.field(repr=False)
    routed_experts: int | None = dataclasses.field(repr=False)
    tokens: int
    branches: tuple[int, ...]
    steps: int
    sequence_length: int
    batch_ramp: tuple[RampStage, ...]
    warmup_tokens: int
    decay_tokens: int
    learning_rate: float | None
    learning_rate_law: str
    learning_rate_batch: int | None
    learning_rate_regret: float | None
    learning_rate_interval: Interval | None
    loss: float
    loss_interval: Interval | None
    training_flops: float
    total_tokens: int
    total_flops: float
    weight_bytes: float
    optimizer_bytes: float
    gradient_bytes: float
    kv_cache_bytes: float
    gpu_hours: float
    gpu_hours_interval: Interval | None
    gpus: int
    gpu: str
    time: Budget | None = None
    placement: Placement | None = None
    batch_source: str = OF_PAPER
    # Of the budget, where tokens are served.
    serving_share: float | None = None

    @property
    def warnings(self) -> Strings:
        return self.notes

    @property
    def trusted(self) -> bool:
        """Whether the loss is trusted, and there is a learning rate."""
        return super().trusted and self.learning_rate is not None

    @property
    def rate_source(self) -> str:
        """The law of the learning rate and the batch that it is for, in words."""
        if self.learning_rate_law == GIVEN:
            return GIVEN
        return source_of_rate(self.learning_rate_law, [self.learning_rate_batch])

    @property
    def verdict(self) -> str:
        a = self.architecture
        cost = f"{format_count(self.tokens)} tokens in {self._describe_hours()}"
        size = name_size(a.experts_equivalent, a.n_active, a.n_total, self.routed_experts)
        text = f"{size}, {cost}: loss {self.loss:.3f}"
        text += bracket_interval(self.loss_interval)
        if self.learning_rate is None:
            text += "; no learning rate"
        if not super().trusted:
            text += "; not trusted"
        return text

    def facts(self) -> Fields:
        return {
            **super().facts(),
            "n_active": self.architecture.n_active,
            "n_total": self.architecture.n_total,
            "bottleneck": self.placement and self.placement.bottleneck,
            "configuration": None if self.learning_rate is None else self.configuration(),
            "launch": self.launch(),
        }

    def configuration(self, sweep: str = "run") -> dict[str, Fields]:
        """Return the sections of `train.py`'s YAML; everything left out has the paper's value there by default.

        The model is ours, or of the class of transformers that has the architecture (`model_section`). ValueError
        without a learning rate.
        """
        if self.learning_rate is None:
            raise InputError("learning_rate=None must be given: the run is too far outside the runs of its law")
        a = self.architecture
        experts = f"E{a.experts_equivalent:g}" if self.routed_experts is None else f"{a.experts}experts"
        run: Fields = {"output_dir": f"runs/{sweep}-d{a.d_model}-{experts}", "sweep": sweep}
        if self.placement is not None:
            run["micro_batch_sequences"] = self.placement.micro_batch_sequences
            run["gradient_checkpointing"] = self.placement.gradient_checkpointing
            if self.placement.ep > 1:
                run["expert_parallel"] = self.placement.ep
        # A micro-batch divides every batch.
        micro_batch = math.gcd(MICRO_BATCH, *(stage.sequences for stage in self.batch_ramp))
        if self.placement is None and micro_batch < MICRO_BATCH:
            run["micro_batch_sequences"] = micro_batch
        return {
            "run": run,
            "model": self.model,
            "data": {"sequence_length": self.sequence_length},
            "schedule": {
                "tokens": list(self.branches),
                "warmup_tokens": self.warmup_tokens,
                "decay_fraction": PAPER.decay_fraction,
                "batch_ramp": [f"{stage.from_tokens}:{stage.sequences}" for stage in self.batch_ramp],
            },
            "optimizer": {"learning_rate": self.learning_rate},
        }

    def launch(self, config: str = "run.yaml") -> str:
        """Return the line that starts the run of this file (`to_yaml`) in its layout (`planning.launch`)."""
        return launch_line(config, self.placement, None if self.time is None else self.time.cluster)

    def to_yaml(self, sweep: str = "run") -> str:
        """Write the file for `train.py --config FILE`, with a comment that says where it came from."""
        import yaml

        comment = (
            f"# {self.architecture.n_active:,} active of {self.architecture.n_total:,} parameters, "
            f"{format_flops(self.training_flops)} training FLOPs, predicted loss {self.loss:.4f} nats per token\n"
            f"# learning rate: {self.rate_source}\n"
        )
        return comment + yaml.safe_dump(self.configuration(sweep), sort_keys=False)

    def summary(self) -> Table:
        return Table((), list(self._facts_in_words().items()), title=self.verdict, warnings=self.warnings)

    def _facts_in_words(self) -> dict[str, str]:
        """Return what is printed: a name and a text for each line."""
        a = self.architecture
        lines = {
            "architecture": f"d_model {a.d_model}, {a.blocks} blocks, {a.heads} heads, E = {a.experts_equivalent:.5g}"
        }
        if "type" in self.model:
            lines["class"] = f"{self.model['type']}, {describe_experts(a)}"
        lines["parameters"] = f"{format_count(a.n_active)} active, {format_count(a.n_total)} in total"
        per_parameter = self.tokens / a.n_active
        lines["tokens"] = f"{self.tokens:,} in {self.steps:,} steps ({per_parameter:.1f} per active parameter)"
        lines["branches"] = ", ".join(format_count(tokens) for tokens in self.branches)
        lines["batch"] = self._describe_batch()
        lines["warm-up, decay"] = f"{format_count(self.warmup_tokens)}, {format_count(self.decay_tokens)} tokens"
        lines["peak learning rate"] = self._describe_rate()
        lines["training"] = f"{format_flops(self.training_flops)} FLOPs"
        if len(self.branches) > 1:
            all_branches = f"{format_flops(self.total_flops)} FLOPs with all branches"
            lines["training"] = f"{all_branches}, {lines['training']} of the longest run"
        if self.serving_share:
            lines["budget"] = f"{1 - self.serving_share:.0%} training, {self.serving_share:.0%} serving"
        gpus = self.time or f"of {self.gpus} × {self.gpu} (assumed; --gpu and --gpus name others)"
        lines["time"] = f"{self._describe_hours()}{':' if self.time else ''} {gpus}"
        lines["memory"] = self._describe_memory()
        if self.placement is not None and self.time is not None and self.time.cluster is not None:
            lines["memory in training"] = str(self.placement)
            if self.time.cluster.throughput.is_assumed:
                lines["limited by"] = self.placement.advice
        interval = "" if self.loss_interval is None else " ({}…{})".format(*format_ends(*self.loss_interval))
        lines["predicted loss"] = f"{self.loss:.4f}{interval} nats per token"
        return lines

    def _describe_batch(self) -> str:
        first, *later = self.batch_ramp
        ramp = f"{first.sequences:,}"
        for stage in later:
            ramp += f", from {format_count(stage.from_tokens)} tokens on {stage.sequences:,}"
        return f"{ramp} sequences of {self.sequence_length:,} tokens ({cite(self.batch_source)})"

    def _describe_rate(self) -> str:
        rate = UNKNOWN if self.learning_rate is None else f"{self.learning_rate:.3g}"
        if self.learning_rate_interval is not None:
            rate += ", {:.2g}…{:.2g}".format(*self.learning_rate_interval)
        if self.learning_rate_regret is None:
            return f"{rate} ({self.rate_source})"
        return f"{rate} ({self.rate_source}; expected to cost {self.learning_rate_regret:.4f} nats)"

    def _describe_hours(self) -> str:
        text = f"{_format_hours(self.gpu_hours)} GPU-hours"
        if self.gpu_hours_interval is not None:
            text += " ({} to {})".format(*map(format_rough, self.gpu_hours_interval))
        return text

    def _describe_memory(self) -> str:
        memory = {
            "weights (bf16)": self.weight_bytes,
            "AdamW (fp32)": self.optimizer_bytes,
            "gradients (fp32)": self.gradient_bytes,
            "KV cache": self.kv_cache_bytes,
        }
        return ", ".join(f"{name} {format_bytes(size)}" for name, size in memory.items() if size)


@reads
def plan(
    law: Formula,
    flops: BudgetFlops = None,
    experts: SeveralExperts = None,
    *,
    branches: Branches = 1,
    decode_batch: DecodeBatch = None,
    learning_rate: Annotated[
        float | None, Field(gt=0), field("Peak learning rate. [default: by --learning-rate-law]", rare=True)
    ] = None,
    learning_rate_law: RateLaw = None,
    force: Force = False,
    **question: Unpack[QuestionFields],
) -> Plan:
    """Plan the run of the best architecture that exists for a budget.

    Budget, experts and limits are as in `law.optimal`, `granularity` and `shared_ratio` too. `branches` is how many
    measurements the trunk gives: the full run, half of it, a quarter, … Without `gpus` and a `gpu` or `throughput`,
    which go with flops, too, GPU-hours are those of compute on H100s. A budget of hours or money is that of the full
    run alone. A model that does not fit those GPUs is replaced by the widest of its E that does, or by another E, with
    a warning. `learning_rate` overrides the law's, and is needed for a run that is too far from those of the law.
    Errors as `optimal`, and ValueError where no model can be trained.
    """
    if question.get("engine") not in (None, TRAIN_PY):
        raise InputError(given("engine", question["engine"]), f": a plan is a run of {TRAIN_PY}")
    options: Fields = {**question, "integral": True, "force": force, "learning_rate_law": learning_rate_law}
    options["decode_batch"] = decode_batch
    table = optimal(law, flops, experts, **options)
    cluster = table.budget.cluster or table.cluster
    passed_over: Strings = ()
    if cluster is not None:
        table, passed_over = _find_trainable(table, cluster, partial(optimal, law, flops, **options))
    row = table.best
    architecture = row.architecture
    # Integral rows have one.
    assert architecture is not None

    section = model_section(architecture)
    if table.limits.like:
        section = table.limits.like.model_section(row.d_model, row.experts)
    ramp = table.ramp
    cluster = None if cluster is None else cluster.with_ramp(ramp)
    schedule = _schedule(ramp, row.tokens, branches)
    tokens = schedule["tokens"]
    total_tokens = schedule["total_tokens"]
    variables = of_law(law, {**architecture.variables(), "tokens": float(tokens)})
    gpus = cluster or _usual_cluster(architecture, ramp)
    seconds = float(gpus.seconds(architecture, float(total_tokens)))
    drawn_hours = None
    if gpus.throughput.draws is not None:
        drawn_hours = gpus.gpus * gpus.seconds(architecture, float(total_tokens), drawn=True) / 3600.0
    # Within hours draws are of the tokens that the drawn step times allow.
    model = BestModels(row.d_model, row.loss, variables).take(np.atleast_1d)
    most_tokens = row.tokens if row.limited_by == EVIDENCE else np.inf
    drawn_loss = drawn_losses(law, table.budget, model, table.limits, most_tokens)
    warnings = list(passed_over)
    if tokens > row.tokens:
        warnings.append(f"one step takes {tokens:,} tokens, more than the {row.tokens:,.0f} of the budget")
    warnings += table.loss_warnings
    if learning_rate is None:
        warnings += row.learning_rate_warnings
    if cluster is not None:
        warnings = list(dict.fromkeys([*warnings, *cluster.warnings(architecture, float(tokens))]))
    return Plan(
        columns={
            "tokens": list(schedule["branches"]),
            "training_flops": list(map(architecture.training_flops, schedule["branches"])),
        },
        architecture=architecture,
        model=section,
        routed_experts=row.routed_experts,
        batch_source=table.batch_source,
        **schedule,
        **_read_rate(row, learning_rate),
        loss=float(table.limits.loss(law, law.columns, variables)),
        loss_interval=None if drawn_loss is None else percentile_interval(drawn_loss[:, 0]),
        training_flops=architecture.training_flops(tokens),
        total_flops=architecture.training_flops(total_tokens),
        weight_bytes=row.weight_bytes,
        optimizer_bytes=ADAM_BYTES * architecture.n_total,
        gradient_bytes=GRADIENT_BYTES * architecture.n_total,
        kv_cache_bytes=row.kv_cache_bytes,
        gpu_hours=gpus.gpus * seconds / 3600.0,
        gpu_hours_interval=None if drawn_hours is None else percentile_interval(drawn_hours),
        serving_share=row.serving_share,
        gpus=gpus.gpus,
        gpu=gpus.throughput.device,
        notes=(*warnings, *_explain_differences(table.limits, architecture)),
        time=None if cluster is None else Budget(None, seconds / 3600.0, cluster),
        placement=None if cluster is None else cluster.place(architecture),
        check=table.limits.check(law, variables),
    )


def _schedule(ramp: BatchRamp, budgeted: float, count: int) -> Fields:
    """Plan a trunk of about so many tokens in whole steps, with up to `count` branches, each half as long as the next.

    Returns the fields of `Plan` that say so.
    """
    steps = max(1, ramp.steps(budgeted))
    tokens = ramp.tokens(steps)
    warmup_tokens = int(min(PAPER.warmup_tokens, WARMUP_SHARE * tokens))
    halves = [ramp.tokens(max(1, ramp.steps(tokens / 2**k))) for k in range(count - 1, 0, -1)]
    # A branch that decays before the end of the warm-up measures nothing.
    shorter = [length for length in dict.fromkeys(halves) if length * (1 - PAPER.decay_fraction) > warmup_tokens]
    return {
        "tokens": tokens,
        "branches": (*shorter, tokens),
        "steps": steps,
        "sequence_length": ramp.sequence_length,
        "batch_ramp": ramp.stages,
        "warmup_tokens": warmup_tokens,
        "decay_tokens": _decay_tokens(ramp, tokens),
        "total_tokens": tokens + sum(_decay_tokens(ramp, length) for length in shorter),
    }


def _read_rate(row: OptimalRow, learning_rate: float | None) -> Fields:
    """Return the fields of the learning rate: the given one, or that of the row's law."""
    if learning_rate is not None:
        return {**dict.fromkeys(OF_RATE), "learning_rate": learning_rate, "learning_rate_law": GIVEN}
    rate = {name: row.get(name) for name in OF_RATE}
    if row.learning_rate is not None:
        rate["learning_rate_regret"] = row.learning_rate_from.regret
    return rate


def _explain_differences(limits: Limits, architecture: Architecture) -> Iterator[str]:
    """Say where the configuration differs from what the answer counts."""
    if limits.kv_heads_ratio != 1:
        share = f"{limits.kv_heads_ratio:g}"
        yield f"the KV cache counts keys and values of {share} of the heads; the configuration has those of all"
    # The default tokenizer of train.py is GPT-2's.
    if architecture.vocab_size != VOCAB_SIZE:
        size = f"{architecture.vocab_size:,}"
        yield f"sizes count a vocabulary of {size}: give train.py a tokenizer of that size (--data.tokenizer)"


def _usual_cluster(architecture: Architecture, ramp: BatchRamp) -> Cluster:
    """Return as few of the usual GPUs as share the batches and hold the model.

    Where none hold it, the most of them, with endless memory.
    """
    shared = math.gcd(*(stage.sequences for stage in ramp.stages))
    cluster = Cluster.of({"batch": ramp}, gpus=math.gcd(FEWEST_GPUS, shared), gpu=USUAL_GPU)
    while not cluster.fits(architecture):
        gpus = 2 * cluster.gpus
        if shared % gpus or gpus > MOST_GPUS:
            return replace(cluster, throughput=replace(cluster.throughput, memory_bytes=None))
        cluster = replace(cluster, gpus=gpus)
    return cluster


def _find_trainable(
    table: OptimalTable, cluster: Cluster, ask: Callable[..., OptimalTable]
) -> tuple[OptimalTable, Strings]:
    """Find the table whose best row is the best model that the GPUs can train, and say what was passed over for it.

    A row that does not fit stands for the widest model of its E that does. Errors as of `place`.
    """
    if _widest_that_fits(table.best, table, cluster) == table.best.d_model:
        return table, ()
    tables: list[OptimalTable] = []
    passed_over: list[str] = []
    for row in sorted(table.compared, key=lambda row: row.loss):
        if tables and min(other.best.loss for other in tables) <= row.loss:
            break
        width = _widest_that_fits(row, table, cluster)
        if width:
            # More than this width has, so that rounding does not exclude it, and less than the next.
            _, next_width = table.limits.ladder.beside(np.array(width))
            sizes = table.limits.widths([width, float(next_width)], row.experts).n_total
            experts = [float(table.limits.to_question(row.experts))]
            tables.append(ask(experts=experts, max_parameters=float(np.mean(sizes))))
        if width == row.d_model:
            break
        size = f"d_model {row.d_model:g}, {format_count(row.n_total)} parameters, loss {row.loss:.4f}"
        passed_over.append(
            f"E = {row.experts:.5g} at its best size ({size}) takes more memory than {cluster.hardware} have"
        )
    if not tables:
        # This raises an error that says what is missing.
        architecture = table.limits.architecture(table.best.d_model, table.best.experts)
        cluster.of_run(architecture, table.best.tokens).place(architecture)
    return min(tables, key=lambda other: other.best.loss), tuple(passed_over)


def _widest_that_fits(row: OptimalRow, table: OptimalTable, cluster: Cluster) -> float:
    """Return the width of the row's model, or the next below that fits; 0 where none does."""
    widths = table.limits.ladder.rungs(row.d_model)[::-1]
    tokens = table.budget.models(table.formula, widths, row.experts, table.limits)["tokens"]
    fits = cluster.fits_run(table.limits.widths(widths, row.experts), tokens)
    return float(widths[np.argmax(fits)]) if fits.any() else 0.0


def _format_hours(hours: float) -> str:
    if hours >= 1000:
        return f"{hours:,.0f}"
    return f"{hours:.1f}" if hours >= 1 else f"{hours:.2g}"


def _decay_tokens(ramp: BatchRamp, tokens: int) -> int:
    """Count the tokens of the decay of a run: whole steps, as the training loop branches off."""
    last_step = max(ramp.steps(tokens) - 1, 0)
    decay_step = min(ramp.steps(tokens * (1 - PAPER.decay_fraction)), last_step)
    return tokens - ramp.tokens(decay_step)


def describe_experts(a: Architecture) -> str:
    """Describe the feed-forward in words."""
    if a.experts == 1:
        return f"dense, feed-forward width {a.d_expert:,}"
    text = f"{a.experts_per_token} of {a.experts} per token, each {a.d_expert:,} wide"
    if a.shared_experts:
        text += f"; {a.shared_experts} shared, {a.d_shared:,} wide"
    if a.dense_blocks:
        plural = "s" if a.dense_blocks > 1 else ""
        text += f"; {a.dense_blocks} dense block{plural}, {a.d_ff:,} wide"
    return f"{text}; granularity {a.granularity:.3g}"
