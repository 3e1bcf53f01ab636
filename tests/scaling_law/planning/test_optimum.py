"""Optima against the paper's tables and against brute force."""

from dataclasses import replace

import numpy as np
import pytest

from hub.base.tables import as_text
from scaling_law import Architecture, ExtrapolationError, Limits
from scaling_law import published as shelf
from scaling_law.size.architecture import width_of_total

EXPERTS = [1, 2, 4, 8, 16, 32]


@pytest.mark.parametrize("name", ["ludziejewski", "abnar"])
def test_optima_of_many_budgets_are_the_minima_along_them(name):
    law = shelf(name)
    found = law.compute_optimal([1e20, 1e22], EXPERTS, force=True)
    assert found.loss.shape == (2, 6)
    np.testing.assert_allclose(6 * found.n_active * found.tokens, np.array([[1e20], [1e22]]) * np.ones(6), rtol=1e-12)
    for scale in (0.97, 1.03):
        sizes = Limits.of(law).variables(width_of_total(found.n_active * scale, 1, law.vocab_size), EXPERTS, 1.0)
        at = {"tokens": found.tokens / scale} | {name: sizes[name] for name in law.variables if name != "tokens"}
        assert np.all(law.loss(**at) > found.loss)
    frame = found.to_dataframe()
    assert frame.flops.tolist() == [1e20] * 6 + [1e22] * 6
    assert frame.n_active.tolist() == found.n_active.ravel().tolist()
    assert "N_act" in found._repr_html_()


def test_caption_of_the_matched_models(published):
    """Appendix: 1B dense on 10B tokens, matched in FLOPs and memory at E = 16: 155M active, 64B tokens, D/N 414."""
    dense_flops = 6 * 1e9 * 10e9
    row = published.optimal(dense_flops, [16], max_parameters=1e9, force=True)[16]
    assert row.n_active == pytest.approx(155e6, rel=4e-3)
    assert row.tokens == pytest.approx(64e9, rel=1e-2)
    assert row.tokens_per_parameter == pytest.approx(414, abs=1.0)
    assert any("D/N" in warning for warning in row.warnings)


def test_table_of_the_best_models(published):
    table = published.optimal(1e22, memory=80e9, kv_tokens=16_384)
    assert [row.experts for row in table] == EXPERTS
    assert table.best is table[16]
    assert table.verdict.endswith("; E = 1, 2, 4, 8 and 16 are a tie")
    assert all(row.trusted for row in table)
    assert [row.limited_by for row in table] == ["compute", "compute", "memory", "memory", "evidence", "evidence"]
    forced = published.optimal(1e22, memory=80e9, kv_tokens=16_384, force=True)
    assert forced.best is forced[16]
    assert forced.best.loss < table.best.loss
    assert [row.limited_by for row in forced] == ["compute", "compute", *["memory"] * 4]
    for row in [*table.rows[2:4], *forced.rows[2:]]:
        assert row.memory_bytes == pytest.approx(80e9, rel=1e-9)
        assert row.weight_bytes == pytest.approx(2 * row.n_total)
    frame = table.to_dataframe()
    assert frame.loc[frame.best, "experts"].tolist() == [16]
    assert "N_act" in table._repr_html_()


