"""Settings that tell runs of equal N, D and E apart are found and named; seeds, ids and outcomes are not."""

import numpy as np
import pytest

from scaling_law import JointLaw, Law, fit, forecast, load_runs
from scaling_law.runs import best_of
from scaling_law.runs.rows import RunsError
from scaling_law.runs.settings import find_blend, places

pytestmark = pytest.mark.usefixtures("shared_searches")

LAW = JointLaw.published()
RATES = 1e-3 * 2.0 ** np.arange(-2, 3)
FAR = {"n_active": 2e9, "tokens": 4e10}


def table(variants, noise=0.003, experts=(1,), sizes=(5e7, 1e8, 2e8, 4e8), ratios=(10, 20, 40), seed=0):
    """Runs of the published law: each (N, D, E) once for every variant, a function of N or (columns, factor) pairs."""
    rng, rows = np.random.default_rng(seed), []
    for n, ratio, e in [(n, ratio, e) for n in sizes for ratio in ratios for e in experts]:
        for columns, factor in variants(n) if callable(variants) else variants:
            loss = float(LAW.loss(n, n * ratio, e)) * factor * np.exp(rng.normal(0, noise))
            sizes_of = {"run_id": f"run-{len(rows)}", "n_active": n, "tokens": n * ratio, "experts": e}
            rows.append(sizes_of | columns | {"eval_loss": loss})
    return rows


def bowl(n, optimum=1e-3, moves=0.0):
    """Learning rates of a grid, and the factors of the loss about an optimum that moves with N."""
    best = optimum * (1e8 / n) ** moves
    return [({"learning_rate": rate}, 1 + 0.02 * np.log(rate / best) ** 2) for rate in RATES.tolist()]


CORPORA = [({"corpus": "web"}, 1.0), ({"corpus": "code"}, 0.55)]
BOTH = [(c | r, f * g) for c, f in CORPORA for r, g in bowl(1e8)]


@pytest.mark.parametrize(
    ("variants", "names"),
    [
        (CORPORA, ["corpus"]),
        (
            [({"corpus": "web", "seed": s}, 1.0) for s in range(3)] + [({"corpus": "code", "seed": 0}, 0.55)],
            ["corpus"],
        ),
        (bowl, ["learning_rate"]),
        (lambda n: bowl(n, moves=0.7), ["learning_rate"]),  # with one grid for all sizes
        (BOTH, ["corpus", "learning_rate"]),
        ([({"norm": "pre"}, 1.0), ({"norm": "post"}, 1.02)], ["norm"]),
        ([({"qk_norm": 0}, 1.0), ({"qk_norm": 1}, 1.03)], ["qk_norm"]),
        ([({"qk_norm": False}, 1.0), ({"qk_norm": True}, 1.03)], ["qk_norm"]),
        (lambda n: [({"norm": "pre"}, 1.0), ({"norm": "post"}, 1 + 0.08 * np.log(n / 1.4e8))], ["norm"]),
        ([({"wd": wd}, 1 + abs(wd - 0.1)) for wd in (0.0, 0.05, 0.1, 0.2)], ["wd"]),
        ([({"config": {"data": "web"}}, 1.0), ({"config": {"data": "code"}}, 0.6)], ["config.data"]),
        ([({}, 1.0), ({"dropout_on": "yes"}, 1.05)], ["dropout_on"]),
        (
            [
                (c | {"group": f"{c['corpus']}-{r['learning_rate']:g}"} | r, f)
                for (c, f), (r, _) in zip([CORPORA[i % 2] for i in range(4)], bowl(1e8), strict=False)
            ],
            ["corpus"],
        ),
    ],
)
def test_the_columns_that_tell_runs_apart_are_named_the_best_explanation_first(variants, names):
    blend = load_runs(table(variants, experts=(1, 8))).blend()
    assert [setting.name for setting in blend.settings] == names
    assert blend.harmful


