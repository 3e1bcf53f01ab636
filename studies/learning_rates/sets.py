"""Grids of learning rates, and the best rate of each model, D and batch with its error; N without embeddings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import log
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from scaling_law import Architecture, LearningRateLaw, Runs, load_runs
from scaling_law.rates.surface import SettingsGrid
from scaling_law.runs import reader
from scaling_law.size import ROWS
from studies.common import FloatArray
from studies.crossing.records import BATCH, BLOCKS, HEAD, SEQUENCE, TUNED_AT, VOCABULARY, read_sweep
from studies.learning_rates.best_rates import best_rates

HERE = Path(__file__).parent
# Bytes per token of Marin's tokenizer, which only turn its losses into nats per token.
BYTES_PER_TOKEN = 4.5
# The error of ln LR of a best setting among rates by factors of √2 and batches by 2, set before any fit.
SPACING = 0.25
# Errors of ln LR of the paper's law about its grid, and of its level: the D of its grid is not told.
LAWS_OWN = 0.15
LAWS_D = 0.2
# Errors of a set's level within its lab: AdamH holds the norms of matrices.
OTHER_OPTIMIZER = 1.0
OTHER_RECIPE = 0.2
BATCH_OF_THE_PAPER = 512 * 512
_OWN = {"n_active": "n_active_non_embedding", "experts": 1}
# By the authors' heuristic.py, as in the reader "marin_isoflop".
_MARIN_MOE = {
    "n_blocks": "round(d_model / (55 + 4 * log2(d_model)))",
    "n_active_non_embedding": "n_blocks * (11 * d_model**2 + 256 * d_model * floor(d_model / 512))",
    "n_active": "n_active_non_embedding",
    # 64 of width d/2 and one of width d, over 3 d
    "experts": 11,
    "learning_rate": "adam_lr",
    "batch_tokens": "batch * 4096",
}


class Rates(NamedTuple):
    """Best rates [n]: ln of N, E, D and batch in tokens as `variables` [n, 4], ln LR and its error.

    Rows of one `model` share D. `curvature` is that of the loss in ln LR, nats; `grid` has the runs, if they are
    public.
    """

    variables: FloatArray
    ln_rate: FloatArray
    error: FloatArray
    model: FloatArray
    curvature: float | None = None
    grid: SettingsGrid | None = None


def rates_of(runs: Runs) -> Rates:
    """Find the best rates of a grid."""
    # One batch counts as a batch, too.
    grid = replace(SettingsGrid.of([runs], "paper"), batch=runs.positive("batch_tokens"))
    best = best_rates(grid)
    model = best.model
    sizes = np.log([grid.size[model], grid.experts[model], grid.tokens[model]])
    variables = np.vstack([sizes, best.batch]).T
    return Rates(variables, best.ln_rate, best.error, model.astype(float), best.curvature, grid)


def _without_grid(n: Any, e: Any, d: Any, batch: Any, rate: Any, error: float) -> Rates:
    """Return best rates whose grid is not public."""
    columns = np.broadcast_arrays(n, e, d, batch)
    variables = np.log(np.stack(columns, 1).astype(float))
    n_rates = len(variables)
    return Rates(variables, np.log(rate), np.full(n_rates, error), np.arange(n_rates, dtype=float))


def _table(file: Path, **options: Any) -> Rates:
    """Read the grid of a table."""
    runs = load_runs(file, trunks="run", **options)
    if options.get("loss") == "c4_en_bpb":
        runs = replace(runs, loss=runs.loss * log(2) * BYTES_PER_TOKEN)
    return rates_of(runs)


def _lingle(file: Path) -> Rates:
    """Read the best settings of each N and D, at least one token for each parameter."""
    n, d, batch, rate = np.loadtxt(file, delimiter=",", skiprows=4).T
    has_enough_tokens = d >= n
    return _without_grid(
        n[has_enough_tokens], 1, d[has_enough_tokens], batch[has_enough_tokens], rate[has_enough_tokens], SPACING
    )


def _paper(_: Path) -> Rates:
    """Ask the paper's law at E = 1 and 8, to which it was fitted, at the mean ln D and the last batch of its runs."""
    law = LearningRateLaw.published()
    models = [row.architecture for row in ROWS if row.experts in (1, 8)]
    ln_tokens = [log(tokens * 1e9) for row in ROWS for tokens in row.tokens]
    n, e = _sizes_and_experts(models)
    rates = [law.learning_rate(model) for model in models]
    return _without_grid(n, e, np.exp(np.mean(ln_tokens)), BATCH_OF_THE_PAPER, rates, LAWS_OWN)


