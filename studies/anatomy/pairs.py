"""Pairs of models with equal N_act and D that differ in one field of their design, and what the second one gained.

A gain is ln of the loss of the first model over that of the second. It does not depend on the unit of the loss, and is
above zero where the second model is better. `pairs.json` holds gains derived from public tables that are not kept; the
other pairs are from the points of `studies/evidence`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hub.base import atomic, strict_json
from scaling_law import Architecture, Runs, fit
from studies.common import FloatArray, round_numbers
from studies.evidence.forecasts import as_dense, join_tables, pair_with_fewest, without_embeddings
from studies.evidence.points import Source, read_sources

FOLDER = Path(__file__).parent
EVIDENCE = FOLDER.parent / "evidence"
PAIRS = FOLDER / "pairs.json"
FORMAT = "anatomy_pairs"
VERSION = 1
# Significant digits of every number kept.
DIGITS = 6
# Chosen before any law was asked about them: a laboratory of its own, with two kinds of router. Nothing is estimated
# from these two sets.
BLIND = ("hadasah, GShard", "hadasah, SPM")
DEEPMIND = "DeepMind"
MARIN = "Marin"
STEPFUN = "StepFun"
ROUTERS = ("S-Base", "RL-R", "Hash")
# The fields of a design, in the order of the page.
EXPERTS = "experts"
TOP_K = "experts_per_token"
GRANULARITY = "granularity"
SHARED = "shared_ratio"
ROUTED = "routed_share"
FIELDS = (EXPERTS, TOP_K, GRANULARITY, SHARED, ROUTED)
# Of Step Law's 16 blocks the first is dense.
STEP_LAW_SHARE = 15.0 / 16.0
# How far beyond the sizes of Step Law's dense models their law is asked, a factor.
REACH = 1.25
CLARK_VOCABULARY = 32_000
PAPER_VOCABULARY = Architecture.vocab_size
# Columns of hadasah's tables, by the names here.
HADASAH_COLUMNS = {
    "model.n_layers": "blocks",
    "model.n_heads": "heads",
    "model.moe_everyk": "every",
    "model.number_of_experts": "experts",
    "optim/n_tokens": "tokens",
    "eval/ppl//fsx-onellm/data/corpora/text_only/text_eval/c4.jsonl": "perplexity",
}
# What tells Clark et al.'s models apart besides the share of blocks, and dense models.
CLARK_MODEL = ["router_type", "dense_parameter_count", "k", "num_experts"]
CLARK_SIZE = ["dense_parameter_count", "k"]
TABLES = ("curves.csv.gz", "gshard.csv", "spm.csv", "ablations.csv")
CLARK_SOURCE = (
    "gain over the dense model of equal N_act in loss_validation, at the last step",
    "data/curves.csv.gz of github.com/google-deepmind/scaling_laws_for_routing at 42da0c392b12",
    "CC-BY-4.0, Copyright 2022 DeepMind Technologies Limited",
)
HADASAH_SOURCE = (
    "gain over 4 experts in ln of the perplexity on C4, each the least over learning rates and balance losses",
    "data/{} of github.com/hadasah/scaling_laws at 1f3708c0, arXiv 2502.18969",
    "none stated",
)
MARIN_SOURCE = (
    "gain over top-4 with a whole shared expert in Paloma macro loss; sizes and tokens as in marin_experts",
    "issues 5387 and 5424 of github.com/marin-community/marin; other_tokens are those of its issue 6716, by width",
    "text of issues of an Apache-2.0 repository",
)
# The columns of every set in the file; `expert` is the size of one expert in all blocks.
SIZES = ["gains", "d_model", "n_active", "n_active_non_embedding", "expert", "tokens", "routed_share"]
# A table of pandas, and columns with the counts of experts that `_design` takes.
Frame = Any
Counts = Any
# Variables of models by the names that laws have for them, [n] each.
Side = Mapping[str, FloatArray]


@dataclass(frozen=True)
class Pairs:
    """Pairs of a laboratory that differ in `field`: their gains [n] and the variables of both models, [n] each.

    `twins` are the gains of the same models with experts in every second block, where that differs; `other_tokens` are
    D by width where two sources differ.
    """

    name: str
    laboratory: str
    field: str
    gains: FloatArray
    before: Side
    after: Side
    twins: FloatArray = dataclasses.field(default_factory=lambda: np.empty(0))
    other_tokens: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.gains)

    @property
    def is_blind(self) -> bool:
        """True if these are kept for the check."""
        return self.name in BLIND

    def subset(self, rows: Any) -> Pairs:
        """Return the pairs of a mask."""
        before = {name: values[rows] for name, values in self.before.items()}
        after = {name: values[rows] for name, values in self.after.items()}
        return replace(self, gains=self.gains[rows], before=before, after=after)


def read_pairs() -> list[Pairs]:
    """Read all pairs: those of the points of other studies, then the derived ones."""
    sources = read_sources(EVIDENCE)
    pairs = []
    for router in ROUTERS:
        runs = _complete_clark(sources["clark"][router])
        pairs.append(_match(f"Clark et al., {router}", DEEPMIND, runs))
    pairs.append(_match("Marin", MARIN, joined_runs(sources["marin_experts"]["experts"])))
    pairs.append(_step_law_pairs(sources["step_law"]))
    for values in strict_json.read(PAIRS, FORMAT, VERSION)["sets"]:
        columns = {name: np.array(column) for name, column in values["columns"].items()}
        pairs.append(
            Pairs(
                values["name"],
                values["laboratory"],
                values["field"],
                columns.pop("gains"),
                _models(columns, values["before"]),
                _models(columns, values["after"]),
                columns.get("twins", np.empty(0)),
                values.get("other_tokens", {}),
            )
        )
    return pairs


def _design(routed_experts: Any, experts_per_token: Any, shared_width: Any = 0.0) -> dict[str, FloatArray]:
    """Return the variables of a design; the width of shared experts is in those of a routed one."""
    n, k, shared = np.broadcast_arrays(routed_experts, experts_per_token, shared_width)
    active = k + shared
    return {
        "experts": (n + shared) / active,
        "density": k / n,
        "granularity": active,
        "shared_ratio": shared / active,
        "experts_per_token": k,
        "active_experts": active,
        "routed_experts": n,
    }


def _models(columns: Side, counts: Counts) -> Side:
    """Return the variables of models by their sizes and the counts of their experts."""
    design = _design(**counts)
    inactive = (design["routed_experts"] - design["experts_per_token"]) * columns["expert"]
    totals = {
        "n_total": columns["n_active"] + inactive,
        "n_total_non_embedding": columns["n_active_non_embedding"] + inactive,
    }
    return {**columns, **design, **totals}


# ------------------------------------------------------------------ pairs of the points of other studies


def joined_runs(*tables: Runs) -> Runs:
    """Join tables into one with what laws ask for and the width of the models."""
    runs = join_tables(*tables)
    d_model = np.concatenate([table["d_model"] for table in tables])
    return replace(runs, columns={**runs.columns, "d_model": d_model})


def _complete_clark(runs: Runs) -> Runs:
    """Complete the columns of Clark et al.'s runs, which have one active expert in every second block."""
    embeddings = runs.n_active - runs["n_active_non_embedding"]
    totals = {"n_total_non_embedding": runs["n_total"], "n_total": runs["n_total"] + embeddings}
    share = {"routed_share": np.full(len(runs), 0.5)}
    return replace(runs, columns={**runs.columns, **totals, **_design(runs.experts, 1.0), **share})


