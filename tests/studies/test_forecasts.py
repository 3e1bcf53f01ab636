"""The study of forecasts on tables that the tests make: readers, units, the rule of the splits, and the list kept."""

import dataclasses
from math import log

import numpy as np
import pytest

from hub.base import strict_json
from hub.base.markdown import block_of
from hub.base.tables import markdown_of
from scaling_law import ChinchillaLaw, Runs, forecast
from scaling_law.fitting.prior import POPULATION
from scaling_law.formulas.conditions import evidence, support_of
from studies.common import TABLES, read_csv
from studies.forecasts import (
    accuracy,
    cells,
    extrapolation,
    methods,
    misfits,
    population,
    simulated,
    splits,
    study,
    trust,
)
from studies.forecasts.__main__ import FORECASTS
from studies.forecasts.members import estimate, read_population
from studies.forecasts.sets import GADRE_LOSS, NEOX, SETS, read_sets
from tests.answers import is_same_text

BY_NAME = {one.name: one for one in SETS}
LAW = ChinchillaLaw(m=120.0, mu=-0.3, n=600.0, nu=-0.3, c=1.7)


def isoflop(budgets=(1e18, 1e19, 1e20, 1e21), sizes=(1e8, 2e8, 4e8, 8e8, 1.6e9)) -> Runs:
    """Runs of every size at every budget, without noise."""
    n, flops = (values.ravel() for values in np.meshgrid(sizes, budgets))
    return Runs.from_columns(n, flops / (6 * n), 1.0, LAW.loss(n, flops / (6 * n)), "run")


def test_sets_have_names_of_their_own_and_say_where_they_are_from():
    assert len(BY_NAME) == len(SETS)
    for one in SETS:
        assert all((one.lab, one.corpus, one.place, one.licence, one.counts))
        assert one.unit != "bits" or one.bytes_per_token > 1


MARIN = {"d_model": 512, "tok_ratio": 10, "batch": 32, "tokens": 2e9, "variant": "adamh", "budget": 1e18}
OLMO = {"experiment": "v1-baseline", "model_size": "1.3b", "chinchilla_multiple": "4xC", "is_finished": "True"}
OLMO |= {"throughput/total petaflops": 6e5, "eval/lm/c4_en-validation/CE loss": 2.8, "group_name": "a"}
PORIAN = {"dataset": "rw", "hparams": "base", "warmup": "long", "decay": "kaplan", "loss_is": "val", "tokens": 7e9}
GADRE = {"dataset": "c4_original", "params": 1e8, "params_no_embed": 9e7, GADRE_LOSS: 3}
GRID = [MARIN | {"adam_lr": rate, "c4_en_bpb": x} for rate, x in ((1e-3, 1.2), (2e-3, 1.1), (4e-3, 1.3))]
GRID.append(MARIN | {"tok_ratio": 22, "batch": 64, "tokens": 4e9, "adam_lr": 2e-3, "c4_en_bpb": 1.05})


@pytest.mark.parametrize(
    ("name", "rows", "column", "expected"),
    [
        ("marin_adamh", [MARIN | {"c4_en_bpb": 1.1}], "loss", [1.1 * log(2) * 4.5]),
        ("marin_adamh", [MARIN | {"c4_en_bpb": 1.1}], "n_active", [18.1e6 + 2 * 128_256 * 512]),  # as they print it
        ("marin_sweep", GRID, "loss", [1.05 * log(2) * 4.5, 1.1 * log(2) * 4.5]),  # the best of each cell
        ("gadre_c4", [GADRE | {"tokens": d} for d in (5e7, 2e9, 8e10)], "tokens", [2e9]),  # 1 < D/N < 700
        (
            *("porian_rw_base_long_kaplan", [PORIAN | {"n": 347078656.0, "flops": 1e19, "loss": 3.3}]),
            *("n_active", [347078656 + 1024 * NEOX]),  # the input embedding is added
        ),
        ("olmo_v1", [OLMO], "n_active", [6e20 / 6 / 1.04e11]),  # from recorded FLOPs
    ],
)
def test_sets_are_read_in_one_unit_and_one_count(name, rows, column, expected):
    assert sorted(BY_NAME[name].runs_of(rows)[column]) == pytest.approx(expected, rel=1e-3)


