"""Figures: on the axes given, one colour for each E, in words, with the boundaries that the paper's figures show."""

import numpy as np
import pytest

from scaling_law import Budget, Conditions, JointLaw
from scaling_law.figures import curves, drawing
from scaling_law.figures import law_figures as figures
from scaling_law.formulas.conditions import fitted_ranges
from scaling_law.law_files import law_pictures
from scaling_law.size.recipe import PAPER


def curves_of(ax, experts):
    """The points (x, y) of each line in the colour of E that has more than a few."""
    return [line.get_xydata() for line in ax.lines if same(line, experts) and len(line.get_xydata()) > 9]


def same(line, experts):
    return np.shape(line.get_color()) == (3,) and np.allclose(line.get_color(), drawing.colour_of(experts))


def legend_of(drawn):
    ax = np.atleast_1d(np.asarray(drawn, object)).flat[0]
    legend = ax.get_legend() or ax.figure.legends[0]
    return [text.get_text() for text in legend.get_texts()]


def test_colours_agree_between_figures(published, paper_fit):
    panel = figures.isoflop(published, [1e20], (1, 4, 16))[0]
    by_memory = figures.memory_optimal(published)
    points = figures.predicted_against_observed(paper_fit)[0].collections
    for e in (4, 16):
        assert curves_of(panel, e)
        assert curves_of(by_memory, e)
        assert any(np.allclose(p.get_facecolor()[0, :3], drawing.colour_of(e)) for p in points)


def test_the_axes_given_are_those_returned(published, paper_fit):
    drawings = (
        (1, lambda ax: figures.memory_optimal(published, ax=ax)),
        (2, lambda axes: figures.isoflop(published, [1e20, 1e21], axes=axes)),
        (2, lambda axes: figures.predicted_against_observed(paper_fit, axes)),
    )
    for count, draw in drawings:
        axes = drawing.new_figure(columns=count)[1]
        assert np.array_equal(draw(axes), axes)


def test_a_curve_ends_at_the_compute_optimum_and_experts_without_one_have_none(published):
    """With so large a γ the loss of 32 experts rises with the model's size; the others are as they were."""
    for law in (published, published.replace(gamma=0.06)):
        ax = figures.memory_optimal(law, 1e22, (1, 32))
        assert ("E = 32" in legend_of(ax)) == (law is published)
        curve, best = curves_of(ax, 1)[0], law.compute_optimal(1e22, 1.0, force=True)
        assert curve[-1] == pytest.approx([best.n_active, best.loss], rel=0.05)
        assert curve[-1, 1] == pytest.approx(best.loss, abs=1e-4)
        assert (np.diff(curve[np.isfinite(curve[:, 1]), 1]) < 0).all()


def test_axes_and_legends_are_in_words(published, paper_fit):
    ax, (panel, _) = figures.memory_optimal(published), figures.isoflop(published, [1e20, 1e21])
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("memory limit (parameters)", "loss (nats per token)")
    assert [tick.get_text() for tick in ax.get_xticklabels()][:2] == ["2B", "3B"]
    assert (panel.get_xlabel(), panel.get_ylabel()) == ("training tokens D", "loss (nats per token)")
    assert figures.predicted_against_observed(paper_fit)[1].get_xlabel() == "observed loss (nats per token)"
    assert legend_of(panel) == ["dense", "E = 4", "E = 16", "outside the fitted range", "95 % interval"]
    unranged = figures.isoflop(JointLaw(**published.coefficients))  # nowhere known to be inside
    assert legend_of(unranged) == ["dense", "E = 4", "E = 16", "outside the fitted range"]
    assert "95 % interval of the boundary" in legend_of(ax)
    assert "95 % interval of the boundary" not in legend_of(figures.memory_optimal(published.replace(draws=None)))


def test_lines_are_solid_inside_the_fitted_range_only(published):
    n, d, e = (np.array(v, float) for v in zip((1e9, 2e10, 1), (3e8, 8e9, 16), (1e9, 2e10, 16), strict=True))
    assert [bool(published.check(*at).inside) for at in zip(n, d, e, strict=True)] == [True, True, False]
    assert not published.check(1e8, 1e9, 64).inside
    solid = [line for line in figures.isoflop(published, [1e20], [1])[0].lines if line.get_linestyle() == "-"]
    x = next(line.get_xydata() for line in solid if len(line.get_xydata()) > 9)
    tokens = x[np.isfinite(x[:, 1]), 0]
    dense = next(r for r in published.conditions.ranges if r.experts == 1)
    assert 1e20 / 6 / tokens.min() == pytest.approx(dense.n_active[1], rel=0.05)  # further left models are too large
    assert tokens.max() < dense.tokens[1] < x[-1, 0]


