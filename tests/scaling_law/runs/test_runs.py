"""Tables of runs: every source, every refusal; trunks, and intervals that have their level with them."""

import json
from functools import cache

import numpy as np
import pandas
import pytest

from hub.base.tables import as_text
from scaling_law import Architecture, JointLaw, Runs, fit, load_runs
from scaling_law.runs.table import RunsError
from tests.guides import ROOT
from tests.scaling_law.synthetic import TINY_LAW, tiny_runs

AT = (8e5, 3e6, 4)  # inside the sizes of the tiny sweep


def rows(count=6):
    """Run records in the schema's field names: one trunk of two branches for each of three sizes."""
    found = []
    for i in range(count):
        a = Architecture(64 * (1 + i // 2), experts=2, vocab_size=1024)
        sizes = {"d_model": a.d_model, "n_blocks": a.blocks, "n_heads": a.heads, "vocab_size": 1024}
        sizes |= {"n_active": a.n_active, "n_total": a.n_total, "experts": 2}
        parent = None if i % 2 == 0 else f"run{i - 1}"
        record = {"run_id": f"run{i}", "parent_run_id": parent, "status": "final", "tokens": 1e6 * (1 + i)}
        found.append(record | sizes | {"eval_loss": 5.0 - 0.1 * i, "train_loss": 4.9 - 0.1 * i})
    return found


def write(folder, records, name="runs.jsonl"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("".join(json.dumps(r) + "\n" for r in records))
    return folder


def check(runs):
    assert len(runs) == 6
    assert runs.run_id[3] == "run3"
    assert runs.loss[5] == 4.5
    assert runs.trunk.tolist() == [0, 0, 1, 1, 2, 2]


def test_every_source_reads_the_same(tmp_path):
    records = rows()
    folder = write(tmp_path / "plain", records)
    write(tmp_path / "release" / "datasets" / "sweep-runs" / "main", records)
    frame = pandas.DataFrame(records)
    frame.to_parquet(tmp_path / "runs.parquet")
    frame.to_csv(tmp_path / "runs.csv")
    sources = [records, frame, folder, f"file:{folder}", folder / "runs.jsonl", tmp_path / "release"]
    for source in [*sources, tmp_path / "runs.parquet", str(tmp_path / "runs.csv")]:
        check(load_runs(source))


def test_losses_and_status():
    records = rows()
    records[2] |= {"status": "diverged", "eval_loss": None}
    records[4] |= {"status": "intermediate"}
    assert load_runs(records).run_id == ("run0", "run1", "run3", "run5")
    assert load_runs(records, "train_loss", status=None).loss[2] == pytest.approx(4.7)
    # a trunk that is itself left out still joins its branches
    records[3] |= {"parent_run_id": "run2"}
    assert len(set(load_runs(records).trunk.tolist())) == 3


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ("D <= 2M", ["run0", "run1"]),
        ("E in {1, 2}, run_id in {run3, run5}", ["run3", "run5"]),
        ("d = 128, E != 8", ["run2", "run3"]),
    ],
)
def test_a_filter_chooses_runs(where, kept):
    runs = load_runs(pandas.DataFrame(rows()), where=where)
    assert (list(runs.run_id), runs.where) == (kept, where)


def test_no_filter_keeps_all_runs():
    for where in (None, ""):
        runs = load_runs(pandas.DataFrame(rows()), where=where)
        assert (len(runs), runs.where) == (6, None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"eval_loss": float("nan")}, r"row 1 \(run1\): eval_loss=nan"),
        ({"eval_loss": None}, r"row 1 \(run1\): eval_loss=None"),
        ({"eval_loss": np.float64(0.0)}, r"eval_loss=0.0 must be positive"),
        ({"tokens": -5}, r"row 1 \(run1\): tokens=-5"),
        ({"n_active": float("inf")}, r"n_active=inf"),
        ({"experts": 0}, r"experts=0"),
        ({"tokens": "many"}, r"tokens='many'"),
        ({"n_active": 12345}, r"n_active=12345 contradicts .*\(18[0-9]+\)"),
        ({"n_total": 1}, r"n_total=1 contradicts"),
        ({"n_heads": 3}, r"n_heads=3"),
        ({"run_id": "run2"}, r"duplicate of row 1 \(run2\) \(same run_id\)"),
    ],
)
def test_bad_rows_are_named_or_skipped(change, message):
    records = rows()
    records[1] |= change
    with pytest.raises(RunsError, match=message):
        load_runs(records)
    runs = load_runs(records, on_invalid="skip")
    assert len(runs) == 5
    assert len(runs.skipped) == 1