def test_a_missing_table_is_named(tmp_path):
    tables, missing = read_sets(tmp_path)
    assert not tables
    assert len(missing) == len(SETS)
    assert "svg_extracted_data.csv" in missing[0]
    assert "github.com/epoch-research" in missing[0]


def test_a_split_fits_below_the_cut_and_forecasts_above():
    listed = splits.make_splits({"epoch": isoflop()})
    assert [one.cut for one in listed] == ["C/3", "C/10", "C/30", "C/100", "N/3", "N/10", "D/3", "D/10"]
    third, tenth, thirtieth, _, size, _, tokens, _ = listed
    assert (third.fitted, third.sizes, third.held_out, third.out) == (15, 5, 5, "")
    assert (tenth.fitted, thirtieth.fitted, size.fitted) == (15, 10, 12)
    fitted, held_out = thirtieth.divide(isoflop())
    assert fitted.flops.max() < held_out.flops.min()
    assert (tokens.out, tokens.lab) == ("2 runs above", "deepmind")
    few = splits.make_splits({"epoch": isoflop(budgets=(1e18, 1e20), sizes=(1e8, 2e8))})
    assert few[0].out == "2 runs below; 2 sizes below; 2 runs above"


def test_other_runs_than_those_of_the_list_are_refused():
    split = dataclasses.replace(splits.make_splits({"epoch": isoflop()})[0], runs=19)
    with pytest.raises(ValueError, match="the list has 19 runs"):
        split.divide(isoflop())


def test_the_list_kept_is_of_these_sets_and_holds_to_its_rule():
    listed = splits.read_list()
    assert {one.set: one.lab for one in listed} == {one.name: one.lab for one in SETS}
    for one in listed:
        enough = one.fitted >= splits.FITTED and one.sizes >= splits.SIZES and one.held_out >= splits.HELD_OUT
        assert (one.out == "") == (enough and "confounded" not in one.out)


# ------------------------------------------------------------------ methods


@pytest.fixture(scope="module")
def tables():
    """Three sets of three labs whose laws differ, with noise."""
    rng, made = np.random.default_rng(0), {}
    for name, c in (("epoch", 1.7), ("gemstones", 1.8), ("llama3", 1.75)):
        runs = isoflop(budgets=(1e18, 1e19, 1e20, 1e21, 1e22))
        loss = dataclasses.replace(LAW, c=c).loss(runs.n_active, runs.tokens)
        made[name] = dataclasses.replace(runs, loss=loss * np.exp(0.003 * rng.standard_normal(len(runs))), source=name)
    return made


def test_labs_weigh_equally_in_a_mean():
    assert methods.by_lab([("a", 1.0), ("a", 4.0), ("b", 8.0)]) == pytest.approx(4.0)


def test_no_law_of_a_lab_is_behind_its_forecast():
    members, settings, *_ = read_population(POPULATION)
    far = [
        dataclasses.replace(one, pull=tuple(3 * x for x in one.pull)) if one.lab == "meta" else one for one in members
    ]
    for lab, is_same in (("meta", True), ("marin", False)):
        ours = cells.prior_without((lab,))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cells, "read_population", lambda path: (far, settings))
            theirs = cells.prior_without((lab,))
        assert np.allclose(ours.mean, theirs.mean) == is_same


def test_a_cell_is_what_the_library_forecasts_without_the_lab(tables):
    """Of a lab of no member, the population is the one that ships."""
    listed = splits.make_splits({"epoch": tables["epoch"]})
    split = next(dataclasses.replace(split, lab="nobody") for split in listed if split.cut == "C/10")
    train, held_out = split.divide(tables["epoch"])
    before = dataclasses.replace(cells.read()[0], stack=0.5, additive=0.25)
    cell = cells.make_cell(split, train, held_out, before)
    at = {"n_active": held_out.n_active, "tokens": held_out.tokens}
    errors = forecast(train, at).columns["loss"] - held_out.loss
    assert cell.forecast == pytest.approx(max(np.sqrt(np.mean(errors**2)), methods.SEEDS), abs=2e-4)
    assert cell.runs_c + cell.runs_n + cell.runs_d == len(held_out)
    assert cell.chosen in cell.fresh
    assert (cell.stack, cell.additive) == (0.5, 0.25)


