"""docs/studies/granularity.md: what laws say of each comparison, and differences of paired runs."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import hub
from hub import RecordError
from scaling_law import Architecture, published
from scaling_law.law.shelf import entry
from scaling_law.size.model_sections import model_section
from studies.crossing.records import nominal
from studies.granularity import models, study
from studies.granularity.models import (
    ALL,
    DENSE,
    EIGHTHS,
    EITHER,
    HALVES,
    Measures,
    efficiency_leverage,
    predictions,
    read_measures,
)

OWN, OF_THE_CROSSING = hub.load_records(study.RECORDS), hub.load_records(study.CROSSING)


def of(name, seed=0, loss=1.5, sweep="granularity", **changes):
    """A record of a contender at 1M, but for this."""
    one = next(r for r in OWN if models._contender_of(r).name == name and nominal(r.tokens) == 1e6)
    run_id = f"{sweep}-{one.run_id[-8:]}-{seed}"
    return one.model_copy(update={"seed": seed, "eval_loss": loss, "sweep": sweep, "run_id": run_id} | changes)


@pytest.fixture
def measured(tmp_path):
    """Measures of these records beside those of two seeds of the crossing, which have losses of 1.5."""
    ours = [
        one.model_copy(update={"eval_loss": 1.5})
        for one in OF_THE_CROSSING
        if one.d_model == 32
        and one.sweep == "crossing"
        and one.seed in (0, 1)
        and nominal(one.tokens) in models.TOKENS
    ]

    def read(*records):
        files = {tmp_path / "own.jsonl": records, tmp_path / "crossing.jsonl": ours}
        for file, kept in files.items():
            file.write_text("".join(f"{one.to_json()}\n" for one in kept))
        return read_measures(*files)

    return read


# ------------------------------------------------------------------ contenders and laws


def test_contenders_have_the_same_parameters_and_the_classes_that_plans_name():
    assert len({c.architecture.n_active for c in ALL.values()}) == 1
    assert len({c.architecture.n_total for c in ALL.values() if c.architecture.experts > 1}) == 1
    for c in ALL.values():
        if c.architecture.granularity > 1 and c.model_type != EITHER:
            assert model_section(c.architecture)["type"] == c.model_type
        assert c.against in {"", *ALL} - {c.name}


def test_what_was_predicted_is_what_the_laws_say(tmp_path, monkeypatch):
    """But for the last digit, in which processors differ."""
    kept = study.read().predictions
    monkeypatch.setattr(study, "PREDICTION", tmp_path / "prediction.json")
    study.predict([])
    for one, other in zip(kept, study.read().predictions, strict=True):
        fields = vars(other).items()
        assert vars(one) == {n: pytest.approx(v, rel=1e-9) if isinstance(v, float) else v for n, v in fields}
    with pytest.raises(FileExistsError, match="made once"):
        study.predict([])


@pytest.mark.parametrize(
    ("law", "contender", "why"),
    [
        ("chinchilla", "dense", "takes both for the same model"),
        ("ludziejewski", EIGHTHS, "ignores top-8 routing, granularity 8"),
        ("krajewski", "dense", "was fitted at E = 64 alone"),
        ("krajewski", "15 halves, top-1, and 1 shared", "ignores 1 shared expert"),
        ("hunyuan", "dense, Muon", "has no optimizer among its variables"),
        ("yun", HALVES, "its coefficients are not public"),
        ("ling", "15 halves, top-1, and 1 shared", "takes both for the same model"),
    ],
)
def test_a_law_that_cannot_say_says_why(law, contender, why):
    (said,) = (s for s in predictions() if (s.law, s.contender, s.tokens) == (law, contender, 4e6))
    assert (said.ratio, said.leverage, said.why) == (None, None, why)


def test_a_law_is_asked_about_the_architectures_themselves():
    """Krajewski et al.: (g / G^γ + a) / N^α + b / D^β + c, of the total without embeddings."""
    law, n, d = published("krajewski"), Architecture(32, 8, 3, 2, 257).n_total_non_embedding, 4e6
    fine, whole = ((law.g / g**law.gamma + law.a) / n**law.alpha + law.b / d**law.beta + law.c for g in (2.0, 1.0))
    (said,) = (s for s in predictions() if (s.law, s.contender, s.tokens) == ("krajewski", HALVES, d))
    assert said.ratio == pytest.approx(fine / whole)
    (joint,) = (s for s in predictions() if (s.law, s.contender, s.tokens) == ("ludziejewski", "dense", d))
    assert joint.low < joint.ratio < joint.high


# ------------------------------------------------------------------ measures


def test_differences_are_of_pairs_of_one_seed(measured):
    """Relative to the other's loss; the scatter is pooled over comparisons."""
    halves = [of(HALVES, seed=s, loss=loss) for s, loss in ((0, 1.47), (1, 1.5), (7, 9.0))]
    bridge = [of("8, top-1, Qwen3", seed=s, loss=1.5) for s in (0, 1, 2)]
    differences = measured(*halves, *bridge).differences
    # One degree of freedom each of 16 halves, of the bridge and of dense; only the first scatters.
    pooled = math.sqrt(2 * 0.01**2 / 3)
    assert differences[HALVES][:, 0] == pytest.approx([-0.01, pooled / math.sqrt(2), 2])
    assert np.isnan(differences[HALVES][0, 1:]).all()
    assert differences["dense"][0] == pytest.approx([0.0] * 3)


