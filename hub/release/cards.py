"""Model and data set cards: what a visitor of a released revision, or of a sweep's index, reads.

Everything that comes from a record is escaped (`plain.markdown`). Sections of text and pictures are handed in by the
caller, because `hub` knows nothing of curves and laws; their text is trusted and taken as it is.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hub.plain.errors import FilesError
from hub.plain.markdown import block, block_of, escaped, replace_block
from hub.plain.metadata import metadata_of, updated, with_metadata
from hub.plain.units import format_count
from hub.record.names import branch_name, index_name, repo_name
from hub.record.run_record import RunRecord
from hub.record.table import viewer_file
from hub.release.card_tables import place_in_sweep, prediction_of, repo_table, run_table, sweep_table
from hub.release.licenses import checked_license

PAPER = "[Joint MoE Scaling Laws](https://arxiv.org/abs/2502.05172) (Ludziejewski et al. 2025)"
TAGS = ("scaling-laws", "mixture-of-experts", "switch-transformer", "joint-moe-scaling-laws")
_DATASET_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_PICTURE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\.(?:png|svg)")
# The table of a run in cards that were written before it had a block.
_UNMARKED_RUN = re.compile(r"(?<=^## The run\n\n)(?:\|.*\n)+", re.MULTILINE)
_MAX_TABLE_ROWS = 400
_MAX_RESULTS = 100  # revisions whose results stand in the metadata of a repository's card
# Parts of a card that change when it goes to another place, or when more is known; see `hub.plain.markdown.block`.
RUN, LOADING, PLACE, LAW, REVISIONS, MAIN = "run", "loading", "place", "law", "revisions", "main"
# What in the metadata of a model's card follows from its records, and is put right with them.
_FROM_RECORDS = ("tags", "datasets", "model-index")

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
    license: str | None = None,
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
        license: an identifier of the Hub's list of licences; without one the card names none.
        language: an ISO 639-1 code.
    """
    active, tokens = format_count(record.n_active), format_count(record.tokens)
    name = title or f"{record.experts} expert{'s' * (record.experts > 1)}, {active} active parameters"
    lead = summary or (
        f"A Switch Mixture-of-Experts language model of the sweep {escaped(record.sweep)}, trained on "
        f"{tokens} tokens to measure how loss depends on size, data and the number of experts, "
        f"as in {PAPER}."
        if record.experts > 1
        else f"A dense language model of the sweep {escaped(record.sweep)}, trained on {tokens} tokens "
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
        block(RUN, run_table(record)),
        *_shown_pictures(pictures),
        block(PLACE, place_in_sweep(record, siblings, predicted_loss)),
        *_shown_sections(sections),
        "## Limits",
        _LIMITS,
    ]
    return with_metadata(_model_metadata(record, license, language), parts)


def located(
    card: str,
    record: RunRecord,
    *,
    siblings: Iterable[RunRecord] = (),
    predicted_loss: float | None = None,
    license: str | None = None,
) -> str:
    """A model card as it is right at the place that `record` names, with what the record and the sweep say by now.

    Only the blocks that `model_card` marks are written anew, and the metadata that follows from the record;
    everything else, also what a person added, stays. A card that is all somebody's own stays as it is, but for a
    `license` that is given.
    """
    card = _UNMARKED_RUN.sub(lambda _: block(RUN, run_table(record)) + "\n", card, count=1)
    card = replace_block(card, RUN, run_table(record))
    card = replace_block(card, LOADING, _loading_example(record))
    place = place_in_sweep(record, siblings, predicted_loss)
    card = replace_block(card, PLACE, place) if place else card
    owned = _FROM_RECORDS if block_of(card, RUN) is not None else ()
    return updated(card, _model_metadata(record, license, "en"), (*owned, *_given(license)))


def same_card(present: bytes, wanted: bytes, *, with_prediction: bool) -> bool:
    """Whether two cards of a run say the same of it: its neighbours in the sweep may differ, as they come and go.

    Args:
        present, wanted: the texts (UTF-8).
        with_prediction: the loss that a law predicts must be the same, too.
    """
    texts = [text.decode("utf-8", "replace") for text in (present, wanted)]
    predictions = {prediction_of(block_of(text, PLACE) or "") for text in texts}
    bare = {replace_block(text, PLACE, "") for text in texts}
    return len(bare) == 1 and (len(predictions) == 1 or not with_prediction)


def shown_on_main(records: Iterable[RunRecord]) -> RunRecord | None:
    """The run whose files lie on `main` of its repository: the longest final one; None if none is final.

    Of equally long ones it is that of the lowest held-out loss, and then the first by name.
    """
    finals = [record for record in records if record.status == "final"]

    def order(record: RunRecord) -> tuple[int, float, str]:
        loss = math.inf if record.eval_loss is None else record.eval_loss
        return -record.tokens, loss, record.branch or ""

    return min(finals, key=order, default=None)