def test_integral_rows_are_architectures(published):
    table = published.optimal(1e21, [1, 3, 8], memory=10e9, integral=True)
    for row in table:
        a = row.architecture
        assert isinstance(a, Architecture)
        assert (a.d_model % 64, a.blocks, a.heads) == (0, a.d_model // 64, a.d_model // 64)
        assert (a.n_active, a.n_total) == (row.n_active, row.n_total)
        assert row.config_arguments()["num_experts"] == row.experts
    with pytest.raises(ValueError, match="integral"):
        published.optimal(1e21)[1].config_arguments()


@pytest.mark.parametrize(
    ("question", "beyond"),
    [
        ({"flops": 1e28}, "N_act"),
        ({"flops": 1e12}, r"\(÷"),
        ({"flops": 1e22, "experts": [60_000]}, "E = 60000"),
        ({"flops": 6e15, "experts": [1], "vocab_size": 10_000_000}, "D/N"),  # the smallest width is too large a model
        ({"flops": 5e22, "max_parameters": 0.06e9}, r"D/N .* is outside the fitted 0.361…72.7 .*force=True"),
    ],
)
def test_the_guard_looks_at_every_quantity_in_both_directions(published, question, beyond):
    bare = [published.compute_optimal] if question.keys() <= {"flops", "experts"} else []
    for ask in (published.optimal, *bare):
        with pytest.raises(ExtrapolationError, match=beyond):
            ask(**question)
        assert any("do not act" in warning for warning in ask(**question, force=True).warnings)


def test_rows_beyond_the_guard_are_not_compared_unless_forced(published):
    table = published.optimal(1e22, [1, 60_000])
    assert (table.best.experts, table[60_000].trusted) == (1, False)
    assert table[60_000].loss < table.best.loss
    assert any("E = 60000 not compared" in warning for warning in table.warnings)
    forced = published.optimal(1e22, [1, 60_000], force=True)
    assert forced.best.experts == 60_000
    assert any("do not act" in warning for warning in forced.warnings)


def test_a_tie_is_called_one(published):
    """At 80 GB the best two E differ by less than the law's error: by draws, and without them by the RMSE."""
    question = {"flops": 1e22, "memory": 80e9, "kv_tokens": 16_384, "force": True}
    plain = published.replace(draws=None).optimal(**question)
    assert plain.comparison.tied == (16, 8, 32)
    text = "E = 8, 16 and 32 cannot be told apart (0.0038 nats between the best two; the law's error is 0.0062)"
    assert text in plain.warnings
    table = published.optimal(**question)
    shares = table.comparison.win_shares
    assert sum(shares.values()) == pytest.approx(1)
    assert shares[16] > shares[8] > 0.05
    assert table.comparison.interval[0] < 0 < table.comparison.difference < table.comparison.interval[1]
    assert {8.0, 16.0} <= set(table.comparison.tied)
    assert table.to_dataframe().win_share.tolist() == list(shares.values())
    assert " tie " in str(table)
    clear = published.replace(draws=None).optimal(1e20, [1, 32])
    assert clear.comparison.tied == (32,)


def test_differences_are_taken_within_draws(published):
    """Draws that differ by a constant alone leave every difference certain, however wide the intervals are."""
    coefficients = np.array(list(published.coefficients.values()))
    shifted = np.tile(coefficients, (200, 1))
    shifted[:, -1] += np.random.default_rng(0).normal(0, 0.1, 200)
    table = published.replace(draws=shifted, conditions=None).optimal(1e20, [8, 16])
    low, high = table.best.loss_interval
    assert high - low > 0.3
    assert table.comparison.interval == pytest.approx([table.comparison.difference] * 2, abs=1e-9)
    assert table.comparison.tied == (16,)
    assert table.comparison.win_shares == {8: 0, 16: 1}


def test_contradictory_constraints_say_what_is_needed(published):
    table = published.optimal(1e16, [1, 128], memory=13e6)
    assert table.experts_that_do_not_fit == (128,)


def test_quantities_may_be_text(published):
    text = published.optimal("1e22", memory="80 gb", kv_tokens="16k", inference_tokens="100b")
    numbers = published.optimal(1e22, memory=80e9, kv_tokens=16_384, inference_tokens=1e11)
    assert text.to_dict() == numbers.to_dict()
    assert [row.experts for row in published.optimal(1e20, "1,4-5")] == [1, 4, 5]
    assert published.optimal("1e20", 8, max_parameters="2B").limits.max_parameters == 2e9


def test_a_typo_is_refused_with_the_nearest_name(published):
    """What checkers and editors know of every question: tests/scaling_law/test_signatures.py."""
    for ask in (published.optimal, published.plan):
        with pytest.raises(TypeError, match="'max_memory' is unknown: did you mean 'memory'"):
            ask(1e20, max_memory=80e9)


def test_both_laws_answer_alike(published):
    """The Chinchilla view of one E gives the row of that E, and refuses others."""
    view = published.to_chinchilla(8)
    found = view.compute_optimal([1e20, 1e21])
    np.testing.assert_allclose(found.n_active, published.compute_optimal([1e20, 1e21], 8).n_active)
    limits = {"memory": 24e9, "kv_tokens": 16_384}
    mine, theirs = view.optimal(1e21, **limits).best, published.optimal(1e21, [8], **limits).best
    assert mine.loss_interval == pytest.approx(theirs.loss_interval)
    assert mine.loss == pytest.approx(theirs.loss, rel=1e-12)
    assert (mine.experts, mine.weight_bytes) == (8, pytest.approx(theirs.weight_bytes))
    for ask in (view.compute_optimal, view.optimal):
        with pytest.raises(ValueError, match="experts=4: this Chinchilla law holds for E = 8 only"):
            ask(1e20, [4, 8])


def test_draws_without_an_optimum_leave_an_interval(published):
    """As tiny sweeps give: the exponent of N is positive for E = 1 and 2, and in 1/5 of the draws for any E."""
    law = published.replace(alpha=0.12, gamma=-0.09)
    draws = np.tile(list(law.coefficients.values()), (50, 1))
    draws[:10, 1] += 0.6
    draws[:, 0] *= np.linspace(0.9, 1.1, 50)
    law = law.replace(draws=draws)
    drawn = law.optimum_draws(1e21, [1, 4, 8], vocab_size=1000, force=True)
    assert np.isnan(drawn.n_active).mean(axis=0).tolist() == [1, 0.2, 0.2]
    low, high = np.nanquantile(drawn.n_active[:, 1:], [0.025, 0.975], axis=0)
    assert np.all(low < high)
    for row in law.optimal(1e21, vocab_size=1000, force=True):
        assert row.loss_interval[0] < row.loss < row.loss_interval[1]
    with pytest.raises(ValueError, match="no compute optimum for some of these experts: E = 1: the loss does not"):
        law.compute_optimal(1e21)


def test_a_law_that_does_not_fall_has_no_optimum_and_says_why(published):
    law = published.replace(beta=0.3)
    for ask in (law.optimal, law.compute_optimal, lambda flops: law.reach(2.3)):
        with pytest.raises(ValueError, match=r"no compute optimum for any of these experts: E = 1: .* fall with D"):
            ask(1e20)


def test_a_narrow_terminal_shows_the_answer_first(published):
    """And names what --verbose adds: tests/hub/base/test_tables.py."""
    table = published.optimal(1e22, memory=80e9, kv_tokens=16_384)
    lines = as_text(table, width=60).splitlines()
    first = [cell.strip() for cell in next(line for line in lines if "N_act" in line).split("┃")]
    assert first[1] == "E"
    assert {"N_act", "tokens", "loss", ""} <= set(first)
    best = next(line for line in lines if [cell.strip() for cell in line.split("│")[-2:-1]] == ["best"])
    assert f"{table.best.loss:.4f}" in best
    assert as_text(table, width=60).count("┏") == 1


def test_a_rate_outside_the_range_of_its_law_is_warned_of(published):
    table = published.optimal(1e24, experts=[1], force=True)
    assert table.best.learning_rate is None
    assert any(text.startswith("best row (E = 1): no learning rate: too far outside") for text in table.warnings)
    nearer = published.optimal(3e21, experts=[1])
    assert nearer.best.learning_rate > 0
    assert any(text.startswith("best row (E = 1): learning rate: N") for text in nearer.warnings)
    assert not any("learning rate" in text for text in published.optimal(1e20, experts=[1]).warnings)


@pytest.mark.parametrize(
    ("largest_run", "limits", "ends"),
    [
        (32, {}, "E = 32 is the largest compared (the fitted range"),
        (16, {}, "E = 16 is the largest compared (the fitted range"),
        (32, {"experts": "1,16"}, "E = 16 is the largest compared (the list asked for"),
        (32, {"experts": "1-8"}, "E = 8 is the largest compared (the list asked for"),
        (32, {"memory": "80GB", "experts": [1, 4, 32, 64]}, None),  # E = 32 wins and 64 was asked
        (32, {"experts": 8}, None),  # nothing was compared
    ],
)
def test_the_largest_of_the_experts_is_named_where_it_wins(published, largest_run, limits, ends):
    ranges = tuple(r for r in published.conditions.ranges if r.experts is None or r.experts <= largest_run)
    law = published.replace(conditions=replace(published.conditions, ranges=ranges))
    named = [warning for warning in law.optimal(1e21, **limits).warnings if "largest compared" in warning]
    assert [warning.partition(" ends there); ")[0] for warning in named] == ([ends] if ends else [])
    assert all(warning.endswith("a larger one may be better") for warning in named)


def test_experts_named_twice_are_one_row(published):
    assert [row.experts for row in published.optimal(1e21, experts=[8, 2, 8, 2.0])] == [8, 2]


def test_warnings_about_many_experts_are_short(published):
    rising = published.replace(gamma=0.05)
    asked = {
        "guard": published.optimal(1e22, experts=range(1, 200)),
        "forced": published.optimal(1e22, experts=range(1, 200), force=True),
        "memory": published.optimal(1e22, experts=range(1, 200), memory="2GB", force=True),
        "no optimum": rising.optimal(1e22, experts=range(1, 200), force=True),
        "reach": rising.reach(2.5, range(1, 200), force=True),
    }
    assert "E = 129 to 199 not compared: too far outside the fitted range" in asked["guard"].warnings
    for name, answer in asked.items():
        assert max(map(len, answer.warnings)) < 200, name
        assert len(answer.warnings) < 10, name
    assert any(w.startswith("E = 51 to 199 are left out: the loss does not fall") for w in asked["reach"].warnings)
    with pytest.raises(ValueError, match="at E = 100, likewise at the others; its `loss` is still defined") as error:
        rising.optimal(1e22, experts=range(100, 200))
    assert len(str(error.value)) < 700
