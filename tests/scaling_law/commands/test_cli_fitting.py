"""The shell's fitting commands: as many settings as Python, the same answers, clear refusals."""

import json
import re

import numpy as np
import pandas
import pytest

from hub.base.commands import NOT_TRUSTED
from scaling_law import JointLaw, backtest, fit, hold_out, load_runs
from scaling_law.planning import predicted_loss
from scaling_law.size.family import Family
from tests.scaling_law.synthetic import tiny_runs

pytestmark = pytest.mark.usefixtures("shared_searches")


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """The tiny sweep with its trunks, a warm-up, and a run that is off."""
    frame = tiny_runs().to_pandas().rename(columns={"loss": "final_loss"})
    frame["warmup_tokens"] = np.tile([150_000, 120_000], 18)  # the longest counts
    frame.loc[4, "final_loss"] += 1.0
    path = tmp_path_factory.mktemp("runs") / "runs.csv"
    frame.to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def law(table):
    folder = table.parent / "law"
    fit(table, outliers="set_aside").bootstrap(60).law.save_pretrained(folder)
    return folder


def test_fit_has_what_python_has(shell, table):
    words = "--huber-delta 0.02 --weights inverse_loss --bound c=1:2.5 --bound e_max=20: --bound alpha=:0"
    words += " --fix gamma=0.004 --outliers set_aside --trunks run --allow-unidentifiable"
    words += " --loss final_loss"
    result = shell("fit", table, *words.split(), "--json")
    assert result.exit_code == 0
    expected = fit(
        load_runs(table, "final_loss", trunks="run"),
        huber_delta=0.02,
        weights="inverse_loss",
        bounds={"c": (1, 2.5), "e_max": (20, None), "alpha": (None, 0)},
        fixed={"gamma": 0.004},
        outliers="set_aside",
        allow_unidentifiable=True,
    )
    result = json.loads(result.output)
    assert result["coefficients"] == expected.law.coefficients
    assert result["status"]["set_aside"] == ["row-4"]
    assert result["status"]["n_trunks"] == 35
    assert result["status"]["trunk_source"] == "each run its own trunk"
    assert result["settings"]["outliers"] == "set_aside"
    assert result["loss"] == "final_loss"


@pytest.mark.parametrize("command", ["fit", "forecast", "promote"])
def test_every_command_that_reads_runs_proposes_a_mapping_and_takes_it(shell, command, tmp_path):
    table = tmp_path / "export.csv"
    names = {"n_active": "config/n_params", "tokens": "summary/tokens (B)", "loss": "summary/val_loss"}
    frame = tiny_runs().to_pandas()[["n_active", "tokens", "experts", "loss"]]
    frame["tokens"] /= 1e9
    frame.rename(columns=names).to_csv(table, index=False)
    words = {
        "fit": ("fit", table, "--kind", "joint", "--allow-unidentifiable"),
        "forecast": ("forecast", table, "--n-active", "2M", "--tokens", "40M", "--experts", 8),
        "promote": ("promote", table, "--baseline-where", "E = 1", "--variant-where", "E = 8"),
    }[command]
    refused = shell(*words)
    assert refused.exit_code == 2
    options = "\n  --column n_active=config/n_params \\\n  --column 'tokens=`summary/tokens (B)` * 1e9'"
    assert options in refused.output
    file = tmp_path / "mine.yaml"
    file.write_text(refused.output.partition("--mapping mine.yaml, with\n")[2])
    mapped = shell(*words, "--mapping", file, "--json")
    assert json.loads(mapped.stdout)
    wrong = shell(*words, "--mapping", file, "--column", "tokens=token")
    assert wrong.exit_code == 2
    assert "token" in wrong.output


def test_fit_names_bad_runs_and_trunks_and_saves_its_law(shell, table, tmp_path):
    words = ("fit", table, "--bootstrap", 2, "-o", tmp_path / "law")
    text = shell(*words).output
    assert "standard error" in text
    assert "36 runs of 12 trunks (column trunk) from runs.csv, final_loss" in text
    assert text.count("⚠") == 1
    assert "run row-4 lies far from the law of the others" in " ".join(text.split())
    assert f"wrote {tmp_path / 'law' / 'scaling_law.json'}" in text.replace("\n", "")
    text = shell(*words, "--verbose", "--overwrite").output
    assert "1 run lies far from the law of the others (still fitted" in text
    assert re.search(r"row-4 \(\+(0\.9|1\.0)\d* nats\)", text)
    refused = shell(*words)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "law/scaling_law.json: the file exists; --overwrite replaces it" in refused.stderr
    data = json.loads(shell(*words, "--overwrite", "--json").output)
    assert JointLaw.from_pretrained(tmp_path / "law").coefficients == data["coefficients"]
    assert data["intervals"]["alpha"][0] < data["coefficients"]["alpha"] < data["intervals"]["alpha"][1]