def repo_card(
    records: Iterable[RunRecord], *, on_main: bool = True, license: str | None = None, language: str = "en"
) -> str:
    """The README.md on `main` of a model repository: its revisions, which of them `main` is, and how to load one.

    Args:
        records: the runs released in this repository, at least one; `repo` and `branch` are set.
        on_main: whether the files of `shown_on_main` lie on `main`, too.
        license: an identifier of the Hub's list of licences; without one the card names none.
        language: an ISO 639-1 code.
    """
    runs = sorted(records, key=lambda record: (record.status != "final", record.tokens, record.branch or ""))
    like = shown_on_main(runs) or runs[-1]
    kind = f"Switch Mixture-of-Experts models with {like.experts} experts" if like.experts > 1 else "Dense models"
    parts = [
        f"# {escaped(repo_name(like))}",
        f"{kind}, {format_count(like.n_active)} active of {format_count(like.n_total)} parameters, of the sweep "
        f"{escaped(like.sweep)}: one revision for each run, measured for a scaling law as in {PAPER}.",
        block(MAIN, _what_main_is(shown_on_main(runs) if on_main else None)),
        block(REVISIONS, repo_table(runs[:_MAX_TABLE_ROWS])),
        "## How to load",
        block(LOADING, _loading_example(like)),
        f"All runs of the sweep, with their records: the data set `{index_name(like.sweep)}`.",
    ]
    return with_metadata(_repo_metadata(runs, license, language), parts)


def relisted(card: str, fresh: str, *, license: str | None = None) -> str:
    """The card on `main` with the revisions, the metadata and the rest that follows from records as in `fresh`."""
    for part in (REVISIONS, LOADING, MAIN):
        card = replace_block(card, part, block_of(fresh, part) or "")
    # Cards of releases whose main had no weights say so outside of any block.
    card = card.replace(
        "**The branch `main` has no weights.** Choose a revision:", block(MAIN, block_of(fresh, MAIN) or "")
    )
    return updated(card, metadata_of(fresh), (*_FROM_RECORDS, *_given(license)))


_NO_WEIGHTS = "**The branch `main` has no weights.** Choose a revision:"


def _given(license: str | None) -> tuple[str, ...]:
    return () if license is None else ("license",)


def _what_main_is(record: RunRecord | None) -> str:
    if record is None:
        return _NO_WEIGHTS
    return (
        f"`main` holds the same files as the revision `{record.branch or branch_name(record)}`, the longest of the "
        "finished runs. The other runs are revisions of their own:"
    )


def sweep_card(
    records: Iterable[RunRecord],
    *,
    title: str | None = None,
    repo: str | None = None,
    sections: Sections = (),
    pictures: Pictures = (),
    license: str | None = None,
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
    rest = [f"… and {len(runs) - len(shown)} more rows in `{viewer_file()}`."] if len(runs) > len(shown) else []
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
        **_license(license),
        "language": language,
        "tags": [*TAGS, *(f"sweep:{name}" for name in names)],
        "pretty_name": f"Runs of {sweep}",
        "configs": [{"config_name": "default", "data_files": [{"split": "train", "path": viewer_file()}]}],
    }
    return with_metadata(metadata, parts)


def _license(license: str | None) -> dict[str, str]:
    return {} if license is None else {"license": checked_license(license)}


def _model_metadata(record: RunRecord, license: str | None, language: str) -> dict[str, Any]:
    return _repo_metadata([record], license, language)


def _repo_metadata(records: Sequence[RunRecord], license: str | None, language: str) -> dict[str, Any]:
    """Licence, tags, data sets and results of the runs, each revision a model of its own in the `model-index`."""
    datasets = sorted({r.dataset.id for r in records if _DATASET_ID.fullmatch(r.dataset.id)})
    results = [model for record in records[:_MAX_RESULTS] for model in _results(record)]
    return {
        **_license(license),
        "language": language,
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": [*TAGS, *sorted({f"sweep:{record.sweep}" for record in records})],
        **({"datasets": datasets} if datasets else {}),
        **({"model-index": results} if results else {}),
    }


def _results(record: RunRecord) -> list[dict[str, Any]]:
    """The entry of a `model-index`: held-out loss and perplexity; none if the run has no held-out loss."""
    from huggingface_hub import EvalResult
    from huggingface_hub.repocard_data import eval_results_to_model_index

    if record.eval_loss is None:
        return []
    dataset = record.dataset.id if _DATASET_ID.fullmatch(record.dataset.id) else "local"
    found = [
        EvalResult(
            task_type="text-generation",
            task_name="Language modelling",
            dataset_type=dataset,
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
    name = f"{repo_name(record)}-{record.branch or branch_name(record)}"
    return list(eval_results_to_model_index(name, found))


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
        return "`runs.jsonl` has one record per line; `scaling_law.load_runs(folder)` reads them."
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