@pytest.mark.parametrize("noise", [0.003, 0.01, 0.02])
def test_seeds_ids_and_outcomes_tell_nothing_apart(noise):
    rng = np.random.default_rng(1)
    for column in ("seed", "repeat"):
        rows = table([({column: seed}, 1.0) for seed in range(4)], noise)
        for i, row in enumerate(rows):
            row |= {
                "name": f"n{i}",
                "job": 1000 + i,
                "val_ppl": np.exp(row["eval_loss"]),
                "other": 2 * row["eval_loss"],
            }
            row |= {"hellaswag": 0.7 - 0.1 * row["eval_loss"] + rng.normal(0, 0.001), "speed": rng.uniform()}
        assert load_runs(rows).blend() is None


def test_a_column_is_found_whatever_order_and_outcomes_say_too():
    rows = sorted(table(CORPORA), key=lambda row: row["corpus"])
    for i, row in enumerate(rows):
        row |= {"row": i, "hellaswag": 0.7 - 0.1 * row["eval_loss"]}
    blend = load_runs(rows).blend()
    assert [setting.name for setting in blend.settings] == ["corpus"]
    unnamed = [{name: value for name, value in row.items() if name != "corpus"} for row in rows]
    nothing = load_runs(unnamed).blend()
    assert (nothing.settings, nothing.harmful) == ((), False)
    assert "no column of the table tells them apart" in str(nothing)


def test_words_are_tested_where_no_runs_are_equal():
    web, code = (
        table([variant], ratios=ratios) for variant, ratios in zip(CORPORA, ((10, 40), (17, 31)), strict=True)
    )
    blend = load_runs([row | {"run_id": f"r{i}"} for i, row in enumerate(web + code)]).blend()
    assert [setting.name for setting in blend.settings] == ["corpus"]
    assert "runs of similar N and D differ in loss by about" in str(blend)
    size_names = [({"size": "small"}, 1.0)], [({"size": "large"}, 1.0)]
    parts = [table(v, sizes=s) for v, s in zip(size_names, ((5e7, 1e8, 2e8), (1e9, 2e9, 4e9)), strict=True)]
    assert load_runs([row | {"run_id": f"r{i}"} for i, row in enumerate(parts[0] + parts[1])]).blend() is None


def test_the_options_are_those_that_choose():
    rows = table(CORPORA)
    said = str(load_runs(rows).blend())
    assert "corpus (web, code) tells them apart" in said
    assert '--where "corpus = web" or --where "corpus = code"' in said
    assert "--mix corpus" in said
    assert load_runs(rows, where="corpus = web").blend() is None
    said = str(load_runs(table(bowl)).blend())
    assert "--best-of learning_rate" in said
    assert "--where" not in said
    assert best_of(load_runs(table(bowl)), "learning_rate").blend() is None


def test_a_filter_keeps_runs_without_a_counterpart_and_quotes_names_and_values():
    routers = [({"data.router": "s base"}, 1.0), ({"data.router": "hash"}, 1.03)]
    rows = table(routers, experts=(8,)) + table([({"data.router": "dense"}, 1.0)], seed=1)
    (setting,) = load_runs([row | {"run_id": f"r{i}"} for i, row in enumerate(rows)]).blend().settings
    assert setting.filters == ("`data.router` in {s base, dense}", "`data.router` in {hash, dense}")
    chosen = load_runs([row | {"run_id": f"r{i}"} for i, row in enumerate(rows)], where=setting.filters[0])
    assert len(chosen) == 24
    assert chosen.blend() is None


def test_fits_forecasts_and_saved_laws_say_so_and_are_not_trusted(tmp_path):
    runs = load_runs(table(CORPORA))
    result = fit(runs, "chinchilla")
    assert "corpus (web, code) tells them apart" in " ".join(result.warnings)
    assert not result.trusted
    result.law.save_pretrained(tmp_path)
    saved = Law.from_pretrained(tmp_path)
    assert "corpus" in saved.optimal(1e20, experts=[1]).warnings[0]
    answer = forecast(runs, FAR)
    assert "corpus" in answer.warnings[0]
    assert not answer.trusted
    agreed = fit(runs, "chinchilla", mix="corpus")
    assert agreed.status.doubts == ()
    assert forecast(runs, FAR, mix=("corpus",)).trusted
    with pytest.raises(ValueError, match=r"mix='copus' is unknown.*corpus"):
        fit(runs, "chinchilla", mix="copus")
    web = forecast(load_runs(table(CORPORA), where="corpus = web"), FAR, kind="chinchilla")
    assert web.trusted
    assert web.rows[0]["loss"] == pytest.approx(float(LAW.loss(2e9, 4e10, 1)), rel=0.02)


