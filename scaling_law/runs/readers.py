"""Readers of public tables of runs, as their authors publish them: `load_runs(file, format="step_law")`.

A reader is data: which columns of the file are which of ours, what the authors left out, and where the file is from.
The files are not shipped. Sizes are counted as the joint law counts them (active parameters, input and output
embeddings, no norms, no router) where the file tells; `experts` is then the total over the active width of a routed
block, shared experts in both, as of `Architecture.experts_equivalent`. The other columns have the names of
`Architecture.variables`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hub.base.errors import InputError, unknown
from scaling_law.runs.columns import Column, with_columns
from scaling_law.runs.rows import Row, RunsError


@dataclass(frozen=True)
class Form:
    """One form of a public table: the columns by which it is known, and those made of them, in order."""

    needs: tuple[str, ...]
    columns: Mapping[str, Column]
    where: str = ""  # what the authors keep


@dataclass(frozen=True)
class Reader:
    """A public table of runs; the first of its `forms` whose columns a file has is read.

    `trunks` is the rule of `trunks_of`; `select` keeps rows by more than a filter can say; runs of different values
    of the column `apart` have losses that cannot be compared, so that a filter has to choose one.
    """

    name: str
    what: str
    repository: str  # on GitHub
    commit: str
    file: str
    licence: str
    loss: str
    forms: tuple[Form, ...]
    counts: str
    paper: str = ""
    trunks: str = "run"
    apart: str | None = None
    select: Callable[[Sequence[Row]], list[Row]] = field(default=list)

    @property
    def place(self) -> str:
        """Where the file is from."""
        return f"{self.file} of github.com/{self.repository} at {self.commit} (licence: {self.licence})"

    def read(self, rows: Sequence[Row], origin: str) -> tuple[list[Row], dict[int, str], str]:
        """Rows with our columns, problems of single rows, and the authors' filter. RunsError for another table."""
        present = {name for row in rows for name in row}
        for form in self.forms:
            if present.issuperset(form.needs):
                return *with_columns(self.select(rows), form.columns, origin), form.where
        forms = " or ".join(", ".join(form.needs) for form in self.forms)
        available = ", ".join(sorted(present))
        raise RunsError(f"{origin}: not {self.what} (columns {forms}), {self.place}; there are: {available}")


def reader(name: str) -> Reader:
    """The reader of this name; ValueError lists those there are."""
    if name not in READERS:
        raise InputError(unknown("format=", name, READERS))
    return READERS[name]


_STEP_LAW_VOCABULARY = 65_536  # the loss of diverged runs, 11.092, is its logarithm
_STEP_LAW: dict[str, Column] = {
    "run_id": "exp_name",
    "tokens": "bs * ti * 2048",
    "nominal_tokens": "D",
    "learning_rate": "lr",
    "batch": "bs",
    "batch_tokens": "bs * 2048",
    "last_loss": "loss",
    "d_model": "h",
    "d_ff": "ffnh",
    "n_heads": "numh",
    "n_blocks": "numl",
    "vocab_size": _STEP_LAW_VOCABULARY,
    "n_total_non_embedding": "N",
    "n_total": "n_total_non_embedding + 2 * h * vocab_size",
}
_STEP_LAW_MOE: dict[str, Column] = {
    "n_active_non_embedding": "Na",
    "n_active": "Na + 2 * h * vocab_size",
    "experts": "(nume * moeh + sed) / (topk * moeh + sed)",
    "routed_experts": "nume",
    "experts_per_token": "topk",
    "d_expert": "moeh",
    "density": "topk / nume",
    "granularity": "(topk * moeh + sed) / moeh",
    "shared_ratio": "sed / (topk * moeh + sed)",
}
_DENSE: dict[str, Column] = {"n_active_non_embedding": "N", "n_active": "n_total", "experts": 1}


