"""Pairs of a baseline and a variant, written down in pairs.csv before any method was tried.

    python -m studies.promote.pairs --data FOLDER

A pair has a cell for each size and token count at which both were run, with the gap ln(L_baseline / L_variant): above
0 the variant is ahead. The cell of the most compute is the target. A method sees the cells that have at most a third
("near") or a tenth ("far") of the target's compute, and no more parameters or tokens than it; each of these cuts is a
case. The sign rule predicts the sign at the largest seen cell. Cases whose gap at the target is below `TIE` are out:
nobody could tell who won.

Which pairs: recipes, corpora and architectures are all that the tables hold. Of hyper-parameters, which are too many,
a fixed draw of contenders is taken: settings within `CONTENDER` of the best at the largest cell seen, never by the
target. Runs of equal budgets (isoFLOP) are compared by the best run of each budget.

The tables and where they are from; none is kept here:

    gadre_overtraining.csv          github.com/mlfoundations/scaling at a003c49 (MIT)
    porian_isoflop.csv              github.com/formll/resolving-scaling-law-discrepancies at 0dc60d9 (MIT)
    marin_moe_adamh_isoflop.csv     github.com/marin-community/marin at f4c3018 (Apache-2.0)
    marin_moe_lr_sweep.csv          the same at 69ca5b5
    experts_64_128_256.csv          its issue 5387
    xlstm_llama_isoflop.csv         github.com/NX-AI/xlstm_scaling_laws at 604bb30 (no licence stated)
    curves.csv.gz                   github.com/google-deepmind/scaling_laws_for_routing (CC-BY-4.0)
    dense_lr_bs_loss.csv            github.com/step-law/steplaw at 32a8f4c (no licence stated)
    moe_lr_bs_loss.csv              the same
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from studies.common import write_csv

HERE = Path(__file__).parent
LIST = HERE / "pairs.csv"
STUDIES = HERE.parent
# A table of pandas.
Frame = Any
# In ln loss.
TIE = 0.001
CONTENDER = 0.02
DRAWN = 24
SEED = 54
CUTS = {"near": 3.0, "far": 10.0}
CELL = ("n_active", "tokens")
BUDGET = ("budget",)
OWN_CELL = ["size", "length"]
SETTINGS = ("rate", "batch")
GAP_COLUMNS = (
    *CELL,
    "flops",
    "gap",
    "log_rate",
    "log_batch",
    "base_loss",
)
HEAD = (
    "stratum",
    "lab",
    "set",
    "baseline",
    "variant",
    "cut",
    "cells",
    "seen",
    "out",
)


@dataclass(frozen=True)
class Pair:
    """A baseline and a variant; `cells` has the columns `GAP_COLUMNS`, in the order of compute."""

    stratum: str
    lab: str
    set: str
    baseline: str
    variant: str
    cells: Frame

    @property
    def target(self) -> Frame:
        """The cell of the most compute."""
        return self.cells.iloc[-1]

    def seen(self, cut: str) -> Frame:
        """Return the cells that a method sees."""
        target = self.target
        is_seen = self.cells.flops <= target.flops / CUTS[cut] * 1.01
        for size in CELL:
            is_seen &= self.cells[size] <= target[size] * 1.01
        return self.cells[is_seen]


def _pair(
    names: tuple[str, str, str], baseline: str, variant: str, runs: Mapping[str, Frame], by: Sequence[str]
) -> Pair:
    """Match the runs of a baseline and a variant by columns; repeated runs of a cell are averaged."""
    columns = list(by)
    base_means = runs[baseline].groupby(columns, as_index=False).mean(numeric_only=True)
    variant_means = runs[variant].groupby(columns, as_index=False).mean(numeric_only=True)
    cells = base_means.merge(variant_means, on=columns, suffixes=("", "_variant"))
    cells["flops"] = 6 * cells.n_active * cells.tokens
    cells["gap"] = np.log(cells.loss / cells.loss_variant)
    cells["base_loss"] = cells.loss
    for setting in SETTINGS:
        cells[f"log_{setting}"] = 0.0
        if setting in cells:
            cells[f"log_{setting}"] = np.log(cells[f"{setting}_variant"] / cells[setting])
    cells = cells.sort_values("flops")
    cells = cells[list(GAP_COLUMNS)].reset_index(drop=True)
    return Pair(*names, baseline, variant, cells)


def _all_pairs(names: tuple[str, str, str], runs: Mapping[str, Frame], by: Sequence[str] = CELL) -> Iterator[Pair]:
    """Match each of several variants with each that stands before it."""
    for baseline, variant in combinations(runs, 2):
        yield _pair(names, baseline, variant, runs, by)


def _frontier(runs: Frame, budget: Frame) -> Frame:
    """Return the best run of each budget."""
    runs = runs.assign(budget=budget)
    best = runs.groupby("budget").loss.idxmin()
    return runs.loc[best]


def _by(runs: Frame, column: str) -> dict[Any, Frame]:
    """Divide runs by the values of a column."""
    return dict(iter(runs.groupby(column)))


def _read(folder: Path, file: str, **names: str) -> Frame:
    """Read a public table from a folder somewhere above it, with columns renamed: our name to the table's."""
    path = next(iter(sorted(folder.rglob(file))), None)
    if path is None:
        raise FileNotFoundError(f"no {file} below {folder}")
    table = pd.read_csv(path, comment="#")
    for name, column in names.items():
        table[name] = table[column]
    return table


