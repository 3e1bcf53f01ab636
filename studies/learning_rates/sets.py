"""Grids of learning rates, and the best rate of each model, D and batch with its error; N without embeddings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import log
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from scaling_law import Architecture, LearningRateLaw, Runs, load_runs
from scaling_law.fitting import SettingsGrid
from scaling_law.runs import reader
from scaling_law.size import ROWS
from studies.common import FloatArray
from studies.crossing.records import BATCH, BLOCKS, HEAD, SEQUENCE, TUNED_AT, VOCABULARY, read_sweep

HERE = Path(__file__).parent
BYTES_PER_TOKEN = 4.5  # of Marin's tokenizer; only turns its losses into nats per token
SPACING = 0.25  # error of ln LR of a best setting among rates by factors of √2 and batches by 2, set before any fit
LAWS_OWN, LAWS_D = 0.15, 0.2  # of the paper's law about its grid, and of its level: the D of its grid is not told
OTHER_OPTIMIZER, OTHER_RECIPE = 1.0, 0.2  # of a set's level within its lab: AdamH holds the norms of matrices
BATCH_OF_THE_PAPER = 512 * 512
_OWN = {"n_active": "n_active_non_embedding", "experts": 1}
_MARIN_MOE = {  # by the authors' heuristic.py, as in the reader "marin_isoflop"
    "n_blocks": "round(d_model / (55 + 4 * log2(d_model)))",
    "n_active_non_embedding": "n_blocks * (11 * d_model**2 + 256 * d_model * floor(d_model / 512))",
    "n_active": "n_active_non_embedding",
    "experts": 11,  # 64 of width d/2 and one of width d, over 3 d
    "learning_rate": "adam_lr",
    "batch_tokens": "batch * 4096",
}


class Rates(NamedTuple):
    """Best rates [n]: ln of N, E, D and batch in tokens as `variables` [n, 4], ln LR and its error; rows of one
    `model` share D. `curvature` is that of the loss in ln LR, nats; `grid` has the runs, if they are public.
    """

    variables: FloatArray
    ln_rate: FloatArray
    error: FloatArray
    model: FloatArray
    curvature: float | None = None
    grid: SettingsGrid | None = None


def rates_of(runs: Runs) -> Rates:
    """The best rates of a grid."""
    grid = replace(SettingsGrid.of([runs], "paper"), batch=runs.positive("batch_tokens"))  # one, too, is a batch
    best = grid.best_rates()
    at = best.model
    sizes = np.log([grid.size[at], grid.experts[at], grid.tokens[at]])
    variables = np.vstack([sizes, best.batch]).T
    return Rates(variables, best.ln_rate, best.error, at.astype(float), best.curvature, grid)


def _told(n: Any, e: Any, d: Any, batch: Any, rate: Any, error: float) -> Rates:
    """Best rates without their grid."""
    variables = np.log(np.stack(np.broadcast_arrays(n, e, d, batch), 1).astype(float))
    return Rates(variables, np.log(rate), np.full(len(variables), error), np.arange(len(variables), dtype=float))


def _table(file: Path, **options: Any) -> Rates:
    runs = load_runs(file, trunks="run", **options)
    bits = options.get("loss") == "c4_en_bpb"
    return rates_of(replace(runs, loss=runs.loss * log(2) * BYTES_PER_TOKEN) if bits else runs)


def _lingle(file: Path) -> Rates:
    """The best settings of each N and D, at least one token for each parameter."""
    n, d, batch, rate = np.loadtxt(file, delimiter=",", skiprows=4).T
    kept = d >= n
    return _told(n[kept], 1, d[kept], batch[kept], rate[kept], SPACING)


def _paper(_: Path) -> Rates:
    """The paper's law at E = 1 and 8, to which it was fitted, at the mean ln D and the last batch of its runs."""
    law, models = LearningRateLaw.published(), [row.architecture for row in ROWS if row.experts in (1, 8)]
    tokens = np.exp(np.mean([log(t * 1e9) for row in ROWS for t in row.tokens]))
    n, e = np.array([(a.n_active_non_embedding, a.experts) for a in models], float).T
    return _told(n, e, tokens, BATCH_OF_THE_PAPER, [law.learning_rate(a) for a in models], LAWS_OWN)