def variables_of_runs(runs: Runs, rows: Any) -> Side:
    """Return the variables of these rows; experts are in every block unless a column says otherwise."""
    columns = {"routed_share": np.ones(len(runs)), **runs.columns}
    columns.update(n_active=runs.n_active, tokens=runs.tokens, experts=runs.experts)
    return {name: values[rows] for name, values in columns.items()}


def _match(name: str, laboratory: str, runs: Runs) -> Pairs:
    """Compare each run with that of the fewest experts of equal N and D."""
    rows, references = pair_with_fewest(runs)
    gains = np.log(runs.loss[references] / runs.loss[rows])
    return Pairs(name, laboratory, EXPERTS, gains, variables_of_runs(runs, references), variables_of_runs(runs, rows))


def _step_law_pairs(source: Source) -> Pairs:
    """Compare Step Law's MoE models with dense ones of equal N and D, whose loss a Chinchilla law of these gives.

    Only models within the ranges of the dense runs, or beyond them by at most `REACH`.
    """
    runs = joined_runs(source["dense"], source["moe"])
    bare = without_embeddings(runs)
    is_dense = runs.experts == 1
    law = fit(as_dense(bare.subset(is_dense)), "chinchilla").law
    is_inside = ~is_dense
    for values in (bare.n_active, bare.tokens):
        is_inside &= values >= values[is_dense].min() / REACH
        is_inside &= values <= values[is_dense].max() * REACH
    rows = np.flatnonzero(is_inside)
    gains = np.log(law.loss(bare.n_active[rows], bare.tokens[rows]) / runs.loss[rows])
    after = {**variables_of_runs(runs, rows), "routed_share": np.full(len(rows), STEP_LAW_SHARE)}
    sizes = {"n_total": after["n_active"], "n_total_non_embedding": after["n_active_non_embedding"]}
    dense = {**after, **_design(np.ones(len(rows)), 1.0), **sizes}
    return Pairs("Step Law", STEPFUN, EXPERTS, gains, dense, after)


