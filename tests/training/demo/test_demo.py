"""What the demo says of its runs, on records of its own sweeps with losses of a known law; `make demo` trains them."""

import re
import shlex
import signal
from dataclasses import replace
from functools import partial
from importlib import resources
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from hub import open_store, push_index
from scaling_law import JointLaw
from scaling_law.commands.cli import app
from tests.hub.samples import make_record
from training import Sweep
from training.demo import __main__ as main_module
from training.demo import loop
from training.demo.__main__ import folder_of
from training.demo.loop import VOCABULARY, Demo, DemoError, format_minutes, scaling_law
from training.demo.scales import FAST, FULL
from training.sweep.run import Outcome

# With the published expert terms: experts pay from 0.7M to 1M tokens on at these sizes.
TRUTH = JointLaw.published().replace(a=5.2, alpha=-0.11, b=9200.0, beta=-0.71, c=0.1, conditions=None)


def sweep_of(scale, folder):
    file = resources.files("training") / "configs" / scale.sweep
    return Sweep.from_dict(yaml.safe_load(file.read_text(encoding="utf-8")), folder / "runs")


def records_of(sweep):
    """Each branch of the sweep as if trained, with the loss of the law."""
    records = []
    for run in sweep.runs:
        arch = replace(run.architecture, vocab_size=VOCABULARY)
        sizes = arch.shape | {"vocab_size": VOCABULARY, "n_active": arch.n_active, "n_total": arch.n_total}
        for branch in run.branches:
            names = {"run_id": f"{run.name}-{branch.tokens}", "parent_run_id": run.name, "sweep": sweep.name}
            schedule = make_record().schedule.model_dump() | {"horizon_tokens": branch.target_tokens}
            loss = float(TRUTH.loss(arch.n_active, branch.tokens, arch.experts))
            records.append(make_record(**sizes, **names, tokens=branch.tokens, schedule=schedule, eval_loss=loss))
    return records


@pytest.fixture
def sweep(tmp_path):
    return sweep_of(FULL, tmp_path)


@pytest.fixture
def records(sweep):
    return records_of(sweep)


def test_steps_name_their_number_and_the_time_left(tmp_path, capsys):
    with Demo(tmp_path, FULL, workers=1).step("Sweep", "trains"):
        pass
    assert capsys.readouterr().out == "── 3 of 7: Sweep ── trains; about 5 minutes left\n0 s\n\n"
    # A demo that is resumed has some of its runs.
    (tmp_path / "runs").mkdir()
    with Demo(tmp_path, FULL, workers=1).step("Use", "the best checkpoint"):
        pass
    assert capsys.readouterr().out == "── 7 of 7: Use ── the best checkpoint\n0 s\n\n"
    assert [format_minutes(seconds) for seconds in (3, 44, 61, 400)] == [
        "10 seconds",
        "40 seconds",
        "1 minute",
        "7 minutes",
    ]


