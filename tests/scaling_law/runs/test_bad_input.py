"""Bad tables and bad questions to them: one message that names row, field, value and what is allowed."""

import json

import numpy as np
import pytest

from scaling_law import Runs, fit, load_runs
from scaling_law.runs import best_of
from scaling_law.runs.settings import RECIPE
from tests.scaling_law.runs import test_columns, test_recipes, test_tuning
from tests.scaling_law.runs.test_runs import rows, tiny_table

TWO = ([1e6, 2e6], [1e6, 2e6], 1)
TABLE = load_runs(tiny_table())


def with_column(**changes):
    return load_runs(test_columns.rows(), columns=test_columns.MAPPING | changes)


BAD_INPUT = [
    (lambda: with_column(n_active="Nb"), r"rows: column n_active='Nb': column 'Nb' is unknown; there are Na, bs"),
    (lambda: with_column(n_active="the sizes"), r"column n_active='the sizes': neither a column nor an expression"),
    (lambda: with_column(n_active="import os"), r"column n_active='import os': neither a column nor an expression"),
    (lambda: with_column(n_active=None), r"n_active=None: must be a column, an expression, a number or a function"),
    (
        lambda: with_column(n_active="Na * name"),
        r"row 0 \(row-0\): column n_active='Na .*: name='run 0' is not a number",
    ),
    (lambda: with_column(tokens="bs / (ti - 2000)"), r"row 1 \(row-1\): column tokens='bs .*division by zero"),
    (lambda: with_column(tokens="log(1000 - ti)"), r"row 1 \(row-1\): column tokens='log\(1000 - ti\)': "),
    (lambda: with_column(tokens=lambda row: row["absent"]), r"row 0 \(row-0\): column tokens=<lambda>: 'absent'"),
    (lambda: with_column(tokens="-ti"), r"row 0 \(run 0\): tokens=-1000.0 must be positive"),
    (lambda: with_column(density="1 / (ti - 1000)"), r"row 0 \(row-0\): column density='1 / \(ti - 1000\)'"),
    (lambda: Runs.from_columns(*TWO, [3.0, -1.0]), r"loss=-1\.0 must be positive"),
    (lambda: Runs.from_columns("big", 1e9, 1, 3.0), "n_active='big' is not a quantity"),
    (lambda: Runs.from_columns([[1e8]], 1e9, 1, 3.0), r"columns must be one-dimensional, not of shape \(1, 1\)"),
    (lambda: Runs.from_columns(*TWO, [3.0, 2.9], [1]), "run_id and trunk must have one entry for each of the 2 runs"),
    (lambda: Runs.from_columns(*TWO, [3.0, 2.9], "own"), "trunk='own' must be 'auto', 'run' or one id for each run"),
    (lambda: Runs.from_columns(*TWO, [3.0, 2.9], columns={"x": [1, 2, 3]}), "columns: 'x' must hold 2 numbers"),
    (lambda: Runs.from_columns(*TWO, [3.0, 2.9], columns={"loss": 1}), "columns: 'loss' is an argument itself"),
    (lambda: load_runs(rows(), "loss"), "missing column loss; there are: d_model"),
    (lambda: load_runs([]), r": no runs$"),
    (lambda: load_runs([3]), "row 0: a int is neither a mapping nor a run record"),
    (lambda: load_runs(rows(), status="unknown"), "status 'unknown'"),
    (lambda: load_runs(rows(), on_invalid="drop"), "on_invalid='drop' is unknown; there are raise, skip"),
    (lambda: load_runs(rows(), where="E > 9"), "where='E > 9' keeps none of 6 runs"),
    (lambda: load_runs("missing/curves.csv.gz"), r"^missing/curves\.csv\.gz: no such file or folder"),
    (lambda: load_runs("trackio:x", final="first"), "final='first' is unknown; there are last, minimum, smoothed"),
    (lambda: load_runs([{"n_active": 1e6}], final="minimum"), "final='minimum' goes with a tracker"),
    (lambda: load_runs("trackio:x", revision="v1"), "revision='v1' goes with a dataset on the Hub"),
    (lambda: fit(test_recipes.rows(), mix=("rate",)), f"mix='rate' is unknown.* {', '.join(RECIPE)}"),
    (lambda: best_of(test_tuning.grid(), "lr"), r"numeric column 'lr' is unknown.*learning_rate, batch"),
    (lambda: best_of(test_tuning.grid(batch=-1.0), "batch"), r"row-0: batch=-1 must be finite and not negative"),
    (lambda: best_of(test_tuning.grid(batch=np.nan), "batch"), r"row-0: batch=nan must be finite and not negative"),
    (lambda: best_of(test_tuning.grid(batch=64.0), "batch"), r"batch is 64 in every run; nothing to choose from"),
]


@pytest.mark.parametrize(("call", "words"), BAD_INPUT)
def test_it_is_named(call, words):
    with pytest.raises(ValueError, match=words) as error:
        call()
    assert "unusable row" in str(error.value) or "\n" not in str(error.value)


def test_folders_that_cannot_be_read_are_named(tmp_path):
    for place in ("one", "two/datasets/a-runs/main", "two/datasets/b-runs/main"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "runs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows()))
    for source, options, words in (
        (tmp_path, {}, r"no run records \(runs\.jsonl"),
        (tmp_path / "one", {"revision": "v1"}, "only applies to a dataset on the Hub"),
        (tmp_path / "two", {}, "several sweeps"),
    ):
        with pytest.raises(ValueError, match=words):
            load_runs(source, **options)
    with pytest.raises(ValueError, match="runs cannot be read from a int"):
        load_runs(3)
