"""Columns made of others: their arithmetic, their order, and what is refused."""

import math

import numpy as np
import pandas
import pytest

from hub import RunRecord
from hub.record.filter import LETTERS
from hub.release import cards
from scaling_law import Architecture, Runs, fit, load_runs
from scaling_law.runs.columns import ALIASES, Expression
from scaling_law.runs.table import RunsError
from scaling_law.runs.tuning import best_of
from tests.hub.samples import make_record
from tests.scaling_law.synthetic import tiny_runs


def rows(count=4):
    """Another lab's table: fine-grained experts, names of its own."""
    for i in range(count):
        shape = {"Na": 1e8 * (1 + i), "nume": 88, "topk": 2, "moeh": 352, "sed": 704, "name": f"run {i}"}
        yield shape | {"bs": 64, "ti": 1000 * (1 + i), "smooth loss": 3.0 - 0.1 * i, "gate": True, "note": None}


MAPPING = {
    "n_active": "Na",
    "experts": "(nume*moeh + sed)/(topk*moeh + sed)",
    "tokens": "bs * ti * 2048",
    "density": "topk / nume",
    "sparsity": "1 - density",
    "run_id": "name",
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a + b * 2 ** a", 3 + 5 * 8),
        ("-(a - b) / +b", 0.4),
        ("`odd name` - a", 4.0),
        ("`odd name` / `odd name`", 1.0),
        ("round(b / a)", 2.0),
        ("max(a, b, 1) + min(a, b)", 8.0),
        ("log2(8) + log(exp(a)) + log10(100)", 8.0),
        ("sqrt(a * a) + abs(-b) + floor(2.9) + ceil(2.1)", 13.0),
        ("1e3", 1000.0),
    ],
)
def test_expressions_have_the_values_of_arithmetic(text, value):
    assert Expression.parse(text)({"a": 3, "b": "5", "odd name": 7.0}) == pytest.approx(value, rel=1e-15)


def test_a_missing_operand_makes_a_missing_value():
    assert Expression.parse("a + b")({"a": 1.0, "b": None}) is None
    assert Expression.parse("a + b")({"a": 1.0, "b": math.nan}) is None


@pytest.mark.parametrize(
    "text",
    [
        *("__import__('os')", "open(a)", "a().real", "a[0]", "[a]", "(lambda: 1)()", "f'{a}'", "'text'", "True", "1j"),
        *("a if a else b", "a and b", "a < b", "a // b", "a @ b", "a := 3", "a; b", "a b", ""),
        *("max()", "max(a, key=b)", "max(*a)"),
    ],
)
def test_what_is_not_arithmetic_is_refused(text):
    with pytest.raises(ValueError, match=r"allowed are columns, numbers, \+ - \* /"):
        Expression.parse(text)


def test_a_tower_of_powers_ends_at_once():
    with pytest.raises(OverflowError):
        Expression.parse("9 ** 9 ** 9 ** 9")({})


@pytest.mark.parametrize("table", [list, pandas.DataFrame])
def test_a_mapping_reads_another_labs_table(table):
    runs = load_runs(table(rows()), columns=MAPPING)
    assert (runs.loss_name, runs.run_id[1]) == ("smooth loss", "run 1")
    np.testing.assert_allclose(runs.experts, (88 * 352 + 704) / (2 * 352 + 704))
    np.testing.assert_array_equal(runs.tokens, 64 * 2048 * 1000 * np.arange(1, 5))
    np.testing.assert_allclose(runs["sparsity"], 1 - 2 / 88)
    assert {"gate", "name", "note", "run_id"}.isdisjoint(runs.columns)


def test_constants_functions_and_the_loss():
    mapping = MAPPING | {"experts": 1, "tokens": lambda row: row["bs"] * 1e6, "loss": "`smooth loss` / 2"}
    runs = load_runs(rows(), columns=mapping)
    assert (runs.loss_name, runs.loss.tolist()) == ("loss", [1.5, 1.45, 1.4, 1.35])
    assert (set(runs.experts), set(runs.tokens)) == ({1.0}, {64e6})


