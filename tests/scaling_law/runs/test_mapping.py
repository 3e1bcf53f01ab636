"""Mappings in files, and those that an error proposes for a table of other names."""

import re

import numpy as np
import pytest
import yaml

from scaling_law import load_runs
from scaling_law.runs.mapping import propose, read_mapping
from scaling_law.runs.table import RunsError
from tests.scaling_law.synthetic import tiny_runs


def export(**names):
    """Return a table as a tracker exports it, with names of its own, and the runs in it."""
    runs = tiny_runs()
    columns = {"n_active": "config/n_params", "tokens": "summary/tokens (B)"}
    columns |= {"experts": "config/num_experts", "loss": "summary/val_loss", **names}
    rows = []
    for n, d, e, loss in zip(runs.n_active, runs.tokens, runs.experts, runs.loss, strict=True):
        values = {"n_active": n, "tokens": d / 1e9, "experts": e, "loss": loss}
        rows.append({columns[name]: float(value) for name, value in values.items()})
        rows[-1]["summary/train_loss"] = 9.0
    return rows, runs


def proposed_by(rows, **options):
    """Return the mapping that the error for missing columns proposes as a file, and the error."""
    with pytest.raises(RunsError) as error:
        load_runs(rows, **options)
    text = str(error.value)
    return text.partition(", with\n")[2], text


def test_an_error_proposes_a_mapping_that_reads_the_table(tmp_path):
    rows, runs = export()
    lines, text = proposed_by(rows)
    assert "config/n_params looks like n_active" in text
    assert "summary/val_loss looks like loss" in text
    assert len(re.findall(r"\n  row \d .*: n_active=.*, tokens=.*, experts=.*, loss=", text)) == 3
    file = tmp_path / "mine.yaml"
    file.write_text(lines)
    for mapping in (file, str(file), yaml.safe_load(lines)):
        loaded = load_runs(rows, mapping=mapping)
        np.testing.assert_allclose(loaded.tokens, runs.tokens)
        np.testing.assert_allclose(loaded.n_active, runs.n_active)
        np.testing.assert_array_equal(loaded.experts, runs.experts)
        np.testing.assert_array_equal(loaded.loss, runs.loss)
        assert "loss = summary/val_loss" in loaded.read_as


def test_columns_win_over_a_mapping_and_may_use_its_fields():
    rows, runs = export()
    mapping = {"n_active": "config/n_params", "tokens": "`summary/tokens (B)` * 1e9", "experts": 1}
    columns = {"experts": "config/num_experts", "loss": "`summary/val_loss` + 0 * tokens"}
    loaded = load_runs(rows, columns=columns, mapping=mapping)
    np.testing.assert_array_equal(loaded.experts, runs.experts)


@pytest.mark.parametrize(
    ("columns", "field", "column"),
    [
        (("params_M", "activated_params"), "n_active", "activated_params"),
        (("total_params", "model/num_params_in_billions"), "n_active", "`model/num_params_in_billions` * 1e9"),
        (("tokens_per_second", "train/tokens_seen"), "tokens", "train/tokens_seen"),
        (("val/tokens_per_step", "Tokens (M)"), "tokens", "`Tokens (M)` * 1e6"),
        (("moe.num_experts", "moe.top_k"), "experts", "`moe.num_experts` / `moe.top_k`"),
        (("num_shared_experts",), "experts", None),
        (("train/loss", "eval/lm_loss", "loss_scale"), "loss", "eval/lm_loss"),
        (("val_ppl", "val_acc"), "loss", "log(`val_ppl`)"),
        (("eval/Perplexity",), "loss", "log(`eval/Perplexity`)"),
        (("val_loss_b",), "loss", "val_loss_b"),
        (("total_params", "expert_params"), "n_active", None),
        (("params `(M)`",), "n_active", None),
        (("warmup_tokens",), "tokens", None),
        (("num_routed_experts", "num_active_experts"), "experts", "`num_routed_experts` / `num_active_experts`"),
    ],
)
def test_what_columns_of_trackers_look_like(columns, field, column):
    proposal = propose([dict.fromkeys(columns, 8.0)], [field])
    assert proposal == ({} if column is None else {field: column})


def test_a_proposal_is_shown_where_the_first_rows_lack_its_column():
    row = {"tokens": 1e9, "experts": 1, "loss": 3.0}
    rows = [*[row] * 4, {**row, "params": 1e8}]
    assert "params looks like n_active" in proposed_by(rows)[1]


def test_columns_of_a_law_of_ones_own_may_be_mapped():
    rows = [{"params": n, "tokens": 2e9, "experts": 1, "loss": 3.0, "zeros": 0.5} for n in (1e8, 2e8)]
    assert load_runs(rows, mapping={"n_active": "params", "sparsity": "zeros"})["sparsity"].tolist() == [0.5, 0.5]


def test_what_looks_like_nothing_is_asked_for():
    rows, _ = export(experts="width ratio")
    lines, text = proposed_by(rows, loss="summary/val_loss")
    assert "say which is which with columns={'experts': 'column or number'}" in text
    assert "experts" not in lines
    assert "loss" not in lines


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("n_active: params\ntokens: params", "n_active and tokens are both 'params'"),
        ("- params", "holds ['params']: each line names a column of ours"),
        ("loss: [a, b]", "loss: ['a', 'b'] is not a column, an expression or a number"),
        ("loss: a\nloss: b", "cannot be read: line 2: loss occurs twice, first in line 1"),
        ("n_active: para", "column 'para' is unknown"),
    ],
)
def test_one_error_for_each_mapping_that_cannot_be_used(tmp_path, text, problem):
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    rows = [{"params": 1e8, "tokens": 2e9, "experts": 1, "loss": 3.0}]
    with pytest.raises(RunsError, match=re.escape(problem)) as error:
        load_runs(rows, mapping=file)
    assert "\n" not in str(error.value)


def test_a_field_is_a_name():
    with pytest.raises(RunsError, match="mapping: 1 is not the name of a column"):
        read_mapping({1: "params"})


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(RunsError, match="cannot be read: No such file"):
        load_runs([{"loss": 3.0}], mapping=tmp_path / "mine.yaml")


def test_a_step_towards_a_later_field_and_numbers_that_are_equal_are_allowed():
    mapping = {"step_tokens": "batch * 512", "tokens": "step * step_tokens", "experts": "1", "granularity": "1"}
    assert read_mapping(mapping) == mapping
