"""The numbers of figures are those of the law's own answers, and both drawers show them."""

import numpy as np
import pytest

from scaling_law import Budget, Limits
from scaling_law import published as shelf
from scaling_law.figures import curves, drawing

LIMITS = {"kv_tokens": 16_384, "bytes_per_parameter": 2.0, "bytes_per_kv": 2.0}


@pytest.fixture(scope="module")
def law(published):
    return published.replace(draws=published.draws[:100])


def test_curves_within_memory_pass_through_the_answers(law):
    numbers = curves.memory_curves(law, Budget(1e22), [1, 8, 32], **LIMITS)
    limit = float(numbers.memory[150])
    table = law.optimal(1e22, [1, 8, 32], memory=limit, **LIMITS, force=True)
    for row, curve in zip(table, numbers.curves, strict=True):
        assert row.limited_by == ("memory" if limit < curve.x[-1] else "compute")
        at = min(np.searchsorted(curve.x, limit), curve.mark)
        same = (curve.loss[at], curve.n_active[at], curve.n_total[at], curve.d_model[at], curve.tokens[at])
        assert same == pytest.approx((row.loss, row.n_active, row.n_total, row.d_model, row.tokens), rel=2e-2)
    assert table.best.experts in [r.experts for r in numbers.regions if r.points.start <= 150 < r.points.stop]


@pytest.mark.parametrize("served", [0.0, 1e11])
def test_isoflop_curves_are_lowest_at_the_optimum(law, served):
    for curve in curves.budget_curves(law, Budget(1e22), [1, 4], inference_tokens=served):
        row = law.optimal(1e22, curve.experts, inference_tokens=served).best
        assert curve.mark == np.argmin(curve.loss)
        assert (curve.loss[curve.mark], curve.tokens[curve.mark]) == pytest.approx((row.loss, row.tokens))
        cost = 6 * curve.n_active * curve.tokens + 2 * curve.n_active * served
        np.testing.assert_allclose(cost, 1e22)


@pytest.mark.parametrize("budget", [{"flops": 1e22}, {"hours": 100, "gpus": 8, "gpu": "h100"}])
def test_curves_along_a_budget_have_the_models_within_the_memory_limit(law, budget):
    limits = {"memory": 12e9, "kv_tokens": 8192}
    for curve in curves.budget_curves(law, Budget.of(**budget), [1, 8], **limits):
        row = law.optimal(**budget, experts=curve.experts, integral=False, **limits, force=True).best
        assert (curve.loss[curve.mark], curve.tokens[curve.mark]) == pytest.approx((row.loss, row.tokens), rel=1e-3)
        assert curve.mark == np.argmin(curve.loss)
        sizes = Limits.of(law, **limits).memory_bytes(curve.d_model, curve.experts)
        assert (sizes <= 12e9 * (1 + 1e-9)).all()


def test_bars_of_the_figure_are_named_by_the_experts_between_which_they_lie(law):
    pytest.importorskip("plotly")
    from scaling_law.figures import interactive

    numbers = curves.memory_curves(law, Budget(1e22), [1, 8, 32], **LIMITS)
    figure = interactive.loss_by_memory(numbers)
    bars = [trace for trace in figure.data if "→" in trace.name]
    assert [(bar.name, bar.x) for bar in bars] == [
        ("dense → 8", numbers.boundaries[0].interval),
        ("E = 8 → 32", numbers.boundaries[1].interval),
    ]
    assert [bar.line.color for bar in bars] == [interactive.LIGHT.colour(experts) for experts in (8, 32)]
    assert bars[0].hovertext.startswith("E = 8 beats dense from ")
    low, _ = figure.layout.yaxis.range
    assert all(low < bar.y[0] < min(numbers.loss) for bar in bars)  # no bar lies on a curve