def test_a_set_without_a_table_has_no_forecast(monkeypatch, tmp_path, tables):
    """The others are forecast again; what two designs before gave stays."""
    splits_of_epoch = splits.make_splits({"epoch": tables["epoch"]})
    of_epoch = [split for split in splits_of_epoch if split.cut == "C/10"]
    monkeypatch.setattr(cells, "splits_of", lambda tables: of_epoch)
    before = cells.read()
    monkeypatch.setattr(cells, "read", lambda: before)
    monkeypatch.setattr(cells, "RECORDS", tmp_path / "cells.csv")
    cells.take(tables)
    after = read_csv(tmp_path / "cells.csv", cells.Cell)
    assert [(cell.set, cell.cut) for cell in after if cell.forecast] == [("epoch", "C/10")]
    assert [cell.stack for cell in after] == [cell.stack for cell in before]


def test_goals_can_be_missed():
    records = study.read()
    met = {goal for goal, *_, verdict in study.goals(records) if verdict == "met"}
    assert met
    worse = []
    for cell in records.cells:
        worse.append(dataclasses.replace(cell, forecast=9.0, inside_c=0, inside_n=0, inside_d=0))
    turned = {goal: verdict for goal, *_, verdict in study.goals(dataclasses.replace(records, cells=worse))}
    assert {turned[goal] for goal in met} == {"missed"}
    refuted = study.PAGE.refuted(dataclasses.replace(records, cells=worse))
    assert "one law with a misfit is within the margin of the stack" in refuted


def test_a_lab_takes_no_part_in_the_choice_of_its_misfit():
    records = study.read().misfits
    for lab in {record.lab for record in records}:
        worse = [dataclasses.replace(record, log_density=-9.0) if record.lab == lab else record for record in records]
        assert misfits.choose(worse, lab) == misfits.choose(records, lab)
    favoured = [
        dataclasses.replace(record, log_density=99.0) if record.setting == (0.024, 1.0) else record
        for record in records
    ]
    assert misfits.choose(favoured) == (0.024, 1.0)
    assert {record.setting for record in misfits.left_out(favoured)} == {(0.024, 1.0)}


def test_the_page_is_of_its_records():
    """Nothing is fitted: the page follows from cells.csv, misfits.csv and simulated.csv."""
    records = study.read()
    text = FORECASTS.read_text(encoding="utf-8")
    for block in study.PAGE.blocks:
        name = block.__name__.replace("_", "-")
        assert is_same_text(block_of(text, name), markdown_of(block(records)).strip())
    assert not study.PAGE.refuted(records)


def test_the_fresh_form_is_the_one_that_rolling_origins_prefer():
    runs = isoflop()
    bent = np.exp(0.4 * np.log(runs.n_active / 1e8) * np.log(runs.tokens / 1e10) / 25)
    assert methods.choose_fresh(runs, {"chinchilla": 1.0, "interaction": 1.0}) == "chinchilla"
    other = dataclasses.replace(runs, loss=runs.loss * bent)
    errors, chosen = methods.fit_fresh(other.subset(other.flops < 5e20), other.subset(other.flops > 5e20))
    assert chosen in errors
    assert methods.choose_fresh(runs.subset(runs.flops < 5e18), {"interaction": 1.0}) == "interaction"
    assert methods.choose_fresh(runs, {}) == ""


def test_simulated_labs_have_the_terms_of_a_lab_inside():
    """What is changed outside leaves the terms at 1B parameters and 20B tokens as they were."""
    losses = {}
    for truth in (simulated.INSIDE, "interaction", "exponents"):
        rng = np.random.default_rng(5)
        losses[truth] = simulated._draw_loss(truth, rng)
    assert losses["exponents"](1e9, 2e10) == pytest.approx(losses[simulated.INSIDE](1e9, 2e10))
    assert losses["exponents"](1e10, 2e11) != pytest.approx(losses[simulated.INSIDE](1e10, 2e11), rel=1e-3)


