"""Both readings of the published learning-rate law, its fit, and the fit to a grid of runs, from records alone."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from scaling_law import Architecture, JointLaw, LearningRateLaw, fit_learning_rate, load_runs
from scaling_law.commands.cli import app
from scaling_law.rates.law import DEFAULT_LAW

LAW = LearningRateLaw(6.0, -0.8, -0.2)
FULL = LearningRateLaw(
    *(4.0, -0.7, -0.45, "paper", "least squares on loss", None, (1e8, 1e9), (1.0, 16.0), 1024),
    slope_d=0.14,
    slope_batch=0.4,
    tokens_range=(1e9, 1e11),
    batch_range=(65_536, 1_048_576),
    regret=0.004,
)


@pytest.mark.parametrize(
    ("d_model", "paper", "code"), [(512, 4.18e-3, 1.70e-3), (1024, 7.75e-4, 5.43e-4), (1664, 2.38e-4, 2.00e-4)]
)
def test_readings(d_model, paper, code):
    for reading, expected in (("paper", paper), ("code", code)):
        rate = LearningRateLaw.published(reading).learning_rate(Architecture(d_model))
        assert rate == pytest.approx(expected, rel=3e-3)
    rates = [LearningRateLaw.published().learning_rate(Architecture(d_model, e)) for e in (1, 16)]
    assert rates[1] / rates[0] == pytest.approx(16**-0.25)


@pytest.mark.parametrize(
    "law",
    [
        LearningRateLaw(8.1, -0.79, -0.2, "paper", "least squares on 6 models", 0.03),
        replace(FULL, covariance=((0.01,) * 5,) * 5),
    ],
)
def test_a_saved_law_is_the_same_law(law, tmp_path):
    path = law.save(tmp_path / "law.json")
    assert LearningRateLaw.load(path) == LearningRateLaw.named(path) == law


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 6}, "version is 6, .* reads up to 5"),
        ({"n_range": [2.0, 1.0]}, r"n_range=\[2.0, 1.0\] must be two positive numbers"),
        ({"format": "scaling_law"}, "allowed is .learning_rate_law"),
        ({"slope_n": "-0.8"}, "slope_n='-0.8' must be a number"),
        ({"slope_e": True}, "slope_e=True must be a number"),
        ({"intercept": float("nan")}, "NaN is not a JSON number"),
        ({"reading": "text"}, "reading='text'"),
        ({"vocab_size": 0}, "vocab_size=0 must be a whole number of at least 1"),
        ({"slope": 1}, "unexpected keyword argument 'slope'; the fields are intercept, slope_n, .*"),
        ({"covariance": [[1.0] * 5] * 4}, "must be five rows of five finite numbers"),
    ],
)
def test_what_is_no_law_is_refused_by_file_and_field(tmp_path, change, message):
    path = LearningRateLaw.published().save(tmp_path / "law.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=message) as error:
        LearningRateLaw.load(path)
    assert str(path) in str(error.value)


def test_older_files_without_ranges_and_vocabulary_are_read(tmp_path):
    law = LearningRateLaw.published()
    data = json.loads(law.save(tmp_path / "law.json").read_text())

    def load(version, *without):
        kept = {name: value for name, value in data.items() if name not in without}
        (tmp_path / "law.json").write_text(json.dumps(kept | {"version": version}))
        return LearningRateLaw.load(tmp_path / "law.json")

    since_4 = ("slope_d", "slope_batch", "tokens_range", "batch_range", "regret")
    assert load(3, *since_4) == law
    assert load(2, "vocab_size", *since_4) == law
    assert (load(3, *since_4).slope_d, load(3, *since_4).tokens_range, load(3, *since_4).regret) == (0, None, None)
    unranged = load(1, "n_range", "experts_range", "vocab_size", *since_4)
    assert (unranged.n_range, unranged.intercept) == (None, law.intercept)
    peak = unranged.of(Architecture(512))
    assert peak.warnings == (
        "learning rate: this law carries no fitted ranges: nothing checks how far an answer extrapolates",
    )
    assert not peak.check.beyond


WIDTHS = {128: 9.77e-4, 256: 4.885e-4, 512: 2.44e-4, 1024: 1.22e-4, 2048: 6.1e-5}  # and their best rates


def plain_table(folder, foreign=False):
    """A sweep of rates as a CSV file: with shapes and our names, or of sizes alone under the names of another lab."""
    ours = "run_id,d_model,n_blocks,n_heads,experts,vocab_size,tokens,learning_rate,eval_loss"
    lines = ["width,lr,val_loss,params" if foreign else ours]
    for width, best in WIDTHS.items():
        n = Architecture(width, 1, 4, width // 64, 50304).n_active
        for step in range(-3, 4):
            rate, loss = best * 2.0**step, 3.5 + 0.01 * step**2
            shape = f"{width}-{step},{width},4,{width // 64},1,50304,1e9,{rate}"
            lines.append(f"{width},{rate},{loss},{n}" if foreign else f"{shape},{loss}")
    path = folder / f"lr{'_foreign' * foreign}.csv"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_a_plain_table_of_rates_is_read_by_default(tmp_path):
    shell = CliRunner()
    shown = shell.invoke(app, ["learning-rate", plain_table(tmp_path), "--json"])
    assert shown.exit_code == 0, shown.stderr
    answer = json.loads(shown.output)
    assert [model["best_learning_rate"] for model in answer["models"]] == pytest.approx([*WIDTHS.values()])
    assert answer["law"]["vocab_size"] == 50304
    by_paper = ["learning-rate", plain_table(tmp_path), "--reading", "paper", "--json"]
    paper = json.loads(shell.invoke(app, by_paper).output)
    assert paper["law"]["slope_n"] == pytest.approx(-0.5, abs=1e-3)  # LR ∝ 1 / d, N ∝ d² at four blocks
    smaller = shell.invoke(app, ["learning-rate", plain_table(tmp_path), "--where", "d_model <= 512", "--json"])
    assert len(json.loads(smaller.output)["models"]) == 3


def test_without_a_shape_n_is_taken_as_given(tmp_path):
    """And the law is that of the same runs with their shape, but for 512 d of N, which no table of sizes holds."""
    shell, mapped = CliRunner(), ["--column", "learning_rate=lr", "--column", "n_active=params"]
    asked = ["learning-rate", plain_table(tmp_path, foreign=True), *mapped]
    asked += ["--column", "experts=1", "--column", "tokens=1e9", "--loss", "val_loss"]
    for extras in ([], ["--with", "none"]):
        answer = json.loads(shell.invoke(app, [*asked, *extras, "--json"]).output)
        own = json.loads(shell.invoke(app, ["learning-rate", plain_table(tmp_path), *extras, "--json"]).output)
        assert answer["law"]["source"].endswith(", N as given")
        assert answer["law"]["slope_n"] == pytest.approx(own["law"]["slope_n"], abs=0.01)
    shown = shell.invoke(app, asked)
    assert shown.exit_code == 0, shown.output
    refused = shell.invoke(app, [*asked, "--reading", "paper"])
    assert (refused.exit_code, refused.output) == (2, refused.stderr)
    assert "n_active_non_embedding, or d_model and n_blocks, are needed: reading 'paper'" in refused.stderr


def test_a_rate_is_told_up_to_ten_times_outside_the_runs_of_its_law():
    """Of N, D and the batch, either way; beyond, the command says why, prints a dash, and ends with status 1."""
    law = LearningRateLaw.published(DEFAULT_LAW)
    inside = {"N": 2e8, "experts": 8, "D": 2e10, "batch": 262_144}
    ends = {"N": law.n_range, "D": law.tokens_range, "batch": law.batch_range}
    for name, (low, high) in ends.items():
        for value, told in ((low / 9.5, True), (low / 10.1, False), (high * 9.5, True), (high * 10.1, False)):
            peak = law.peak(*(inside | {name: value}).values())
            assert (bool(peak.check.beyond), bool(peak.check.trusted)) == (not told, told)
            assert (peak.learning_rate is not None) == told
            assert peak.warnings[0].startswith("learning rate: " if told else "no learning rate: ")
    shell = CliRunner()
    far = shell.invoke(app, ["learning-rate", "--d-model", "64", "--tokens", "1M"])
    assert (far.exit_code, far.output.partition(" for ")[0]) == (1, "no peak learning rate")
    assert "no learning rate: too far outside the runs of its law (N ÷" in far.output
    as_json = json.loads(shell.invoke(app, ["learning-rate", "--d-model", "64", "--tokens", "1M", "--json"]).output)
    assert (as_json["learning_rate"], as_json["learning_rate_interval"], as_json["trusted"]) == (None, None, False)


@pytest.mark.parametrize(("d_model", "experts", "flops"), [(1024, 8, 1e20), (768, 1, 1e19)])
def test_all_questions_ask_one_law_of_rates(d_model, experts, flops):
    """The same rate for the same run, each with the law and the batch that it is of."""
    joint, law = JointLaw.published(), LearningRateLaw.published(DEFAULT_LAW)
    planned = joint.plan(flops, [experts], vocab_size=50257)
    row = joint.optimal(flops, [experts], integral=True).best
    asked = ["--d-model", str(planned.architecture.d_model), "--experts", str(experts), "--json"]
    answer = json.loads(CliRunner().invoke(app, ["learning-rate", *asked, "--tokens", f"{row.tokens:.17g}"]).output)
    assert answer["learning_rate"] == pytest.approx(row.learning_rate, rel=1e-9)
    assert planned.learning_rate == row.learning_rate
    assert (answer["source"], row.learning_rate_law, planned.learning_rate_law) == (law.source,) * 3
    assert answer["batch_tokens"] == row.learning_rate_batch == planned.learning_rate_batch == 262_144


def test_rates_outside_the_range_are_warned_of():
    law = LearningRateLaw.published()
    assert law.experts_range == (1, 32)
    assert law.of(Architecture(512, 32)).warnings == ()
    assert law.of(Architecture(512, 64)).warnings == ("learning rate: E = 64 is outside the fitted 1…32 (×2)",)
    assert not law.of(Architecture(512, 128)).check.beyond
    assert law.of(Architecture(512, 129)).check.beyond
    assert law.of(Architecture(32, 1, 1, 1, 16)).check.beyond


def rows(models=((64, 1), (128, 1), (64, 8), (128, 8), (128, 4)), factors=(0.35, 0.7, 1.4, 2.8)):
    """Runs whose loss is a parabola in ln LR about the law's rate: the best of a grid is then exactly the law's."""
    for d, experts in models:
        a = Architecture(d, experts, 2, 2, 1024)
        best = LAW.learning_rate(a)
        for factor in factors:
            shape = {"d_model": d, "n_blocks": 2, "n_heads": 2, "experts": experts, "vocab_size": 1024}
            named = {"run_id": f"d{d}-E{experts}-{factor}", "status": "final", "tokens": 1_000_000}
            measured = {
                "eval_loss": 4.0 + 0.1 * math.log(factor) ** 2,
                "schedule": {"peak_learning_rate": best * factor},
            }
            yield named | shape | {"n_active": a.n_active} | measured


def test_the_shell_fits_writes_and_uses_the_law(tmp_path):
    path = tmp_path / "runs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows()))
    law = tmp_path / "rates.json"
    shell = CliRunner()
    shown = shell.invoke(app, ["learning-rate", str(path), "--experts", "1,8", "-o", str(law)])
    assert shown.exit_code == 0, shown.output
    assert "loss it costs" in shown.output
    asked = ["--d-model", "128", "--experts", "4", "--n-blocks", "2", "--json"]  # the grid's vocabulary is meant
    answer = json.loads(shell.invoke(app, ["learning-rate", "--law", str(law), *asked]).output)
    assert answer["learning_rate"] == pytest.approx(LAW.learning_rate(Architecture(128, 4, 2, 2, 1024)), rel=1e-6)
    as_json = json.loads(shell.invoke(app, ["learning-rate", str(path), "--json"]).output)
    assert as_json["law"]["slope_n"] == pytest.approx(-0.8, abs=1e-6)
    assert len(as_json["models"]) == 5
    wrong = shell.invoke(app, ["learning-rate", "--d-model", "64", "--law", str(path)])
    assert wrong.exit_code == 2
    assert "not valid JSON" in wrong.output


def test_a_law_takes_tokens_and_batch_where_it_has_them():
    a = Architecture(1024, 8)
    rate = FULL.learning_rate(a, 2e9, 131_072)
    assert rate == pytest.approx(math.exp(4) * a.n_active_non_embedding**-0.7 * 8**-0.45 * 2e9**0.14 * 131_072**0.4)
    assert FULL.at([1e8, 2e8], 8, 2e9, [1e5, 2e5]).shape == (2,)
    assert FULL.formula == "exp(4 -0.7 ln N -0.45 ln E +0.14 ln D +0.4 ln B)"
    assert LAW.formula == "exp(6 -0.8 ln N -0.2 ln E)"
    assert LAW.learning_rate(a, 2e9, 131_072) == LAW.learning_rate(a)


def test_tokens_and_batches_outside_the_range_are_warned_of():
    a = Architecture(1024, 8)
    assert FULL.of(a, 2e9, 131_072).warnings == ()
    assert FULL.of(a, 2e11, 32_768).warnings == (
        "learning rate: D 200B is outside the fitted 1B…100B (×2)",
        "learning rate: batch 32.8K is outside the fitted 65.5K…1.05M (÷2)",
    )
    run_is_beyond = {(2e11, 32_768): False, (2e9, 8_192): False, (2e9, 6_000): True, (2e14, 131_072): True}
    for run, is_beyond in run_is_beyond.items():
        assert FULL.of(a, *run).check.beyond == is_beyond


def test_the_interval_of_a_rate_is_that_of_its_coefficients_and_scatter():
    """Against draws of the coefficients; a law without covariance has none."""
    root = np.diag([0.1, 0.003, 0.01, 0.003, 0.003]) + 0.0002
    covariance = root @ root.T
    law = replace(FULL, covariance=covariance.tolist(), rmse=0.1)
    at = (2e8, 8.0, 2e9, 131_072.0)
    low, high = law.interval_at(*at, level=0.8)
    assert low * high == pytest.approx(law.at(*at) ** 2)
    draws = np.random.default_rng(0).multivariate_normal(np.zeros(5), covariance, 200_000) @ np.log([math.e, *at])
    draws += np.random.default_rng(1).normal(0, 0.1, len(draws))
    assert math.log(high / law.at(*at)) == pytest.approx(np.quantile(draws, 0.9), rel=0.02)
    assert FULL.interval_at(*at) is None


@pytest.mark.parametrize("lab", ["", ":ludziejewski", ":stepfun", ":marin", ":epfl", ":lingle"])
def test_public_laws_are_of_n_without_embeddings_and_of_all_four_variables(lab):
    law = LearningRateLaw.published(f"public{lab}")
    assert law == LearningRateLaw.named(f"public{lab}")
    assert law.reading == "paper"
    assert all((law.slope_n < 0, law.slope_e < 0, law.slope_d < 0, law.slope_batch > 0))
    assert np.linalg.eigvalsh(np.array(law.covariance)).min() > -1e-9
    low, high = law.interval_at(2e8, 8, 2e10, 262_144)
    assert low < law.at(2e8, 8, 2e10, 262_144) < high


def test_another_lab_is_less_sure_than_one_that_has_a_grid():
    at = (2e8, 8, 2e10, 262_144)
    widths = {
        name: np.divide(*LearningRateLaw.published(name).interval_at(*at)) for name in ("public", "public:stepfun")
    }
    assert widths["public"] < 0.1 < 0.5 < widths["public:stepfun"] < 1


def test_an_interval_of_more_than_a_factor_of_30_is_no_answer():
    asked = ["learning-rate", "--d-model", "1024", "--tokens", "20B", "--law"]
    wide = CliRunner().invoke(app, [*asked, "public"])
    assert (wide.exit_code, wide.output.partition(" for ")[0]) == (1, "no peak learning rate")
    assert "two or more small models of yours, each at five rates a factor of two apart, settle it" in " ".join(
        wide.output.split()
    )
    answer = json.loads(CliRunner().invoke(app, [*asked, "public", "--json"]).output)
    assert (answer["learning_rate"], answer["learning_rate_interval"], answer["trusted"]) == (None, None, False)
    assert CliRunner().invoke(app, [*asked, "public:stepfun"]).exit_code == 0
    with_law = JointLaw.published().plan(flops="1e20", experts=8, learning_rate_law="public")
    assert with_law.learning_rate is None
    assert not with_law.trusted


def test_the_shell_asks_for_what_the_law_has(tmp_path):
    law = str(FULL.save(tmp_path / "law.json"))
    asked = ["learning-rate", "--d-model", "1024", "--experts", "8", "--law", law, "--tokens", "2B"]
    shell = CliRunner()
    answer = shell.invoke(app, [*asked, "--batch-tokens", "131072", "--json"])
    expected = FULL.learning_rate(Architecture(1024, 8, vocab_size=1024), 2e9, 131_072)
    assert json.loads(answer.output)["learning_rate"] == pytest.approx(expected)
    at_the_ramps_end = json.loads(shell.invoke(app, [*asked, "--json"]).output)
    assert at_the_ramps_end["batch_tokens"] == 262_144
    refused = shell.invoke(app, asked[:-2])
    assert refused.exit_code == 2
    assert "--tokens must be given, the tokens of the run, on which" in refused.output


def test_a_law_of_three_models_has_no_intervals():
    """Too few resamples of them determine a law."""
    fitted = fit_learning_rate(load_runs(list(rows([(64, 1), (128, 1), (64, 8)]))), ())
    assert (fitted.law.slope_n, fitted.law.slope_e) == pytest.approx((-0.8, -0.2), abs=1e-6)
    assert fitted.intervals() == {}
    assert fitted.law.covariance is None