def _crossing(file: Path) -> Rates:
    """The grids of the crossing at 4M bytes and at a longer D, by means over seeds."""
    rows = [
        (Architecture(one.d_model, one.experts, BLOCKS, one.d_model // HEAD, VOCABULARY), d, loss, rate)
        for one in read_sweep(file).rates
        for d, tried in ((TUNED_AT, one.tried), (one.longer, one.checked))
        for rate, loss in (tried.items() if len(tried) > 1 else ())
    ]
    models, d, loss, rate = zip(*rows, strict=True)
    n, e = np.array([(a.n_active_non_embedding, a.experts) for a in models], float).T
    columns = {"learning_rate": np.array(rate), "batch_tokens": np.full(len(n), float(BATCH * SEQUENCE))}
    return rates_of(Runs.from_columns(n, d, e, loss, "run", columns=columns | {"n_active_non_embedding": n}))


@dataclass(frozen=True)
class RateSet:
    """A grid of one lab, of a file here or below a folder, and how it is read.

    `level` is the error of its level of ln LR beyond that of the lab. Without `member` it is only forecast.
    """

    name: str
    lab: str
    what: str
    file: str | Path
    place: str
    licence: str
    read: Callable[..., Rates] = _table
    options: Any = None
    level: float = 0.0
    member: bool = True

    def rates(self, files: dict[str, Path]) -> Rates:
        return self.read(files[self.file] if isinstance(self.file, str) else self.file, **(self.options or {}))


_STEP, _STEP_PLACE = {"format": "step_law"}, (reader("step_law").place, reader("step_law").licence)
_MARIN, _SWEPT = "github.com/marin-community/marin at ", {"loss": "c4_en_bpb", "columns": _MARIN_MOE}
_HERE = {"loss": "loss", "columns": _OWN}
_EPFL = "github.com/fabian-sp/lr-scheduling at 8ace3a327a39"
_LINGLE = "lucaslingle.substack.com, Scaling laws for optimal LR and batch size, last part"
_CROSSING = HERE.parent / "crossing" / "runs.jsonl"
SETS = (
    RateSet("step_dense", "stepfun", "dense, AdamW", "dense_lr_bs_loss.csv", *_STEP_PLACE, options=_STEP),
    RateSet("step_moe", "stepfun", "MoE, AdamW", "moe_lr_bs_loss.csv", *_STEP_PLACE, options=_STEP),
    RateSet("marin_moe", "marin", "MoE, AdamH", "marin_moe_lr_sweep.csv", f"{_MARIN}69ca5b5255e9", "Apache-2.0",
            options=_SWEPT, level=OTHER_OPTIMIZER),
    RateSet("marin_adamw", "marin", "dense, AdamW", HERE / "marin_adamw.csv", f"{_MARIN}122c501870e0", "Apache-2.0",
            options=_HERE, level=OTHER_RECIPE),
    RateSet("epfl", "epfl", "dense, AdamW", HERE / "epfl.csv", _EPFL, "MIT", options=_HERE),
    RateSet("lingle", "lingle", "dense, AdamW", "lingle_best_rates.csv", _LINGLE, "none stated", _lingle),
    RateSet("paper", "ludziejewski", "dense and MoE, AdamW", HERE, "arXiv 2502.05172", "a law, no table", _paper,
            level=LAWS_D),
    RateSet("crossing", "ours", "dense and MoE, AdamW", _CROSSING, "studies/crossing", "ours", _crossing,
            member=False),
)  # fmt: skip


def read_sets(folder: Path) -> dict[str, Rates]:
    """The best rates of every set. FileNotFoundError names the tables that are not below `folder`."""
    files = {path.name: path for path in sorted(folder.rglob("*.csv"), reverse=True)}
    if missing := [f"{one.file} ({one.place})" for one in SETS if isinstance(one.file, str) and one.file not in files]:
        raise FileNotFoundError(f"{folder}: no {'; '.join(missing)} below it")
    return {one.name: one.rates(files) for one in SETS}