def _marin_key_value_heads(row: Row) -> int:
    """The greatest divisor of the heads that is at most a quarter of them."""
    heads = row["dim"] // 128
    return max([k for k in range(1, int(heads // 4) + 1) if heads % k == 0], default=1)


def _last_versions(rows: Sequence[Row]) -> list[Row]:
    """The last repeat, such as -v2, of each budget and width, as the authors' README takes."""

    def version(row: Row) -> int:
        match = re.search(r"v(\d+)$", str(row.get("suffix") or row.get("name") or ""))
        return int(match[1]) if match else 1

    last = {(row.get("budget"), row.get("dim")): row for row in sorted(rows, key=version)}
    return [row for row in rows if last[row.get("budget"), row.get("dim")] is row]


_MARIN: dict[str, Column] = {
    "d_model": "dim",
    "n_blocks": "round(dim / (55 + 4 * log2(dim)))",
    "n_heads": "dim / 128",
    "n_kv_heads": _marin_key_value_heads,
    "d_expert": "128 * ceil(dim / 256)",
    "routed_experts": 64,
    "experts_per_token": 4,
    "vocab_size": 128_256,
    "active_width": "4 * d_expert + dim",
    "experts": "(64 * d_expert + dim) / active_width",
    "density": 4 / 64,
    "granularity": "active_width / d_expert",
    "shared_ratio": "dim / active_width",
    "attention": "n_blocks * (2 * dim**2 + 2 * dim * n_kv_heads * 128)",
    "n_active_non_embedding": "attention + n_blocks * 3 * dim * active_width",
    "n_total_non_embedding": "attention + n_blocks * 3 * dim * (64 * d_expert + dim)",
    "n_active": "n_active_non_embedding + 2 * dim * vocab_size",
    "n_total": "n_total_non_embedding + 2 * dim * vocab_size",
    "flops_per_token": "budget / tokens",
}
_CLARK: dict[str, Column] = {
    "run_id": lambda row: f"{int(row['hyper_id'])}-{int(row['step'])}",
    "n_active": "dense_parameter_count",
    "n_total": "total_parameter_count",
    "experts": "num_experts",
    "experts_per_token": "k",
    "tokens": "max(step, 1) * 524288",
    "n_blocks": "num_blocks",
    "n_heads": "num_heads",
}
_CLARK_NEEDS = ("hyper_id", "step", "router_type", "num_experts", "dense_parameter_count", "loss_validation")
_CLARK_KEPT = "k = 1, routing_frequency = 0.5, seed = 42, loss_validation > 0"


def _clark(name: str, what: str, where: str) -> Reader:
    return Reader(
        name=name,
        what=what,
        repository="google-deepmind/scaling_laws_for_routing",
        commit="42da0c392b12",
        file="data/curves.csv.gz",
        paper="arXiv 2202.01169",
        licence="CC-BY-4.0",
        loss="loss_validation",
        counts="N without embeddings; D of 250,000 steps of 524,288 tokens; one law for each router_type, with Dense",
        forms=(Form(_CLARK_NEEDS, _CLARK, where),),
        trunks="hyper_id",
    )


_READERS = (
    Reader(
        name="step_law",
        what="Step Law's grids of learning rate and batch",
        repository="step-law/steplaw",
        commit="32a8f4cc5024",
        file="data/{dense,moe}_lr_bs_loss.csv",
        paper="arXiv 2503.04715",
        licence="none stated",
        loss="smooth loss",
        counts="training loss, smoothed; N with the embeddings of a vocabulary of 65,536; batch in sequences of 2,048",
        forms=(
            Form(("Na", "nume", "topk", "moeh", "sed", "bs", "ti", "smooth loss"), _STEP_LAW | _STEP_LAW_MOE),
            Form(("N", "h", "ffnh", "numl", "bs", "ti", "smooth loss"), _STEP_LAW | _DENSE),
        ),
    ),
    Reader(
        name="marin_isoflop",
        what="Marin's MoE isoFLOP runs (v16)",
        repository="marin-community/marin",
        commit="e24ef54a05e2",
        file="experiments/grug/moe/old_isoflop_data_2.json",
        licence="Apache-2.0",
        loss="paloma_macro_loss",
        counts="N of the width by the authors' heuristic.py, vocabulary 128,256; budget: 3 forward passes, no LM head",
        forms=(
            Form(
                ("budget", "dim", "tokens", "macro_loss"),
                {"run_id": "name", "paloma_macro_loss": "macro_loss"} | _MARIN,
            ),
            Form(("budget", "dim", "tokens", "paloma_macro_loss"), _MARIN),
        ),
        select=_last_versions,
    ),
    Reader(
        name="open_athena",
        what="Open-Athena's isoFLOP tables of several labs",
        repository="Open-Athena/scaling-law-analysis",
        commit="3e0656ee3dce",
        file="data/isoflops/transform/isoflops.csv",
        licence="none stated",
        loss="loss",
        counts="N and D as each source counts them; rows that its authors mark as outliers are left out",
        forms=(
            Form(
                ("experiment", "tokens", "params", "budget", "loss", "outlier"),
                {"n_active": "params", "experts": 1},
                "outlier = False",
            ),
            Form(("experiment", "tokens", "params", "budget", "loss"), {"n_active": "params", "experts": 1}),
        ),
        apart="experiment",
    ),
    Reader(
        name="epoch_chinchilla",
        what="Epoch AI's points of Chinchilla's Figure 4",
        repository="epoch-research/analyzing-chinchilla",
        commit="92258837425e",
        file="data/svg_extracted_data.csv",
        paper="arXiv 2404.10102",
        licence="none stated",
        loss="loss",
        counts="N as Chinchilla counts it; D = FLOPs / (6 N); the five highest losses are left out",
        forms=(
            Form(
                ("Model Size", "Training FLOP", "loss"),
                {"n_active": "`Model Size`", "tokens": "`Training FLOP` / (6 * `Model Size`)", "experts": 1},
                "loss < 3.446995430227908",
            ),
        ),
    ),
    Reader(
        name="gemstones",
        what="the Gemstones",
        repository="mcleish7/gemstone-scaling-laws",
        commit="5f420478f606",
        file="wandb_dfs/wandb_df_for_fitting_*.jsonl",
        paper="arXiv 2502.06857",
        licence="MIT",
        loss="final_loss",
        counts="N with both embeddings of 50,304; cool_end after a cooldown, hot at a constant learning rate",
        forms=(
            Form(
                ("run_name", "params_active_precise", "width", "depth", "tokens", "final_loss"),
                {
                    "n_active": "params_active_precise",
                    "n_active_non_embedding": "params_active_precise - 2 * 50304 * width",
                    "experts": 1,
                    "d_model": "width",
                    "n_blocks": "depth",
                    "vocab_size": 50_304,
                },
            ),
        ),
        trunks="run_name",
    ),
    _clark(
        "clark",
        "the routed models of Clark et al. at the end of training",
        f"{_CLARK_KEPT}, step >= 248000",
    ),
    _clark("clark_curves", "the learning curves of Clark et al.", _CLARK_KEPT),
)
READERS: Mapping[str, Reader] = {one.name: one for one in _READERS}