def test_the_band_is_the_interval_of_the_draws(published):
    ax = figures.isoflop(published, [1e21], [4])[0]
    band = next(c for c in ax.collections if c.get_label() == "_95 % interval").get_paths()[0].vertices
    best = published.compute_optimal(1e21, 4.0)
    low, high = np.quantile(published.loss_draws(best.n_active, best.tokens, 4), [0.025, 0.975])
    near = band[np.abs(np.log(band[:, 0] / best.tokens)) < 0.03, 1]
    assert (near.min(), near.max()) == pytest.approx((low, high), abs=1e-3)


def test_files(published, paper_fit, tmp_path):
    drawn, whole = figures.predicted_against_observed(paper_fit), drawing.new_figure()[0]
    assert drawing.save(drawn, tmp_path / "new" / "fit.png").read_bytes().startswith(b"\x89PNG")
    assert drawing.save(whole, tmp_path / "whole.svg").read_bytes().startswith(b"<?xml")
    with pytest.raises(ValueError, match="suffix"):
        drawing.save(drawing.new_figure()[1], tmp_path / "iso.bmp")
    assert not (tmp_path / "iso.bmp").exists()
    same = [drawing.png(figures.isoflop(published, [1e20], [1])) for _ in range(2)]
    assert same[0] == same[1]


@pytest.mark.parametrize(
    ("flops", "cache", "served", "billions"),
    [
        (1e22, 0, 0, (7.3, 10.4, 16.7, 30.0, 58.8)),
        (5e22, 0, 0, (16.9, 25.9, 45.2, 87.7, 183)),
        (5e22, 8192, 0, (16.8, 25.7, 45.2, 87.9, 184)),
        (5e22, 8192, 1e11, (15.0, 23.1, 40.4, 78.2, 162)),
    ],
)
def test_boundaries_of_the_optimal_regions(published, flops, cache, served, billions):
    served = {"kv_tokens": cache, "inference_tokens": served}
    few = published.replace(draws=published.draws[:100], conditions=None)  # quicker, and inside no ranges
    numbers = curves.memory_curves(few, Budget(flops), PAPER.experts, **served, points=3000)
    # dense at first: the curves stop before the bare law flips back to sparse models, far below its range
    assert [region.experts for region in numbers.regions] == list(PAPER.experts)
    edges = numbers.memory[[region.points.start for region in numbers.regions[1:]]]
    np.testing.assert_allclose(edges / 1e9, billions, rtol=7e-3)
    for edge, boundary in zip(edges, numbers.boundaries, strict=True):
        low, high = boundary.interval
        assert low < edge < high < 4 * edge
    # With ranges the budgets lie so far outside of them that hardly any limit is sure.
    numbers = curves.memory_curves(published.replace(draws=few.draws), Budget(flops), PAPER.experts, **served)
    assert numbers.boundaries[0].interval[1] > 4 * edges[0]


def test_a_law_of_small_runs_that_rises_for_some_experts_still_has_a_card(published):
    """The paper's figures lie beyond its range guard; its card's are drawn at budgets of its own."""
    n_active, tokens, experts = np.array([8e4, 7e5]), np.array([5e5, 1.6e7]), np.array([1.0, 16.0])
    small = Conditions("small runs", ranges=fitted_ranges(n_active, tokens, experts))
    law = published.replace(alpha=0.12, gamma=-0.09, conditions=small)
    assert sorted(law_pictures(law)) == ["isoflop.png", "memory_optimal.png"]
    assert law_pictures(published.replace(beta=0.3)) == {}
    numbers = curves.memory_curves(published.replace(conditions=small), Budget(1e22), [1, 8])
    assert np.isfinite(numbers.loss).all()


def test_a_notebook_shows_what_a_figure_function_returns(published, paper_fit):
    """As the last line of a cell, without pyplot: `_repr_png_` is what IPython asks."""
    panels = figures.isoflop(published, [1e20, 1e21])
    returned = (panels, panels[1], figures.isoflop(published, [1e20]), figures.memory_optimal(published))
    for drawn in (*returned, figures.predicted_against_observed(paper_fit), drawing.new_figure()[0]):
        assert drawn._repr_png_().startswith(b"\x89PNG")
    mine = drawing.new_figure(rows=2, sharex=True)[1].view(np.ndarray)  # shown by whoever made them, not twice
    assert not hasattr(figures.predicted_against_observed(paper_fit, mine), "_repr_png_")
