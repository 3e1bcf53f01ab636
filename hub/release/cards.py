"""Cards of a released revision, of a repository, and of a sweep's index.

Text from a record is escaped, text that the caller hands in is trusted. Text that follows from records stands in
named blocks: a later push rewrites these (`refresh_card`), and leaves everything else to people.
"""

from __future__ import annotations

import json
import math
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from hub.base.errors import FilesError
from hub.base.markdown import (
    block,
    block_of,
    compose_card,
    escape_markdown,
    read_card,
    replace_block,
    update_metadata,
)
from hub.base.tables import Table
from hub.base.types import Fields
from hub.base.units import UNKNOWN, format_count, format_decimal
from hub.record.names import branch_name, index_name, repo_name
from hub.record.run_record import RunRecord
from hub.record.table import viewer_file

PAPER = "[Joint MoE Scaling Laws](https://arxiv.org/abs/2502.05172) (Ludziejewski et al. 2025)"
TAGS = ("scaling-laws", "mixture-of-experts", "switch-transformer", "joint-moe-scaling-laws")
# The oldest that runs the code of our class, as `modeling_switch_moe.versions` has it.
TRANSFORMERS = "5.17"
# The tag in whose place another class has its model type.
OURS = "switch-transformer"
# The names of blocks.
RUN = "run"
RUNS = "runs"
LOADING = "loading"
PLACE = "place"
LAW = "law"
REVISIONS = "revisions"
MAIN = "main"
# Blocks and metadata that follow from records.
_BLOCKS_OF_RECORDS = (RUN, RUNS, LOADING, PLACE, REVISIONS, MAIN)
_METADATA_OF_RECORDS = ("tags", "datasets", "model-index", "configs")
_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_PICTURE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\.(?:png|svg)")
_MAX_TABLE_ROWS = 400
# Revisions whose results stand in the metadata of a repository's card.
_MAX_RESULTS = 100

# huggingface.co/docs/hub/repositories-licenses. Whoever releases weights says under which, or the card names none.
_IDENTIFIERS = """
apache-2.0 mit openrail bigscience-openrail-m creativeml-openrail-m bigscience-bloom-rail-1.0 bigcode-openrail-m
afl-3.0 artistic-2.0 bsl-1.0 bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear c-uda cc cc0-1.0 cc-by-2.0 cc-by-2.5
cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nd-4.0 cc-by-nc-nd-3.0
cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cdla-sharing-1.0 cdla-permissive-1.0
cdla-permissive-2.0 wtfpl ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2 agpl-3.0 gfdl gpl gpl-2.0 gpl-3.0
lgpl lgpl-2.1 lgpl-3.0 isc h-research intel-research lppl-1.3c ms-pl apple-ascl apple-amlr mpl-2.0 odc-by odbl
openmdw-1.0 openrail++ osl-3.0 postgresql ofl-1.1 ncsa unlicense zlib pddl lgpl-lr deepfloyd-if-license
fair-noncommercial-research-license llama2 llama3 llama3.1 llama3.2 llama3.3 llama4 grok2-community gemma unknown
other
"""
LICENSES = frozenset(_IDENTIFIERS.split())

_LIMITS = """The model was trained to measure a scaling law. It is not tuned to follow instructions, not filtered for
harmful content, and repeats the biases of its data. Its loss is comparable only to runs with the same tokenizer and
data. A law fitted on such runs holds inside the range of sizes, tokens and experts it was fitted on."""


def model_card(
    record: RunRecord,
    *,
    sections: Mapping[str, str] | None = None,
    pictures: Mapping[str, str] = MappingProxyType({}),
    predicted_loss: float | None = None,
    license: str | None = None,
) -> str:
    """Write the README.md of one released revision, with its results as a `model-index`.

    `sections` (heading -> Markdown) come before the limits, `pictures` (file name -> caption, "" for the name) after
    the table. `predicted_loss` (nats/token) is a law's, and `license` an identifier of the Hub's list; without one the
    card names none.
    """
    paragraphs = [*_introduce(record), "## How to load", block(LOADING, _loading_example(record))]
    paragraphs += ["## The run", block(RUN, _run_table(record))]
    paragraphs += [_picture(name, caption) for name, caption in pictures.items()]
    prediction = ""
    if predicted_loss is not None:
        prediction = f"Loss in nats/token that a scaling law predicts for this run: {predicted_loss:.4f}."
    paragraphs += [block(PLACE, prediction), _refer_to_index(record)]
    paragraphs += [f"## {heading}\n\n{text}" for heading, text in (sections or {}).items()]
    paragraphs += ["## Limits", _LIMITS]
    return compose_card(_metadata([record], license), paragraphs)