def test_a_fit_that_does_not_converge_is_not_trusted(shell, table, monkeypatch):
    from scaling_law.fitting.problem import Problem

    solve = Problem.solve
    monkeypatch.setattr(Problem, "solve", lambda *a, **options: solve(*a, **(options | {"max_iterations": 1})))
    result = shell("fit", table, "--json")
    assert result.exit_code == NOT_TRUSTED == 1
    assert json.loads(result.output)["status"]["converged"] is False


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """Nine dense runs of another corpus, three of them untuned."""
    n, d = (v.ravel() for v in np.meshgrid([2e8, 4e8, 8e8], [4e9, 2e10, 1e11], indexing="ij"))
    untuned = d == 2e10
    loss = JointLaw.published().replace(c=1.0).loss(n, d, 1) + 0.2 * untuned
    frame = pandas.DataFrame({"params": n, "tokens": d, "loss": loss, "untuned": untuned.astype(int)})
    path = tmp_path_factory.mktemp("lab") / "lab.csv"
    frame.to_csv(path, index=False)
    return path


COLUMNS = ("--column", "n_active=params", "--column", "experts=1", "--where", "untuned = 0")


def test_fit_with_a_prior(shell, lab, tmp_path):
    words = ("fit", lab, "--prior", "published", *COLUMNS, "--bootstrap", 20, "-o", tmp_path / "ours")
    answer = json.loads(shell(*words, "--json").output)
    runs = load_runs(lab, columns={"n_active": "params", "experts": 1.0}, where="untuned = 0")
    expected = fit(runs, prior=JointLaw.published())
    assert answer["coefficients"] == expected.law.coefficients
    assert answer["settings"]["prior"].startswith("Ludziejewski et al. 2025")
    assert answer["intervals"]["c"] == pytest.approx(list(expected.bootstrap(20).interval("c")))
    assert len(JointLaw.from_pretrained(tmp_path / "ours").draws) == 20
    for prior, law in (("chinchilla", "chinchilla"), ("public", "joint")):
        assert json.loads(shell("fit", lab, "--prior", prior, *COLUMNS, "--json").output)["law"] == law


def test_split(shell, table):
    words = ("fit", table, "--split", "flops", "--test", 6, "--outliers", "set_aside")
    result = json.loads(shell(*words, "--json").stdout)
    (parts,) = hold_out(load_runs(table), "flops", 6)
    errors = fit(parts.train, outliers="set_aside").errors_on(parts.test)
    assert [row["law"] for row in result["laws"]] == ["joint law", "published joint law"]
    assert result["laws"][0]["rmse"] == pytest.approx(np.sqrt(np.mean(errors**2)))
    assert result["runs"] == {"train": 30, "test": 6}
    assert "6 runs forecast from 30" in shell(*words, "--fix", "e_max=200", "--fix", "e_start=2").output
    dense = ("fit", table, "--where", "E = 1", "--kind", "chinchilla", "--split", "model", "--json")
    assert json.loads(shell(*dense).stdout)["runs"] == {"train": 9, "test": 9}


def test_next_runs(shell, law):
    words = ("next-runs", "--law", law, "--flops", "1e15", "--ask", "loss:1M,20M,4", "--max-runs", 3)
    words += ("--widths", "64,128", "--vocab-size", 2048, "--tokens-per-parameter", "0.2:40")
    result = json.loads(shell(*words, "--json").output)
    assert result["warmup_tokens"] == 150_000
    assert 1 <= len(result["rows"]) <= 3
    assert all(0.8 * run["tokens"] >= 150_000 for run in result["rows"])
    assert result["deviation_after"] < result["deviation_before"]
    assert "each longer than its warm-up of 150K tokens" in shell(*words).output
    longer = json.loads(shell(*words, "--warmup", "10M", "--json").output)
    assert all(0.8 * run["tokens"] >= 10e6 for run in longer["rows"])


