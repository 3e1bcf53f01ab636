"""Trunks: found in the table or by what the runs share, and intervals that have their level with them."""

import io

import numpy as np
import pandas
import pytest
from rich.console import Console

from scaling_law import JointLaw, Runs, fit, load_runs
from scaling_law.runs.table import RunsError
from tests.scaling_law.synthetic import TINY_LAW, tiny_runs

AT = (8e5, 3e6, 4)  # inside the sizes of the tiny sweep


def table(seed=0, shared=0.01, own=0.003):
    """The tiny sweep as a table of sizes and losses; runs of one size and E share a part of their scatter."""
    runs = tiny_runs(sigma=0.0)
    rng = np.random.default_rng(seed)
    scatter = rng.normal(0, shared, 12)[runs.trunk] + rng.normal(0, own, len(runs))
    columns = {"n_active": runs.n_active, "tokens": runs.tokens, "experts": runs.experts}
    return pandas.DataFrame(columns | {"eval_loss": runs.loss * np.exp(scatter)})


def test_a_table_without_parents_has_one_trunk_for_each_size_and_e():
    frame = table()
    runs = load_runs(frame)
    assert runs.n_trunks == 12
    assert runs.trunk_source == "runs of equal n_active, experts"
    np.testing.assert_array_equal(np.unique(runs.trunk, return_counts=True)[1], 3)
    columns = [frame[name] for name in ("n_active", "tokens", "experts", "eval_loss")]
    assert Runs.from_columns(*columns).n_trunks == 12
    assert Runs.from_columns(*columns, trunk="run").n_trunks == 36


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("seed", [0, 1] * 18),
        ("lr", [1e-3, 2e-3] * 18),
        ("d_model", [64, 128] * 18),
        ("batch_size", [8, 16] * 18),
        ("dataset", ["web", "books"] * 18),
    ],
)
def test_runs_that_differ_from_the_start_are_of_other_trunks(column, values):
    runs = load_runs(table().assign(**{column: values}))
    assert runs.n_trunks == 24
    assert column in runs.trunk_source


def test_a_column_decides_where_there_is_one():
    frame = table().assign(run_id=[f"run{i}" for i in range(36)], group=np.arange(36) // 6)
    with_parents = frame.assign(parent_run_id=["run0" if i < 3 else None for i in range(36)])
    assert (load_runs(with_parents).n_trunks, load_runs(with_parents).trunk_source) == (34, "column parent_run_id")
    given = with_parents.assign(trunk=np.arange(36) // 4)
    assert (load_runs(given).n_trunks, load_runs(given).trunk_source) == (9, "column trunk")
    named = load_runs(given, trunks="group")
    assert (named.n_trunks, named.trunk_source) == (6, "column group")
    single = load_runs(given, trunks="run")
    assert (single.n_trunks, single.trunk_source) == (36, "each run its own trunk")
    with pytest.raises(RunsError, match="trunks='groups' must be 'auto', 'run' or a column: eval_loss, experts"):
        load_runs(given, trunks="groups")
    with pytest.raises(RunsError, match="trunks='group': row 2 has no value"):
        load_runs(frame.assign(group=[None if i == 2 else "a" for i in range(36)]), trunks="group")


def test_the_result_says_how_many_trunks_and_whence(tmp_path):
    frame = table().assign(group=np.arange(36) // 6)
    result = fit(frame, trunks="group", starts=[JointLaw(**TINY_LAW)])
    assert (result.status.n_trunks, result.status.trunk_source) == (6, "column group")
    assert result.to_dict()["status"]["n_trunks"] == 6
    console = Console(width=150, record=True, file=io.StringIO())
    console.print(result.summary())
    drawn = result.bootstrap(3)
    console.print(drawn.summary())
    text = console.export_text()
    assert "36 runs of 6 trunks (column group)" in text
    assert "Bootstrap of 6 trunks (column group)" in text
    drawn.law.save_pretrained(tmp_path)
    conditions = JointLaw.from_pretrained(tmp_path).conditions
    assert (conditions.trunks, conditions.trunk_source) == (6, "column group")


def test_what_a_loaded_table_cannot_answer_is_refused():
    runs = load_runs(table())
    start = {"starts": [JointLaw(**TINY_LAW)]}
    assert fit(runs, trunks="run", **start).status.n_trunks == 36
    with pytest.raises(ValueError, match="trunks='group': these runs are loaded already"):
        fit(runs, trunks="group")
    with pytest.raises(ValueError, match="loss='other': these runs were loaded with eval_loss"):
        fit(runs, loss="other")
    with pytest.raises(ValueError, match="trunks=3 must be"):
        fit(runs, trunks=3)


def interval(seed, trunks):
    """The 95 % interval of the law's value at AT; coefficients that 36 runs hardly determine are fixed."""
    fixed = {name: TINY_LAW[name] for name in ("e_start", "e_max", "gamma", "zeta")}
    result = fit(table(seed), trunks=trunks, fixed=fixed, starts=[JointLaw(**TINY_LAW)])
    return result.bootstrap(100, seed=seed).prediction_interval(*AT)


def coverage(seeds, trunks):
    """How often the interval has the truth in it."""
    truth = JointLaw(**TINY_LAW).loss(*AT)
    return float(np.mean([low <= truth <= high for low, high in (interval(seed, trunks) for seed in seeds)]))


def test_intervals_are_wider_where_trunks_are_found():
    """With scatter that the runs of a trunk share, taking them for independent makes intervals too narrow."""
    widths = {rule: [float(np.diff(interval(seed, rule))[0]) for seed in range(3)] for rule in ("auto", "run")}
    assert np.mean(widths["auto"]) > 1.3 * np.mean(widths["run"])
    assert coverage(range(6), "auto") >= 0.8


@pytest.mark.slow
def test_intervals_have_their_level_over_many_sweeps():
    found, ignored = coverage(range(150), "auto"), coverage(range(150), "run")
    assert found >= 0.88
    assert ignored <= found - 0.08