def test_curves_over_tokens_keep_the_model(law):
    table = law.optimal(1e22, [1, 8], memory=80e9)
    for row, curve in zip(table, curves.token_curves(law, table), strict=True):
        assert np.ptp(curve.n_active) == 0
        assert (curve.loss[curve.mark], curve.interval[0][curve.mark]) == pytest.approx(
            (row.loss, row.loss_interval[0])
        )
        assert (np.diff(curve.loss) < 0).all()


def test_the_map_has_the_answers_and_their_ties(law):
    flops, memory = [1e19, 1e22, 1e24], [24e9, 80e9, 640e9]
    numbers = curves.best_experts(law, flops, memory, kv_tokens=16_384)
    for i, limit in enumerate(memory):
        for j, budget in enumerate(flops):
            try:
                table = law.optimal(budget, memory=limit, kv_tokens=16_384)
            except ValueError:  # beyond the range guard
                assert np.isnan(numbers.experts[i, j])
                continue
            # The map looks for trusted models among so many widths, and else for the optimum itself.
            tolerance = {"abs": 5e-5} if table.best.limited_by == "evidence" else {}
            assert numbers.loss[i, j] == pytest.approx(table.best.loss, **tolerance)
            assert numbers.experts[i, j] == table.best.experts
            assert numbers.tied[i, j] == (len(table.comparison.tied) > 1)
            assert numbers.trusted[i, j] == table.best.trusted
    assert numbers.inside.any()
    assert not numbers.inside.all()
    without = curves.best_experts(law.replace(draws=None), flops, memory)
    assert without.tied.dtype == bool


@pytest.mark.parametrize("name", ["chinchilla", "abnar"])
def test_laws_of_the_shelf_have_figures_too(name):
    law = shelf(name)
    numbers = curves.memory_curves(law, Budget(1e22), **LIMITS)
    assert {curve.experts for curve in numbers.curves} <= set(np.atleast_1d(law.default_experts()).tolist())
    assert all(curve.interval is None for curve in curves.budget_curves(law, Budget(1e22)))
    assert np.isfinite(curves.best_experts(law, [1e21, 1e22], [80e9, 640e9]).loss).any()


def test_plotly_draws_the_same_numbers_and_colours(law):
    pytest.importorskip("plotly")
    from scaling_law.figures import interactive

    numbers = curves.memory_curves(law, Budget(1e22), [1, 32], **LIMITS)
    for page in (interactive.LIGHT, interactive.DARK):
        figure = interactive.loss_by_memory(numbers, page, limit=80e9)
        for curve in numbers.curves:
            name = drawing.label_of(curve.experts)
            lines = [t for t in figure.data if t.name == name and t.mode == "lines" and not t.showlegend]
            drawn = np.nanmax([np.where(np.isnan(t.y), -np.inf, t.y) for t in lines], axis=0)
            np.testing.assert_array_equal(drawn, curve.loss)
            channels = [round(255 * v) for v in drawing.colour_of(curve.experts, page.dark)]
            assert {t.line.color for t in lines} == {f"rgba({','.join(map(str, channels))},1)"}
        assert len([s for s in figure.layout.shapes if s.type == "rect"]) == len(numbers.regions)
        (limit,) = (trace for trace in figure.data if trace.name == "limit")
        assert limit.x == (80e9, 80e9)
        assert limit.y == figure.layout.yaxis.range
        drawn_as = [trace.mode for trace in figure.data if trace.name[:3] in ("den", "E =") and "→" not in trace.name]
        assert drawn_as == sorted(drawn_as)  # lines, then markers
    grid = curves.best_experts(law, [1e20, 1e22], [80e9, 640e9])
    model = interactive.ModelPoint("M", 1e21, 1e11, 8.0, "M: 8 experts")
    figure = interactive.best_by_budget(grid, question=(1e22, 80e9), models=[model])
    cells = [trace for trace in figure.data if trace.type == "heatmap"]
    for trace in cells:
        assert (np.isfinite(trace.z) == np.isin(grid.experts, float(trace.name.split()[-1]))).all()
        (key,) = (t for t in figure.data if t.type == "scatter" and t.name == trace.name)
        assert key.marker.color == trace.colorscale[-1][1]
        at = np.isfinite(trace.z)
        np.testing.assert_array_equal(trace.z[at], (grid.trusted * (1.0 + grid.inside) / 2)[at])
        assert (key.showlegend, trace.showlegend, key.legendgroup) == (True, None, trace.legendgroup)
    assert {"models", "question"} <= {trace.name for trace in figure.data}