def test_duplicate_measurements():
    records = rows()
    records.append(records[2] | {"run_id": "again"})
    same = r"row 6 \(again\): duplicate of row 2 \(run2\) \(same N, D, E and loss\)"
    with pytest.raises(RunsError, match=same):
        load_runs(records)
    with pytest.raises(RunsError, match="duplicate"):
        Runs.from_columns([1e6, 1e6], [1e6, 1e6], 1, [3.0, 3.0])
    assert len(Runs.from_columns([1e6, 1e6], [1e6, 1e6], 1, [3.0, 3.01])) == 2  # a repeat with another seed
    unknown = {"columns": {"batch": [np.nan, np.nan]}}
    assert len(Runs.from_columns([1e6, 1e6], [1e6, 1e6], 1, [3.0, 3.0], **unknown)) == 2


def test_a_run_that_two_sweeps_trained_counts_once():
    records = [row | {"schema_version": 1, "sweep": "main"} for row in rows()]
    again = records[2] | {"run_id": "rates-run2", "sweep": "rates"}
    runs = load_runs([*records, again])
    assert len(runs) == 6
    assert runs.skipped == ("row 6 (rates-run2): the same run as row 2 (run2), trained in two sweeps",)
    with pytest.raises(RunsError, match="duplicate of row 2"):
        load_runs([*records, again | {"sweep": "main"}])
    own = load_runs(ROOT / "studies" / "crossing" / "runs.jsonl")
    assert (len(own), len(own.skipped)) == (706, 4)


def test_sizes_are_computed_from_width_and_depth():
    """A table of d_model, n_blocks, experts, tokens and a loss is enough; n_heads change no count."""
    full = rows()
    short = [{k: r[k] for k in ("d_model", "n_blocks", "vocab_size", "experts", "tokens", "eval_loss")} for r in full]
    np.testing.assert_array_equal(load_runs(short).n_active, load_runs(full).n_active)
    np.testing.assert_array_equal(load_runs(pandas.DataFrame(short)).n_active, load_runs(full).n_active)
    gpt2 = [{k: v for k, v in r.items() if k != "vocab_size"} for r in short]
    assert load_runs(gpt2).n_active[0] == Architecture(64).n_active
    with pytest.raises(RunsError, match=r"row 0 \(row-0\): n_active=None must be"):
        load_runs([short[0] | {"d_model": -64}, *short[1:]])
    with pytest.raises(RunsError, match=r"missing column n_active \(or d_model and n_blocks\); there are: d_model"):
        load_runs([{k: v for k, v in r.items() if k != "n_blocks"} for r in short])


def test_the_only_loss_column_is_the_loss():
    bare = [{k: v for k, v in r.items() if not k.endswith("loss")} for r in rows()]
    named = [r | {"smooth loss": 3.0 + 0.1 * i} for i, r in enumerate(bare)]
    assert load_runs(named).loss_name == "smooth loss"
    assert load_runs(named).loss[1] == pytest.approx(3.1)
    with pytest.raises(RunsError, match=r"no column eval_loss, but other losses \(loss, smooth loss\)"):
        load_runs([r | {"loss": 3.0} for r in named])
    assert load_runs([r | {"loss": 3.0 + i} for i, r in enumerate(named)], "loss").loss_name == "loss"
    with pytest.raises(RunsError, match="missing column eval_loss; there are: d_model"):
        load_runs(bare)
    with pytest.raises(RunsError, match="missing column eval_loss"):
        load_runs(named, "eval_loss")


def test_runs_show_what_each_e_covers():
    runs = Runs.from_columns([1e6, 2e6, 4e6], [1e8, 3e8, 2e8], [1, 8, 8], [3.0, 2.5, 2.75])
    assert runs.summary().rows == [
        ("1", 1, 1, "1M – 1M", "100M – 100M", "3.0000 – 3.0000"),
        ("8", 2, 2, "2M – 4M", "200M – 300M", "2.5000 – 2.7500"),
    ]
    assert "<table>" in runs._repr_html_()


def test_runs_are_frozen_columns():
    runs = load_runs(rows())
    with pytest.raises(ValueError, match="read-only"):
        runs.loss[0] = 1.0
    part = runs.subset(runs.loss < 4.8)
    assert part.run_id == ("run3", "run4", "run5")
    np.testing.assert_array_equal(part.trunk, [1, 2, 2])
    assert {*runs.columns} == {"d_model", "n_blocks", "n_heads", "vocab_size", "n_total", "train_loss"}
    assert repr(runs) == "Runs(6 runs of 3 trunks, E in {2}, eval_loss, from rows)"
    overall = runs.ranges()[0]
    assert (overall.experts, overall.runs, overall.tokens) == (None, 6, (1e6, 6e6))


