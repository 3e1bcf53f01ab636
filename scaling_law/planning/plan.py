"""Plan a run from an answer: architecture, schedule, learning rate, cost, and the YAML that `train.py` takes.

The schedule is the paper's (`size.recipe.PAPER`); shorter runs branch off the same trunk.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from hub.base.errors import InputError, given
from hub.base.inputs import reads
from hub.base.tables import Table
from hub.base.units import UNKNOWN, format_bytes, format_count, format_flops
from scaling_law.formulas import Formula
from scaling_law.formulas.answers import Answer
from scaling_law.formulas.law import percentile_interval, positive
from scaling_law.formulas.learning_rate import LearningRateLaw, source_of_rate
from scaling_law.machine.layout import TRAIN_PY, DoesNotFit, Placement
from scaling_law.planning.budget import Budget, Cluster
from scaling_law.planning.launch import launch_line
from scaling_law.planning.limits import of_law
from scaling_law.planning.optimal import optimal
from scaling_law.planning.optimal_table import OptimalRow, OptimalTable
from scaling_law.planning.question import ClusterFields, Quantity, QuestionFields, pick
from scaling_law.size.architecture import (
    ADAM_BYTES,
    GRADIENT_BYTES,
    HEAD_DIM,
    VOCAB_SIZE,
    Architecture,
    total_parameters,
)
from scaling_law.size.model_sections import model_section
from scaling_law.size.recipe import PAPER, BatchRamp, RampStage

if TYPE_CHECKING:
    from typing_extensions import Unpack

USUAL, FEWEST, MOST = "h100", 8, 8192  # GPUs whose hours are told where none are named: as few as hold the model
GIVEN = "given"  # the law of a learning rate that the user chose
# Share of a short run that warm-up may take.
WARMUP_SHARE = 0.1


@dataclass(frozen=True)
class Plan(Answer):
    """A run to launch. Tokens, FLOPs, bytes, hours.

    `branches` are the token counts of the trunk's decay branches, the longest (`tokens`) last. `loss` (nats per token)
    and `training_flops` are of that run alone; `total_*`, `gpu_hours` and `time` count the decay of every branch.
    `time` is that of the GPUs named, and `placement` how the run is laid out on them; without any, `gpu_hours` are
    those of as many H100s as hold it. Intervals hold 95 %.
    `learning_rate` is None where the run is too far from those of its law: then there is no configuration.
    """

    architecture: Architecture
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
    learning_rate_interval: tuple[float, float] | None
    loss: float
    loss_interval: tuple[float, float] | None
    training_flops: float
    total_tokens: int
    total_flops: float
    weight_bytes: float
    optimizer_bytes: float
    gradient_bytes: float
    kv_cache_bytes: float
    gpu_hours: float
    gpus: int
    gpu: str
    time: Budget | None = None
    placement: Placement | None = None

    @property
    def rows(self) -> tuple[dict[str, Any], ...]:
        """The measurements of the trunk, the shortest first."""
        return tuple({"tokens": t, "training_flops": self.architecture.training_flops(t)} for t in self.branches)

    @property
    def warnings(self) -> tuple[str, ...]:
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
        a, interval = self.architecture, self.loss_interval
        size = f"E = {a.experts_equivalent:g} of" if a.experts > 1 else "dense,"
        tokens, hours = format_count(self.tokens), _hours(self.gpu_hours)
        text = (
            f"{size} {format_count(a.n_total)} parameters, {tokens} tokens in {hours} GPU-hours: loss {self.loss:.3f}"
        )
        text += "" if interval is None else " ({:.3f} to {:.3f})".format(*interval)
        if self.learning_rate is None:
            text += "; no learning rate"
        return text if super().trusted else f"{text}; not trusted"

    def facts(self) -> dict[str, Any]:
        sizes = {name: getattr(self.architecture, name) for name in ("n_active", "n_total")}
        configuration = None if self.learning_rate is None else self.configuration()
        return super().facts() | sizes | {"configuration": configuration, "launch": self.launch()}

    def configuration(self, sweep: str = "run") -> dict[str, dict[str, Any]]:
        """The sections of `train.py`'s YAML; everything left out has the paper's value there by default.

        The model is ours, or of a class of transformers that has the architecture (`size.model_sections`). ValueError
        without a learning rate.
        """
        if self.learning_rate is None:
            raise InputError("learning_rate=None must be given: the run is too far outside the runs of its law")
        a = self.architecture
        run: dict[str, Any] = {"output_dir": f"runs/{sweep}-d{a.d_model}-E{a.experts_equivalent:g}", "sweep": sweep}
        if self.placement is not None:
            run["micro_batch_sequences"] = self.placement.micro_batch_sequences
            run["gradient_checkpointing"] = self.placement.gradient_checkpointing
            run |= {"expert_parallel": self.placement.ep} if self.placement.ep > 1 else {}
        return {
            "run": run,
            "model": model_section(a),
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
        """The line that starts the run of this file (`to_yaml`) in its layout (`planning.launch`)."""
        return launch_line(config, self.placement, None if self.time is None else self.time.cluster)

    def to_yaml(self, sweep: str = "run") -> str:
        """The file for `train.py --config FILE`, with a comment that says where it came from."""
        import yaml

        head = f"# {self.architecture.n_active:,} active of {self.architecture.n_total:,} parameters, "
        head += f"{self.training_flops:.3g} training FLOPs, predicted loss {self.loss:.4f} nats per token\n"
        head += f"# learning rate: {self.rate_source}\n"
        return head + yaml.safe_dump(self.configuration(sweep), sort_keys=False)

    def summary(self) -> Table:
        a = self.architecture
        interval = "" if self.loss_interval is None else " ({:.4f}…{:.4f})".format(*self.loss_interval)
        rates = "" if (ends := self.learning_rate_interval) is None else ", {:.2g}…{:.2g}".format(*ends)
        ramp = ", ".join(f"{stage.sequences} from {format_count(stage.from_tokens)}" for stage in self.batch_ramp)
        memory = {"weights (bf16)": self.weight_bytes, "AdamW (fp32)": self.optimizer_bytes}
        memory |= {"gradients (fp32)": self.gradient_bytes, "KV cache": self.kv_cache_bytes}
        placed, cluster = dict[str, str](), None if self.time is None else self.time.cluster
        if self.placement is not None and cluster is not None:
            placed["memory in training"] = str(self.placement)
            placed |= {"limited by": self.placement.advice} if cluster.throughput.is_assumed else {}
        training = f"{format_flops(self.training_flops)} FLOPs"
        if len(self.branches) > 1:
            training = f"{format_flops(self.total_flops)} FLOPs with all branches, {training} of the longest run"
        hours = f"{self.gpus} × {self.gpu} (assumed; --gpu and --gpus name others)"
        hours = f"{_hours(self.gpu_hours)} GPU-hours{f' of {hours}' if self.time is None else f': {self.time}'}"
        regret, per_parameter = self.learning_rate_regret, self.tokens / a.n_active
        source = self.rate_source if regret is None else f"{self.rate_source}; expected to cost {regret:.4f} nats"
        rate = UNKNOWN if self.learning_rate is None else f"{self.learning_rate:.3g}"
        lines = {
            "architecture": f"d_model {a.d_model}, {a.blocks} blocks, {a.heads} heads, E = {a.experts_equivalent:g}",
            **({"class": f"{model}, {experts_of(a)}"} if (model := model_section(a).get("type")) else {}),
            "parameters": f"{format_count(a.n_active)} active, {format_count(a.n_total)} in total",
            "tokens": f"{self.tokens:,} in {self.steps:,} steps ({per_parameter:.1f} per active parameter)",
            "branches": ", ".join(format_count(tokens) for tokens in self.branches),
            "batch": f"{ramp} tokens on, of {self.sequence_length} tokens each",
            "warm-up, decay": f"{format_count(self.warmup_tokens)}, {format_count(self.decay_tokens)} tokens",
            "peak learning rate": f"{rate}{rates} ({source})",
            "training": training,
            "time": hours,
            "memory": ", ".join(f"{name} {format_bytes(value)}" for name, value in memory.items() if value),
            **placed,
            "predicted loss": f"{self.loss:.4f}{interval} nats per token",
        }
        return Table((), list(lines.items()), title=self.verdict, warnings=self.warnings)


@reads
def plan(
    law: Formula,
    flops: Quantity | None = None,
    experts: ArrayLike | None = None,
    *,
    branches: int = 1,
    sequence_length: int = PAPER.sequence_length,
    batch_ramp: Sequence[RampStage] = PAPER.batch_ramp,
    learning_rate: float | None = None,
    learning_rate_law: LearningRateLaw | str | None = None,
    force: bool = False,
    **question: Unpack[QuestionFields],
) -> Plan:
    """The run of the best architecture that exists for a budget; budget, experts and limits as in `law.optimal`,
    `granularity` and `shared_ratio` too.

    `branches` is how many measurements the trunk gives: the full run, half of it, a quarter, … Without `gpus` and
    a `gpu` or `throughput`, which go with flops, too, GPU-hours are those of compute on H100s. A budget of hours
    or money is that of the full run alone. A model that does not fit those GPUs is replaced by the widest of its E
    that does, or by another E, with a warning. `learning_rate` overrides the law's, and is needed for a run that is
    too far from those of the law. Errors as `optimal`, and ValueError where no model can be trained.
    """
    given_rate = None if learning_rate is None else float(positive("learning_rate", learning_rate))
    if not (isinstance(branches, int) and 1 <= branches <= 20):
        raise InputError(f"branches={branches!r} must be a whole number from 1 to 20")
    if question.get("engine") not in (None, TRAIN_PY):
        raise InputError(given("engine", question["engine"]), f": a plan is a run of {TRAIN_PY}")
    timed = any(question.get(name) is not None for name in ("gpu", "throughput", "mfu"))
    cluster = Cluster.of(batch_ramp, sequence_length, **pick(ClusterFields, question)) if timed else None
    ramp = BatchRamp(batch_ramp, sequence_length) if cluster is None else cluster.ramp
    options: dict[str, Any] = {"learning_rate_law": learning_rate_law, "batch_ramp": ramp, "force": force, **question}
    if cluster is not None and flops is not None:
        options = {name: value for name, value in options.items() if name not in ClusterFields.__annotations__}
    ask = partial(optimal, law, flops, integral=True, **options)

    table = ask(experts=experts)
    table, passed_over = (table, ()) if cluster is None else _trainable(table, cluster, ask)
    row = table.best
    architecture = row.architecture
    assert architecture is not None  # integral rows have one
    steps = max(1, ramp.steps(row.tokens))
    tokens = ramp.tokens(steps)
    if tokens > row.tokens:
        passed_over = (
            *passed_over,
            f"one step takes {tokens:,} tokens, more than the {row.tokens:,.0f} of the budget",
        )
    shorter = [ramp.tokens(max(1, ramp.steps(tokens / 2**k))) for k in range(branches - 1, 0, -1)]
    warmup = int(min(PAPER.warmup_tokens, WARMUP_SHARE * tokens))
    measured = (*(t for t in dict.fromkeys(shorter) if t * (1 - PAPER.decay_fraction) > warmup), tokens)
    total = tokens + sum(_decay_tokens(ramp, t) for t in measured[:-1])
    rates = row.learning_rate_from
    # Every answer has rates.
    assert rates is not None
    at = of_law(law, architecture.variables() | {"tokens": float(tokens)})
    loss = partial(table.limits.loss, law, variables=at)
    warnings, told = (*passed_over, *table.loss_warnings), cluster or _usual(architecture, ramp)
    seconds, time, placement = float(told.seconds(architecture, float(total))), None, None
    rate: dict[str, Any] = {
        "learning_rate": row.learning_rate,
        "learning_rate_law": rates.source,
        "learning_rate_batch": row.learning_rate_batch,
        "learning_rate_regret": None if row.learning_rate is None else rates.regret,
        "learning_rate_interval": row.learning_rate_interval,
    }
    if given_rate is None:
        warnings = (*warnings, *row.learning_rate_warnings)
    else:
        rate = dict.fromkeys(rate) | {"learning_rate": given_rate, "learning_rate_law": GIVEN}
    if cluster is not None:
        time, placement = Budget(None, seconds / 3600.0, cluster), cluster.place(architecture)
        warnings = tuple(dict.fromkeys([*warnings, *cluster.warnings(architecture)]))
    if (ratio := table.limits.kv_heads_ratio) != 1:
        note = f"the KV cache counts kv_heads_ratio={ratio:g} of the heads, all of which the configuration has"
        warnings = (*warnings, note)
    if architecture.vocab_size != VOCAB_SIZE:  # train.py's default is GPT-2's tokenizer
        size = f"{architecture.vocab_size:,}"
        note = f"sizes count a vocabulary of {size}: give train.py a tokenizer of that size (--data.tokenizer)"
        warnings = (*warnings, note)
    return Plan(
        architecture=architecture,
        tokens=tokens,
        branches=measured,
        steps=steps,
        sequence_length=sequence_length,
        batch_ramp=ramp.stages,
        warmup_tokens=warmup,
        decay_tokens=_decay_tokens(ramp, tokens),
        **rate,
        loss=float(loss(tuple(law.coefficients.values()))),
        loss_interval=percentile_interval(loss(law.columns_of_draws(0))) if law.draws is not None else None,
        training_flops=architecture.training_flops(tokens),
        total_tokens=total,
        total_flops=architecture.training_flops(total),
        weight_bytes=row.weight_bytes,
        optimizer_bytes=ADAM_BYTES * architecture.n_total,
        gradient_bytes=GRADIENT_BYTES * architecture.n_total,
        kv_cache_bytes=row.kv_cache_bytes,
        gpu_hours=told.gpus * seconds / 3600.0,
        gpus=told.gpus,
        gpu=told.throughput.device,
        notes=warnings,
        time=time,
        placement=placement,
        check=law.check(**at, unique_tokens=table.limits.unique_tokens),
    )


def _usual(architecture: Architecture, ramp: BatchRamp) -> Cluster:
    """As few of the usual GPUs as share the batches and hold the model; the most, of endless memory, if none do."""
    gpus = math.gcd(FEWEST, *(stage.sequences for stage in ramp.stages))
    while gpus <= MOST:
        try:
            Cluster.of(ramp, gpus=gpus, gpu=USUAL).place(architecture)
            return Cluster.of(ramp, gpus=gpus, gpu=USUAL)
        except DoesNotFit:
            gpus *= 2
        # So many GPUs cannot share the batches.
        except InputError:
            break
    most = Cluster.of(ramp, gpus=gpus // 2, gpu=USUAL)
    return replace(most, throughput=replace(most.throughput, memory_bytes=None))


def _trainable(
    table: OptimalTable, cluster: Cluster, ask: Callable[..., OptimalTable]
) -> tuple[OptimalTable, tuple[str, ...]]:
    """The table whose best row is the best model that the GPUs can train, and what was passed over for it.

    A row that does not fit stands for the widest model of its E that does. Errors as of `place`.
    """

    def widest(row: OptimalRow) -> float:
        """The width of the row's model, or the next below that fits; 0 where none does."""
        widths = np.arange(round(row.d_model), 0, -HEAD_DIM, dtype=float)
        fits = cluster.fits(table.limits.widths(widths, row.experts))
        return float(widths[np.argmax(fits)]) if fits.any() else 0.0

    if widest(table.best) == table.best.d_model:
        return table, ()
    tables, passed_over = list[OptimalTable](), list[str]()
    for row in sorted(table.compared, key=lambda row: row.loss):
        if tables and min(other.best.loss for other in tables) <= row.loss:
            break
        if (width := widest(row)) == row.d_model:
            tables.append(ask(experts=[row.experts]))
            break
        size = f"d_model {row.d_model:g}, {format_count(row.n_total)} parameters, loss {row.loss:.4f}"
        passed_over.append(
            f"E = {row.experts:g} at its best size ({size}) takes more memory than {cluster.hardware} have"
        )
        if width:
            most = total_parameters(width + HEAD_DIM / 2, row.experts, vocab_size=table.limits.vocab_size)
            tables.append(ask(experts=[row.experts], max_parameters=float(most)))
    if not tables:  # say what is missing
        cluster.place(table.limits.architecture(table.best.d_model, table.best.experts))
    return min(tables, key=lambda other: other.best.loss), tuple(passed_over)


def _hours(hours: float) -> str:
    return f"{hours:,.1f}" if hours >= 1 else f"{hours:.2g}"


def _decay_tokens(ramp: BatchRamp, tokens: int) -> int:
    """Tokens of the decay of a run of `tokens` tokens: whole steps, as the training loop branches off."""
    end = ramp.steps(tokens)
    return tokens - ramp.tokens(min(ramp.steps(tokens * (1 - PAPER.decay_fraction)), max(end - 1, 0)))


def experts_of(a: Architecture) -> str:
    """The feed-forward, in words."""
    if a.experts == 1:
        return f"dense, feed-forward width {a.d_expert:,}"
    text = f"{a.experts_per_token} of {a.experts} per token, each {a.d_expert:,} wide"
    if a.shared_experts:
        text += f"; {a.shared_experts} shared, {a.d_shared:,} wide"
    dense = f"; {a.dense_blocks} dense blocks, {a.d_ff:,} wide" if a.dense_blocks else ""
    return f"{text}{dense}; granularity {a.granularity:.3g}"