@pytest.mark.slow
def test_the_records_of_simulated_labs_are_what_is_forecast():
    for record in simulated.read()[:3]:
        again = simulated.simulate(record.truth, record.seed)
        assert again is not None
        assert again.error == pytest.approx(record.error, rel=0.05)
        assert again.better == pytest.approx(record.better, rel=0.05)


def test_errors_are_floored():
    loss = np.array([2.0, 3.0])
    exact = methods.Forecast(np.log(loss), np.array([0.01, 0.01]))
    assert exact.rmse(loss) == methods.SEEDS
    off = methods.Forecast(np.log(loss) + 0.1, exact.spread)
    assert not off.inside(loss).any()


def test_the_population_is_written_with_its_sources(tables, of_experts, tmp_path, monkeypatch):
    monkeypatch.setattr(population, "folds", lambda path: of_experts[2])
    path = tmp_path / "population.json"
    path.write_bytes(POPULATION.read_bytes())
    members, settings, _, usual = read_population(population.write_population(tables, path))
    assert [member.name for member in members] == [*tables, "ludziejewski"]
    assert all(member.source and member.licence for member in members)
    assert estimate(members, **settings).sources == (*tables, "ludziejewski")
    assert usual in population.USES


@pytest.fixture(scope="module")
def of_experts():
    """Members of the terms of E, the population that ships, and one question of each lab."""
    sources = population.read_sources(population.POINTS)
    asked = {population.LABS.get(one.source): one for one in reversed(population.questions(sources))}
    members, (sets, settings) = population.members_of_experts(sources), read_population(POPULATION)[:2]
    folds = population.folds_of(members, sets, settings, [asked[lab] for lab in asked if lab])
    return members, (sets, settings), folds


@pytest.mark.parametrize("changed", ["stepfun", "deepmind"])
def test_a_forecast_of_moe_models_is_under_the_terms_of_other_labs(of_experts, changed):
    members, (sets, settings), folds = of_experts
    other = [
        dataclasses.replace(one, pull=tuple(3 * x + 1 for x in one.pull)) if one.lab == changed else one
        for one in members
    ]
    others = [one for one in sets if one.lab != changed]
    again = population.folds_of(other, sets, settings, [one.question for one in folds])
    for one, two in zip(folds, again, strict=True):
        if one.lab == changed:  # nothing of the lab is in its own forecast
            assert one.errors == two.errors
            (alone,) = population.folds_of(members, others, settings, [one.question])
            assert one.errors[""] == pytest.approx(alone.errors[""])
        else:  # nor, once it is left out, in what others' forecasts choose for it
            assert one.errors[changed] == pytest.approx(two.errors[changed])
            assert one.errors[""]["pooled"] != pytest.approx(two.errors[""]["pooled"], rel=1e-6)
            assert one.errors[""]["published"] == pytest.approx(two.errors[""]["published"])


def test_whose_terms_a_lab_gets_is_chosen_on_the_others(of_experts):
    question = of_experts[2][0].question
    labs = [("Step Law", 0.1, 0.2), ("Marin, ladder", 0.3, 0.1), ("Clark et al., S-Base", 0.1, 0.11)]
    folds = []
    for source, published, pooled in labs:
        errors = {lab: {"published": published, "pooled": pooled} for lab in ("", *population.LABS.values())}
        folds.append(population.Fold(dataclasses.replace(question, source=source), errors, 1.0))
    assert [population.better(folds, lab) for lab in ("", "stepfun", "marin", "deepmind")] == [
        "pooled",
        "pooled",
        "published",
        "pooled",
    ]


def test_the_terms_of_experts_kept_are_those_of_the_points(of_experts):
    *_, kept, usual = read_population(POPULATION)
    for one, made in zip(kept, of_experts[0], strict=True):
        assert (one.name, one.lab, one.terms, one.source) == (made.name, made.lab, made.terms, made.source)
        np.testing.assert_allclose(one.pull, made.pull, rtol=1e-3, atol=0.05 * np.abs(made.pull).max())
    rows = block_of(FORECASTS.read_text(), "experts-prior").splitlines()
    published, pooled = (float(cell) for cell in rows[-1].split("|")[5:7])
    assert usual == ("published" if published < pooled else "pooled")


