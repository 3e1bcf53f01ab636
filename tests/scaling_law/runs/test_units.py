"""Numbers that cannot be parameters, tokens and nats per token are refused with what to type; odd ones are said."""

import re

import numpy as np
import pytest

from scaling_law import JointLaw, Law, Runs, fit, forecast, load_runs
from scaling_law.formulas.files import published_loss
from scaling_law.runs.rows import RunsError
from tests.hub.samples import make_record

LAW = JointLaw.published()
N, RATIOS = (5e7, 1e8, 2e8, 4e8), (10, 20, 40)
FAR = {"n_active": 2e9, "tokens": 4e10}


def rows(n_unit=1.0, d_unit=1.0, loss=float, name="eval_loss", sizes=N, ratios=RATIOS, **more):
    """Runs of the published law, with N and D counted in these units and the loss as a function of nats."""
    models = [(n, n * ratio) for n in sizes for ratio in ratios]
    return [
        {"n_active": n / n_unit, "tokens": d / d_unit, "experts": 1, name: loss(float(LAW.loss(n, d, 1)))} | more
        for n, d in models
    ]


def test_the_yardstick_is_the_published_law():
    n, d, e = np.array([1e8, 3e9]), np.array([2e9, 1e11]), np.array([1, 64])
    np.testing.assert_allclose(published_loss(n, d, e), LAW.loss(n, d, e), rtol=1e-14)


@pytest.mark.parametrize("name", ["acc", "hellaswag/acc_norm,none", "exact_match", "val_accuracy", "mmlu.f1"])
def test_columns_named_as_accuracies_are_no_losses(name):
    table = rows(loss=lambda nats: nats / 10, name=name)
    for options in ({"loss": name}, {"columns": {"loss": name}}):
        with pytest.raises(RunsError, match=r"is an accuracy by its name.*fit a loss of the same runs") as error:
            load_runs(table, **options)
        assert "\n" not in str(error.value)
    expression = name if name.isidentifier() else f"`{name}`"
    assert len(load_runs(table, columns={"loss": f"4 - {expression}"})) == 12


def test_values_up_to_one_that_rise_with_compute_are_no_losses():
    with pytest.raises(RunsError, match="is an accuracy, as it rises with compute"):
        load_runs(rows(loss=lambda nats: 1 - nats / 5))
    assert len(load_runs(rows(loss=lambda nats: nats / 5))) == 12


@pytest.mark.parametrize(
    ("n_unit", "d_unit", "typed"),
    [
        (1.0, 1e9, ["tokens * 1e9"]),
        (1.0, 1e6, ["tokens * 1e6"]),
        (1.0, 1e12, ["tokens * 1e12"]),
        (1e6, 1.0, ["n_active * 1e6"]),
        (1e6, 1e9, ["n_active * 1e6", "tokens * 1e9"]),
        (1e6, 1e6, ["n_active * 1e6", "tokens * 1e6"]),
        (1e9, 1e9, ["n_active * 1e9", "tokens * 1e9"]),
        (1e9, 1.0, ["n_active * 1e9"]),
    ],
)
def test_counts_in_thousands_millions_and_billions_are_refused_with_the_mapping_to_type(n_unit, d_unit, typed):
    table = rows(n_unit, d_unit)
    with pytest.raises(RunsError, match="12 unusable row") as error:
        load_runs(table)
    mapping = dict(re.findall(r'--column "(\w+) = ([^"]+)"', str(error.value)))
    assert [*mapping.values()] == typed
    assert f"in Python columns {mapping}" in str(error.value)
    mapped = load_runs(table, columns=mapping)
    np.testing.assert_allclose(mapped.n_active, np.repeat(N, 3))
    assert mapped.warnings == ()
    columns = {name: [row[name] for row in table] for name in ("n_active", "tokens", "experts")}
    with pytest.raises(RunsError, match="in other units"):
        Runs.from_columns(**columns, loss=[row["eval_loss"] for row in table])


