"""Model and data set cards: what a visitor of a released revision, or of a sweep's index, reads.

Everything that comes from a record is escaped (`hub.markdown`). Sections of text and pictures are handed in by the
caller, because `hub` knows nothing of curves and laws; their text is trusted and taken as it is.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .card_tables import place_in_sweep, repo_table, run_table, sweep_table
from .errors import FilesError
from .markdown import block, count, escaped, replace_block
from .names import branch_name, index_name, repo_name
from .records import RunRecord
from .tables import PARQUET_NAME

PAPER = "[Joint MoE Scaling Laws](https://arxiv.org/abs/2502.05172) (Ludziejewski et al. 2025)"
TAGS = ("scaling-laws", "mixture-of-experts", "switch-transformer", "joint-moe-scaling-laws")
_DATASET_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_PICTURE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\.(?:png|svg)")
_METADATA = re.compile(r"---[ \t]*\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|$)", re.DOTALL)
_MAX_TABLE_ROWS = 400
# Parts of a card that change when it goes to another place, or when more is known; see `hub.markdown.block`.
LOADING, PLACE, LAW, REVISIONS = "loading", "place", "law", "revisions"

Sections = Mapping[str, str] | Iterable[tuple[str, str]]
Pictures = Mapping[str, str] | Sequence[str]


def model_card(
    record: RunRecord,
    *,
    title: str | None = None,
    summary: str | None = None,
    sections: Sections = (),
    pictures: Pictures = (),
    predicted_loss: float | None = None,
    siblings: Iterable[RunRecord] = (),
    license: str = "apache-2.0",
    language: str = "en",
) -> str:
    """The README.md of one released revision, with valid metadata and results as a `model-index`.

    Args:
        record: the run. `repo` and `branch` go into the loading example; without them the names they will have.
        title: the heading; default: size, experts and tokens.
        summary: a paragraph after the heading, in place of the default sentence.
        sections: (heading, Markdown text) in order, put before the limits.
        pictures: file name in the repository -> caption, or names only; shown after the table.
        predicted_loss: the loss (nats/token) that a scaling law predicts for this run, shown beside the measured one.
        siblings: other runs of the sweep, for the table of its place among them.
        license: an identifier of the Hub's list of licences.
        language: an ISO 639-1 code.
    """
    name = title or f"{record.experts} expert{'s' * (record.experts > 1)}, {count(record.n_active)} active parameters"
    lead = summary or (
        f"A Switch Mixture-of-Experts language model of the sweep {escaped(record.sweep)}, trained on "
        f"{count(record.tokens)} tokens to measure how loss depends on size, data and the number of experts, "
        f"as in {PAPER}."
        if record.experts > 1
        else f"A dense language model of the sweep {escaped(record.sweep)}, trained on {count(record.tokens)} tokens "
        f"as the one-expert case of a Mixture-of-Experts scaling law, as in {PAPER}."
    )
    parts = [
        f"# {escaped(name)}",
        lead,
        *(["**This run diverged; its weights are kept for study only.**"] if record.status == "diverged" else []),
        *(["This is an intermediate checkpoint of a run that went on."] if record.status == "intermediate" else []),
        "## How to load",
        block(LOADING, _loading_example(record)),
        "## The run",
        run_table(record),
        *_shown_pictures(pictures),
        block(PLACE, place_in_sweep(record, siblings, predicted_loss)),
        *_shown_sections(sections),
        "## Limits",
        _LIMITS,
    ]
    return _with_metadata(_model_metadata(record, license, language), parts)


def located(
    card: str, record: RunRecord, *, siblings: Iterable[RunRecord] = (), predicted_loss: float | None = None
) -> str:
    """A model card as it is right at the place that `record` names, with what is known of the sweep by now.

    Only the blocks that `model_card` marks are written anew; everything else, also what a person added, stays.
    """
    card = replace_block(card, LOADING, _loading_example(record))
    place = place_in_sweep(record, siblings, predicted_loss)
    return replace_block(card, PLACE, place) if place else card


def repo_card(records: Iterable[RunRecord], *, license: str = "apache-2.0", language: str = "en") -> str:
    """The README.md on `main` of a model repository: its revisions and how to load one. `main` has no weights.

    Args:
        records: the runs released in this repository, at least one; `repo` and `branch` are set.
        license: an identifier of the Hub's list of licences.
        language: an ISO 639-1 code.
    """
    runs = sorted(records, key=lambda record: (record.status != "final", record.tokens, record.branch or ""))
    like = next((record for record in reversed(runs) if record.status == "final"), runs[-1])
    kind = f"Switch Mixture-of-Experts models with {like.experts} experts" if like.experts > 1 else "Dense models"
    parts = [
        f"# {escaped(repo_name(like))}",
        f"{kind}, {count(like.n_active)} active of {count(like.n_total)} parameters, of the sweep "
        f"{escaped(like.sweep)}: one revision for each run, measured for a scaling law as in {PAPER}.",
        "**The branch `main` has no weights.** Choose a revision:",
        block(REVISIONS, repo_table(runs[:_MAX_TABLE_ROWS])),
        "## How to load",
        block(LOADING, _loading_example(like)),
        f"All runs of the sweep, with their records: the data set `{index_name(like.sweep)}`.",
    ]
    metadata = {
        "license": license,
        "language": language,
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": [*TAGS, f"sweep:{like.sweep}"],
    }
    return _with_metadata(metadata, parts)


def sweep_card(
    records: Iterable[RunRecord],
    *,
    title: str | None = None,
    repo: str | None = None,
    sections: Sections = (),
    pictures: Pictures = (),
    license: str = "apache-2.0",
    language: str = "en",
) -> str:
    """The README.md of a sweep's index: viewer configuration, how to load, pictures and sections (the law), the runs.

    The arguments are those of `model_card`; `repo` is the data set's id, for the loading example.
    """
    runs = list(records)
    names = sorted({record.sweep for record in runs})
    sweep = ", ".join(names) or "empty sweep"
    finals = [record for record in runs if record.status == "final"]
    lead = (
        f"The run records of the sweep {escaped(sweep)}: {len(runs)} rows, {len(finals)} of them final runs of dense "
        f"and Switch Mixture-of-Experts language models. They are the measurements that a joint scaling law of active "
        f"parameters, tokens and experts is fitted to, as in {PAPER}."
    )
    shown = runs[:_MAX_TABLE_ROWS]
    rest = [f"… and {len(runs) - len(shown)} more rows in `{PARQUET_NAME}`."] if len(runs) > len(shown) else []
    parts = [
        f"# {escaped(title or f'Runs of {sweep}')}",
        lead,
        "## How to load",
        _index_example(repo),
        block(LAW, "\n\n".join([*_shown_sections(sections), *_shown_pictures(pictures)])),
        "## The runs",
        sweep_table(shown),
        *rest,
        "Losses are in nats per token. `eval_loss` is held-out and without dropped tokens; `train_loss` is a mean "
        "over the last tokens of training (`train_loss_window_tokens`).",
    ]
    metadata: dict[str, Any] = {
        "license": license,
        "language": language,
        "tags": [*TAGS, *(f"sweep:{name}" for name in names)],
        "pretty_name": f"Runs of {sweep}",
        "configs": [{"config_name": "default", "data_files": [{"split": "train", "path": PARQUET_NAME}]}],
    }
    return _with_metadata(metadata, parts)


def check_metadata(card: str) -> None:
    """Refuse a card whose metadata block the Hub would refuse, before anything is sent.

    Raises:
        FilesError: the block between the two `---` lines is missing, is not YAML, or is no mapping of names to values.
    """
    _metadata(card)


def tags_of(card: str) -> list[str]:
    """The tags in a card's metadata; none if the metadata cannot be read."""
    try:
        tags = _metadata(card).get("tags")
    except FilesError:
        return []
    return [tag for tag in tags if isinstance(tag, str)] if isinstance(tags, list) else []