# ------------------------------------------------------------------ pairs derived from public tables


def derive(data: Path) -> list[Path]:
    """Write the gains derived from public tables somewhere below `data`; FileNotFoundError if one is missing."""
    paths = {path.name: path for path in sorted(data.rglob("*"), reverse=True)}
    missing = [name for name in TABLES if name not in paths]
    if missing:
        raise FileNotFoundError(f"{data}: {', '.join(missing)} is not below it; see docs/studies/anatomy.md")
    clark, gshard, spm, ablations = (pd.read_csv(paths[name], comment="#") for name in TABLES)
    sets = [
        *_clark_sets(clark),
        _hadasah_set(BLIND[0], "gshard.csv", gshard),
        _hadasah_set(BLIND[1], "spm.csv", spm),
        _half_shared_set(ablations),
    ]
    text = strict_json.versioned(FORMAT, VERSION, {"sets": round_numbers(sets, DIGITS)}).decode()
    # Each column stands on a line.
    text = re.sub(r"\[\s+([^][{}]*?)\s+\]", lambda match: f"[{' '.join(match[1].split())}]", text)
    atomic.write_bytes(PAIRS, text.encode())
    return [PAIRS]


def _set(names: Sequence[str], source: Sequence[str], columns: Frame, before: Counts, after: Counts) -> dict[str, Any]:
    """Return a set of pairs for the file."""
    name, laboratory, field = names
    derived, place, licence = source
    return {
        "name": name,
        "laboratory": laboratory,
        "field": field,
        "derived": derived,
        "place": place,
        "licence": licence,
        "columns": columns.to_dict("list"),
        "before": pd.DataFrame(before).to_dict("list"),
        "after": pd.DataFrame(after).to_dict("list"),
    }


def _clark_sets(curves: Frame) -> Iterator[dict[str, Any]]:
    """Yield the gains over dense models by the share of blocks with experts, and by k, at the end of training."""
    last = curves[(curves.step >= 248_000) & (curves.seed == 42)].dropna(subset=["loss_validation"])
    # Some models were trained twice.
    runs = last.groupby([*CLARK_MODEL, "routing_frequency"], as_index=False).mean(numeric_only=True)
    # The dense model of equal N_act is as wide as k experts.
    dense = runs.loc[runs.router_type == "Dense", [*CLARK_SIZE, "loss_validation", "total_parameter_count"]]
    runs = runs[runs.router_type != "Dense"].merge(dense, on=CLARK_SIZE, suffixes=("", "_dense"))
    runs["gains"] = np.log(runs.loss_validation_dense / runs.loss_validation)
    halves = runs.loc[runs.routing_frequency == 0.5, [*CLARK_MODEL, "gains"]]
    runs = runs.merge(halves.rename(columns={"gains": "twins"}), on=CLARK_MODEL)
    runs["d_model"] = runs.d_model.astype(float)
    runs["n_active_non_embedding"] = runs.total_parameter_count_dense
    runs["n_active"] = runs.n_active_non_embedding + 2.0 * CLARK_VOCABULARY * runs.d_model
    added = runs.total_parameter_count - runs.total_parameter_count_dense
    runs["expert"] = added / (runs.num_experts - runs.k)
    runs["tokens"] = (runs.step + 1.0) * 524_288
    runs["routed_share"] = runs.routing_frequency
    shares = runs[runs.routing_frequency != 0.5]
    yield _clark_set(("Clark et al., S-Base and Hash", DEEPMIND, ROUTED), shares, [*SIZES, "twins"])
    yield _clark_set(("Clark et al., S-Base, top-2 and top-4", DEEPMIND, TOP_K), runs[runs.k > 1], SIZES)


