"""Tables of runs: every source, every refusal."""

import json

import numpy as np
import pandas
import pytest

from scaling_law import Architecture, JointLaw, Runs, fit, load_runs
from scaling_law.runs.table import RunsError


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
    with pytest.raises(RunsError, match="status 'unknown'"):
        load_runs(records, status="unknown")
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


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("E = 8", "rows: where='E = 8' keeps none of 6 runs"),
        ("depth = 8", "rows: .*no field is named 'depth'; there are .*tokens"),
        ("D ~ 8", "rows: .*'D ~ 8' is not a condition"),
    ],
)
def test_a_filter_that_keeps_nothing_or_cannot_be_read(where, message):
    with pytest.raises(RunsError, match=message):
        load_runs(rows(), where=where)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"eval_loss": float("nan")}, r"row 1 \(run1\): eval_loss=nan"),
        ({"eval_loss": None}, r"row 1 \(run1\): eval_loss=None"),
        ({"eval_loss": 0.0}, r"eval_loss=0.0 must be positive"),
        ({"tokens": -5}, r"row 1 \(run1\): tokens=-5"),
        ({"n_active": float("inf")}, r"n_active=inf"),
        ({"experts": 0}, r"experts=0"),
        ({"tokens": "many"}, r"tokens='many'"),
        ({"n_active": 12345}, r"n_active=12345 contradicts .*\(18[0-9]+\)"),
        ({"n_total": 1}, r"n_total=1 contradicts"),
        ({"n_heads": 3}, r"n_heads=3"),
        ({"run_id": "run0"}, r"duplicate of row 0 \(run0\) \(same run_id\)"),
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
    with pytest.raises(RunsError, match=r"row 6 \(again\): duplicate of row 2 \(run2\) \(same N, D, E and loss\)"):
        load_runs(records)
    with pytest.raises(RunsError, match="duplicate"):
        Runs.from_columns([1e6, 1e6], [1e6, 1e6], 1, [3.0, 3.0])
    assert len(Runs.from_columns([1e6, 1e6], [1e6, 1e6], 1, [3.0, 3.01])) == 2  # a repeat with another seed


def test_refusals(tmp_path):
    with pytest.raises(RunsError, match="missing column loss; there are: d_model"):
        load_runs(rows(), "loss")
    with pytest.raises(RunsError, match="no runs at all"):
        load_runs([])
    with pytest.raises(RunsError, match=r"no run records: neither runs\.jsonl"):
        load_runs(tmp_path)
    with pytest.raises(RunsError, match="no such file"):
        load_runs(tmp_path / "absent.jsonl")
    (tmp_path / "runs.txt").write_text("")
    with pytest.raises(RunsError, match="not a table"):
        load_runs(tmp_path / "runs.txt")
    (tmp_path / "broken.jsonl").write_text('{"run_id": 1}\n{"run')
    with pytest.raises(RunsError, match="line 2: not valid JSON"):
        load_runs(tmp_path / "broken.jsonl")
    for sweep in ("a", "b"):
        write(tmp_path / "two" / "datasets" / f"{sweep}-runs" / "main", rows())
    with pytest.raises(RunsError, match="several sweeps"):
        load_runs(tmp_path / "two")
    with pytest.raises(TypeError, match="int"):
        load_runs(3)


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
    with pytest.raises(RunsError, match=r"no column eval_loss, and several others \(loss, smooth loss\)"):
        load_runs([r | {"loss": 3.0} for r in named])
    assert load_runs([r | {"loss": 3.0 + i} for i, r in enumerate(named)], "loss").loss_name == "loss"
    with pytest.raises(RunsError, match="missing column eval_loss; there are: d_model"):
        load_runs(bare)
    with pytest.raises(RunsError, match="missing column eval_loss"):
        load_runs(named, "eval_loss")


def test_a_fit_reads_such_a_table():
    from tests.scaling_law.synthetic import TINY_LAW, tiny_runs

    made = tiny_runs()
    widths = {n: d for d, n in ((d, Architecture(d, vocab_size=2048).n_active) for d in (64, 128, 192))}
    d_model = [widths[int(n)] for n in made.n_active]
    frame = pandas.DataFrame({"d_model": d_model, "tokens": made.tokens, "experts": made.experts, "loss": made.loss})
    frame = frame.assign(n_blocks=frame.d_model // 64, vocab_size=2048, other=1.0)
    start = [JointLaw(**TINY_LAW)]
    result, same = fit(frame, starts=start), fit(frame, loss="loss", starts=start)
    assert result.law.coefficients == same.law.coefficients == fit(made, starts=start).law.coefficients
    assert result.to_dict()["loss"] == "loss"
    assert "(loss)" in result.law.conditions.provenance


def test_messages_show_plain_numbers():
    with pytest.raises(RunsError, match=r"loss=-1\.0 must be positive"):
        Runs.from_columns([1e6, 2e6], [1e6, 2e6], 1, [3.0, -1.0])
    with pytest.raises(RunsError, match=r"eval_loss=-1\.0 must be positive"):
        load_runs([rows()[0] | {"eval_loss": np.float64(-1.0)}])


def test_runs_are_frozen_columns():
    runs = load_runs(rows())
    with pytest.raises(ValueError, match="read-only"):
        runs.loss[0] = 1.0
    part = runs.subset(runs.loss < 4.8)
    assert part.run_id == ("run3", "run4", "run5")
    np.testing.assert_array_equal(part.trunk, [1, 2, 2])
    assert runs.to_pandas().shape == (6, 6)
    assert repr(runs) == "Runs(6 runs of 3 trunks, E in {2}, eval_loss, from rows)"
    overall = runs.ranges()[0]
    assert (overall.experts, overall.runs, overall.tokens) == (None, 6, (1e6, 6e6))


def test_records_of_the_hub_package(tmp_path):
    """The index that a sweep releases is what a fit reads: as records, as files, as a release folder."""
    from hub import RunRecord, open_store, push_index, write_records
    from tests.hub.samples import record_fields

    def record(i, loss):
        a = Architecture(128, experts=2, vocab_size=1024)
        sizes = {"d_model": 128, "n_blocks": 2, "n_heads": 2, "experts": 2, "vocab_size": 1024}
        names = {"run_id": f"run{i}", "parent_run_id": None, "branch_point_tokens": None, "sweep": "tiny"}
        counts = {"n_active": a.n_active, "n_total": a.n_total, "tokens": 1_000_000 * (i + 1), "eval_loss": loss}
        status = {"status": "final" if loss else "diverged"}
        return RunRecord.model_validate(record_fields(**sizes, **names, **counts, **status))

    records = [record(0, 5.0), record(1, 4.5), record(2, None)]
    write_records(records, tmp_path / "plain")
    push_index(open_store(str(tmp_path / "release")), "tiny", records)
    for source in (records, tmp_path / "plain", tmp_path / "plain" / "runs.parquet", tmp_path / "release"):
        runs = load_runs(source)
        assert runs.run_id == ("run0", "run1")
        assert runs.loss.tolist() == [5.0, 4.5]
