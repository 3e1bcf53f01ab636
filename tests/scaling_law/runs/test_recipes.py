"""A law describes runs of one recipe: what they differ in is named, and mixed only when asked for."""

import re

import numpy as np
import pytest

from scaling_law import JointLaw, Runs, fit, load_runs
from scaling_law.runs.rows import RunsError
from tests.hub.samples import record_fields

LAW = JointLaw.published()
OPTIMIZER = record_fields()["optimizer"]


def rows(**changes):
    """Dense and E = 8 records of the law's own losses; `changes` are those of every second."""
    found = []
    for i, (n, d, e) in enumerate((n, d, e) for n in (1e7, 4e7, 2e8) for d in (1e9, 4e9) for e in (1, 8)):
        row = {"run_id": f"r{i}", "n_active": n, "tokens": d, "experts": e, "eval_loss": float(LAW.loss(n, d, e))}
        row |= {"optimizer": OPTIMIZER, "sequence_length": 512, "vocab_size": 50_257, "trunk": i}
        row |= {"dataset": {"id": "books", "fingerprint": "sha256:0123456789abcdef"}}
        found.append(row | (changes if i % 2 else {}))
    return found


MUON = {"optimizer": OPTIMIZER | {"name": "muon"}}
FREE = {"fixed": {name: LAW.coefficients[name] for name in ("e_start", "e_max", "delta", "gamma", "omega", "zeta")}}


def test_runs_of_one_recipe_are_fitted():
    assert fit(rows(), **FREE).rmse < 1e-3
    assert load_runs(rows()).recipe["dataset"] == ("books@01234567",) * 12


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (MUON, "optimizer (adamw, muon)"),
        ({"optimizer": OPTIMIZER | {"weight_decay_on": "matrices"}}, None),  # not known of the others
        ({"optimizer": OPTIMIZER | {"weight_decay": 0.2}}, "weight_decay (0.1, 0.2)"),
        ({"sequence_length": 1024}, "sequence_length (1024, 512)"),
        ({"vocab_size": 1000}, "vocab_size (1000, 50257)"),
        ({"dataset": {"id": "books", "fingerprint": "sha256:ff"}}, "dataset (books@01234567, books@ff)"),
        ({"dataset": {"id": "web", "fingerprint": None}}, "dataset (books, web)"),
        (MUON | {"sequence_length": 1024}, "optimizer (adamw, muon) and sequence_length (1024, 512)"),
        ({"optimizer": OPTIMIZER | {"beta2": 0.95}, "schedule": {"peak_learning_rate": 0.5}}, None),
    ],
)
def test_what_runs_differ_in_is_named_in_one_line(changes, named):
    table = load_runs(rows(**changes))
    if named is None:
        assert fit(table, **FREE).law
        return
    for ask in (lambda: fit(table, **FREE), lambda: fit(table, prior=LAW)):
        with pytest.raises(RunsError, match=re.escape(f"the runs differ in {named}; choose with where=")) as error:
            ask()
        assert "\n" not in str(error.value)


def test_the_users_word_mixes_them_and_the_law_says_so():
    table = load_runs(rows(**MUON))
    law = fit(table, **FREE, mix=("optimizer",)).law
    assert law.conditions.provenance.endswith("mixing runs that differ in optimizer (adamw, muon) (eval_loss)")
    assert "mixing" not in fit(rows(), **FREE).law.conditions.provenance
    with pytest.raises(RunsError, match=r"differ in optimizer .*mix=\('optimizer', 'vocab_size'\)"):
        fit(table, **FREE, mix="vocab_size")


def test_a_filter_chooses_a_recipe():
    table = load_runs(rows(**MUON), where="optimizer = muon")
    assert len(table) == 6
    assert {*table.recipe["optimizer"]} == {"muon"}
    assert len(load_runs(rows(**MUON), where="dataset = books@01234567")) == 12


def test_parts_of_a_table_have_their_own_recipe():
    table = load_runs(rows(**MUON))
    part = table.subset(table.experts == 8)
    assert part.recipe["optimizer"] == ("muon",) * 6


def test_a_recipe_is_moved_to_like_another_lab():
    """A law of AdamW's runs moved to those of Muon, whose losses are lower by a constant."""
    table = rows(**MUON)
    for row in table[1::2]:
        row["eval_loss"] -= 0.1
    muon = load_runs(table, where="optimizer = muon")
    moved = fit(muon, prior=LAW).law
    np.testing.assert_allclose(moved.loss(muon.n_active, muon.tokens, muon.experts), muon.loss, atol=2e-3)


def test_columns_without_a_recipe_are_no_recipe():
    runs = Runs.from_columns(*np.ones((3, 2)) * [1e8, 2e8], loss=[3.0, 2.9])
    assert runs.recipe == {}
