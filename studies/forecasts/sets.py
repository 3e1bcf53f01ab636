"""Public sets of runs, and how each is read: losses in nats per token, N with both embeddings, one lab one fold.

No table is kept here: some state no licence. `read_sets` takes a folder that holds them under their own names; each
`place` says where a table is from. Losses in bits per byte become nats per token with `bytes_per_token`, which is an
estimate where `unit` says so: the prior has a free shift for that (docs/studies/forecasts.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import log
from pathlib import Path
from typing import Any, Literal

import numpy as np

from scaling_law import Runs, load_runs
from scaling_law.runs import best_of, reader

# Runs outside of this range are left out.
TOKENS_PER_PARAMETER = (1.0, 700.0)
# The vocabulary of OpenLM's models, GPT-NeoX's padded, that of Marin's MoE models, and that of xLSTM's repository.
NEOX = 50_432
LLAMA3 = 128_256
XLSTM = 50_304
GADRE_LOSS = "loss:eval_data/c4_val/shard-{0000000..0000010}"
PORIAN_WIDTHS = (96, 128, 160, 224, 288, 320, 384, 480, 576, 640, 704, 832, 1024, 1120, 1312, 1504)
_PORIAN_BODIES = (0.33, 1.05, 1.74, 4.30, 7.96, 12.5, 17.7, 33.2, 55.7, 76.2, 113.5, 178.9, 295.4, 398.8, 545.8, 825.9)
_PORIAN_SIZES = 1e6 * np.array(_PORIAN_BODIES) + NEOX * np.array(PORIAN_WIDTHS)
# Active parameters of Marin's MoE models of width d, by the authors' heuristic: as of the reader "marin_isoflop".
_MARIN_MOE: Mapping[str, Any] = {
    "n_blocks": "round(d_model / (55 + 4 * log2(d_model)))",
    "kv_heads": lambda row: _kv_heads(int(row["d_model"]) // 128),
    "n_active": f"n_blocks * (2 * d_model**2 + 256 * d_model * kv_heads + 9 * d_model**2) + {2 * LLAMA3} * d_model",
    # 64 of width d/2 and one of width d, over 3 d
    "experts": 11,
    "vocab_size": LLAMA3,
}
_OVERTRAINED = {"tokens": "tpp * n_active", "n_active": f"n_active + {2 * LLAMA3} * d_model", "experts": 65 / 3}


def _kv_heads(heads: int) -> int:
    """Return the greatest divisor of the heads that is at most a quarter of them."""
    return max([k for k in range(1, heads // 4 + 1) if heads % k == 0], default=1)


# Standard deviations of ln loss and ln D between a set's unit and the prior's, set before anything was fitted.
UNITS = {"nats": (0.05, 0.1), "other": (0.1, 0.15), "bits": (0.15, 0.15)}


@dataclass(frozen=True)
class RunSet:
    """A table of comparable runs of one lab.

    `unit` is what a loss is: "nats" per token of held-out text of the training corpus, "other" where it is a macro
    average or another corpus, "bits" per byte, read with `bytes_per_token`. `counts` says what N holds, and whether
    that is known. `read` are options of `load_runs`; `tuned` columns are settings of which the best run is kept. A set
    that is no `member` of the population of laws is only forecast, and teaches the stack. `first_read` is the day on
    which its losses were first read here.
    """

    name: str
    lab: str
    corpus: str
    file: str
    place: str
    licence: str
    counts: str
    read: Mapping[str, Any] = field(default_factory=dict)
    unit: Literal["nats", "other", "bits"] = "nats"
    bytes_per_token: float = 1.0
    tuned: tuple[str, ...] = ()
    member: bool = True
    first_read: str = "2026-11-23"

    def load(self, folder: Path) -> Runs | None:
        """Load the runs of 1 < D/N < 700, losses in nats per token; None where the folder lacks the table."""
        path = next(iter(sorted(folder.rglob(self.file))), None)
        return None if path is None else self.runs_of(path)

    def runs_of(self, source: Any) -> Runs:
        """Load the runs from any source that `load_runs` takes."""
        runs = load_runs(source, trunks="run", **self.read)
        if self.tuned:
            models = ("d_model", "cell") if "cell" in runs else ("d_model",)
            runs = best_of(runs, over=self.tuned, by=models)
        if self.unit == "bits":
            runs = replace(runs, loss=runs.loss * log(2) * self.bytes_per_token)
        low, high = TOKENS_PER_PARAMETER
        ratio = runs.tokens / runs.n_active
        return replace(runs.subset((ratio > low) & (ratio < high)), source=self.name)


def _public(name: str, lab: str, corpus: str, file: str, form: str, **options: Any) -> RunSet:
    """Return a set that a reader of the library knows."""
    source = reader(form)
    return RunSet(
        name,
        lab,
        corpus,
        file,
        source.place,
        source.licence,
        source.counts,
        {"format": form},
        **options,
    )


def _part(table: RunSet, name: str, corpus: str, where: str, **changes: Any) -> RunSet:
    """Return the set of these rows of a table."""
    return replace(table, name=name, corpus=corpus, read={**table.read, "where": where}, **changes)


def _porian_size(row: Mapping[str, Any]) -> float:
    """Return N with both embeddings; the table counts the head, by whose width the nearest of the sizes is found."""
    n = float(row["n"])
    nearest = int(np.argmin(np.abs(np.log(_PORIAN_SIZES / n))))
    return n + NEOX * PORIAN_WIDTHS[nearest]


def _olmo_multiple(row: Mapping[str, Any]) -> float:
    """Return the multiple of 20 tokens per parameter: 4xC."""
    return float(str(row["chinchilla_multiple"]).rstrip("xC"))


def _olmo_size(row: Mapping[str, Any]) -> float:
    """Return the nominal number of parameters: 1.3b."""
    text = row["model_size"]
    return float(text[:-1]) * {"m": 1e6, "b": 1e9}[text[-1]]


_ATHENA = _public("", "", "", "isoflops.csv", "open_athena")
# The losses are on C4, whatever the corpus.
_GADRE = RunSet(
    "",
    "openlm",
    "",
    "gadre_overtraining.csv",
    "github.com/mlfoundations/scaling at a003c49, exp_data",
    "MIT",
    "N with both embeddings",
    {
        "loss": GADRE_LOSS,
        "columns": {"n_active": "params", "n_active_non_embedding": "params_no_embed", "experts": 1},
    },
    unit="other",
)
_PORIAN = RunSet(
    "",
    "tel_aviv",
    "",
    "porian_isoflop.csv",
    "github.com/formll/resolving-scaling-law-discrepancies at 0dc60d9",
    "MIT",
    f"N with the head of {NEOX:,}; the input embedding is added",
    {"loss": "loss", "columns": {"n_active": _porian_size, "experts": 1}},
)
_MARIN = RunSet(
    "",
    "marin",
    "Nemotron mix",
    "marin_moe_adamh_isoflop.csv",
    "github.com/marin-community/marin",
    "Apache-2.0",
    "N of the width by the authors' heuristic, with both embeddings; leading dense layers and routers left out",
    {"loss": "c4_en_bpb", "columns": _MARIN_MOE},
    unit="bits",
    bytes_per_token=4.5,
)
# D is the nominal multiple of 20 tokens per parameter, N that of the recorded FLOPs C = 6 N D.
_OLMO = RunSet(
    "",
    "ai2",
    "",
    "ladder_comparison_data.csv",
    "github.com/allenai/OLMo-core at 4a88a77, notebooks",
    "Apache-2.0",
    "N from recorded FLOPs and the nominal D: estimated, attention inside, input embedding unknown",
    {
        "loss": "ce",
        "columns": {
            "run_id": "group_name",
            "multiple": _olmo_multiple,
            "size": _olmo_size,
            "tokens": "20 * size * multiple",
            "n_active": "`throughput/total petaflops` * 1e15 / (6 * tokens)",
            "experts": 1,
            "ce": "`eval/lm/c4_en-validation/CE loss`",
        },
        "on_invalid": "skip",
    },
    unit="other",
)
# Bits per character, of about 4.4 characters per token.
_FARSEER = RunSet(
    "farseer",
    "stepfun",
    "StepFun mix",
    "farseer.csv",
    "huggingface.co/datasets of PlanarG/active-sl, arXiv 2604.22753; from arXiv 2506.10972",
    "CC-BY-4.0, upstream terms besides",
    "how N is counted is not said",
    {"loss": "loss", "columns": {"n_active": "N", "tokens": "D", "experts": 1}, "on_invalid": "skip"},
    unit="bits",
    bytes_per_token=4.4,
    member=False,
    first_read="2026-11-27",
)
# Of Llama at 8,192 the largest group has one batch; a few runs of mLSTM diverged.
_XLSTM = RunSet(
    "",
    "nxai",
    "DCLM",
    "xlstm_llama_isoflop.csv",
    "github.com/NX-AI/xlstm_scaling_laws at 604bb30, data/*_wandb_data.pkl",
    "none stated",
    "N with both embeddings",
    {"loss": "val_loss", "columns": {"n_active": "params", "experts": 1, "vocab_size": XLSTM}, "on_invalid": "skip"},
    member=False,
    first_read="2026-11-27",
)
_XLSTM_PARTS = (
    ("xlstm_llama_2k", "llama", 2048, 512),
    ("xlstm_llama_8k", "llama", 8192, 128),
    ("xlstm_llama_16k", "llama", 16384, 64),
    ("xlstm_mlstm_8k", "mlstm", 8192, 256),
    ("xlstm_mlstm_16k", "mlstm", 16384, 64),
)


def _porian_sets(dataset: str, corpus: str) -> list[RunSet]:
    """Return the sets of a dataset of Porian et al., one for each recipe."""
    sets = []
    for hparams, warmup, decay in (
        ("base", "long", "kaplan"),
        ("base", "short", "kaplan"),
        ("base", "short", "chinchilla"),
        ("tuned", "short", "const"),
    ):
        recipe = f"hparams = {hparams}, warmup = {warmup}, decay = {decay}"
        name = f"porian_{dataset}_{hparams}_{warmup}_{decay}"
        sets.append(_part(_PORIAN, name, corpus, f"dataset = {dataset}, {recipe}, loss_is = val"))
    return sets


_GRID = ("learning_rate", "batch")
SETS: tuple[RunSet, ...] = (
    _public("epoch", "deepmind", "MassiveText", "svg_extracted_data.csv", "epoch_chinchilla"),
    *(
        _part(_ATHENA, name, corpus, f"experiment = {experiment}", lab=lab, **unit)
        for name, lab, corpus, experiment, unit in (
            ("scalefit", "deepmind", "MassiveText", "ml_scalefit__massivetext__chinchilla", {}),
            ("llama3", "meta", "Llama 3", "llama_3__raw_loss", {"unit": "bits", "bytes_per_token": 4.4}),
            ("misfitting", "ucsd", "FineWeb", "misfitting__fineweb_c4__transformer", {"unit": "other"}),
            ("marin_comma", "marin", "Common Pile", "marin_202603__comma__llama_2", {"unit": "other"}),
            ("marin_dclm", "marin", "DCLM", "marin_202603__dclm__llama_2", {"unit": "other"}),
            ("marin_nemotron", "marin", "Nemotron", "marin_202603__nemotron__llama_2", {"unit": "other"}),
        )
    ),
    _public("marin_v16", "marin", "Nemotron mix", "v16_isoflop.csv", "marin_isoflop", unit="other"),
    _part(_MARIN, "marin_adamh", "Nemotron mix", "variant = adamh"),
    _part(_MARIN, "marin_gatednorm", "Nemotron mix", "variant = gatednorm"),
    replace(
        _MARIN,
        name="marin_sweep",
        file="marin_moe_lr_sweep.csv",
        read={**_MARIN.read, "columns": {**_MARIN_MOE, "learning_rate": "adam_lr", "cell": "tok_ratio"}},
        tuned=_GRID,
    ),
    replace(
        _MARIN,
        name="marin_overtraining",
        file="marin_overtraining_grid.csv",
        read={"loss": "paloma_macro", "columns": {**_MARIN_MOE, **_OVERTRAINED}},
        unit="other",
    ),
    _public("step_dense", "stepfun", "StepFun mix", "dense_lr_bs_loss.csv", "step_law", tuned=_GRID),
    # It is no member: each size has an E of its own.
    _public(
        "step_moe",
        "stepfun",
        "StepFun mix",
        "moe_lr_bs_loss.csv",
        "step_law",
        tuned=_GRID,
        member=False,
    ),
    _part(_GADRE, "gadre_c4", "C4", "dataset = c4_original"),
    _part(_GADRE, "gadre_rpj", "RedPajama", "dataset = rpj"),
    _part(_GADRE, "gadre_rw", "RefinedWeb", "dataset = rw_original"),
    *_porian_sets("rw", "RefinedWeb"),
    *_porian_sets("owt2", "OpenWebText2"),
    _part(_OLMO, "olmo_v1", "Dolma mix", "experiment = v1-baseline, is_finished = True"),
    _part(_OLMO, "olmo_v2", "Dolma mix", "experiment = ri-olmo-v2, is_finished = True"),
    _public("gemstones", "maryland", "Dolma", "wandb_df_for_fitting_cool_end.jsonl", "gemstones"),
    _FARSEER,
    *(
        _part(_XLSTM, name, "DCLM", f"arch = {arch}, context = {context}, batch = {batch}, val_loss < 5")
        for name, arch, context, batch in _XLSTM_PARTS
    ),
)


def read_sets(folder: Path) -> tuple[dict[str, Runs], list[str]]:
    """Read the runs of every set whose table lies below `folder`, and return a line for each that is missing."""
    tables = {}
    missing = []
    for run_set in SETS:
        runs = run_set.load(folder)
        if runs is None:
            missing.append(f"{run_set.name}: no {run_set.file} below {folder}; {run_set.place}")
        else:
            tables[run_set.name] = runs
    return tables, missing