# ------------------------------------------------------------------ recipes, corpora, architectures


def gadre(folder: Path) -> Iterator[Pair]:
    """Yield three corpora under each of eight losses, on equal models and multiples of D."""
    runs = _read(folder, "gadre_overtraining.csv", n_active="params")
    losses = [name for name in runs if name.startswith("loss:")]
    for column in losses:
        evaluation = column.removeprefix("loss:")
        evaluation = evaluation.removesuffix("/00000001")
        evaluation = evaluation.split("/shard")[0]
        evaluation = evaluation.split("/")[-1]
        corpora = _by(runs.assign(loss=runs[column]), "dataset")
        names = ("corpora", "openlm", f"gadre {evaluation}")
        yield from _all_pairs(names, corpora, ("n_active", "chinchilla_multiplier"))


# The columns hparams, warmup and decay of each recipe.
PORIAN = {
    "base": ("base", "long", "kaplan"),
    "short warm-up": ("base", "short", "kaplan"),
    "Chinchilla decay": ("base", "short", "chinchilla"),
    "tuned": ("tuned", "short", "const"),
}


def porian(folder: Path) -> Iterator[Pair]:
    """Yield the recipes of each corpus, and the corpora under each recipe; one way of counting."""
    table = _read(folder, "porian_isoflop.csv", n_active="n")
    table = table[(table.param_count == "standard") & (table.loss_is == "val")]
    recipes: dict[str, dict[str, Frame]] = {"owt2": {}, "rw": {}}
    for dataset, runs in recipes.items():
        for name, (hparams, warmup, decay) in PORIAN.items():
            rows = table[table.dataset == dataset]
            rows = rows[rows.hparams == hparams]
            rows = rows[rows.warmup == warmup]
            rows = rows[rows.decay == decay]
            runs[name] = _frontier(rows, rows.flops)
        yield from _all_pairs(("recipes", "tel_aviv", f"porian {dataset}"), runs, BUDGET)
    for name in PORIAN:
        corpora = {dataset: runs[name] for dataset, runs in recipes.items()}
        yield from _all_pairs(("corpora", "tel_aviv", f"porian {name}"), corpora, BUDGET)