def test_the_page_kept_names_all_splits_that_are_not_out():
    table = (FORECASTS.parent / TABLES / "forecasts.csv").read_text(encoding="utf-8")
    for split in splits.read_list():
        assert (f"\n{split.set},{split.lab},{split.cut}," in table) == (not split.out)


def test_accuracy_follows_loss_where_it_does(tmp_path, monkeypatch):
    """Models of three corpora; `hellaswag` follows the loss, `boolq` is noise: curve, errors, and what is written."""
    noise, lines = np.random.default_rng(0), []
    for i, loss in enumerate(np.linspace(2.4, 6.0, 60)):
        follows, none = 0.25 + 0.75 / (1 + np.exp((loss - 2.5) / 0.3)), 0.5
        losses = [loss, *(loss * (1 + 0.1 * (-1) ** j) for j in range(4))]
        scores = [follows + noise.normal(0, 0.005), none + noise.normal(0, 0.02)]
        lines.append([("c4", "rw", "rpj")[i % 3], 1e8 if i > 8 else 2e9, *losses, *scores])
    names = ["dataset", "params", GADRE_LOSS, *(f"loss:x/{text}/1" for text in accuracy.OTHER_TEXT)]
    table = [",".join([*names, "acc:hellaswag", "acc:boolq"]), *(",".join(map(str, line)) for line in lines)]
    (tmp_path / accuracy.TABLE).write_text("# of this test\n" + "\n".join(table) + "\n")
    monkeypatch.setattr(accuracy.curves, "FITS", tmp_path / "accuracy.json")
    monkeypatch.setattr(accuracy.curves, "_fits", accuracy.curves._fits.__wrapped__)
    (tmp_path / "page.md").write_text("<!-- accuracy -->\n<!-- /accuracy -->\n")
    fits, filled, every = accuracy.write(tmp_path, tmp_path / "page.md")
    written = strict_json.read(fits, accuracy.curves.FORMAT, 1)
    chance, middle, width, *_ = written["tasks"]["hellaswag"]
    assert (chance, middle, width) == pytest.approx((0.25, 2.5, 0.3), abs=0.02)
    assert written["losses"] == [2.4, 6.0]
    assert written["shift"] == pytest.approx(0.1, abs=0.005)
    assert [row.split("|")[1].strip() for row in block_of(filled.read_text(), "accuracy").splitlines()[2:3]] == [
        "hellaswag"
    ]
    assert "boolq" not in filled.read_text()
    assert [row.rpartition(",")[2] for row in every.read_text().splitlines()] == ["follows", "yes", "refused"]


def test_the_guide_names_the_tasks_that_follow_the_loss():
    guide = " ".join((FORECASTS.parents[1] / "answers.md").read_text(encoding="utf-8").split())
    tasks = [name for name, task in accuracy.curves._fits()["tasks"].items() if task.follows]
    assert f"{len(tasks)} of whose 46 tasks follow the loss: {', '.join(tasks[:2])}" in guide
    assert f"{', '.join(sorted(tasks)[2:-1])} and {sorted(tasks)[-1]}." in guide


def test_what_answers_trust_is_as_far_as_the_cuts_go():
    """The region of `scaling_law/formulas/evidence.json` stands on the list of splits and on the page."""
    asked = [split for split in splits.read_list() if not split.out]
    widest = {by: max(split.divisor for split in asked if split.by == by) for by in ("flops", "n_active", "tokens")}
    furthest = support_of("C")[1]
    ratio = support_of("D/N")[1]
    assert widest["flops"] >= furthest
    assert min(widest["n_active"], widest["tokens"]) >= ratio
    assert [support_of(name) for name in ("C", "N_act", "D", "n_total", "flops")] == [(1, furthest)] * 5
    assert [support_of(name) for name in ("D/N", "E", "granularity", "density")] == [(ratio, ratio), *[(1, 1)] * 3]

    block = block_of(FORECASTS.read_text(encoding="utf-8"), "methods")
    cells = [[cell.strip() for cell in line.strip("| ").split("|")] for line in block.splitlines()]
    rows = {row[0]: row for row in cells}
    column = rows["method"].index(f"C/{furthest:g}")
    sets, labs = rows["sets (labs)"][column].rstrip(")").split(" (")
    reason = evidence()["trusted"][0]["because"]
    assert f"to {float(rows['forecast'][column]):.3f} nats ({sets} sets of {labs} labs)" in reason


