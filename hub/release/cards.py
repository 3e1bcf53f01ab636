"""Cards of a released revision, of a repository, and of a sweep's index.

Text from a record is escaped, text that the caller hands in is trusted. What follows from records stands in named
blocks: a later push rewrites those (`refresh_card`), and everything else is a person's.
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
    escaped,
    license_of,
    read_card,
    replace_block,
    update_metadata,
)
from hub.base.tables import Table
from hub.base.units import UNKNOWN, format_count, format_decimal
from hub.record.names import branch_name, index_name, repo_name
from hub.record.run_record import RunRecord
from hub.record.table import viewer_file

PAPER = "[Joint MoE Scaling Laws](https://arxiv.org/abs/2502.05172) (Ludziejewski et al. 2025)"
TAGS = ("scaling-laws", "mixture-of-experts", "switch-transformer", "joint-moe-scaling-laws")
TRANSFORMERS = "5.17"  # the oldest that runs the code of our class, as `modeling_switch_moe.versions` has it
OURS = "switch-transformer"  # the tag in whose place another class has its model type
# Blocks, and of these the ones that follow from records.
RUN, RUNS, LOADING, PLACE, LAW, REVISIONS, MAIN = "run", "runs", "loading", "place", "law", "revisions", "main"
_BLOCKS = (RUN, RUNS, LOADING, PLACE, REVISIONS, MAIN)
_FROM_RECORDS = ("tags", "datasets", "model-index", "configs")  # metadata that follows from the records
_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_PICTURE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\.(?:png|svg)")
_MAX_TABLE_ROWS = 400
_NEIGHBOURS = 6  # runs shown on either side
_PREDICTION = "Loss in nats/token that a scaling law predicts for this run:"
_MAX_RESULTS = 100  # revisions whose results stand in the metadata of a repository's card

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
    siblings: Iterable[RunRecord] = (),
    predicted_loss: float | None = None,
    license: str | None = None,
) -> str:
    """The README.md of one released revision, with its results as a `model-index`.

    `sections` (heading -> Markdown) come before the limits, `pictures` (file name -> caption, "" for the name) after
    the table. `siblings` are other runs of the sweep, `predicted_loss` (nats/token) is a law's, and `license` an
    identifier of the Hub's list; without one the card names none.
    """
    kind, purpose = "dense", "as the one-expert case of a Mixture-of-Experts scaling law"
    if record.experts > 1:
        kind = f"{'Switch ' if record.model_type is None else ''}Mixture-of-Experts"
        purpose = "to measure how loss depends on size, data and the number of experts"
    if record.model_type is not None:
        kind += f" ({record.model_type} of transformers)"
    status = {
        "diverged": "**This run diverged; its weights are kept for study only.**",
        "intermediate": "This is an intermediate checkpoint of a run that went on."
        if record.stopped is None
        else f"This run was stopped before its horizon; {escaped(record.stopped)}.",
    }
    parts = [
        f"# {record.experts} expert{'s' * (record.experts > 1)}, {format_count(record.n_active)} active parameters",
        f"A {kind} language model of the sweep {escaped(record.sweep)}, trained on {format_count(record.tokens)} "
        f"tokens {purpose}, as in {PAPER}.",
        *([status[record.status]] if record.status in status else []),
        "## How to load",
        block(LOADING, _loading_example(record)),
        "## The run",
        block(RUN, _run_table(record)),
        *(_picture(name, caption) for name, caption in pictures.items()),
        block(PLACE, _place_in_sweep(record, siblings, predicted_loss)),
        *(f"## {heading}\n\n{text}" for heading, text in (sections or {}).items()),
        "## Limits",
        _LIMITS,
    ]
    return compose_card(_metadata([record], license), parts)


def refresh_card(card: str, fresh: str) -> str:
    """Return the card with its record-derived blocks and metadata, and a licence, as in `fresh`.

    Everything else stays; a card without our blocks stays as it is but for the licence.
    """
    for part in _BLOCKS:
        text = block_of(fresh, part)
        if text:
            card = replace_block(card, part, text)
    metadata = read_card(fresh).data.to_dict()
    has_our_blocks = any(block_of(card, part) is not None for part in (RUN, RUNS, REVISIONS))
    owned = [*_FROM_RECORDS] if has_our_blocks else []
    if "license" in metadata:
        owned.append("license")
    return update_metadata(card, metadata, owned)


def update_card(present: str, card: str, license: str | None = None, *, with_prediction: bool = False) -> str:
    """Return the card to store when `card` is pushed to a branch that has the card `present`.

    The licence stays unless one is given. `present` stays where only the run's neighbours would differ; a law's loss
    counts only `with_prediction`.
    """
    license = license or license_of(present) or license_of(card)
    if license:
        card = update_metadata(card, {"license": license}, ["license"])
    text = refresh_card(present, card)
    same_prediction = not with_prediction or _prediction_of(present) == _prediction_of(text)
    same_rest = replace_block(present, PLACE, "") == replace_block(text, PLACE, "")
    return present if same_prediction and same_rest else text


def shown_on_main(records: Iterable[RunRecord]) -> RunRecord | None:
    """The run whose files lie on `main`: the longest final one, then that of the lowest held-out loss, if any."""

    def order(record: RunRecord) -> tuple[int, float, str]:
        loss = math.inf if record.eval_loss is None else record.eval_loss
        return -record.tokens, loss, record.branch or ""

    return min((record for record in records if record.status == "final"), key=order, default=None)


def repo_card(records: Iterable[RunRecord], *, on_main: bool = True, license: str | None = None) -> str:
    """The README.md on `main` of a model repository: its revisions, which of them `main` is, and how to load one.

    `records` (at least one) have `repo` and `branch` set; `on_main`: the files of `shown_on_main` lie on `main`, too.
    """
    runs = sorted(records, key=lambda record: (record.status != "final", record.tokens, record.branch or ""))
    main_run = shown_on_main(runs)
    like = main_run or runs[-1]
    switch = "Switch " if like.model_type is None else f"{like.model_type} "
    kind = f"{switch}Mixture-of-Experts models with {like.experts} experts" if like.experts > 1 else "Dense models"
    what_main_is = "**The branch `main` has no weights.** Choose a revision:"
    if on_main and main_run:
        what_main_is = (
            f"`main` holds the same files as the revision `{main_run.branch or branch_name(main_run)}`, the longest "
            "of the finished runs. The other runs are revisions of their own:"
        )
    header = ("Revision", "Tokens", "Held-out loss", "Training loss", "Status")
    rows = [(record.branch or branch_name(record), *_results_of(record)) for record in runs[:_MAX_TABLE_ROWS]]
    parts = [
        f"# {escaped(repo_name(like))}",
        f"{kind}, {format_count(like.n_active)} active of {format_count(like.n_total)} parameters, of the sweep "
        f"{escaped(like.sweep)}: one revision for each run, measured for a scaling law as in {PAPER}.",
        block(MAIN, what_main_is),
        block(REVISIONS, Table(header, rows).markdown()),
        "## How to load",
        block(LOADING, _loading_example(like)),
        f"All runs of the sweep, with their records: the dataset `{index_name(like.sweep)}`.",
    ]
    return compose_card(_metadata(runs, license), parts)


def sweep_card(records: Iterable[RunRecord], *, repo: str | None = None, license: str | None = None) -> str:
    """The README.md of a sweep's index, with a place for the law; `repo` is the dataset's id, for the example."""
    runs = list(records)
    names = sorted({record.sweep for record in runs})
    sweep = ", ".join(names) or "empty sweep"
    finals = sum(record.status == "final" for record in runs)
    more = len(runs) - _MAX_TABLE_ROWS
    listed = [f"In all: {len(runs)} rows, {finals} of them final runs.", runs_table(runs[:_MAX_TABLE_ROWS]).markdown()]
    listed += [f"… and {more} more rows in `{viewer_file()}`."] if more > 0 else []
    parts = [
        f"# {escaped(f'Runs of {sweep}')}",
        f"The run records of the sweep {escaped(sweep)}: dense and Switch Mixture-of-Experts language models. A joint "
        f"scaling law of active parameters, tokens and experts is fitted to these measurements, as in {PAPER}.",
        "## How to load",
        block(LOADING, _index_example(repo)),
        block(LAW, ""),
        "## The runs",
        block(RUNS, "\n\n".join(listed)),
        "Losses are in nats per token. `eval_loss` is held-out and without dropped tokens; `train_loss` is a mean "
        "over the last tokens of training (`train_loss_window_tokens`).",
    ]
    metadata = {
        "license": license and checked_license(license),
        "language": "en",
        "tags": _tags(runs),
        "pretty_name": f"Runs of {sweep}",
        "configs": [{"config_name": "default", "data_files": [{"split": "train", "path": viewer_file()}]}],
    }
    return compose_card(metadata, parts)


def _metadata(records: Sequence[RunRecord], license: str | None) -> dict[str, Any]:
    """Licence, tags, datasets and results of the runs, each revision a model of its own in the `model-index`."""
    datasets = {record.dataset.id for record in records if _HUB_ID.fullmatch(record.dataset.id)}
    return {
        "license": license and checked_license(license),
        "language": "en",
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": _tags(records),
        "datasets": sorted(datasets) or None,
        "model-index": [model for record in records[:_MAX_RESULTS] for model in _results(record)] or None,
    }


def _tags(records: Sequence[RunRecord]) -> list[str]:
    """The project's tags, the model classes and the sweeps."""
    classes = {record.model_type or OURS for record in records} or {OURS}
    kept = [tag for tag in TAGS if tag != OURS or tag in classes]
    return [*kept, *sorted(classes - {OURS}), *sorted({f"sweep:{record.sweep}" for record in records})]


