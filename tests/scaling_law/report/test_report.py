"""A report says what the records say: its blocks are filled from them, its prose is left alone."""

import json
import re

import pytest
from typer.testing import CliRunner

from hub.base.tables import markdown_of
from scaling_law import Architecture, JointLaw
from scaling_law.commands.cli import app
from scaling_law.report import results
from scaling_law.report.page import BLOCKS, write_report
from scaling_law.report.results import Results
from scaling_law.runs.rows import RunsError
from tests.scaling_law.fitting.test_learning_rate import rows as learning_rate_rows
from tests.scaling_law.synthetic import TINY_LAW
from tests.scaling_law.synthetic import sweep_rows as records

EMPTY = "\n\n".join(f"<!-- {name} -->\n<!-- /{name} -->" for name in BLOCKS)
OTHER = "<!-- other/runs -->\n<!-- /other/runs -->\n![Losses](figures/report-other-losses.png)"
TEXT = f"# Report\n\nBefore.\n\n{EMPTY}\n\n{OTHER}\n\nAfter.\n"


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "RESAMPLES", 50)
    write(tmp_path / "results" / "runs.jsonl", records())
    (tmp_path / "report.md").write_text(TEXT)
    return tmp_path


def test_every_block_is_filled_and_the_prose_stays(folder):
    source = folder / "results"
    write(source / "learning-rates.jsonl", learning_rate_rows())
    write(source / "other" / "runs.jsonl", list(records())[:-3])
    target = folder / "report.md"
    done = CliRunner().invoke(app, ["report", str(source), "--into", str(target)])
    assert done.exit_code == 0, done.output
    text = target.read_text()
    assert text.startswith("# Report\n\nBefore.\n")
    assert text.endswith("\nAfter.\n")
    for name in BLOCKS:
        assert re.search(rf"<!-- {name} -->\n\|.+?<!-- /{name} -->", text, re.DOTALL), name
    assert "36 runs of 12 trunks" in text
    assert "33 runs of 11 trunks" in text  # of the subfolder, which draws only what the page links
    pictures = {"fit", "losses", "isoflop", "held-out", "learning-rates", "other-losses"}
    assert {path.stem.removeprefix("report-") for path in (folder / "figures").iterdir()} == pictures


def test_what_is_not_there_is_not_reported(folder):
    of = Results(folder / "results")
    assert markdown_of(BLOCKS["learning-rates"](of)) == "No learning rates were searched."
    assert "seed only scatter" not in markdown_of(BLOCKS["runs"](of))


def test_runs_of_several_recipes_are_reported_by_the_users_word(folder):
    rows = [row | {"precision": ("fp32", "bf16")[i % 2]} for i, row in enumerate(records())]
    write(folder / "results" / "runs.jsonl", rows)
    with pytest.raises(RunsError, match=r"differ in precision \(bf16, fp32\)"):
        markdown_of(BLOCKS["residuals"](Results(folder / "results")))
    assert markdown_of(BLOCKS["fit"](Results(folder / "results", mix=("precision",)))).startswith("|")


def test_tokens_are_counted_once_for_a_trunk_and_seeds_scatter(folder):
    write(folder / "results" / "runs.jsonl", records(seeds=(0, 1)))
    text = markdown_of(BLOCKS["runs"](Results(folder / "results")))
    # 24 trunks to 0.8 of 4M, and the decays of 0.5M, 1M and 4M
    assert "103M tokens" in text
    assert "72 runs of 24 trunks" in text
    assert "scatter by 0.0141 nats (standard deviation, 36 degrees of freedom)" in text


def test_every_loss_stands_in_the_row_of_its_trunk(folder):
    text = markdown_of(BLOCKS["losses"](Results(folder / "results")))
    assert text.splitlines()[0] == r"| d_model | E | seed | peak LR | 500K | 1M | 4M |"
    a = Architecture(128, 4, vocab_size=2048)
    losses = [f"{float(JointLaw(**TINY_LAW).loss(a.n_active, t, 4)):.3f}" for t in (500_000, 1_000_000, 4_000_000)]
    assert f"| 128 | 4 | 0 | 0.0100 | {' | '.join(losses)} |" in text


def test_what_cannot_be_reported_is_refused(folder):
    (folder / "report.md").write_text("no block\n")
    with pytest.raises(ValueError, match="no block such as"):
        write_report(folder / "results", folder / "report.md")
    write(folder / "results" / "runs.jsonl", [*records(), next(iter(records())) | {"vocab_size": 512, "run_id": "x"}])
    with pytest.raises(ValueError, match="several vocabularies"):
        _ = Results(folder / "results").runs
    missing = CliRunner().invoke(app, ["report", str(folder / "none"), "--into", str(folder / "report.md")])
    assert missing.exit_code == 2