def marin(folder: Path) -> Iterator[Pair]:
    """Yield Marin's two recipes by budget, and its numbers of experts by width."""
    runs = _read(folder, "marin_moe_adamh_isoflop.csv", loss="c4_en_bpb")
    # N only places the cells: C = 6 N D.
    runs["n_active"] = runs.budget / (6 * runs.tokens)
    recipes = {name: _frontier(rows, rows.budget) for name, rows in _by(runs, "variant").items()}
    yield from _all_pairs(("recipes", "marin", "marin isoflop"), recipes, BUDGET)
    runs = _read(folder, "experts_64_128_256.csv", count="experts")
    # Equal tokens per parameter.
    runs["n_active"] = np.sqrt(runs.budget / 120)
    runs["tokens"] = 20 * runs.n_active
    runs["side"] = [f"E = {count:03}" for count in runs["count"]]
    yield from _all_pairs(("architectures", "marin", "marin experts"), _by(runs, "side"))


# The isoFLOP groups of each model and context, of `XLSTM_BUDGETS` by the authors' count.
XLSTM_BUDGETS = (6e18, 1e19, 3e19)
XLSTM = {
    "Llama 2048": ("isoflop_llama_ctx2048", "sclaw_llama_iso", (7, 8, 9)),
    "Llama 8192": ("isoflop_llama_ctx8192", "sclaw_llama_iso", (5, 6, 4)),
    "Llama 16384": ("isoflop_llama_ctx16384", "sclaw_llama_iso", (12, 11, 10)),
    "mLSTM 16384": ("isoflop_mlstm_ctx16384", "sclaw_mlstm_ctx_iso", (6, 5, 4)),
}


def xlstm(folder: Path) -> Iterator[Pair]:
    """Yield Llama against mLSTM, and Llama at three contexts, by budget."""
    table = _read(folder, "xlstm_llama_isoflop.csv", n_active="params", loss="val_loss")
    table = table[table.loss.notna()]
    runs = {}
    for name, (file, prefix, numbers) in XLSTM.items():
        budgets = {}
        for number, budget in zip(numbers, XLSTM_BUDGETS, strict=True):
            budgets[f"{prefix}{number}"] = budget
        rows = table[(table.file == file) & table.group.isin(list(budgets))]
        runs[name] = _frontier(rows, rows.group.map(budgets))
    yield _pair(("architectures", "nx_ai", "xlstm"), "Llama 16384", "mLSTM 16384", runs, BUDGET)
    del runs["mLSTM 16384"]
    yield from _all_pairs(("recipes", "nx_ai", "xlstm contexts"), runs, BUDGET)


def clark(folder: Path) -> Iterator[Pair]:
    """Yield routers against each other, and S-BASE against the dense model, at numbers of experts; equal tokens."""
    table = _read(folder, "curves.csv.gz", n_active="dense_parameter_count", loss="loss_validation")
    table = table[(table.k == 1) & (table.routing_frequency == 0.5)]
    last_steps = table.groupby(["router_type", "num_experts", "n_active", "seed"]).step.idxmax()
    table = table.loc[last_steps]
    table["tokens"] = 130e9
    runs = table[["router_type", "num_experts", *CELL, "loss"]]
    dense = runs[runs.num_experts == 1]
    for count in (2, 8, 32, 128, 512):
        names = ("architectures", "deepmind", f"clark E = {count}")
        routers = _by(runs[runs.num_experts == count], "router_type")
        yield from _all_pairs(names, routers)
        routers["Dense"] = dense
        yield _pair(names, "Dense", "S-Base", routers, CELL)


# ------------------------------------------------------------------ our own sweeps


def _read_sweep(name: str) -> Frame:
    """Read the records of a sweep of ours."""
    runs: Frame = pd.read_json(STUDIES / name / "runs.jsonl", lines=True)
    runs = runs[runs.status == "final"]
    runs["loss"] = runs.eval_loss
    runs["rate"] = [schedule["peak_learning_rate"] for schedule in runs.schedule]
    # Both sides have equal blocks; branches end on whole batches.
    runs["size"] = runs.n_blocks * runs.d_model**2
    runs["length"] = np.round(runs.tokens / 1e4)
    return runs[runs.loss.notna()]


def _tune(runs: Frame) -> Frame:
    """Average seeds, and keep the best learning rate of each cell."""
    means = runs.groupby([*OWN_CELL, "rate"], as_index=False).mean(numeric_only=True)
    best = means.groupby(OWN_CELL).loss.idxmin()
    return means.loc[best].drop(columns="rate")