def test_only_the_best_curve_has_its_interval(law):
    pytest.importorskip("plotly")
    from scaling_law.figures import interactive

    for experts in ([1, 8], [1, 2, 4, 8, 16, 32, 64]):
        numbers = curves.budget_curves(law, Budget(1e22), experts)
        best = experts[-1]
        figure = interactive.loss_by_tokens(numbers, interactive.LIGHT, curves.shown_losses(numbers), best, {})
        (band,) = (trace for trace in figure.data if trace.fill == "toself")
        assert (band.name, band.fillcolor) == ("95 % interval", interactive.LIGHT.colour(best, 0.18))
        assert figure.data[0] is band  # behind the curves
        for curve in numbers:
            assert (curve.interval[0] < curve.loss).all()
            assert (curve.loss < curve.interval[1]).all()
    limit = curves.memory_curves(law, Budget(1e22), [1, 8], **LIMITS)
    names = [trace.name for trace in interactive.loss_by_memory(limit, limit=1e15).data]
    assert "limit" not in names  # which lies outside of the figure
    low, high = interactive.loss_by_memory(limit).layout.yaxis.range
    assert all(low < curve.loss.min() < high for curve in limit.curves)


@pytest.mark.parametrize("experts", [2.0**power for power in range(12)])
def test_every_colour_stands_out_from_its_page(experts):
    from scaling_law.figures.interactive import DARK, LIGHT

    def luminance(channels):
        linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
        return linear @ [0.2126, 0.7152, 0.0722]

    for page in (LIGHT, DARK):
        paper = np.array([int(page.paper[i : i + 2], 16) / 255 for i in (1, 3, 5)])
        levels = sorted(luminance(np.array(colour)) for colour in (paper, drawing.colour_of(experts, page.dark)))
        assert (levels[1] + 0.05) / (levels[0] + 0.05) > 2


def test_curves_of_a_budget_of_hours_pass_through_the_answers(law):
    asked = {"hours": 100, "gpus": 8, "gpu": "h100", "integral": False}
    time = Budget.of(hours=100, gpus=8, gpu="h100")
    numbers = curves.memory_curves(law, time, [1, 8], **LIMITS)
    limit = float(numbers.memory[150])
    table = law.optimal(**asked, experts=[1, 8], memory=limit, **LIMITS, force=True)
    for row, curve in zip(table, numbers.curves, strict=True):
        at = min(np.searchsorted(curve.x, limit), curve.mark)
        assert (curve.loss[at], curve.tokens[at]) == pytest.approx((row.loss, row.tokens), rel=2e-2)
    tiny = Budget.of(hours=0.001, gpus=1, gpu="l4", mfu=0.4)  # whose best width is below 64
    assert np.isfinite(curves.memory_curves(law, tiny, [1], points=50).loss).all()
    with pytest.raises(ValueError, match=r"hours=0\.001 are too few"):
        law.optimal(hours=0.001, gpus=1, gpu="l4", mfu=0.4, experts=[1])
    for curve in curves.budget_curves(law, time, [1, 8]):
        free = law.optimal(**asked, experts=curve.experts).best
        assert abs(curve.mark - np.argmin(curve.loss)) <= 1
        assert (curve.loss[curve.mark], curve.tokens[curve.mark]) == pytest.approx((free.loss, free.tokens), rel=1e-3)