def _introduce(record: RunRecord) -> list[str]:
    """Write the title of a run's card, and the paragraphs that say what its model is."""
    kind = "dense"
    title = "1 expert"
    purpose = "as the one-expert case of a Mixture-of-Experts scaling law"
    if record.experts > 1:
        kind = "Switch Mixture-of-Experts" if record.model_type is None else "Mixture-of-Experts"
        title = f"{record.experts} experts"
        purpose = "to measure how loss depends on size, data and the number of experts"
    if record.model_type is not None:
        kind += f" ({record.model_type} of transformers)"
    paragraphs = [
        f"# {title}, {format_count(record.n_active)} active parameters",
        f"A {kind} language model of the sweep {escape_markdown(record.sweep)}, trained on "
        f"{format_count(record.tokens)} tokens {purpose}, as in {PAPER}.",
    ]
    if record.status == "diverged":
        paragraphs.append("**This run diverged; its weights are kept for study only.**")
    elif record.status == "intermediate" and record.stopped is None:
        paragraphs.append("This is an intermediate checkpoint of a run that went on.")
    elif record.status == "intermediate":
        paragraphs.append(f"This run was stopped before its horizon; {escape_markdown(record.stopped)}.")
    return paragraphs


def refresh_card(card: str, fresh: str) -> str:
    """Return the card with its record-derived blocks and metadata, and a licence, as in `fresh`.

    Everything else stays, as does a law's prediction where `fresh` has none; a card without our blocks stays as it is
    but for the licence.
    """
    for name in _BLOCKS_OF_RECORDS:
        text = block_of(fresh, name)
        if text:
            card = replace_block(card, name, text)
    metadata = read_card(fresh).data.to_dict()
    names: list[str] = []
    if any(block_of(card, name) is not None for name in (RUN, RUNS, REVISIONS)):
        names += _METADATA_OF_RECORDS
    if "license" in metadata:
        names.append("license")
    return update_metadata(card, metadata, names)


def choose_main_run(records: Iterable[RunRecord]) -> RunRecord | None:
    """Choose the run whose files lie on `main`: the longest final one, then that of the lowest held-out loss."""

    def order(record: RunRecord) -> tuple[int, float, str]:
        loss = math.inf if record.eval_loss is None else record.eval_loss
        return -record.tokens, loss, record.branch or ""

    return min((record for record in records if record.status == "final"), key=order, default=None)


def repo_card(records: Iterable[RunRecord], *, on_main: bool = True, license: str | None = None) -> str:
    """Write the README.md on `main` of a model repository: its revisions, which of them `main` is, how to load one.

    `records` (at least one) have `repo` and `branch` set; `on_main`: the files of `choose_main_run` lie on `main`.
    """
    runs = sorted(records, key=lambda record: (record.status != "final", record.tokens, record.branch or ""))
    main_run = choose_main_run(runs)
    example = main_run or runs[-1]
    kind = "Dense models"
    if example.experts > 1:
        class_name = "Switch" if example.model_type is None else example.model_type
        kind = f"{class_name} Mixture-of-Experts models with {example.experts} experts"
    main_text = "**The branch `main` has no weights.** Choose a revision:"
    if on_main and main_run:
        main_text = (
            f"`main` holds the same files as the revision `{main_run.branch or branch_name(main_run)}`, the longest "
            "of the finished runs. The other runs are revisions of their own:"
        )
    header = ("Revision", "Tokens", "Held-out loss", "Training loss", "Status")
    rows = [(record.branch or branch_name(record), *_result_cells(record)) for record in runs[:_MAX_TABLE_ROWS]]
    paragraphs = [
        f"# {escape_markdown(repo_name(example))}",
        f"{kind}, {format_count(example.n_active)} active of {format_count(example.n_total)} parameters, of the sweep "
        f"{escape_markdown(example.sweep)}: one revision for each run, measured for a scaling law as in {PAPER}.",
        block(MAIN, main_text),
        block(REVISIONS, Table(header, rows).markdown()),
        "## How to load",
        block(LOADING, _loading_example(example)),
        _refer_to_index(example),
    ]
    return compose_card(_metadata(runs, license), paragraphs)


def _refer_to_index(record: RunRecord) -> str:
    return f"All runs of the sweep, with their records: the dataset `{index_name(record.sweep)}`."