# Numbers of experts that are compared over all sizes.
CROSSING = (
    (1, 2),
    (1, 4),
    (1, 8),
    (1, 16),
    (2, 4),
    (4, 8),
    (8, 16),
)


def crossing(_: Path) -> Iterator[Pair]:
    """Yield numbers of experts of our sweep, over all sizes and along D at each size."""
    runs = _read_sweep("crossing")
    runs["side"] = [f"E = {count}" for count in runs.experts]
    sides = {name: _tune(rows) for name, rows in _by(runs, "side").items()}
    for baseline, variant in CROSSING:
        names = ("architectures", "ours", "crossing")
        yield _pair(names, f"E = {baseline}", f"E = {variant}", sides, OWN_CELL)
    for width, rows in _by(runs, "d_model").items():
        sides = {name: _tune(part_rows) for name, part_rows in _by(rows, "side").items()}
        for variant_name in list(sides)[1:]:
            names = ("architectures", "ours", f"crossing d = {width}")
            yield _pair(names, "E = 1", variant_name, sides, OWN_CELL)


def granularity(_: Path) -> Iterator[Pair]:
    """Yield finer and shared experts along D, and dense models and experts under Muon."""
    runs = _read_sweep("granularity")
    runs = runs.fillna({"granularity": 1, "shared_experts": 0})
    runs["name"] = [optimizer["name"] for optimizer in runs.optimizer]
    for name, rows in _by(runs, "name").items():
        sides = {}
        for settings, part_rows in rows.groupby(["experts", "granularity", "shared_experts"]):
            experts, granules, shared = map(int, settings)
            sides[f"{name}, E = {experts}, G = {granules}, {shared} shared"] = _tune(part_rows)
        yield from _all_pairs(("architectures", "ours", "granularity"), sides, OWN_CELL)


# ------------------------------------------------------------------ hyper-parameters


def _contenders(
    names: tuple[str, str, str],
    runs: Frame,
    generator: np.random.Generator,
    tokens: float | None = None,
) -> Iterator[Pair]:
    """Yield a draw of pairs of settings that are near the best at the largest seen cell.

    The target is the largest model at these tokens; None: at the most that it was trained on.
    """
    runs = runs.astype(dict.fromkeys(CELL, float))
    runs["flops"] = 6 * runs.n_active * runs.tokens
    n_active = runs.n_active.max()
    if tokens is None:
        tokens = runs[runs.n_active == n_active].tokens.max()
    is_target = (runs.n_active == n_active) & (runs.tokens == tokens)
    is_seen = (runs.tokens <= tokens * 1.01) & (runs.flops <= 6 * n_active * tokens / CUTS["near"] * 1.01)
    if not is_seen.any():
        return
    last = runs[is_seen]
    last = last[last.flops == last.flops.max()]
    contenders = last[last.loss < last.loss.min() * np.exp(CONTENDER)]
    settings = sorted({*contenders.setting} & {*runs[is_target].setting})
    couples = list(combinations(settings, 2))
    order = generator.permutation(len(couples))
    sides = _by(runs[is_seen | is_target], "setting")
    for index in sorted(order[:DRAWN]):
        # Which of the two is the variant is drawn, too.
        baseline, variant = generator.permutation(couples[index])
        yield _pair(names, str(baseline), str(variant), sides, CELL)