def test_a_law_of_tuned_runs_is_that_of_the_best_rates():
    grid = load_runs(table(lambda n: bowl(n, moves=0.3), noise=0.001))
    blended, tuned = (
        float(fit(runs, "chinchilla").law.loss(2e9, 4e10)) for runs in (grid, best_of(grid, "learning_rate"))
    )
    truth = float(LAW.loss(2e9, 4e10, 1))
    assert tuned == pytest.approx(truth, rel=0.012)
    assert blended > 1.02 * truth


def test_variables_of_the_law_are_no_settings():
    rows = table([({"granularity": g}, 1 - 0.02 * np.log(g)) for g in (1, 4, 16)], experts=(8,))
    assert fit(load_runs(rows), "chinchilla").status.doubts == ()  # what the law omits is said beside
    assert [s.name for s in load_runs(rows).blend().settings] == ["granularity"]
    assert load_runs(rows).blend(("granularity",)) is None


def test_best_of_keeps_other_settings_and_takes_zeros():
    runs = load_runs(table(BOTH))
    tuned = best_of(runs, "learning_rate")
    assert len(tuned) == 24
    assert [setting.name for setting in tuned.blend().settings] == ["corpus"]
    decays = [({"wd": wd}, 1 + 2 * (wd - 0.08) ** 2) for wd in (0.0, 0.05, 0.1, 0.2)]
    runs = load_runs(table(decays, noise=0.0))
    np.testing.assert_array_equal(best_of(runs, "wd")["wd"], 0.1)
    rising = load_runs(table([({"wd": wd}, 1 + wd) for wd in (0.0, 0.1, 0.2)], noise=0.0))
    best = best_of(rising, "wd")
    np.testing.assert_array_equal(best["wd"], 0.0)
    np.testing.assert_array_equal(best["at_edge"], 1.0)
    with pytest.raises(RunsError, match="must be finite and not negative"):
        best_of(load_runs(table([({"wd": -0.1}, 1.0), ({"wd": 0.1}, 1.01)])), "wd")


def test_best_of_chooses_within_a_recipe():
    optimizers = [({"optimizer": name} | r, f * g) for name, f in (("a", 1), ("b", 0.98)) for r, g in bowl(1e8)]
    tuned = best_of(load_runs(table(optimizers)), "learning_rate")
    with pytest.raises(RunsError, match=r"the runs differ in optimizer \(a, b\)"):
        fit(tuned, "chinchilla")


def test_few_runs_tell_nothing_apart():
    rows = table(CORPORA)
    for count in (1, 2):
        assert load_runs(rows[: 2 * count : 2]).blend() is None
    runs = load_runs(rows)
    assert runs.subset(runs.loss < 0).blend() is None


def test_places_join_close_values_but_no_chains():
    assert places(np.array([0.0, 5.0, 1.0, 1.001, 0.0])).tolist() == [0, 2, 1, 1, 0]
    curve = places(np.arange(1000.0, 2000.0))
    assert curve.max() > 60
    assert np.all(np.diff(curve) >= 0)


def test_of_many_runs_whole_cells_are_looked_at():
    rng, count = np.random.default_rng(0), 100_000
    n, d = rng.choice([5e7, 1e8, 2e8], count), rng.choice(1e9 * 1.1 ** np.arange(30), count)
    sizes = {"n_active": n, "tokens": d, "experts": np.ones(count)}
    columns = {"learning_rate": rng.choice(RATES, count), "mixture": rng.integers(0, 2, count).astype(float)}
    loss = LAW.loss(n, d, 1) * (1 - 0.3 * columns["mixture"]) * np.exp(rng.normal(0, 0.003, count))
    blend = find_blend(sizes, loss, columns, {})
    assert [setting.name for setting in blend.settings] == ["mixture"]
    assert find_blend(sizes, loss, columns, {}, agreed=("mixture",)) is None
