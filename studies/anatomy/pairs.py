"""Pairs of models with equal N_act and D that differ in one field of their design, and what the second one gained.

A gain is ln of the loss of the first model over that of the second. It does not depend on the unit of the loss, and is
above zero where the second model is better. `pairs.json` holds gains derived from public tables that are not kept; the
other pairs are from the points of `studies/evidence`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import hub  # lazy
from hub.base import atomic, strict_json
from scaling_law import Runs, fit
from studies.common import FloatArray, round_numbers
from studies.evidence.forecasts import as_dense, join_tables, without_embeddings
from studies.evidence.points import Source, read_sources

FOLDER = Path(__file__).parent
EVIDENCE = FOLDER.parent / "evidence"
PAIRS = FOLDER / "pairs.json"
FORMAT = "anatomy_pairs"
VERSION = 1
# Significant digits of every number kept.
DIGITS = 6
# How far beyond the sizes of the dense models their law is asked, a factor.
REACH = 1.25
# Chosen before any law was asked about them: a laboratory of its own, with two kinds of router. Nothing is estimated
# from these two sets.
BLIND = ("Li et al., GShard", "Li et al., SPM")
DEEPMIND, MARIN, STEPFUN, LI = ("DeepMind", "Marin", "StepFun", "Li et al.")
ROUTERS = ("S-Base", "RL-R", "Hash")
# The fields of a design.
EXPERTS, TOP_K, GRANULARITY, SHARED, ROUTED = (
    "experts",
    "experts_per_token",
    "granularity",
    "shared_ratio",
    "routed_share",
)
# What laws ask of a model; NaN where it is not known.
VARIABLES = (
    "n_active",
    "n_active_non_embedding",
    "n_total",
    "n_total_non_embedding",
    "tokens",
    "experts",
    "density",
    "granularity",
    "shared_ratio",
    "experts_per_token",
    "active_experts",
    "routed_experts",
    "d_model",
    "routed_share",
)
Rows = Sequence[Mapping[str, Any]]
Side = Mapping[str, FloatArray]
# The embeddings of Clark et al. and of the paper's law, which stand for those of Li et al., whose tokenizer is unknown.
CLARK_VOCABULARY = 32_000
LAW_VOCABULARY = 50_257
C4 = "eval/ppl//fsx-onellm/data/corpora/text_only/text_eval/c4.jsonl"
TABLES = ("curves.csv.gz", "gshard.csv", "spm.csv", "ablations.csv")


@dataclass(frozen=True)
class Pairs:
    """Pairs of a laboratory that differ in `field`: their gains [n] and the variables of both models, [n] each.

    `twins` are the gains over the dense model of models with experts in every second block, where that differs.
    """

    name: str
    laboratory: str
    field: str
    gains: FloatArray
    before: Side
    after: Side
    twins: FloatArray | None = None
    source: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.gains)

    @property
    def is_blind(self) -> bool:
        """True if these are kept for the check."""
        return self.name in BLIND


def read_pairs() -> list[Pairs]:
    """Read all pairs: those of the points of other studies, then the derived ones."""
    sources = read_sources(EVIDENCE)
    clark = sources["clark"]
    pairs = [_twins_of(f"Clark et al., {router}", DEEPMIND, _clark_runs(clark[router])) for router in ROUTERS]
    pairs.append(_twins_of("Marin", MARIN, _joined(sources["marin_experts"]["experts"])))
    pairs.append(_step_law_pairs(sources["step_law"]))
    return [*pairs, *_derived_pairs()]


def _derived_pairs() -> Iterator[Pairs]:
    for values in strict_json.read(PAIRS, FORMAT, VERSION)["sets"]:
        sides = [_side(values[side]) for side in ("before", "after")]
        gains = np.array(values["gains"])
        twins = np.array(values["twins"]) if "twins" in values else None
        source = {name: values[name] for name in ("derived", "place", "licence")}
        yield Pairs(values["name"], values["laboratory"], values["field"], gains, *sides, twins, source)


def _side(columns: Mapping[str, Any]) -> Side:
    """Return all variables of models, NaN where a variable has no column."""
    known = {name: np.asarray(values, float) for name, values in columns.items()}
    unknown = np.full_like(known["tokens"], np.nan)
    return {name: known.get(name, unknown) for name in VARIABLES}


# ------------------------------------------------------------------ pairs of the points of other studies


def _clark_runs(runs: Runs) -> Runs:
    """Complete the columns of Clark et al.'s runs with one active expert in every second block."""
    embeddings = runs.n_active - runs["n_active_non_embedding"]
    columns = {
        **runs.columns,
        "n_total_non_embedding": runs["n_total"],
        "n_total": runs["n_total"] + embeddings,
        **_top_k(runs.experts, np.ones(len(runs))),
        "routed_share": np.full(len(runs), 0.5),
    }
    return replace(runs, columns=columns)