def tiny_table(seed=0, shared=0.01, own=0.003):
    """The tiny sweep as a table of sizes and losses; runs of one size and E share a part of their scatter."""
    runs = tiny_runs(sigma=0.0)
    rng = np.random.default_rng(seed)
    scatter = rng.normal(0, shared, 12)[runs.trunk] + rng.normal(0, own, len(runs))
    columns = {"n_active": runs.n_active, "tokens": runs.tokens, "experts": runs.experts}
    return pandas.DataFrame(columns | {"eval_loss": runs.loss * np.exp(scatter)})


def test_a_table_without_parents_has_one_trunk_for_each_size_and_e():
    frame = tiny_table()
    runs = load_runs(frame)
    assert runs.n_trunks == 12
    assert runs.trunk_source == "runs of equal n_active, experts"
    np.testing.assert_array_equal(np.unique(runs.trunk, return_counts=True)[1], 3)
    columns = [frame[name] for name in ("n_active", "tokens", "experts", "eval_loss")]
    assert Runs.from_columns(*columns).n_trunks == 12
    assert Runs.from_columns(*columns, trunk="run").n_trunks == 36


@pytest.mark.parametrize(
    ("column", "pair"),
    {
        "seed": (0, 1),
        "lr": (1e-3, 2e-3),
        "d_model": (64, 128),
        "batch_size": (8, 16),
        "dataset": ("web", "books"),
    }.items(),
)
def test_runs_that_differ_from_the_start_are_of_other_trunks(column, pair):
    runs = load_runs(tiny_table().assign(**{column: [*pair] * 18}))
    assert runs.n_trunks == 24
    assert column in runs.trunk_source


def test_a_column_decides_where_there_is_one():
    frame = tiny_table().assign(run_id=[f"run{i}" for i in range(36)], group=np.arange(36) // 6)
    with_parents = frame.assign(parent_run_id=["run0" if i < 3 else None for i in range(36)])
    named = with_parents.assign(trunk=np.arange(36) // 4)
    for table, rule, n_trunks, source in (
        (with_parents, "auto", 34, "column parent_run_id"),
        (named, "auto", 9, "column trunk"),
        (named, "group", 6, "column group"),
        (named, "run", 36, "each run its own trunk"),
    ):
        runs = load_runs(table, trunks=rule)
        assert (runs.n_trunks, runs.trunk_source) == (n_trunks, source)
    with pytest.raises(RunsError, match="trunks='group': row 2 has no value"):
        load_runs(frame.assign(group=[None if i == 2 else "a" for i in range(36)]), trunks="group")


def test_the_result_says_how_many_trunks_and_whence(tmp_path):
    frame = tiny_table().assign(group=np.arange(36) // 6)
    result = fit(load_runs(frame, trunks="group"), starts=[JointLaw(**TINY_LAW)])
    assert (result.status.n_trunks, result.status.trunk_source) == (6, "column group")
    assert result.to_dict()["status"]["n_trunks"] == 6
    assert result.to_dict()["loss"] == "eval_loss"
    drawn = result.bootstrap(3)
    assert "36 runs of 6 trunks (column group)" in as_text(result)
    assert "Bootstrap of 6 trunks (column group)" in as_text(drawn)
    drawn.law.save_pretrained(tmp_path)
    conditions = JointLaw.from_pretrained(tmp_path).conditions
    assert (conditions.trunks, conditions.trunk_source) == (6, "column group")


@cache
def interval(seed, trunks):
    """The 95 % interval of the law's value at AT; coefficients that 36 runs hardly determine are fixed."""
    fixed = {name: TINY_LAW[name] for name in ("e_start", "e_max", "gamma", "zeta")}
    result = fit(load_runs(tiny_table(seed), trunks=trunks), fixed=fixed, starts=[JointLaw(**TINY_LAW)])
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


def test_counts_that_rounding_tells_apart_are_of_one_model(tmp_path):
    """As of a spreadsheet that computes N and E: half of the rows end an ulp higher."""
    ulp = 1 + 4e-16 * (np.arange(6) % 2)
    n_active, experts = 1e8 * ulp, 8.0 * ulp
    tokens = np.array([1.0, 2, 4, 8, 16, 32]) * 1e9
    table = Runs.from_columns(n_active, tokens, experts, np.linspace(3.5, 3.0, 6))
    names = ("n_active", "tokens", "experts", "loss")
    rows = zip(n_active, tokens, experts, np.linspace(3.5, 3.0, 6), strict=True)
    path = tmp_path / "runs.jsonl"
    path.write_text("".join(json.dumps(dict(zip(names, map(float, row), strict=True))) + "\n" for row in rows))
    for runs in (table, load_runs(path)):
        assert {*runs.experts} == {8.0}
        assert {*runs.n_active} == {1e8}
        assert runs.n_trunks == 1