def _results(record: RunRecord) -> list[dict[str, Any]]:
    """The entry of a `model-index`: held-out loss and perplexity; none if the run has no held-out loss."""
    from huggingface_hub import EvalResult
    from huggingface_hub.repocard_data import eval_results_to_model_index

    if record.eval_loss is None:
        return []
    about = {
        "task_type": "text-generation",
        "task_name": "Language modelling",
        "dataset_type": record.dataset.id if _HUB_ID.fullmatch(record.dataset.id) else "local",
        "dataset_name": f"{record.dataset.id} (held-out)",
        "dataset_revision": record.dataset.revision,
    }
    metrics = (
        ("loss", "Held-out loss (nats/token)", record.eval_loss),
        ("perplexity", "Held-out perplexity", math.exp(min(record.eval_loss, 700.0))),
    )
    results = [EvalResult(**about, metric_type=m, metric_name=n, metric_value=round(v, 6)) for m, n, v in metrics]
    return list(eval_results_to_model_index(f"{repo_name(record)}-{record.branch or branch_name(record)}", results))


def loading_code(
    place: str, revision: str | None = None, *, tokenizer: str | None = None, has_code: bool = True
) -> str:
    """Python that loads a release and its tokenizer in a fresh interpreter, without this project.

    `place` is a repository, with a branch or commit as `revision`, or a folder, without. `tokenizer` names one on the
    Hub that the release lacks. Where the release `has_code`, as models of our class do, both calls trust it, since
    transformers asks at a prompt otherwise.
    """
    names, source = ("folder", "folder") if revision is None else ("repo, revision", "repo, revision=revision")
    values = ", ".join(json.dumps(value) for value in (place, revision) if value is not None)
    trust = ", trust_remote_code=True" if has_code else ""
    words = f"{source}{trust}" if tokenizer is None else json.dumps(tokenizer)
    return f"""from transformers import AutoModelForCausalLM, AutoTokenizer

{names} = {values}
model = AutoModelForCausalLM.from_pretrained({source}{trust}, use_safetensors=True)
tokenizer = AutoTokenizer.from_pretrained({words})"""


