"""Figures: written, of the right kind, and with the boundaries that the paper's figures show."""

import numpy as np
import pytest

from scaling_law import figures, paper_figures


def test_files(published, paper_fit, tmp_path):
    for suffix, magic in ((".png", b"\x89PNG"), (".svg", b"<?xml")):
        for path in (
            figures.predicted_against_observed(paper_fit, tmp_path / f"fit{suffix}"),
            figures.isoflop(published, tmp_path / f"iso{suffix}"),
            figures.memory_optimal(published, tmp_path / "new" / f"memory{suffix}"),
        ):
            assert path.read_bytes().startswith(magic)
    with pytest.raises(ValueError, match="suffix"):
        figures.isoflop(published, tmp_path / "iso.bmp")


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
    memory, losses = figures.memory_curves(published, flops, figures.EXPERTS, cache, served, points=3000)
    best = np.argmin(losses, axis=1)
    assert np.all(np.diff(best) >= 0)
    edges = memory[np.flatnonzero(np.diff(best)) + 1] / 1e9
    np.testing.assert_allclose(edges, billions, rtol=7e-3)


def test_small_models_are_guarded(published):
    """Far below the fitted range the bare law flips back to sparse models: the curves stop before."""
    memory, losses = figures.memory_curves(published, 5e22, figures.EXPERTS)
    assert memory[0] > 1e9
    assert np.argmin(losses[0]) == 0


def test_every_figure_of_the_paper(published, paper_fit, tmp_path):
    written = paper_figures.draw_all(published, tmp_path, "svg")
    assert len(written) == len(set(written)) == 8
    written.append(paper_figures.loss_curves(paper_fit, tmp_path / "curves.svg", 4))
    assert all(path.stat().st_size > 10_000 for path in written)
    with pytest.raises(ValueError, match="experts=3: no runs"):
        paper_figures.loss_curves(paper_fit, tmp_path / "curves.svg", 3)
