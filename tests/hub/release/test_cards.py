"""Cards: complete, valid by huggingface_hub's own parser, and no place for someone else's markup."""

import math
import re

import pytest
import yaml
from huggingface_hub import DatasetCard, ModelCard
from hypothesis import given
from hypothesis import strategies as st

from hub import FilesError, model_card, sweep_card
from hub.base.markdown import escape_markdown, read_card
from hub.record.run_record import OF_A_CLASS
from hub.release.cards import repo_card
from tests.hub.samples import DECIDING, make_record

EVIL = "<script>alert(1)</script><img src=x onerror=alert(1)> | ](javascript:x) `x` **b** ---\\"


@pytest.mark.parametrize("show", [model_card, lambda record: repo_card([record])], ids=["run", "repository"])
def test_cards_name_the_transformers_that_is_needed(show):
    record = make_record(versions={"transformers": "5.23.0 <b>"})
    command = "It needs transformers 5.17 or newer: `pip install --upgrade 'transformers>=5.17'`."
    assert command in show(record)
    fields = dict.fromkeys(OF_A_CLASS, 1) | {"model_type": "qwen3_moe", "experts": 4}
    record = record.replaced(**fields)
    of_a_class = show(record)
    assert "It needs a version of transformers that has\n`qwen3_moe`, such as 5.23.0 " in of_a_class
    assert "<b>" not in of_a_class
    assert "that has\n`qwen3_moe`.\n" in show(record.replaced(versions={}))


def test_a_model_card_is_valid_and_complete():
    place = {"repo": "org/demo-d64-E4", "branch": "tokens001.5M-seed0"}
    record = make_record(**DECIDING, **place, dataset={"id": "org/corpus", "fingerprint": "f"})
    text = model_card(
        record,
        predicted_loss=4.3,
        sections={"Training": "Some *trusted* text."},
        pictures={"training_curve.png": "The training curve"},
        license="apache-2.0",
    )
    card = ModelCard(text)
    assert card.data.library_name == "transformers"
    assert card.data.license == "apache-2.0"
    assert card.data.datasets == ["org/corpus"]
    assert "sweep:demo" in card.data.tags
    metrics = {result.metric_type: result.metric_value for result in card.data.eval_results}
    assert metrics["loss"] == record.eval_loss
    assert metrics["perplexity"] == pytest.approx(math.exp(4.3125), abs=1e-6)
    for part in (
        '"org/demo-d64-E4", "tokens001.5M-seed0"',
        "revision=revision",
        "| Experts E (one active per token) | 4 |",
        "1,500,000",
        "predicts for this run: 4.3000.",
        "## Training\n\nSome *trusted* text.",
        "![The training curve](training_curve.png)",
        "with their records: the dataset `demo-runs`",
        "## Limits",
        "| Micro-batch (sequences) | 8 |",
        "| Expert capacity | factor 1.25 |",
        "| Capacity group (tokens) | 1,024 |",
        "| Auxiliary losses (coefficients) | balance 0.01, z 0.001 |",
        "| Initialization | paper |",
        "| Norm before the head | yes |",
        "weight decay 0.1 on matrices, clip 0.1 |",
        "| Precision, seed | fp32, attention float32, 0 |",
    ):
        assert part in text, part


def test_a_card_says_nothing_of_what_is_not_known_or_does_not_apply():
    assert "| Expert capacity | dropless |" in model_card(make_record(**DECIDING | {"capacity_factor": 0}))
    dense = model_card(make_record(**DECIDING, experts=1, n_total=118_784))
    before = model_card(make_record())
    for heading in ("Expert capacity", "Capacity group", "Auxiliary losses"):
        assert heading not in dense + before
    diverged = model_card(make_record(status="diverged", train_loss=None, eval_loss=None))
    assert not ModelCard(diverged).data.to_dict().keys() & {"model-index", "license", "datasets"}
    stopped = model_card(make_record(status="intermediate", stopped="hopeless: final loss 4.1 to 4.2 (99%)"))
    assert "stopped before its horizon; hopeless: final loss 4.1" in stopped
    assert "went on" not in stopped


def test_a_sweep_card_is_valid_and_complete():
    runs = [make_record(run_id=f"run{i}", seed=i) for i in range(3)]
    text = sweep_card(runs, repo="org/demo-runs")
    card = DatasetCard(text)
    assert card.data.to_dict()["configs"][0]["data_files"] == [{"split": "train", "path": "runs.parquet"}]
    assert text.count("| run") == 3
    assert 'load_dataset("org/demo-runs"' in text
    assert "0 rows" in sweep_card([])
    assert "… and 50 more rows" in sweep_card(runs * 150)
    assert "load_dataset" not in sweep_card(runs, repo="demo-runs")  # in a folder there is no such data set


def test_texts_of_a_record_cannot_become_markup():
    evil = {"hardware": EVIL, "precision": EVIL, "tokenizer": {"id": EVIL, "fingerprint": EVIL}}
    evil["dataset"] = {"id": EVIL, "revision": EVIL, "fingerprint": EVIL}
    evil["optimizer"] = {**make_record().optimizer.model_dump(), "name": EVIL}
    evil["schedule"] = {**make_record().schedule.model_dump(), "learning_rate_law": EVIL}
    record = make_record(**evil)
    text = model_card(record, pictures={"a.png": EVIL})
    header, body = re.fullmatch(r"---\n(.*?\n)---\n(.*)", text, re.DOTALL).groups()
    assert "<" not in re.sub(r"```.*?```|<!-- /?(?:run|loading|place) -->", "", body, flags=re.DOTALL)
    assert not re.search(r"(?<!\\)\]\(javascript", body)
    assert not re.search(r"(?<!\\)`x", body)
    rows = [line for line in body.splitlines() if line.startswith("|") and "→" not in line[:4]]
    assert all(len(re.findall(r"(?<!\\)\|", row)) in (3, 10) for row in rows)
    metadata = yaml.safe_load(header)
    assert EVIL in metadata["model-index"][0]["results"][0]["dataset"]["name"]
    assert set(metadata) <= {"license", "language", "library_name", "pipeline_tag", "tags", "model-index"}
    assert ModelCard(text).data.library_name == "transformers"


@given(st.text(max_size=60))
def test_escaped_text_is_one_line_without_markup(text):
    shown = escape_markdown(text)
    assert not re.search(r"[<>\"\n\r]", shown)
    assert not re.search(r"(?<!\\)[`*_|\[\]$~@#{}]", re.sub(r"&#?\w+;", "", shown))


@pytest.mark.parametrize(
    ("card", "reason"),
    [
        ("# no metadata", "starts with metadata"),
        ("---\n- a\n---\ntext", "must be a YAML mapping of names to values: .* dict"),
        ("---\na: [\n---\ntext", "YAML mapping .*while parsing"),
        ("---\n1: 2\n---\ntext", "YAML mapping .*strings"),
        ("---\na: !!python/object/apply:os.getcwd []\n---\n", "YAML mapping .*could not determine a constructor"),
    ],
)
def test_metadata_is_checked_before_it_is_sent(card, reason):
    with pytest.raises(FilesError, match=reason):
        read_card(card)
    read_card(model_card(make_record()))


def test_pictures_are_names_in_the_repository():
    for name in ("../x.png", "http://x/y.png", "x.gif", "a](b).png"):
        with pytest.raises(FilesError, match="picture"):
            model_card(make_record(), pictures={name: ""})