def test_a_count_with_its_unit_is_a_constant():
    runs = load_runs(rows(), columns=MAPPING | {"n_active": "300M"})
    assert set(runs.n_active) == {3e8}


NESTED = [
    {
        "arch": {"name": f"a{i // 4}", "batch": 64},
        "train": {"lr": 1e-3 * 2 ** (i % 2), "steps": 1000 * 2 ** (i % 4 // 2)},
        "n_active": 1e6 * (1 + i // 4),
        "tokens": 1e8 * 2 ** (i % 4 // 2),
        "experts": 1,
        "loss": 5 - 0.1 * i + 0.2 * (i % 2),
    }
    for i in range(8)
]


@pytest.mark.parametrize(
    ("lr", "steps", "arch"), [("train.lr", "train.steps", "arch.name"), ("train_lr", "train_steps", "arch_name")]
)
def test_a_nested_field_has_one_name_in_all_options(lr, steps, arch):
    runs = load_runs(NESTED, where=f"{steps} >= 1000, {arch} = a0", columns={"seen": f"{steps} * 64"}, trunks=arch)
    assert runs["seen"].tolist() == [64e3, 64e3, 128e3, 128e3]
    assert (runs.trunk_source, runs[lr].tolist()) == (f"column {arch.replace('_', '.')}", [1e-3, 2e-3] * 2)
    assert lr in runs
    assert len(best_of(load_runs(NESTED), lr)) == 4
    assert load_runs(NESTED).blend({lr}) is None
    result = fit(load_runs(NESTED), "chinchilla", mix=lr, weights=steps)
    assert not result.status.blended


def test_experts_as_a_configuration_of_transformers_has_them():
    table = [{**row, "config": {"num_experts": 8}} for row in NESTED]
    for row in table:
        del row["experts"]
    assert set(load_runs(table).experts) == {8.0}
    routed = [{**row, "config": {"num_experts": 8, "num_experts_per_tok": 2}} for row in table]
    with pytest.raises(RunsError, match="missing column experts"):
        load_runs(routed)


def test_a_filter_sees_the_columns_that_were_made():
    runs = load_runs(rows(), columns=MAPPING, where="D > 200M, gate = True")
    assert runs.run_id == ("run 1", "run 2", "run 3")
    assert load_runs(rows(), columns=MAPPING | {"size": "Na / 1e8"}, where="size in {2, 4}").run_id == (
        "run 1",
        "run 3",
    )


def test_rows_without_a_value_are_skipped_where_asked():
    runs = load_runs(rows(), columns=MAPPING | {"tokens": "1e10 * bs / (ti - 2000)"}, on_invalid="skip", status=None)
    assert runs.run_id == ("run 2", "run 3")
    assert len(runs.skipped) == 2


def test_a_mapped_size_need_not_follow_our_formulas():
    a = Architecture(64, 4)
    row = {"d_model": 64, "n_blocks": 1, "n_heads": 1, "experts": 4, "vocab_size": a.vocab_size, "params": 1e6}
    row |= {"tokens": 1e9, "loss": 3.0, "n_active": a.n_active}
    assert load_runs([row]).n_active == a.n_active
    with pytest.raises(RunsError, match="n_active=1000000 contradicts"):
        load_runs([row | {"n_active": 1e6}])
    assert load_runs([row], columns={"n_active": "params"}).n_active == 1e6


def test_every_numeric_column_is_kept_flat_and_read_only():
    table = [
        r | {"schedule": {"peak": 1e-3 * i, "kind": "wsd"}, "rare": 7 if i else None} for i, r in enumerate(rows())
    ]
    runs = load_runs(table, columns=MAPPING)
    np.testing.assert_allclose(runs["schedule_peak"], [0, 1e-3, 2e-3, 3e-3])
    np.testing.assert_array_equal(runs.column("rare"), [np.nan, 7, 7, 7])
    assert "schedule_kind" not in runs
    assert "rare" in runs
    with pytest.raises(ValueError, match="read-only"):
        runs["rare"][0] = 1.0
    assert runs.read_as == "; ".join(f"{name} = {column}" for name, column in MAPPING.items())
    part = runs.subset(runs.loss < 2.95)
    np.testing.assert_array_equal(part["ti"], [2000, 3000, 4000])
    assert runs.take(np.array([3, 0]))["ti"].tolist() == [4000, 1000]
    assert {*runs.to_pandas().columns} == {"run_id", "n_active", "tokens", "experts", "loss", "trunk", *runs.columns}
    assert runs.to_pandas()["schedule.peak"].tolist() == runs["schedule_peak"].tolist()
    for name in ("n_active", "tokens", "experts", "loss"):
        np.testing.assert_array_equal(runs[name], getattr(runs, name))
    np.testing.assert_array_equal(runs["smooth loss"], runs.loss)
    with pytest.raises(RunsError, match=r"rows: numeric column 'name' is unknown.* There are n_active, tokens, .*ti"):
        runs["name"]


def test_arrays_bring_further_columns():
    runs = Runs.from_columns([1e6, 2e6], 1e7, 1, [3.0, 2.9], columns={"density": [0.5, 0.25], "lr": 1e-3})
    assert (runs["density"].tolist(), runs["lr"].tolist()) == ([0.5, 0.25], [1e-3, 1e-3])


def test_the_papers_letters_and_counts_with_suffixes_are_understood(tmp_path):
    made, path = tiny_runs(), tmp_path / "runs.csv"
    lines = [
        f"{n / 1e6:.9f}M,{d / 1e3:.3f}k,{e:g},{loss!r}"
        for n, d, e, loss in zip(made.n_active, made.tokens, made.experts, made.loss.tolist(), strict=True)
    ]
    path.write_text("\n".join(["N_act,D,E,loss", *lines]))
    runs = load_runs(path)
    np.testing.assert_allclose(runs.n_active, made.n_active, rtol=1e-6)
    np.testing.assert_array_equal((runs.tokens, runs.experts, runs.loss), (made.tokens, made.experts, made.loss))
    assert runs.read_as == "n_active = N_act; tokens = D; experts = E"
    assert {*runs.columns} == set()  # none twice: what varies beside the law's variables is looked at
    assert len(load_runs(path, where="E = 4, N_act > 0.5M")) == 6
    assert load_runs(path, columns={"n_active": "N_act * 2"}).n_active[0] == pytest.approx(2 * made.n_active[0])
    row = {"N_act": "80M", "D": "1B", "E": 1, "loss": 3.1}
    with pytest.raises(RunsError, match="missing column tokens; there are: E, N_act, loss"):
        load_runs([{name: value for name, value in row.items() if name != "D"}])
    with pytest.raises(RunsError, match="n_active='80 apples' is not a number"):
        load_runs([row, row | {"N_act": "80 apples"}])


def test_tables_that_we_print_are_read_back(published):
    table, record = published.optimal(1e21, experts=[1, 8, 32]), make_record()
    for shown, names in (
        (table.summary(), {"n_active": [row.n_active for row in table], "experts": [1, 8, 32]}),
        (cards.runs_table([record]), {"experts": [record.experts], "tokens": [record.tokens]}),
    ):
        printed = [dict(zip(shown.header, map(str, row), strict=True)) for row in shown.rows]
        runs = load_runs([{name: text for name, text in row.items() if text} for row in printed])
        for name, values in names.items():
            np.testing.assert_allclose(runs[name], values, rtol=5e-3)


def test_aliases_do_not_contradict_the_filters_letters():
    for name, others in ALIASES.items():
        assert {LETTERS.get(own.removeprefix("."), name) for own in others} == {name}
        assert name in RunRecord.model_fields
