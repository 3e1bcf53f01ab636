"""What the README shows must work as it stands: its Python blocks are run, and its commands exist."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hub import RunRecord, open_store, push_index, push_run
from scaling_law import JointLaw
from scaling_law.commands.cli import app
from tests.answers import is_same_text
from tests.guides import DOCS, ROOT, blocks, run_python, text_of
from tests.hub.samples import record_fields
from tests.scaling_law.synthetic import sweep_rows
from training import Run, parse_command_line

pytestmark = pytest.mark.usefixtures("shared_searches")

PAGE = ROOT / "README.md"
README = text_of(PAGE)


@pytest.fixture
def demo_output(tiny, tmp_path, monkeypatch):
    """A release where the README's blocks look for that of `make demo`: a model, and records of a known law."""
    arguments = tiny(schedule__tokens=[1280], model__n_blocks=2, model__n_heads=2, model__experts=8)
    assert Run(arguments).execute() == 0
    (folder,) = Path(arguments.run.output_dir).glob("*/model")
    store = open_store(tmp_path / "demo-output" / "hub")
    pushed = push_run(store, folder, RunRecord.load(folder).replaced(sweep="demo"))
    released = tmp_path / "demo-output" / "hub" / "models" / pushed.repo
    shutil.copytree(released / pushed.branch, released / "main")
    for_each = {"schedule": record_fields()["schedule"], "epochs": None}
    push_index(store, "demo", [RunRecord(**record_fields(**row | for_each)) for row in sweep_rows()])
    monkeypatch.chdir(tmp_path)


def test_the_python_blocks_run_in_their_order(demo_output, capsys):
    namespace = run_python(PAGE)
    printed = capsys.readouterr().out
    assert "80 GB" in printed
    (verdicts,) = blocks(PAGE, "text")
    assert is_same_text(verdicts, printed[: len(verdicts)])
    assert namespace["best"].experts == 16  # of 80 GB at 1e22 FLOPs, as far out as backtests support
    assert Path("my-law").exists()
    assert namespace["result"].status.converged
    (question,) = re.findall(r"^# scaling-law (.+)", README, flags=re.MULTILINE)
    answer = CliRunner().invoke(app, [*shlex.split(question), "--json"])
    assert answer.exit_code == 0, answer.stderr
    found, (low, high) = json.loads(answer.stdout), namespace["result"].law.conditions.overall.n_active
    assert found["limits"]["vocab_size"] == 2048  # the runs', not GPT-2's
    assert {row["learning_rate"] for row in found["rows"]} == {None}  # too far below the runs of the law of rates
    assert any("no learning rate: too far outside the runs of its law" in warning for warning in found["warnings"])
    assert low <= found["best"]["n_active"] <= high


def test_the_planned_run_is_a_configuration_that_train_py_takes(tmp_path, monkeypatch):
    (block,) = [code for code in blocks(PAGE, "bash") if "train.py" in code]
    plan, train, push = (shlex.split(line) for line in block.splitlines())
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, plan[1:]).exit_code == 0
    assert train[:3] == ["accelerate", "launch", "train.py"]
    arguments = parse_command_line(train[3:])
    assert len(arguments.schedule.tokens) == 3
    assert max(arguments.schedule.tokens) <= arguments.data.train_tokens  # no token is seen twice
    assert Path(arguments.run.output_dir).parts[0] == push[4]
    assert arguments.run.sweep == "my-sweep"


def test_the_evidence_is_that_of_its_pages():
    """To the digit: every number of the section stands in the short account of a page."""
    (section,) = re.findall(r"## Does the law hold\?\n(.+?)\n## ", README, flags=re.DOTALL)
    pages = [text_of(DOCS / name) for name in ("studies/evidence.md", "studies/crossing.md")]
    accounts = "".join(
        re.sub(r"<!--.*?-->", "", line) for page in pages for line in page.split("\n## ")[0].splitlines()
    )
    numbers, there = (re.findall(r"\d+(?:\.\d+)?[KMB]?", re.sub(r"\(http\S+\)", "", t)) for t in (section, accounts))
    assert len(numbers) >= 12
    assert [number for number in numbers if number not in there] == []


def test_the_first_sentence_is_what_the_law_answers():
    law = JointLaw.published()
    answer = law.optimal(hours="5d", gpus=8, gpu="h100", price=2.5)
    best = answer.best
    dense = law.reach(best.loss, experts=1, gpus=8, gpu="h100", price=2.5).best
    example = " ".join(next(text for text in README.split("\n\n") if text.startswith("**In 5 days")).split())
    for fact in (
        f"{best.experts:g} experts",
        f"{best.n_active / 1e9:.2f}B of {best.n_total / 1e9:.1f}B parameters",
        f"{best.tokens / 1e9:.0f}B tokens",
        f"${answer.budget.money:,.0f}",
        f"{dense['hours'] / 24:.0f} days and ${round(dense['money'], -2):,.0f}",
    ):
        assert fact in example, fact
    assert {1, best.experts} <= {*answer.comparison.tied}  # "a dense model may be as good"


def test_the_model_served_from_80_gb_is_what_the_law_answers():
    law = JointLaw.published()
    table = law.optimal(1e22, memory=80e9, kv_tokens=16_384, integral=True)
    best, dense = table.best, next(row for row in table if row.experts == 1)
    compute = float(law.reach(best.loss, 1).flops) / 1e22
    example = " ".join(next(text for text in README.split("\n\n") if text.startswith("Train with 1e22 FLOPs")).split())
    for fact in (
        f"{best.experts:g} experts",
        f"{dense.loss - best.loss:.3f} nats;",
        f"{compute:.1f} times the compute",
        f"{best.n_active / 1e9:.1f}B of {best.n_total / 1e9:.1f}B parameters",
        f"{best.tokens / 1e9:.0f}B tokens",
    ):
        assert fact in example, fact
    assert any("D 480B" in warning and "(×30) at E = 16" in warning for warning in table.warnings)
    assert table.ahead_untrusted == "E = 16 is 0.001 lower outside the trusted region"
    forced = law.optimal(1e22, memory=80e9, kv_tokens=16_384, integral=True, force=True)
    assert f"{forced[16].tokens / 1e9:.0f}B tokens" in example
    assert "({:.2f} to {:.2f})".format(*best.loss_interval) in example
    assert table.comparison.win_shares[16] == pytest.approx(0.5, abs=0.05)
    assert f"the dense model in {table.comparison.win_shares[1]:.0%}".replace("%", " %") in example


def test_the_family_is_the_one_that_the_law_answers_with():
    (line,) = [
        line for line in README.splitlines() if line.startswith("scaling-law optimal --gpu h100 --gpus 8 --hours 5d")
    ]
    done = CliRunner().invoke(app, [*shlex.split(line, comments=True)[1:], "--json"])
    assert done.exit_code == 0, done.stderr
    answer = json.loads(done.stdout)
    best, rows = answer["best"], {row["routed_experts"]: row for row in answer["rows"]}
    text = " ".join(README.split())
    assert f"{best['routed_experts']} experts, 8 of them active" in text
    assert f"({best['n_active'] / 1e9:.3g}B of {best['n_total'] / 1e9:.3g}B parameters)" in text
    assert f"{rows[1]['loss'] - best['loss']:.3f} nats below the best dense Qwen3" in text
    assert (
        f"experts train at {best['mfu']:.0%} of peak, the dense model at {rows[1]['mfu']:.0%}".replace("%", " %")
        in text
    )
    assert {1.0, best["experts"]} <= {*answer["comparison"]["tied"]}


def test_it_is_read_in_five_minutes():
    assert len(README.splitlines()) <= 150