def _joined(*tables: Runs) -> Runs:
    """Join tables into one with what laws ask for and the width of the models."""
    runs = join_tables(*tables)
    d_model = np.concatenate([table["d_model"] for table in tables])
    return replace(runs, columns={**runs.columns, "d_model": d_model})


def _top_k(routed_experts: Any, experts_per_token: Any) -> dict[str, FloatArray]:
    """Return the variables of models without shared experts whose experts together are as wide as the dense layer."""
    n = np.asarray(routed_experts, float)
    k = np.asarray(experts_per_token, float)
    return {
        "experts": n / k,
        "density": k / n,
        "granularity": k,
        "shared_ratio": np.zeros_like(n),
        "experts_per_token": k,
        "active_experts": k,
        "routed_experts": n,
    }


def _variables(runs: Runs, rows: Any) -> Side:
    """Return the variables of these rows; experts are in every block unless a column says otherwise."""
    columns = {name: values[rows] for name, values in runs.columns.items() if name in VARIABLES}
    columns.setdefault("routed_share", np.ones(len(rows)))
    sizes = {"n_active": runs.n_active[rows], "tokens": runs.tokens[rows], "experts": runs.experts[rows]}
    return _side({**columns, **sizes})


def _twins_of(name: str, laboratory: str, runs: Runs) -> Pairs:
    """Compare each run with that of the fewest experts of equal N and D."""
    has_fewest = runs.experts == runs.experts.min()
    has_same_size = runs.n_active[:, None] == runs.n_active
    has_same_tokens = np.isclose(runs.tokens[:, None], runs.tokens, rtol=0.01)
    is_twin = has_same_size & has_same_tokens & has_fewest
    rows = np.flatnonzero(~has_fewest & is_twin.any(axis=1))
    twins = is_twin[rows].argmax(axis=1)
    gains = np.log(runs.loss[twins] / runs.loss[rows])
    return Pairs(name, laboratory, EXPERTS, gains, _variables(runs, twins), _variables(runs, rows))


def _step_law_pairs(source: Source) -> Pairs:
    """Compare Step Law's MoE models with dense ones of equal N and D, whose loss a Chinchilla law of these gives.

    Only models within the ranges of the dense runs, or beyond them by at most `REACH`.
    """
    runs = _joined(source["dense"], source["moe"])
    bare = without_embeddings(runs)
    is_dense = runs.experts == 1
    law = fit(as_dense(bare.subset(is_dense)), "chinchilla").law
    is_inside = ~is_dense
    for values in (bare.n_active, bare.tokens):
        is_inside &= values >= values[is_dense].min() / REACH
        is_inside &= values <= values[is_dense].max() * REACH
    rows = np.flatnonzero(is_inside)
    gains = np.log(law.loss(bare.n_active[rows], bare.tokens[rows]) / runs.loss[rows])
    after = _variables(runs, rows)
    return Pairs("Step Law", STEPFUN, EXPERTS, gains, _as_dense(after), after)


def _as_dense(side: Side) -> Side:
    """Return the variables of dense models of the same active sizes."""
    ones = np.ones_like(side["tokens"])
    sizes = {name: side[name] for name in ("n_active", "n_active_non_embedding", "tokens", "d_model", "routed_share")}
    totals = {"n_total": side["n_active"], "n_total_non_embedding": side["n_active_non_embedding"]}
    return _side({**_top_k(ones, ones), **sizes, **totals})


# ------------------------------------------------------------------ pairs derived from public tables