def test_next_runs_of_a_family(shell, law):
    """The vocabulary is that of the models; the law counts N with its own."""
    words = ("next-runs", "--law", law, "--flops", "1e16", "--ask", "loss:1M,20M,4", "--max-runs", 3)
    words += ("--like", "olmoe-1b-7b", "--vocab-size", 500, "--widths", "120,256", "--experts", "16,64")
    result = shell(*words, "--json")
    assert "d_model 120 is not a width of olmoe-1b-7b: using 128" in result.stderr
    rows = json.loads(result.stdout)["rows"]
    assert {row["routed_experts"] for row in rows} <= {16, 64}
    for row in rows:
        a = Family.read("olmoe-1b-7b").architecture(row["d_model"], row["experts"])
        assert row["vocab_size"] == 500
        assert row["n_active"] == a.n_active_non_embedding + 2 * a.d_model * 50257
        n_active = a.n_active_non_embedding + 2 * a.d_model * 500
        assert row["training_flops"] == 6 * n_active * row["tokens"]
    assert "┃ experts ┃" in shell(*words).stdout


def test_next_runs_of_a_table(shell, law, tmp_path):
    planned = tmp_path / "planned.csv"
    planned.write_text("Run,N_active,D,E\na,1M,20M,1\nb,2M,40M,4\nc,4M,80M,4\nd,1B,20B,1\n")
    words = ("next-runs", "--law", law, "--flops", "5e15", "--ask", "loss:8M,160M,4", "--candidates", planned)
    rows = json.loads(shell(*words, "--json").output)["rows"]
    assert {row["run_id"] for row in rows} <= {"a", "b", "c"}
    assert all(row["run_id"] == "abcd"[row["row"]] for row in rows)
    assert sum(row["training_flops"] for row in rows) <= 5e15
    assert rows[0]["run_id"] in shell(*words).output


def test_results_show_in_notebooks_and_as_frames(table, law):
    result = fit(table, fixed={"gamma": 0.004})
    drawn = result.bootstrap(10)
    compared = backtest(*hold_out(load_runs(table), "flops", 6)[0], {"law": JointLaw.published()})
    design = JointLaw.from_pretrained(law).next_runs(predicted_loss(1e6, 2e7, 4), 1e18, noise=0.01, max_runs=2)
    for shown in (result, drawn, compared, design):
        assert "</table>" in shown._repr_html_()
        assert isinstance(shown.to_dataframe(), pandas.DataFrame)
    frame = drawn.to_dataframe().set_index("coefficient")
    assert list(frame.index) == list(result.law.coefficients)
    assert tuple(frame.loc["c", ["low", "high"]]) == drawn.interval("c")
    assert design.to_dataframe().tokens.tolist() == design.tokens.tolist()


def test_columns_and_formats_are_read_as_in_python(shell, tmp_path):
    made = tiny_runs()
    names = {"n_active": "params", "tokens": "steps", "loss": "valid loss"}
    frame = made.to_pandas().rename(columns=names).drop(columns=["experts", "trunk", "run_id"])
    frame["steps"] /= 1000
    frame["sparsity"] = 1 - 1 / made.experts
    path = tmp_path / "lab.csv"
    frame.to_csv(path, index=False)
    mapped = ["n_active=params", "tokens=steps * 1000", "experts=1 / (1 - sparsity)"]
    words = [word for column in mapped for word in ("--column", column)]
    result = shell("fit", path, *words, "--json")
    assert result.exit_code == 0
    columns = dict(column.split("=") for column in mapped)
    expected = fit(load_runs(path, columns=columns))
    assert json.loads(result.stdout)["objective"] == pytest.approx(expected.objective)
    assert "lab.csv: not the Gemstones (columns run_name" in shell("fit", path, "--format", "gemstones").stderr


def test_runs_of_several_recipes_need_the_users_word(shell, table, tmp_path):
    file, words = tmp_path / "runs.csv", ("--kind", "chinchilla", "--where", "E = 1")
    pandas.read_csv(table).assign(sequence_length=lambda t: 256 + 256 * (t.tokens > t.tokens.median())).to_csv(file)
    refused = shell("fit", file, *words)
    assert refused.exit_code == 2
    assert "differ in sequence_length (256, 512)" in refused.output
    assert shell("fit", file, *words, "--mix", "sequence_length").exit_code == 0
    assert shell("fit", file, *words, "--split", "loss", "--test", 2, "--mix", "sequence_length").exit_code == 0
