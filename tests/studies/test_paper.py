"""The paper's tables: how many cells agree is a fact about the paper, and must stay what it is."""

import numpy as np
import pytest

from scaling_law import JointLaw
from studies.paper.__main__ import main
from studies.paper.figures import FIGURES, draw_all
from studies.paper.study import all_tables


@pytest.fixture(scope="module")
def recovered():
    return all_tables(JointLaw.published())


@pytest.fixture(scope="module")
def printed():
    return all_tables(JointLaw.published(rounded=True))


@pytest.mark.parametrize(
    ("name", "cells", "with_recovered", "with_printed"),
    [
        ("coefficients", 11, 9, 11),
        ("chinchilla", 30, 30, 11),
        ("compute_optimal", 36, 29, 12),
        ("optimal_experts", 12, 9, 9),
        ("listing", 106, 106, 106),
        ("learning_rate", 3, 3, 3),
        ("text", 5, 5, 5),
    ],
)
def test_agreement(recovered, printed, name, cells, with_recovered, with_printed):
    ours, rounded = recovered[name], printed[name]
    assert (len(ours.cells), ours.agreeing, rounded.agreeing) == (cells, with_recovered, with_printed)


def test_median_differences_of_the_compute_optimal_table(recovered, printed):
    for tables, median in ((recovered, 0.0013), (printed, 0.0057)):
        found = [abs(cell.relative) for cell in tables["compute_optimal"].cells]
        assert np.median(found) == pytest.approx(median, abs=5e-5)


def test_cells_beyond_coarse_rounding(recovered):
    by_name = {(c.row, c.column): c for c in recovered["compute_optimal"].cells}
    assert by_name["1e20, E = 8", "N_act"].value == pytest.approx(984.6e6, rel=1e-4)
    assert by_name["1e20, E = 4", "D"].value == pytest.approx(13.81e9, rel=5e-4)
    assert by_name["1e22, E = 1", "D"].value == pytest.approx(88.55e9, rel=1e-4)


def test_optimal_experts_where_print_and_law_differ(recovered):
    cells = [c for c in recovered["optimal_experts"].cells if not c.agrees]
    assert [(c.row, c.column, c.printed_value, c.value) for c in cells] == [
        ("1e21", "24 GB", 16, 32),
        ("1e23", "80 GB", 8, 4),
        ("1e24", "640 GB", 16, 8),
    ]
    for cell in cells:
        gigabytes = float(cell.column.split()[0])
        table = JointLaw.published().optimal(float(cell.row), memory=gigabytes * 1e9, kv_tokens=16_384, force=True)
        assert abs(table[cell.printed_value].loss - table[cell.value].loss) < 0.007


def test_the_command_prints_each_table(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["paper", "--law", "printed", "--differing"])
    main()
    text = " ".join(capsys.readouterr().out.split())
    assert "Compute-optimal configurations: 12 of 36 agree" in text
    assert "Numbers of the text: 5 of 5 agree" in text


def test_every_figure_is_drawn(tmp_path):
    law = JointLaw.published()
    few = law.replace(draws=law.draws[:40])  # quicker
    written = draw_all(few, tmp_path, "svg")
    assert {path.stem for path in written} == {*FIGURES}
    assert all(path.stat().st_size > 10_000 for path in written)
    assert JointLaw.published(rounded=True).draws is None
    for name in ("fig1b_family_1b", "fig2b_flop_savings", "fig4_optimal_experts", "figA_matched_models"):
        FIGURES[name](JointLaw.published(rounded=True))


def test_the_command_draws_the_figures_of_a_law(monkeypatch, capsys, tmp_path):
    law = JointLaw.published()
    law.replace(draws=law.draws[:2]).save_pretrained(tmp_path / "law")
    monkeypatch.setattr("studies.paper.__main__.draw_all", lambda law, folder, suffix: [(len(law.draws), suffix)])
    monkeypatch.setattr("sys.argv", ["paper", "--law", str(tmp_path / "law"), "--figures", "out", "--suffix", "pdf"])
    main()
    assert capsys.readouterr().out == "(2, 'pdf')\n"