def test_one_run_of_too_few_tokens_is_named_among_others():
    table = rows()
    table[3]["tokens"] = 0.005 * table[3]["n_active"]
    message = r"1 unusable row\(s\), which on_invalid='skip' leaves out\n  row 3 \(row-3\): 0.005 tokens per parameter"
    with pytest.raises(RunsError, match=message):
        load_runs(table)
    assert len(load_runs(table, on_invalid="skip")) == 11


def test_checkpoints_of_a_run_may_have_few_tokens_and_so_may_a_design_that_gets_there_step_by_step():
    curve = [row | {"trunk": row["n_active"]} for row in rows(ratios=(0.001, 0.05, 20), loss=lambda nats: nats)]
    assert len(load_runs(curve)) == 12
    long = rows(sizes=(1e8,), ratios=[0.002 * 1.5**i for i in range(24)])
    assert len(load_runs(long)) == 24
    isoflop = rows(sizes=[1e7 * 2**i for i in range(8)], ratios=(0.02, 0.08, 0.3, 1, 4, 16))
    assert len(load_runs(isoflop, trunks="run")) == 48


def test_a_run_record_has_the_units_of_its_schema_however_short_the_run():
    assert len(load_runs([make_record(tokens=2048)])) == 1


def test_more_than_twenty_nats_and_perplexities_are_refused():
    with pytest.raises(
        RunsError, match=r"eval_loss=\S+ is not a loss in nats per token; a perplexity is mapped by"
    ) as error:
        load_runs(rows(loss=np.exp))
    assert '--column "loss = log(eval_loss)"' in str(error.value)
    with pytest.raises(RunsError, match=r"eval/ppl=.*log\(`eval/ppl`\)"):
        load_runs(rows(loss=np.exp, name="eval/ppl", sizes=(4e9, 8e9)), loss="eval/ppl")
    mapped = load_runs(rows(loss=np.exp, name="eval/ppl"), columns={"loss": "log(`eval/ppl`)"})
    np.testing.assert_allclose(mapped.loss, [row["eval_loss"] for row in rows()])
    assert mapped.warnings == ()


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (rows(loss=lambda nats: nats / np.log(2) / 4.4), "as bits per byte or character are"),
        (rows(loss=lambda nats: nats / np.log(2) / 4.4, name="c4 bpb"), "the losses are c4 bpb, not nats per token"),
        (rows(loss=np.exp, sizes=(4e9, 8e9, 16e9)), "as perplexities are; a perplexity is mapped by"),
        (rows(1e6, 1e6, sizes=(4e9, 8e9, 16e9)), "n_active may be in thousands or millions"),
    ],
)
def test_what_is_odd_is_a_warning_that_fits_forecasts_and_saved_laws_carry(table, said, tmp_path):
    runs = load_runs(table, loss="c4 bpb" if "c4 bpb" in table[0] else None)
    assert len(runs.warnings) == 1
    assert said in runs.warnings[0]
    options = {"fixed": {"mu": -0.3, "nu": -0.3}}
    result = fit(runs, "chinchilla", **options)
    assert any(said in text.replace("The losses", "the losses") for text in result.warnings)
    result.law.save_pretrained(tmp_path)
    saved = Law.from_pretrained(tmp_path)
    assert saved.conditions.doubts == runs.warnings
    assert said in saved.optimal(1e21, experts=[1], force=True).warnings[0]
    assert any(said in text for text in forecast(runs, FAR).warnings)


def test_ordinary_runs_and_tiny_ones_of_bytes_are_not_odd():
    assert load_runs(rows()).warnings == ()
    tiny = [row | {"eval_loss": 1.5, "n_active": 56_384, "vocab_size": 257} for row in rows(d_unit=1e3)]
    assert load_runs([row | {"eval_loss": 2.0 - 0.01 * i} for i, row in enumerate(tiny)]).warnings == ()
    assert "doubts" not in fit(load_runs(rows()), "chinchilla").law.conditions.to_dict()