def _metadata(card: str) -> dict[str, Any]:
    import yaml

    match = _METADATA.match(card)
    if match is None:
        raise FilesError("README.md: a card starts with metadata between two lines of ---")
    try:
        metadata = yaml.safe_load(match[1])
    except yaml.YAMLError as error:
        raise FilesError(f"README.md: its metadata is not YAML: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(metadata, dict) or not all(isinstance(name, str) for name in metadata):
        raise FilesError(
            f"README.md: its metadata is a {type(metadata).__name__}, allowed is a mapping of names to values"
        )
    return metadata


def _with_metadata(metadata: Mapping[str, Any], parts: Iterable[str]) -> str:
    import yaml

    # safe_dump quotes whatever could be read as another type or as markup, so that metadata stays data.
    header = yaml.safe_dump(dict(metadata), sort_keys=False, allow_unicode=True, width=10_000)
    return f"---\n{header}---\n\n" + "\n\n".join(part.strip() for part in parts) + "\n"


def _model_metadata(record: RunRecord, license: str, language: str) -> dict[str, Any]:
    from huggingface_hub import EvalResult, ModelCardData

    dataset = record.dataset.id if _DATASET_ID.fullmatch(record.dataset.id) else None
    known: dict[str, Any] = {
        "license": license,
        "language": language,
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": [*TAGS, f"sweep:{record.sweep}"],
    }
    if dataset:
        known["datasets"] = [dataset]
    if record.eval_loss is not None:
        known["model_name"] = f"{repo_name(record)}-{record.branch or branch_name(record)}"
        known["eval_results"] = [
            EvalResult(
                task_type="text-generation",
                task_name="Language modelling",
                dataset_type=dataset or "local",
                dataset_name=f"{record.dataset.id} (held-out)",
                dataset_revision=record.dataset.revision,
                metric_type=kind,
                metric_name=name,
                metric_value=round(value, 6),
            )
            for kind, name, value in (
                ("loss", "Held-out loss (nats/token)", record.eval_loss),
                ("perplexity", "Held-out perplexity", math.exp(min(record.eval_loss, 700.0))),
            )
        ]
    return dict(ModelCardData(**known).to_dict())


def loading_code(place: str, revision: str | None = None, *, tokenizer: str | None = None) -> str:
    """Python that loads a released model and its tokenizer when pasted into a fresh interpreter.

    It needs transformers and nothing of this project: the model's code comes with the release, and runs. Both calls
    allow that, since transformers asks at a prompt otherwise, for the tokenizer too.

    Args:
        place: a repository of the Hub, or the folder of a branch.
        revision: of a repository: a branch, or a commit, which pins the code that runs; None for a folder.
        tokenizer: its name on the Hub, where its files are not part of the release.
    """
    names, source = ("folder", "folder") if revision is None else ("repo, revision", "repo, revision=revision")
    values = ", ".join(json.dumps(value) for value in (place, revision) if value is not None)
    words = f"{source}, trust_remote_code=True" if tokenizer is None else json.dumps(tokenizer)
    return f"""from transformers import AutoModelForCausalLM, AutoTokenizer

{names} = {values}
model = AutoModelForCausalLM.from_pretrained({source}, trust_remote_code=True, use_safetensors=True)
tokenizer = AutoTokenizer.from_pretrained({words})"""


def tokenizer_name(record: RunRecord) -> str | None:
    """The tokenizer's name on the Hub where a release has it by name only, without its files."""
    named = record.tokenizer.fingerprint is None and _DATASET_ID.fullmatch(record.tokenizer.id)
    return record.tokenizer.id if named else None


def _loading_example(record: RunRecord) -> str:
    # Repository and branch match patterns without quotes, so they are safe inside the string literals.
    repo, branch = record.repo or repo_name(record), record.branch or branch_name(record)
    if "/" in repo:
        lead = "Every run is a branch of its repository, so give the `revision`"
        lead += f", here the commit of `{branch}`:" if record.commit else ":"
        code = loading_code(repo, record.commit or branch, tokenizer=tokenizer_name(record))
    else:  # a local store
        lead = "From the store's folder (or give the whole path):"
        code = loading_code(f"models/{repo}/{branch}", tokenizer=tokenizer_name(record))
    return f"""{lead}

```python
{code}
```

`trust_remote_code=True` runs the model's code, the `.py` files of this revision, with your rights: read them first.
None of it runs where the package `modeling_switch_moe` of `joint-moe-scaling-laws` is installed: import it, and leave
the argument out."""


def _index_example(repo: str | None) -> str:
    if repo is None or not _DATASET_ID.fullmatch(repo):  # a local store: a folder in the place of the data set
        forms = f"`runs.jsonl` has one record per line, `{PARQUET_NAME}` one per row"
        return f"{forms}; `scaling_law.load_runs(folder)` reads either."
    return f"""```python
from datasets import load_dataset

runs = load_dataset("{repo}", split="train").to_pandas()

from scaling_law import fit, load_runs

result = fit(load_runs("{repo}"), law="joint")
```"""


def _shown_pictures(pictures: Pictures) -> list[str]:
    captions = dict(pictures) if isinstance(pictures, Mapping) else dict.fromkeys(pictures, "")
    for name in captions:
        if not _PICTURE.fullmatch(name):
            raise FilesError(f"picture {name!r}: allowed are file names that end in .png or .svg")
    plain = {name: caption or name.rpartition(".")[0].replace("_", " ") for name, caption in captions.items()}
    return [f"![{escaped(caption)}]({name})" for name, caption in plain.items()]


def _shown_sections(sections: Sections) -> list[str]:
    listed = sections.items() if isinstance(sections, Mapping) else sections
    return [f"## {heading}\n\n{text}" for heading, text in listed]


_LIMITS = """The model was trained to measure a scaling law. It is not tuned to follow instructions, not filtered for
harmful content, and repeats the biases of its data. Its loss is comparable only to runs with the same tokenizer and
data. A law fitted on such runs holds inside the range of sizes, tokens and experts it was fitted on."""