def sweep_card(records: Iterable[RunRecord], *, repo: str | None = None, license: str | None = None) -> str:
    """Write the README.md of a sweep's index, with a place for the law; `repo` is the dataset's id."""
    runs = list(records)
    sweep_names = sorted({record.sweep for record in runs})
    sweep = ", ".join(sweep_names) or "empty sweep"
    final_count = sum(record.status == "final" for record in runs)
    table = runs_table(runs[:_MAX_TABLE_ROWS]).markdown()
    run_paragraphs = [f"In all: {len(runs)} rows, {final_count} of them final runs.", table]
    if len(runs) > _MAX_TABLE_ROWS:
        run_paragraphs.append(f"… and {len(runs) - _MAX_TABLE_ROWS} more rows in `{viewer_file()}`.")
    paragraphs = [
        f"# {escape_markdown(f'Runs of {sweep}')}",
        f"The run records of the sweep {escape_markdown(sweep)}: dense and Switch Mixture-of-Experts language models. "
        "A joint scaling law of active parameters, tokens and experts is fitted to these measurements, "
        f"as in {PAPER}.",
        "## How to load",
        block(LOADING, _index_example(repo)),
        block(LAW, ""),
        "## The runs",
        block(RUNS, "\n\n".join(run_paragraphs)),
        "Losses are in nats per token. `eval_loss` is held-out and without dropped tokens; `train_loss` is a mean "
        "over the last tokens of training (`train_loss_window_tokens`).",
    ]
    metadata = {
        "license": license and check_license(license),
        "language": "en",
        "tags": _tags(runs),
        "pretty_name": f"Runs of {sweep}",
        "configs": [{"config_name": "default", "data_files": [{"split": "train", "path": viewer_file()}]}],
    }
    return compose_card(metadata, paragraphs)


def _metadata(records: Sequence[RunRecord], license: str | None) -> Fields:
    """Collect licence, tags, datasets and results of the runs, each revision a model in the `model-index`."""
    datasets = {record.dataset.id for record in records if _HUB_ID.fullmatch(record.dataset.id)}
    models: list[Fields] = []
    for record in records[:_MAX_RESULTS]:
        models += _model_index(record)
    return {
        "license": license and check_license(license),
        "language": "en",
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": _tags(records),
        "datasets": sorted(datasets) or None,
        "model-index": models or None,
    }


def _tags(records: Sequence[RunRecord]) -> list[str]:
    """List the project's tags, the model classes and the sweeps."""
    classes = {record.model_type or OURS for record in records} or {OURS}
    project_tags = [tag for tag in TAGS if tag != OURS or tag in classes]
    sweep_tags = {f"sweep:{record.sweep}" for record in records}
    return [*project_tags, *sorted(classes - {OURS}), *sorted(sweep_tags)]


def _model_index(record: RunRecord) -> list[Fields]:
    """Make the entry of a `model-index`: held-out loss and perplexity; none if the run has no held-out loss."""
    from huggingface_hub import EvalResult
    from huggingface_hub.repocard_data import eval_results_to_model_index

    if record.eval_loss is None:
        return []
    perplexity = math.exp(min(record.eval_loss, 700.0))
    results = []
    for metric_type, metric_name, value in (
        ("loss", "Held-out loss (nats/token)", record.eval_loss),
        ("perplexity", "Held-out perplexity", perplexity),
    ):
        result = EvalResult(
            task_type="text-generation",
            task_name="Language modelling",
            dataset_type=record.dataset.id if _HUB_ID.fullmatch(record.dataset.id) else "local",
            dataset_name=f"{record.dataset.id} (held-out)",
            dataset_revision=record.dataset.revision,
            metric_type=metric_type,
            metric_name=metric_name,
            metric_value=round(value, 6),
        )
        results.append(result)
    return list(eval_results_to_model_index(f"{repo_name(record)}-{record.branch or branch_name(record)}", results))


def loading_code(
    place: str, revision: str | None = None, *, tokenizer: str | None = None, has_code: bool = True
) -> str:
    """Write Python that loads a release and its tokenizer in a fresh interpreter, without this project.

    `place` is a repository, with a branch or commit as `revision`, or a folder, without. `tokenizer` names one on the
    Hub that the release lacks. Where the release `has_code`, as models of our class do, both calls trust it, since
    transformers asks at a prompt otherwise.
    """
    if revision is None:
        assignment = f"folder = {json.dumps(place)}"
        arguments = "folder"
    else:
        assignment = f"repo, revision = {json.dumps(place)}, {json.dumps(revision)}"
        arguments = "repo, revision=revision"
    if has_code:
        arguments += ", trust_remote_code=True"
    tokenizer_arguments = arguments if tokenizer is None else json.dumps(tokenizer)
    return f"""from transformers import AutoModelForCausalLM, AutoTokenizer

{assignment}
model = AutoModelForCausalLM.from_pretrained({arguments}, use_safetensors=True)
tokenizer = AutoTokenizer.from_pretrained({tokenizer_arguments})"""