def derive(data: Path) -> list[Path]:
    """Write the gains derived from public tables somewhere below `data`; FileNotFoundError if one is missing."""
    paths = {path.name: path for path in sorted(data.rglob("*"), reverse=True)}
    missing = [name for name in TABLES if name not in paths]
    if missing:
        raise FileNotFoundError(f"{data}: {', '.join(missing)} is not below it; see docs/studies/anatomy.md")
    tables = {name: hub.load_rows(paths[name]).rows for name in TABLES}
    sets = [
        *_clark_sets(tables["curves.csv.gz"]),
        _li_set("gshard.csv", BLIND[0], tables["gshard.csv"]),
        _li_set("spm.csv", BLIND[1], tables["spm.csv"]),
        _half_shared(tables["ablations.csv"]),
    ]
    text = strict_json.versioned(FORMAT, VERSION, {"sets": round_numbers(sets, DIGITS)}).decode()
    # Each column stands on a line.
    text = re.sub(r"\[\s+([^][{}]*?)\s+\]", lambda match: f"[{' '.join(match[1].split())}]", text)
    atomic.write_bytes(PAIRS, text.encode())
    return [PAIRS]


def _clark_sets(rows: Rows) -> Iterator[dict[str, Any]]:
    """Yield the gains over dense models by the share of blocks with experts, and by k, at the end of training."""
    losses: dict[tuple[Any, ...], list[float]] = {}
    example: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for row in rows:
        if row["step"] >= 248_000 and row["seed"] == 42 and row["loss_validation"]:
            names = ("router_type", "dense_parameter_count", "routing_frequency", "k", "num_experts")
            model = tuple(row[name] for name in names)
            losses.setdefault(model, []).append(row["loss_validation"])
            example[model] = row
    # Some models were trained twice.
    mean_loss = {model: float(np.mean(values)) for model, values in losses.items()}

    def gain(model: tuple[Any, ...]) -> float:
        _, size, _, k, _ = model
        return float(np.log(mean_loss["Dense", size, 0.5, k, 1] / mean_loss[model]))

    source = {
        "derived": "ln of the dense model's loss_validation over the routed model's, at the last step",
        "place": "data/curves.csv.gz of github.com/google-deepmind/scaling_laws_for_routing at 42da0c392b12",
        "licence": "CC-BY-4.0, Copyright 2022 DeepMind Technologies Limited",
    }
    for router in ("S-Base", "Hash"):
        models = sorted(model for model in mean_loss if model[0] == router and model[2] != 0.5)
        sides = _clark_sides(models, example)
        twins = [gain((router, size, 0.5, k, n)) for _, size, _, k, n in models]
        names = {"name": f"Clark et al., {router}, share of blocks", "laboratory": DEEPMIND, "field": ROUTED}
        yield {**names, **source, "gains": [*map(gain, models)], "twins": twins, **sides}
    models = sorted(model for model in mean_loss if model[0] == "S-Base" and model[3] > 1)
    sides = _clark_sides(models, example)
    names = {"name": "Clark et al., S-Base, top-2 and top-4", "laboratory": DEEPMIND, "field": TOP_K}
    yield {**names, **source, "gains": [*map(gain, models)], **sides}


def _clark_sides(models: Sequence[tuple[Any, ...]], example: Mapping[tuple[Any, ...], Mapping[str, Any]]) -> Any:
    """Return the variables of dense and routed models with equal N_act: k experts are as wide as the dense layer."""
    rows = [example[model] for model in models]
    d_model = _column(rows, "d_model")
    embeddings = 2.0 * CLARK_VOCABULARY * d_model
    active = []
    for row in rows:
        dense = ("Dense", row["dense_parameter_count"], 0.5, row["k"], 1)
        active.append(example[dense]["total_parameter_count"])
    sizes = {
        "n_active_non_embedding": np.array(active),
        "n_active": np.array(active) + embeddings,
        "tokens": (_column(rows, "step") + 1.0) * 524_288,
        "d_model": d_model,
        "routed_share": _column(rows, "routing_frequency"),
    }
    total = _column(rows, "total_parameter_count")
    totals = {"n_total_non_embedding": total, "n_total": total + embeddings}
    after = {**sizes, **totals, **_top_k(_column(rows, "num_experts"), _column(rows, "k"))}
    return _lists(_as_dense(_side(sizes)), after)