def _clark_set(names: Sequence[str], runs: Frame, columns: Sequence[str]) -> dict[str, Any]:
    """Return the pairs of dense models and these."""
    ones = np.ones(len(runs))
    dense = {"routed_experts": ones, "experts_per_token": ones}
    routed = {"routed_experts": runs.num_experts, "experts_per_token": runs.k}
    return _set(names, CLARK_SOURCE, runs[list(columns)], dense, routed)


def _hadasah_set(name: str, file: str, runs: Frame) -> dict[str, Any]:
    """Return the gains over 4 experts, each at its best learning rate, of the shortest runs of each model."""
    runs = runs.rename(columns=HADASAH_COLUMNS)
    runs = runs[runs.tokens == runs.groupby("blocks").tokens.transform("min")]
    best = runs.groupby(["blocks", "heads", "every", "tokens", "experts"], as_index=False).perplexity.min()
    fewest = best.loc[best.experts == 4, ["blocks", "perplexity"]]
    pairs = best[best.experts > 4].merge(fewest, on="blocks", suffixes=("", "_of_4"))
    pairs["gains"] = np.log(np.log(pairs.perplexity_of_4) / np.log(pairs.perplexity))
    pairs["d_model"] = 64.0 * pairs.heads
    routed_blocks = pairs.blocks // pairs.every
    pairs["routed_share"] = routed_blocks / pairs.blocks
    # An expert has 8 d², and two are active.
    pairs["expert"] = 8.0 * pairs.d_model**2 * routed_blocks
    pairs["n_active_non_embedding"] = 12.0 * pairs.d_model**2 * pairs.blocks + pairs.expert
    # Which tokenizer these runs have is not said: this is the paper's vocabulary.
    pairs["n_active"] = pairs.n_active_non_embedding + 2.0 * PAPER_VOCABULARY * pairs.d_model
    before = {"routed_experts": np.full(len(pairs), 4.0), "experts_per_token": np.full(len(pairs), 2.0)}
    after = {**before, "routed_experts": pairs.experts}
    derived, place, licence = HADASAH_SOURCE
    names = (name, "hadasah", EXPERTS)
    return _set(names, (derived, place.format(file), licence), pairs[SIZES], before, after)


def _half_shared_set(runs: Frame) -> dict[str, Any]:
    """Return the gains of top-5 with half a shared expert over top-4 with a whole one, of equal active width."""
    losses = runs.pivot(index="d_model", columns="variant", values="loss")
    halves = losses.dropna(subset=["k5_halfshared"])
    models = joined_runs(read_sources(EVIDENCE)["marin_experts"]["experts"])
    is_base = np.isin(models["d_model"], halves.index) & (models["routed_experts"] == 64)
    columns = pd.DataFrame(variables_of_runs(models, is_base))
    columns["gains"] = np.log(halves.e64_base / halves.k5_halfshared).to_numpy()
    columns["expert"] = (columns.n_total - columns.n_active) / 60.0
    # A whole shared expert is as wide as two routed ones.
    whole = columns.assign(routed_experts=64.0, experts_per_token=4.0, shared_width=2.0)
    half = columns.assign(routed_experts=64.0, experts_per_token=5.0, shared_width=1.0)
    names = ("Marin, top-5 with half a shared expert", MARIN, SHARED)
    counts = ["routed_experts", "experts_per_token", "shared_width"]
    values = _set(names, MARIN_SOURCE, columns[SIZES], whole[counts], half[counts])
    tokens = runs[runs.variant == "e64_base"]
    values["other_tokens"] = {f"{width:g}": d for width, d in zip(tokens.d_model, tokens.tokens, strict=True)}
    return values