def tokenizer_name(record: RunRecord) -> str | None:
    """Return the tokenizer's name on the Hub where a release has it by name only, without its files."""
    tokenizer = record.tokenizer
    return tokenizer.id if tokenizer.fingerprint is None and _HUB_ID.fullmatch(tokenizer.id) else None


def _loading_example(record: RunRecord) -> str:
    # Repository and branch match patterns without quotes, so they are safe inside the string literals.
    repo = record.repo or repo_name(record)
    branch = record.branch or branch_name(record)
    is_ours = record.model_type is None
    is_on_hub = "/" in repo
    if is_on_hub:
        introduction = "Every run is a branch of its repository, so give the `revision`"
        introduction += f", here the commit of `{branch}`:" if record.commit else ":"
        place = repo
        revision = record.commit or branch
    else:
        introduction = "From the store's folder (or give the whole path):"
        place = f"models/{repo}/{branch}"
        revision = None
    code = loading_code(place, revision, tokenizer=tokenizer_name(record), has_code=is_ours)
    example = f"{introduction}\n\n```python\n{code}\n```"
    if not is_ours:
        version = record.versions.get("transformers")
        writer = f", such as {escape_markdown(version)}, which wrote it" if version else ""
        return f"""{example}

The class is transformers' own: no code comes with the weights. It needs a version of transformers that has
`{record.model_type}`{writer}."""
    return f"""{example}

It needs transformers {TRANSFORMERS} or newer: `pip install --upgrade 'transformers>={TRANSFORMERS}'`.

`trust_remote_code=True` runs the model's code, the `.py` files of this revision, with your rights: read them first.
None of it runs where the package `modeling_switch_moe` of `joint-moe-scaling-laws` is installed: import it, and leave
the argument out."""


def _index_example(repo: str | None) -> str:
    is_on_hub = repo is not None and _HUB_ID.fullmatch(repo)
    if not is_on_hub:
        return "`runs.jsonl` has one record per line; `scaling_law.load_runs(folder)` reads them."
    return f"""```python
from datasets import load_dataset

runs = load_dataset("{repo}", split="train").to_pandas()

from scaling_law import fit, load_runs

result = fit(load_runs("{repo}"), kind="joint")
```"""


def _picture(name: str, caption: str) -> str:
    if not _PICTURE.fullmatch(name):
        raise FilesError(f"picture {name!r}: allowed are file names that end in .png or .svg")
    if not caption:
        caption = name.rpartition(".")[0].replace("_", " ")
    return f"![{escape_markdown(caption)}]({name})"


def check_license(identifier: str) -> str:
    """Return `identifier` if the Hub knows such a licence; raise FilesError if not."""
    if identifier not in LICENSES:
        raise FilesError(
            f"license {identifier[:60]!r}: allowed are the Hub's identifiers, such as apache-2.0, mit, cc-by-4.0, "
            "cc0-1.0 or other"
        )
    return identifier


# -- the tables; every cell is escaped by `Table.markdown`


def runs_table(records: Iterable[RunRecord], title: str | None = None) -> Table:
    """Make a table with one row per record."""
    header = ("Run", "Active", "Total", "E", "Tokens", "Held-out loss", "Training loss", "Status", "Revision")
    rows = [
        (
            record.run_id,
            format_count(record.n_active),
            format_count(record.n_total),
            record.experts,
            *_result_cells(record),
            f"{record.repo or repo_name(record)}@{record.branch or branch_name(record)}",
        )
        for record in records
    ]
    return Table(header, rows, title=title)


def _result_cells(record: RunRecord) -> tuple[str, str, str, str]:
    tokens = format_count(record.tokens)
    return tokens, format_decimal(record.eval_loss), format_decimal(record.train_loss), record.status