def _li_set(file: str, name: str, rows: Rows) -> dict[str, Any]:
    """Return the gains over 4 experts, each at its best learning rate, of the runs of one length of each model."""
    fewest_tokens: dict[float, float] = {}
    for row in rows:
        blocks = row["model.n_layers"]
        fewest_tokens[blocks] = min(row["optim/n_tokens"], fewest_tokens.get(blocks, np.inf))
    best: dict[tuple[float, float], float] = {}
    example: dict[float, Mapping[str, Any]] = {}
    for row in rows:
        blocks, n = row["model.n_layers"], row["model.number_of_experts"]
        if row["optim/n_tokens"] == fewest_tokens[blocks] and row[C4]:
            best[blocks, n] = min(float(np.log(row[C4])), best.get((blocks, n), np.inf))
            example[blocks] = row
    models = sorted(model for model in best if model[1] > 4)
    gains = [float(np.log(best[blocks, 4] / best[blocks, n])) for blocks, n in models]
    shapes = [example[blocks] for blocks, _ in models]
    depth = _column(shapes, "model.n_layers")
    d_model = 64.0 * _column(shapes, "model.n_heads")
    routed_blocks = depth // _column(shapes, "model.moe_everyk")
    # Two experts of 8 d² are active in a routed block.
    size = 12.0 * d_model**2 * depth + 8.0 * d_model**2 * routed_blocks
    sides = []
    for routed_experts in (np.full(len(models), 4.0), np.array([n for _, n in models])):
        added = 8.0 * d_model**2 * routed_blocks * (routed_experts - 2.0)
        sides.append(
            {
                "n_active_non_embedding": size,
                "n_active": size + 2.0 * LAW_VOCABULARY * d_model,
                "n_total_non_embedding": size + added,
                "n_total": size + added + 2.0 * LAW_VOCABULARY * d_model,
                "tokens": _column(shapes, "optim/n_tokens"),
                "d_model": d_model,
                "routed_share": routed_blocks / depth,
                **_top_k(routed_experts, np.full(len(models), 2.0)),
            }
        )
    return {
        "name": name,
        "laboratory": LI,
        "field": EXPERTS,
        "derived": "ln of the ratio of ln perplexities on C4, each the least over learning rates and balance losses",
        "place": f"data/{file} of github.com/hadasah/scaling_laws at 1f3708c0 (arXiv 2502.18969)",
        "licence": "none stated",
        "gains": gains,
        **_lists(*sides),
    }


def _half_shared(rows: Rows) -> dict[str, Any]:
    """Return the gains of top-5 with half a shared expert over top-4 with a whole one, of equal active width."""
    losses = {(row["variant"], row["d_model"]): row["loss"] for row in rows}
    widths = sorted(d_model for variant, d_model in losses if variant == "k5_halfshared")
    gains = [float(np.log(losses["e64_base", d] / losses["k5_halfshared", d])) for d in widths]
    runs = _joined(read_sources(EVIDENCE)["marin_experts"]["experts"])
    is_base = np.isin(runs["d_model"], widths) & (runs["routed_experts"] == 64)
    before = _variables(runs, np.flatnonzero(is_base))
    # In widths of an expert: the shared one counts for two, half of it for one.
    after = {
        **before,
        "experts": np.full(len(widths), 65.0 / 6.0),
        "density": np.full(len(widths), 5.0 / 64.0),
        "shared_ratio": np.full(len(widths), 1.0 / 6.0),
        "experts_per_token": np.full(len(widths), 5.0),
        "active_experts": np.full(len(widths), 5.0 / (1.0 - 1.0 / 6.0)),
    }
    tokens = {row["d_model"]: row["tokens"] for row in rows if row["variant"] == "e64_base"}
    return {
        "name": "Marin, top-5 with half a shared expert",
        "laboratory": MARIN,
        "field": SHARED,
        "derived": "ln of the ratio of Paloma macro losses; sizes and tokens as in marin_experts",
        "place": "issues 5387 and 5424 of github.com/marin-community/marin",
        "licence": "text of issues of an Apache-2.0 repository",
        "gains": gains,
        "other_tokens": {f"{width:g}": tokens[width] for width in sorted(tokens)},
        **_lists(before, after),
    }


def _column(rows: Iterable[Mapping[str, Any]], name: str) -> FloatArray:
    return np.array([float(row[name]) for row in rows])


def _lists(before: Side, after: Side) -> dict[str, dict[str, list[float]]]:
    """Return the known variables of both models as lists."""
    sides = {}
    for name, side in (("before", before), ("after", after)):
        sides[name] = {variable: values.tolist() for variable, values in side.items() if np.isfinite(values).all()}
    return sides