def tokenizer_name(record: RunRecord) -> str | None:
    """The tokenizer's name on the Hub where a release has it by name only, without its files."""
    named = record.tokenizer.fingerprint is None and _HUB_ID.fullmatch(record.tokenizer.id)
    return record.tokenizer.id if named else None


def _loading_example(record: RunRecord) -> str:
    # Repository and branch match patterns without quotes, so they are safe inside the string literals.
    repo, branch = record.repo or repo_name(record), record.branch or branch_name(record)
    more: dict[str, Any] = {"tokenizer": tokenizer_name(record), "has_code": record.model_type is None}
    if "/" in repo:
        lead = "Every run is a branch of its repository, so give the `revision`"
        lead += f", here the commit of `{branch}`:" if record.commit else ":"
        code = loading_code(repo, record.commit or branch, **more)
    else:  # a local store
        lead = "From the store's folder (or give the whole path):"
        code = loading_code(f"models/{repo}/{branch}", **more)
    example = f"{lead}\n\n```python\n{code}\n```"
    if record.model_type is not None:
        version = record.versions.get("transformers")
        writer = f", such as {escaped(version)}, which wrote it" if version else ""
        return f"""{example}

The class is transformers' own: no code comes with the weights. It needs a version of transformers that has
`{record.model_type}`{writer}."""
    return f"""{example}

It needs transformers {TRANSFORMERS} or newer: `pip install --upgrade 'transformers>={TRANSFORMERS}'`.

`trust_remote_code=True` runs the model's code, the `.py` files of this revision, with your rights: read them first.
None of it runs where the package `modeling_switch_moe` of `joint-moe-scaling-laws` is installed: import it, and leave
the argument out."""