# The rows of a run's table: a label, and its text with fields of the record or of `_describe_run`.
_ROWS = {
    "Run": "{run_id} ({status})",
    "Branched from": "{parent_run_id} after {branch_point_tokens:count} tokens",
    "Experts E (one active per token)": "{switch_experts}",
    "Class in transformers": "{model_type}",
    "Experts": "{experts_per_token} of {experts} per token{shared}",
    "E of laws of top-1 models, granularity": "{experts_equivalent:g}, {granularity:g}",
    "Active parameters": "{n_active:count} ({n_active:,})",
    "Total parameters": "{n_total:count} ({n_total:,})",
    "Width, blocks, heads": "{d_model}, {n_blocks}, {n_heads}",
    "Vocabulary, sequence length": "{vocab_size:,}, {sequence_length:,}",
    "Training tokens D": "{tokens:count} ({tokens:,}), {steps:,} steps",
    "Tokens per active parameter": "{tokens_per_parameter:.4g}",
    "Held-out loss (nats/token, dropless)": "{eval_loss:.4f}",
    "Training loss (nats/token)": "{train_loss:.4f}{loss_window}",
    "Tokens dropped by the router": "{drop_rate:.4f}",
    "Largest expert load over the mean": "{expert_load_max_over_mean:.3f}",
    "Peak learning rate": "{schedule.peak_learning_rate:.4g} ({schedule.learning_rate_law})",
    "Schedule (tokens)": (
        "warm-up {schedule.warmup_tokens:count}, decay {schedule.decay_tokens:count}, "
        "horizon {schedule.horizon_tokens:count}"
    ),
    "Global batch (sequences)": "{batch_ramp}",
    "Micro-batch (sequences)": "{micro_batch_sequences}",
    "Expert capacity": "{capacity}",
    "Capacity group (tokens)": "{capacity_group_tokens:,}",
    "Auxiliary losses (coefficients)": "balance {balance_loss_coefficient:g}, z {z_loss_coefficient:g}",
    "Optimizer": (
        "{optimizer.name}, beta {optimizer.beta1:g}/{optimizer.beta2:g}, epsilon {optimizer.epsilon:g}, "
        "weight decay {optimizer.weight_decay:g}{decayed}, clip {optimizer.gradient_clip_norm:g}"
    ),
    "Initialization": "{initialization}",
    "Norm before the head": "{final_norm}",
    "Precision, seed": "{precision}{attention}, {seed}",
    "Data": "{dataset.id} (revision {dataset.revision}, fingerprint {dataset.fingerprint})",
    "Tokenizer": "{tokenizer.id} (fingerprint {tokenizer.fingerprint})",
    "Training compute": "{training_flops:.4g} FLOPs, {tokens_per_second:count} tokens/s, MFU {mfu:.3f}",
    "Hardware, wall time": "{hardware}, {wall_time}",
}
# Fields of models that route, which say nothing of a dense one.
_ROUTING = (
    "experts_per_token",
    "experts_equivalent",
    "drop_rate",
    "expert_load_max_over_mean",
    "capacity",
    "capacity_group_tokens",
    "balance_loss_coefficient",
)


class _Cell(string.Formatter):
    """Writes a cell: a field that is null is "–", and the format `count` is that of `format_count`."""

    def format_field(self, value: Any, spec: str) -> str:
        if value is None:
            return UNKNOWN
        return format_count(value) if spec == "count" else format(value, spec)


def _run_table(record: RunRecord) -> str:
    """Write the settings and results of a run; a row whose first field is null is left out."""
    fields = {**vars(record), **_describe_run(record)}
    if record.experts == 1:
        fields.update(dict.fromkeys(_ROUTING))
    formatter = _Cell()
    rows = []
    for label, text in _ROWS.items():
        (_, first_name, *_), *_ = formatter.parse(text)
        first_value, _ = formatter.get_field(str(first_name), (), fields)
        if first_value is not None:
            rows.append((label, formatter.vformat(text, (), fields)))
    return Table(("", "Value"), rows).markdown()


def _describe_run(record: RunRecord) -> Fields:
    """Word what a run's table says beside the fields of its record."""
    ramp = [f"{stage.sequences} from {format_count(stage.from_tokens)}" for stage in record.schedule.batch_ramp]
    texts: Fields = {
        "switch_experts": record.experts if record.model_type is None else None,
        "tokens_per_parameter": record.tokens / record.n_active,
        "shared": f", {record.shared_experts} shared" if record.shared_experts else "",
        "loss_window": f" over {format_count(record.train_loss_window_tokens)} tokens",
        "batch_ramp": " → ".join(ramp) or None,
        "capacity": None,
        "decayed": "",
        "final_norm": {None: None, True: "yes", False: "no"}[record.final_norm],
        "attention": "",
        "wall_time": None,
    }
    if record.train_loss is None:
        texts["loss_window"] = ""
    if record.optimizer.weight_decay_on is not None:
        texts["decayed"] = {"all": " on all parameters", "matrices": " on matrices"}[record.optimizer.weight_decay_on]
    if record.capacity_factor is not None:
        texts["capacity"] = f"factor {record.capacity_factor:g}" if record.capacity_factor else "dropless"
    if record.attention_precision is not None:
        texts["attention"] = f", attention {record.attention_precision}"
    if record.wall_time_seconds is not None:
        texts["wall_time"] = f"{record.wall_time_seconds / 3600:.3g} h"
    return texts