def test_the_guides_table_of_what_is_trusted_is_that_of_the_data():
    guide = trust.ANSWERS.read_text(encoding="utf-8")
    for block in trust.PAGE.blocks:
        text = markdown_of(block(trust.read()))
        assert block_of(guide, block.__name__) == text.strip()


def test_the_rule_of_extrapolation_and_its_section_are_of_the_misses():
    """The numbers that the library reads follow from misses.csv, and so do the tables of the page."""
    misses = extrapolation.read()
    rule = evidence()["extrapolation"]
    assert extrapolation.rule_of(misses) == {name: rule[name] for name in ("growth", "per_doubling")}
    text = FORECASTS.read_text(encoding="utf-8")
    for block in extrapolation.PAGE.blocks:
        # A share at the edge of rounding is a percent more or less on another processor.
        assert is_same_text(block_of(text, block.__name__), markdown_of(block(misses)).strip())

    guide = " ".join(trust.ANSWERS.read_text(encoding="utf-8").split())
    for name, deviation in rule["growth"].items():
        assert f"{deviation:.1%} in {name}".replace("%", " %") in guide
    assert f"Each doubling of E adds {rule['per_doubling']:.0%} of it".replace("%", " %") in guide

    asked = {(split.set, split.cut) for split in splits.read_list() if not split.out}
    assert {(row.set, row.cut) for row in misses.of_one_e} <= asked


def test_intervals_of_left_out_labs_hold_what_they_say():
    """90 and 95 % intervals hold two thirds to three quarters by the draws, and their share with extrapolation."""
    header, *rows = extrapolation.extrapolation(extrapolation.read())
    equal = dict(zip(header, rows[-1], strict=True))
    shares = {}
    for name, value in equal.items():
        if "%, " in name:
            shares[name] = float(value.rstrip("%")) / 100

    assert shares["90 %, draws"] < 0.7
    assert shares["95 %, draws"] < 0.8
    assert shares["90 %, with it"] == pytest.approx(0.9, abs=0.02)
    assert shares["95 %, with it"] == pytest.approx(0.95, abs=0.02)


def test_misses_are_those_of_laws_fitted_below_the_cut(monkeypatch):
    """On runs of a Chinchilla law: no miss to speak of; distances are of the fitted runs."""
    table = isoflop()
    split = splits.Split("made", "lab", "text", "flops", 10, 20, 15, 5, 5, "")
    monkeypatch.setattr(extrapolation, "splits_of", lambda tables: [split])
    misses = extrapolation.misses_of({"made": table})
    rows = [row for row in misses if row.set == "made"]

    assert len(rows) == 5
    assert max(abs(row.miss) for row in rows) < 0.002
    assert [row.compute for row in rows] == pytest.approx([log(10)] * 5, abs=2e-3)
    assert {row.size for row in rows} == {0.0}


def test_the_growth_is_that_of_the_misses():
    """Normal misses of known growth give it back; the lab that has all the runs weighs no more than another."""
    rng = np.random.default_rng(0)
    wanted = np.array([0.02, 0.01, 0.015, 0.005])
    rows = []

    for i in range(4000):
        distances = rng.uniform(0, 3, 4)
        spread = 0.002
        total = np.linalg.norm([*wanted * distances, spread])
        lab = "large" if i % 10 else "small"
        miss = rng.normal(0, total)
        rows.append(extrapolation.Miss("set", lab, "C/10", 1.0, *distances, miss, spread))
    assert extrapolation.grow(rows) == pytest.approx(wanted, abs=0.004)