def test_a_grid_is_apart_from_the_runs_that_count(measured):
    main, other = of("8, top-1, Muon", loss=1.4), of("8, top-1, Muon", loss=1.3, sweep="granularity-rates")
    losses = measured(main, other).losses["8, top-1, Muon"]
    np.testing.assert_array_equal(losses, [[1.4, np.nan, np.nan], 3 * [np.nan]])


def test_runs_that_do_not_compare_are_refused(measured):
    with pytest.raises(RecordError, match="a model or an optimizer of no comparison"):
        measured(of(HALVES, experts_per_token=4))
    with pytest.raises(RecordError, match="losses on 2 different texts cannot be compared"):
        measured(of(HALVES, eval_tokens=7))


@pytest.fixture(scope="module")
def results():
    return study.read()


def test_the_figure_shows_what_laws_and_runs_say_of_two_comparisons(results):
    panels = study.granularity(results)
    assert [ax.get_title().split(", against")[0] for ax in panels] == [DENSE, EIGHTHS]
    assert "_outside the fitted range" in {line.get_label() for line in panels[0].get_lines()}
    shown = {said.law for said in results.predictions if said.ratio}
    assert {*panels[0].get_legend_handles_labels()[1]} == shown | {"measured"}
    assert [text.get_text() for text in panels[0].texts] == ["abnar: +51 %"]


def test_each_verdict_of_the_page_holds_and_can_come_out_the_other_way(results):
    """With laws and losses that are turned: what gained loses, and what made no difference makes one."""
    assert study.PAGE.refuted(results) == []
    turned = [replace(said, ratio=said.ratio and 2 - said.ratio) for said in results.predictions]
    verdicts = {row[0]: row for row in study.verdicts(results) if isinstance(row, tuple)}
    other = {row[0]: row for row in study.verdicts(study.Results(turned, results.measures))}
    assert verdicts["krajewski"][2:4] == ("4 of 4", "5 of 6")
    assert other["krajewski"][2:4] == ("0 of 4", "0 of 6")
    losses = {name: values - 1.0 * (name == study.ONE_SHARED) for name, values in results.measures.losses.items()}
    for name in (EIGHTHS, HALVES, *study.MUON, DENSE):
        losses[name] = losses[name] + np.array([1.0, 0.5, -2.0])
    assert study.PAGE.refuted(study.Results(turned, Measures(losses))) == [*study.CLAIMS]


def test_the_law_of_leverage_has_the_numbers_of_its_paper():
    """Tian et al. 2025: over 7 at A = 3.1 %, G = 12 and 1e22 FLOPs, and the best G is about 12."""
    leverage = partial(efficiency_leverage, entry("ling").coefficients)
    assert leverage(0.031, 12, 1e22) > 7
    ratios = np.array([0.8, 1.6, 3.1, 6.3, 12.5, 25, 50]) / 100
    fine, coarse = leverage(ratios[:, None], [12, 2], 1e22).T
    np.testing.assert_allclose(fine, [11.163, 9.280, 7.245, 5.181, 3.561, 2.360, 1.536], atol=6e-4)
    np.testing.assert_allclose(coarse, [7.569, 6.482, 5.267, 3.975, 2.902, 2.055, 1.433], atol=6e-4)
    granularities = np.linspace(2, 40, 3801)
    assert 11 < granularities[np.argmax(leverage(0.031, granularities, 1e22))] < 12.5
    assert leverage(1.0, 2, 1e20) == pytest.approx(1.0, abs=0.01)  # a dense model