def _index_example(repo: str | None) -> str:
    if repo is None or not _HUB_ID.fullmatch(repo):  # a local store: a folder in place of the dataset
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
    return f"![{escaped(caption or name.rpartition('.')[0].replace('_', ' '))}]({name})"


def checked_license(identifier: str) -> str:
    """`identifier`, if the Hub knows such a licence; FilesError if not."""
    if identifier not in LICENSES:
        raise FilesError(
            f"license {identifier[:60]!r}: allowed are the Hub's identifiers, such as apache-2.0, mit, cc-by-4.0, "
            "cc0-1.0 or other"
        )
    return identifier


# -- the tables; every cell is escaped by `Table.markdown`


def runs_table(records: Iterable[RunRecord], title: str | None = None, *, marked: RunRecord | None = None) -> Table:
    """One row per record; an arrow before the name of the `marked` one."""
    header = ("Run", "Active", "Total", "E", "Tokens", "Held-out loss", "Training loss", "Status", "Revision")
    rows = [
        (
            ("→ " if record is marked else "") + record.run_id,
            format_count(record.n_active),
            format_count(record.n_total),
            record.experts,
            *_results_of(record),
            f"{record.repo or repo_name(record)}@{record.branch or branch_name(record)}",
        )
        for record in records
    ]
    return Table(header, rows, title=title)


def _results_of(record: RunRecord) -> tuple[object, ...]:
    losses = format_decimal(record.eval_loss), format_decimal(record.train_loss)
    return format_count(record.tokens), *losses, record.status


def _place_in_sweep(record: RunRecord, siblings: Iterable[RunRecord], predicted_loss: float | None) -> str:
    """The loss that a law predicts, and the final runs nearest in size, experts and tokens; empty without either."""
    key = (record.run_id, record.tokens)
    others = [other for other in siblings if other.status == "final" and (other.run_id, other.tokens) != key]
    parts = []
    if predicted_loss is not None:
        measured = record.eval_loss if record.eval_loss is not None else record.train_loss
        off = f" (measured − predicted = {measured - predicted_loss:+.4f})" if measured is not None else ""
        parts.append(f"{_PREDICTION} {predicted_loss:.4f}{off}.")
    if others:
        ordered = sorted([*others, record], key=lambda r: (r.n_active, r.experts, r.tokens, r.run_id))
        at = next(position for position, other in enumerate(ordered) if other is record)
        near = ordered[max(0, at - _NEIGHBOURS) : at + _NEIGHBOURS + 1]
        parts.append(runs_table(near, marked=record).markdown())
    return "\n\n".join(["## Its place in the sweep", *parts]) if parts else ""


def _prediction_of(card: str) -> str:
    lines = (block_of(card, PLACE) or "").splitlines()
    return next((line for line in lines if line.startswith(_PREDICTION)), "")


class _Cells(string.Formatter):
    """Formats the value of a row of a run's table: null is "–", and a null `{name!n}` leaves the row out."""

    def convert_field(self, value: Any, conversion: Any) -> Any:
        return _LEFT_OUT if conversion == "n" and value is None else value

    def format_field(self, value: Any, spec: str) -> str:
        if value is None or value == _LEFT_OUT:
            return value or UNKNOWN
        if spec == "hours":
            return f"{value / 3600:.3g} h"
        return format_count(value) if spec == "count" else format(value, spec)