def step_law(folder: Path) -> Iterator[Pair]:
    """Yield settings of Step Law's grids, along D of one shape and to the largest dense model."""
    generator = np.random.default_rng(SEED)
    names = {"tokens": "D", "rate": "lr", "batch": "bs", "loss": "smooth loss"}
    dense = _read(folder, "dense_lr_bs_loss.csv", n_active="N", **names)
    dense["shape"] = dense.h.astype(str) + "x" + dense.numl.astype(str)
    routed = _read(folder, "moe_lr_bs_loss.csv", n_active="Na", **names)
    routed["shape"] = routed.topk.astype(str) + " of " + routed.nume.astype(str)
    dense = _name_settings(dense)
    for table in (dense, _name_settings(routed)):
        for shape, rows in _by(table, "shape").items():
            set_names = ("hyper-parameters", "stepfun", f"step law {shape} along D")
            yield from _contenders(set_names, rows, generator)
    for tokens in (20e9, 56.9e9):
        set_names = ("hyper-parameters", "stepfun", f"step law to 1.07B, {tokens / 1e9:g}B tokens")
        yield from _contenders(set_names, dense, generator, tokens)


def _name_settings(runs: Frame) -> Frame:
    """Name the settings of Step Law's runs that have a loss."""
    runs = runs[runs.loss.notna()]
    settings = []
    for rate, batch in zip(runs.rate, runs.batch, strict=True):
        settings.append(f"rate {rate:.3g}, batch {batch}")
    return runs.assign(setting=settings)


def marin_rates(folder: Path) -> Iterator[Pair]:
    """Yield learning rates of Marin's MoE sweeps, as multiples of √batch, along D of one width and to the widest."""
    generator = np.random.default_rng(SEED)
    table = _read(folder, "marin_moe_lr_sweep.csv", loss="c4_en_bpb", rate="adam_lr")
    # N only places the cells.
    blocks = np.round(table.d_model / (55 + 4 * np.log2(table.d_model)))
    table["n_active"] = 11.0 * table.d_model**2 * blocks
    table["tokens"] = table.tok_ratio * table.n_active
    table["setting"] = [f"rate {multiple:.4f} at batch 32" for multiple in table.rate * np.sqrt(32 / table.batch)]
    table = table[["group", "d_model", *CELL, "rate", "setting", "loss"]]
    for group, runs in _by(table, "group").items():
        for width, rows in _by(runs, "d_model").items():
            yield from _contenders(
                ("hyper-parameters", "marin", f"marin {group} d = {width} along D"), rows, generator
            )
        yield from _contenders(("hyper-parameters", "marin", f"marin {group} to the widest"), runs, generator)


def other_rates(_: Path) -> Iterator[Pair]:
    """Yield learning rates of EPFL's and Marin's dense models, from the tables of studies/learning_rates."""
    generator = np.random.default_rng(SEED)
    for lab, file in (("epfl", "epfl.csv"), ("marin", "marin_adamw.csv")):
        names = {"n_active": "n_active_non_embedding", "rate": "learning_rate", "batch": "batch_tokens"}
        runs = _read(STUDIES / "learning_rates", file, **names)
        runs["setting"] = [f"rate {rate:g}" for rate in runs.rate]
        for size, rows in _by(runs, "n_active").items():
            name = f"{file.removesuffix('.csv')} {size / 1e6:.0f}M along D"
            yield from _contenders(("hyper-parameters", lab, name), rows, generator)


SOURCES = (
    gadre,
    porian,
    marin,
    xlstm,
    clark,
    crossing,
    granularity,
    step_law,
    marin_rates,
    other_rates,
)


def read_pairs(folder: Path) -> list[Pair]:
    """Read all pairs of two cells or more."""
    pairs: list[Pair] = []
    for source in SOURCES:
        pairs += source(folder)
    return [pair for pair in pairs if len(pair.cells) > 1]


def list_cases(pairs: Sequence[Pair]) -> Iterator[tuple[Any, ...]]:
    """List the cases: each pair under each cut that leaves a cell, with the reason why it is out, if it is."""
    yield HEAD
    for pair in pairs:
        for cut in CUTS:
            n_seen = len(pair.seen(cut))
            if n_seen:
                out = "tie" if abs(pair.target.gap) < TIE else ""
                yield pair.stratum, pair.lab, pair.set, pair.baseline, pair.variant, cut, len(pair.cells), n_seen, out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a folder above the public tables")
    print(write_csv(LIST, list_cases(read_pairs(parser.parse_args().data))))


if __name__ == "__main__":
    main()