def _crossing(file: Path) -> Rates:
    """Read the grids of the crossing at 4M bytes and at a longer D, by means over seeds."""
    rows = []
    for rate in read_sweep(file).rates:
        model = Architecture(rate.d_model, rate.experts, BLOCKS, rate.d_model // HEAD, VOCABULARY)
        for tokens, losses in ((TUNED_AT, rate.losses_by_rate), (rate.longer, rate.longer_losses)):
            if len(losses) > 1:
                rows += [(model, tokens, loss, learning_rate) for learning_rate, loss in losses.items()]
    models, d, loss, rates = zip(*rows, strict=True)
    n, e = _sizes_and_experts(models)
    columns = {
        "learning_rate": np.array(rates),
        "batch_tokens": np.full(len(n), float(BATCH * SEQUENCE)),
        "n_active_non_embedding": n,
    }
    return rates_of(Runs.from_columns(n, d, e, loss, "run", columns=columns))


def _sizes_and_experts(models: Sequence[Architecture]) -> tuple[FloatArray, FloatArray]:
    """Return N without embeddings and E of each model."""
    n, e = np.array([(model.n_active_non_embedding, model.experts) for model in models], float).T
    return n, e


@dataclass(frozen=True)
class RateSet:
    """A grid of one lab, of a file here or below a folder, and how it is read.

    `level` is the error of its level of ln LR beyond that of the lab. Without `member` it is only forecast.
    """

    name: str
    lab: str
    description: str
    file: str | Path
    place: str
    licence: str
    read: Callable[..., Rates] = _table
    options: Any = None
    level: float = 0.0
    member: bool = True

    def rates(self, files: dict[str, Path]) -> Rates:
        """Read the best rates, from the tables found below a folder by name."""
        path = files[self.file] if isinstance(self.file, str) else self.file
        return self.read(path, **(self.options or {}))


_STEP = {"format": "step_law"}
_STEP_PLACE = (reader("step_law").place, reader("step_law").licence)
_MARIN = "github.com/marin-community/marin at "
_SWEPT = {"loss": "c4_en_bpb", "columns": _MARIN_MOE}
_HERE = {"loss": "loss", "columns": _OWN}
_EPFL = "github.com/fabian-sp/lr-scheduling at 8ace3a327a39"
_LINGLE = "lucaslingle.substack.com, Scaling laws for optimal LR and batch size, last part"
_CROSSING = HERE.parent / "crossing" / "runs.jsonl"
SETS = (
    RateSet("step_dense", "stepfun", "dense, AdamW", "dense_lr_bs_loss.csv", *_STEP_PLACE, options=_STEP),
    RateSet("step_moe", "stepfun", "MoE, AdamW", "moe_lr_bs_loss.csv", *_STEP_PLACE, options=_STEP),
    RateSet(
        "marin_moe",
        "marin",
        "MoE, AdamH",
        "marin_moe_lr_sweep.csv",
        f"{_MARIN}69ca5b5255e9",
        "Apache-2.0",
        options=_SWEPT,
        level=OTHER_OPTIMIZER,
    ),
    RateSet(
        "marin_adamw",
        "marin",
        "dense, AdamW",
        HERE / "marin_adamw.csv",
        f"{_MARIN}122c501870e0",
        "Apache-2.0",
        options=_HERE,
        level=OTHER_RECIPE,
    ),
    RateSet("epfl", "epfl", "dense, AdamW", HERE / "epfl.csv", _EPFL, "MIT", options=_HERE),
    RateSet("lingle", "lingle", "dense, AdamW", "lingle_best_rates.csv", _LINGLE, "none stated", _lingle),
    RateSet(
        "paper",
        "ludziejewski",
        "dense and MoE, AdamW",
        HERE,
        "arXiv 2502.05172",
        "a law, no table",
        _paper,
        level=LAWS_D,
    ),
    RateSet(
        "crossing",
        "ours",
        "dense and MoE, AdamW",
        _CROSSING,
        "studies/crossing",
        "ours",
        _crossing,
        member=False,
    ),
)


def read_sets(folder: Path) -> dict[str, Rates]:
    """Read the best rates of every set.

    Raises FileNotFoundError, which names the tables that are not below `folder`.
    """
    files = {path.name: path for path in sorted(folder.rglob("*.csv"), reverse=True)}
    missing = []
    for rate_set in SETS:
        if isinstance(rate_set.file, str) and rate_set.file not in files:
            missing.append(f"{rate_set.file} ({rate_set.place})")
    if missing:
        raise FileNotFoundError(f"{folder}: no {'; '.join(missing)} below it")
    return {rate_set.name: rate_set.rates(files) for rate_set in SETS}