_LEFT_OUT = "\0"
_RUN_ROWS = """\
Run: {run_id} ({status})
Branched from: {parent_run_id!n} after {branch_point_tokens:count} tokens
Experts E (one active per token): {ours!n}{experts}
Class in transformers: {model_type!n}
Experts: {routed_class!n}{experts_per_token} of {experts} per token{shared}
E of laws of top-1 models, granularity: {routed_class!n}{experts_equivalent:g}, {granularity:g}
Active parameters: {n_active:count} ({n_active:,})
Total parameters: {n_total:count} ({n_total:,})
Width, blocks, heads: {d_model}, {n_blocks}, {n_heads}
Vocabulary, sequence length: {vocab_size:,}, {sequence_length:,}
Training tokens D: {tokens:count} ({tokens:,}), {steps:,} steps
Tokens per active parameter: {tokens_per_parameter:.4g}
Held-out loss (nats/token, dropless): {eval_loss:.4f}
Training loss (nats/token): {train_loss:.4f}{window}
Tokens dropped by the router: {routed!n}{drop_rate:.4f}
Largest expert load over the mean: {routed!n}{expert_load_max_over_mean:.3f}
Peak learning rate: {schedule.peak_learning_rate:.4g} ({schedule.learning_rate_law})
Schedule (tokens): warm-up {schedule.warmup_tokens:count}, decay {schedule.decay_tokens:count}, \
horizon {schedule.horizon_tokens:count}
Global batch (sequences): {ramp}
Micro-batch (sequences): {micro_batch_sequences!n}
Expert capacity: {routed!n}{capacity!n}
Capacity group (tokens): {routed!n}{capacity_group_tokens!n:,}
Auxiliary losses (coefficients): {routed!n}balance {balance_loss_coefficient!n:g}, z {z_loss_coefficient!n:g}
Optimizer: {optimizer.name}, beta {optimizer.beta1:g}/{optimizer.beta2:g}, epsilon {optimizer.epsilon:g}, \
weight decay {optimizer.weight_decay:g}{decayed}, clip {optimizer.gradient_clip_norm:g}
Initialization: {initialization!n}
Norm before the head: {norm!n}
Precision, seed: {precision}{attention}, {seed}
Data: {dataset.id} (revision {dataset.revision}, fingerprint {dataset.fingerprint})
Tokenizer: {tokenizer.id} (fingerprint {tokenizer.fingerprint})
Training compute: {training_flops:.4g} FLOPs, {tokens_per_second:count} tokens/s, MFU {mfu:.3f}
Hardware, wall time: {hardware}, {wall_time_seconds:hours}"""


def _run_table(record: RunRecord) -> str:
    """The settings and results of a run; a dense one does not route."""
    ours, routed, capacity = record.model_type is None, record.experts > 1, record.capacity_factor
    attention, decay_on = record.attention_precision, record.optimizer.weight_decay_on
    ramp = [f"{stage.sequences} from {format_count(stage.from_tokens)}" for stage in record.schedule.batch_ramp]
    fields = {
        **vars(record),
        "ours": "" if ours else None,
        "routed": "" if routed else None,
        "routed_class": "" if routed and not ours else None,
        "shared": f", {record.shared_experts} shared" if record.shared_experts else "",
        "tokens_per_parameter": record.tokens / record.n_active,
        "window": "" if record.train_loss is None else f" over {format_count(record.train_loss_window_tokens)} tokens",
        "ramp": " → ".join(ramp) or None,
        "capacity": f"factor {capacity:g}" if capacity else None if capacity is None else "dropless",
        "decayed": {None: "", "all": " on all parameters", "matrices": " on matrices"}[decay_on],
        "norm": {None: None, True: "yes", False: "no"}[record.final_norm],
        "attention": "" if attention is None else f", attention {attention}",
    }
    named = (row.split(": ", 1) for row in _RUN_ROWS.splitlines())
    rows = [(name, _Cells().vformat(text, (), fields)) for name, text in named]
    return Table(("", "Value"), [row for row in rows if _LEFT_OUT not in row[1]]).markdown()