@pytest.mark.slow
def test_the_law_is_asked_inside_its_range_and_every_line_of_the_panel_runs(
    sweep, records, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    demo = Demo(tmp_path / "out", replace(FULL, draws=20), workers=1)
    push_index(open_store(demo.folder / "hub"), sweep.name, records)
    demo_fit = demo.fit(sweep, records)
    run = demo_fit.run
    assert (run.d_model, run.experts) == (64, 8)
    runs = demo_fit.fit.runs
    assert run.run_id not in runs.run_id
    assert runs.tokens.min() == pytest.approx(1e6, rel=1e-3)
    assert demo_fit.law.loss(run.n_active, run.tokens, run.experts) == pytest.approx(run.eval_loss, abs=5e-3)
    assert not demo_fit.fit.status.open_coefficients
    assert demo_fit.fit.status.prior
    assert re.match(r"1e12 FLOPs: E = 8: .* tokens: loss \d\.\d{3} \(", demo.ask(demo_fit))
    assert demo_fit.prediction.startswith("the longest run of the largest MoE, left out: ")
    assert f"measured {run.eval_loss:.3f}; a regression on the logarithms says" in demo_fit.prediction
    best = demo_fit.law.optimal(FULL.flops, experts=(1, 8)).best
    assert best.trusted
    assert runs.n_active.min() <= best.n_active <= runs.n_active.max()
    assert runs.tokens.min() <= best.tokens <= runs.tokens.max()

    for command in demo.commands(sweep, demo_fit):
        program, *words = shlex.split(command.replace(scaling_law(), "scaling-law"))
        result = CliRunner().invoke(app, words)
        assert (program, result.exit_code) == ("scaling-law", 0), result.output


def test_the_end_of_the_demo_is_ten_facts_on_a_screen(sweep, records, tmp_path, monkeypatch, capsys):
    """The sentences are those of the steps, which are not run here."""
    demo = Demo(tmp_path, FULL, workers=1)
    fit = SimpleNamespace(fit=SimpleNamespace(verdict="a law"), prediction="a loss", where="D >= 990K", run=records[0])
    steps = {
        "tokenizer": None,
        "sweep": sweep,
        "release": (records, "all of them"),
        "fit": fit,
        "ask": "a model",
        "use": ("a folder", "Returns the number of letters."),
    }
    monkeypatch.setattr(loop.corpus, "build", lambda *_, **__: "12 MB")
    for name, outcome in steps.items():
        monkeypatch.setattr(demo, name, lambda *_, outcome=outcome: outcome)
    demo.run()
    _, end = capsys.readouterr().out.split("── The whole loop works on this machine: 10 seconds ──\n")
    end, _, *commands = end.split("\nTo go on:")[0], *end.split("\nTo go on:")[1].splitlines()
    names = [line[:12].strip() for line in end.splitlines() if line[:12].strip()]
    facts = ("corpus", "trained", "released", "law", "predicts", "answers", "loads", "generates", "pages")
    assert tuple(names) == facts
    assert max(map(len, end.splitlines())) <= 100
    assert [line.split("-m ")[1].split()[:2] for line in commands] == [
        ["scaling_law", "optimal"],
        ["scaling_law", "fit"],
    ]


def test_a_prediction_stands_beside_what_was_measured_and_a_regression(records):
    """Of losses that are a plane in the logarithms, the regression misses nothing."""
    runs = SimpleNamespace(
        n_active=np.array([r.n_active for r in records], float),
        tokens=np.array([r.tokens for r in records], float),
        experts=np.array([r.experts for r in records], float),
    )
    runs.loss = 9 * runs.n_active**-0.1 * runs.tokens**-0.05 * runs.experts**-0.02
    run = records[-1].replaced(eval_loss=float(runs.loss[-1]))
    text = loop.describe_prediction(run, 2.0, (1.9, 2.1), runs)
    measured = f"{run.eval_loss:.3f}"
    assert f"2.000 (1.900 to 2.100), measured {measured}; a regression on the logarithms says {measured}:" in text
    assert text.endswith("the regression is nearer")


def test_a_law_without_an_optimum_says_so(tmp_path):
    runs = SimpleNamespace(runs=SimpleNamespace(experts=np.array([1.0, 8.0])))
    rising = SimpleNamespace(law=TRUTH.replace(alpha=0.3), fit=runs)
    assert "no answer" in Demo(tmp_path, FAST, workers=1).ask(rising)


def test_commands_name_this_python_whatever_path_leads_to():
    assert scaling_law("loss", "--law", "a b").endswith("-m scaling_law loss --law 'a b'")


def test_a_seed_has_its_own_folder_and_runs_of_its_seed(tmp_path, monkeypatch):
    assert [str(folder_of(*options)) for options in ((False, 0), (True, 0), (False, 2))] == [
        "demo-output",
        "demo-output-fast",
        "demo-output-seed2",
    ]
    sweeps = []
    monkeypatch.setattr(loop, "run_sweep", lambda sweep, *_: sweeps.append(sweep) or Outcome(elsewhere=["all"]))
    with pytest.raises(DemoError):
        Demo(tmp_path, FAST, workers=1, seed=2).sweep()
    assert {run.arguments.run.seed for run in sweeps[0].runs} == {2}


def test_runs_that_another_process_trains_are_waited_for(tmp_path, monkeypatch):
    outcome = Outcome(elsewhere=["d32-b2-h1-E8-seed0"])
    monkeypatch.setattr(loop, "run_sweep", lambda *_: outcome)
    with pytest.raises(DemoError, match="another process trains d32-b2-h1-E8-seed0"):
        Demo(tmp_path, FAST, workers=1).sweep()


def test_a_stop_asks_its_runs_to_stop_as_that_of_a_sweep_does(monkeypatch, request):
    for number in (signal.SIGINT, signal.SIGTERM):
        request.addfinalizer(partial(signal.signal, number, signal.getsignal(number)))
    monkeypatch.setattr(Demo, "run", lambda demo: signal.raise_signal(signal.SIGTERM))
    assert CliRunner().invoke(main_module.app, []).exit_code == 143
