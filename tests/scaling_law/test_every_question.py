"""Every public question, asked near the runs of a law, far from them, and of a law that tells no ranges.

What lies beyond the range guard is refused or flagged, with the same exit status everywhere; a law without ranges
answers, and is not trusted. A question that is added fails `test_every_question_stands_here` until it stands below.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import scaling_law
from scaling_law import (
    Architecture,
    ExtrapolationError,
    JointLaw,
    Law,
    LearningRateLaw,
    RangeCheck,
)
from scaling_law.commands.cli import PLACES, app
from scaling_law.explorer.programs import tools
from scaling_law.figures import drawing
from scaling_law.planning import advantage, candidate_grid, log_optimal_parameters, predicted_loss
from tests.scaling_law.configs import SWITCH
from tests.scaling_law.synthetic import tiny_runs

NEAR, FAR = 1e21, 1e32  # FLOPs
JOINT = JointLaw.published()
JOINT = JOINT.replace(draws=JOINT.draws[:60])


def model(flops: float, **others: float) -> dict[str, float]:
    """20 tokens per parameter."""
    n = math.sqrt(flops / 120)
    return {"n_active": n, "tokens": 20 * n, **others}


def reachable(law: Law, flops: float, experts: float = 1.0) -> float:
    return float(law.compute_optimal(flops, experts, force=True).loss)


def beside(answer: Any, check: RangeCheck) -> RangeCheck:
    """For a formula that returns bare arrays: what its companion says of the same question."""
    assert answer is not None
    return check


def arrays(ask: str | Callable[..., Any], question: Callable[[float], dict[str, Any]]) -> Callable[..., RangeCheck]:
    """Ask a law, by a function or its method of this name, and its companion the same."""
    of = ask if callable(ask) else lambda law, **at: getattr(law, ask)(**at)
    return lambda law, c: beside(of(law, **question(c)), law.check(**question(c)))


def narrowed(law: Law, flops: float) -> Any:
    candidates = candidate_grid(1e19, experts=(1, 8), widths=(256, 512))
    asks = (log_optimal_parameters(flops), predicted_loss(**model(flops), experts=8), advantage(flops, 8, 1))
    found = [law.next_runs(ask, 1e20, candidates, noise=1e-3, max_runs=2) for ask in asks]
    return found[0]


def memory_optimal(law: Law, flops: float) -> bool:
    """Whether one of its lines is solid."""
    _, labels = (ax := scaling_law.memory_optimal(law, flops)).get_legend_handles_labels()
    solid = [line for line in ax.lines if line.get_linestyle() == "-" and np.size(line.get_xdata()) > 9]
    assert solid or drawing.OUTSIDE in [text.get_text() for text in ax.get_legend().get_texts()] + labels
    return bool(solid)


def while_it_trains(law: Law, flops: float) -> Any:
    """A run of which half is trained."""
    at = model(flops)
    tokens = np.linspace(0.01, 0.5, 50) * at["tokens"]
    run = scaling_law.TrainingCurve(tokens, np.full(50, 3.0), at["tokens"], at)
    return beside(scaling_law.LiveForecast(law=law).of(run), law.check(**at))


def rated(flops: float) -> Architecture:
    """The architecture of which a learning-rate law is asked."""
    return Architecture(1024, 8 if flops == NEAR else 1000)


def rates(ask: Callable[..., Any]) -> Callable[..., RangeCheck]:
    """Ask a learning-rate law, and for the check of the same architecture."""
    return lambda law, c: beside(ask(law, rated(c)), law.of(rated(c)).check)


def drawn_optimum(law: Law, n_active: float, tokens: float, experts: float) -> Any:
    return law.optimum_draws(6 * n_active * tokens, experts)


def bootstrapped(law: Law, **at: float) -> Any:
    return scaling_law.Bootstrap(law, np.ones(60, bool), 9, np.zeros(9), 0, 11).prediction_interval(**at)


SPARSE, RATES = partial(model, experts=8), LearningRateLaw.published()
SURE = replace(RATES, covariance=((0.01,) * 5,) * 5)
SMALL, FINE = ("n_total_non_embedding", "tokens"), {"activation_ratio": 0.03, "granularity": 12}
Question = tuple[Any, Callable[[Any, float], Any]]  # the law that is asked, and how with a budget of FLOPs
QUESTIONS: dict[str, Question] = {
    "Formula.loss": (JOINT, arrays("loss", model)),
    "Formula.loss_draws": (JOINT, arrays("loss_draws", model)),
    "Law.compute_optimal": (JOINT, lambda law, c: law.compute_optimal([1e20, c])),
    "Law.optimal": (JOINT, lambda law, c: law.optimal(c)),
    "JointLaw.optimum_draws": (JOINT, arrays(drawn_optimum, SPARSE)),
    "JointLaw.to_chinchilla": (JOINT, lambda law, c: law.to_chinchilla(c / NEAR).check(1e9, 2e10)),
    "Bootstrap.prediction_interval": (JOINT, arrays(bootstrapped, SPARSE)),
    "LearningRateLaw.at": (RATES, rates(lambda law, architecture: law.at(law.counted(architecture), 8))),
    "LearningRateLaw.interval_at": (
        SURE,
        rates(lambda law, architecture: law.interval_at(law.counted(architecture), 8)),
    ),
    "LearningRateLaw.learning_rate": (RATES, rates(LearningRateLaw.learning_rate)),
    "LearningRateLaw.peak": (RATES, lambda law, c: law.peak(law.counted(rated(c)), rated(c).experts).check),
    "LearningRateLaw.of": (RATES, lambda law, c: law.of(rated(c)).check),
    "Law.reach": (JOINT, lambda law, c: law.reach(reachable(law, c), 8)),
    "Law.reach within a budget": (JOINT, lambda law, c: law.reach(reachable(law, c, 8.0) * 1.002, 8, flops=c)),
    "Law.speedup": (JOINT, lambda law, c: law.speedup(8, 1, flops=c)),
    "Law.speedup at equal memory": (JOINT, lambda law, c: law.speedup(8, 1, match="memory", flops=c)),
    "Law.speedup of sizes": (JOINT, lambda law, c: law.speedup(8, n_active=model(c)["n_active"])),
    "Law.plan": (JOINT, lambda law, c: law.plan(c)),
    "describe": (JOINT, lambda law, c: scaling_law.describe(SWITCH, c / 1e11, law=law)),
    "Law.next_runs": (JOINT, narrowed),
    "memory_optimal": (JOINT, memory_optimal),
    "LiveForecast.of": (JOINT, while_it_trains),
    "compare": (["chinchilla", "besiroglu"], lambda names, c: scaling_law.compare(c, laws=names)),
}
NOT_QUESTIONS = {  # why → what
    "is the check itself": """Formula.warnings Formula.check ChinchillaLaw.warnings
        LiveForecast.warnings""",
    "shows the law": """Formula.coefficient_names Formula.default_experts Formula.summary ChinchillaLaw.default_experts
        Formula.chinchilla_coefficients ChinchillaLaw.chinchilla_coefficients
        Formula.chinchilla_of StackLaw.coefficient_names
        Bootstrap.interval Bootstrap.to_rows Listed.summary ResultTable.summary ResultTable.to_rows
        ResultTable.to_dataframe""",
    "makes a law, finds or stores one": """Formula.replace Formula.to_dict StackLaw.to_dict
        Law.save_pretrained Law.push_to_hub Law.from_pretrained
        JointLaw.published LearningRateLaw.published LearningRateLaw.named
        LearningRateLaw.load LearningRateLaw.save laws published register""",
    "is the bare formula, of coefficients that are given": """Formula.evaluate StackLaw.evaluate Formula.effective
        Formula.size_called_for Formula.columns_of_draws Formula.add_extrapolation""",
    "counts parameters, bytes or seconds, and asks no law of the loss": """LearningRateLaw.counted
        scale_out diagnose""",
    "reads, shows or fits measured runs": """load_runs fit prior forecast live backtest hold_out errors_of
        speedup promote fit_throughput fit_learning_rate published_design""",
    "describes a question": "question_schema",
    "serves; what its page and tools answer is asked below": "explore",
}
# Classes that are no laws: what they hold is computed, or measured; the hours of Throughput, by its own warnings.
NO_LAWS = """Architecture Backtest Budget ComputeOptimum Conditions Description Design Diagnosis ExtrapolationError
    FitResult Forecast HeldOut LawComparison LearningRateFit Limits LiveEstimate LiveRuns OptimalRow
    OptimalTable Plan Prior Promotion PublishedLaw RangeCheck Reached Runs ScaleOut Speedup
    Throughput TrainingCurve"""
NOT_ASKED = {*NO_LAWS.split()}
UNRANGED = {  # laws of some papers are so
    JointLaw: lambda law: law.replace(conditions=None),
    LearningRateLaw: lambda law: replace(law, n_range=None, experts_range=None),
    list: lambda names: ["abnar", "hunyuan"],
}


def public_callables() -> set[str]:
    """Functions of the package, and methods of its laws and of whatever else is not `NOT_ASKED`, by their class."""
    found = set()
    for name in scaling_law.__all__:
        value = getattr(scaling_law, name)
        if not inspect.isclass(value):
            found.add(name)
        elif name not in NOT_ASKED:
            owners = [kind for kind in value.__mro__ if kind.__module__.startswith("scaling_law")]
            members = ((kind.__name__, own, method) for kind in owners for own, method in vars(kind).items())
            found |= {
                f"{kind}.{own}"
                for kind, own, method in members
                if not own.startswith("_") and (callable(method) or isinstance(method, (classmethod, staticmethod)))
            }
    return found


def test_every_question_stands_here():
    assert not any(issubclass(getattr(scaling_law, name), (Law, LearningRateLaw)) for name in NOT_ASKED)
    asked = [name for name in QUESTIONS if " " not in name and not name.startswith("planning.")]
    stand = [*asked, *" ".join(NOT_QUESTIONS.values()).split()]
    assert len(stand) == len({*stand})
    assert public_callables() == {*stand}


def worth(ask: Callable[[], Any]) -> str:
    """ "refused", or what the answer says of itself; one that is flagged says why."""
    try:
        answer = ask()
    except ExtrapolationError:
        return "refused"
    if isinstance(answer, bool):  # a figure
        return "trusted" if answer else "flagged"
    if isinstance(answer, dict):
        found, warnings = answer["trusted"], answer["warnings"]
    else:  # an answer, or the check beside a bare array
        found, warnings = np.all(answer.trusted), answer.warnings
    assert found or warnings
    return "trusted" if found else "flagged"


@pytest.mark.parametrize("name", QUESTIONS)
def test_far_questions_are_refused_or_flagged(name):
    law, ask = QUESTIONS[name]
    assert worth(lambda: ask(law, NEAR)) == "trusted"
    assert worth(lambda: ask(law, FAR)) in ("refused", "flagged")


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_law_without_ranges_answers_and_is_not_trusted(name):
    law, ask = QUESTIONS[name]
    unranged = next(strip for kind, strip in UNRANGED.items() if isinstance(law, kind))(law)
    assert worth(lambda: ask(unranged, NEAR)) == "flagged"


SHELL: dict[str, Callable[[float], tuple[Any, ...]]] = {  # the words of each command that asks a law
    "loss": lambda c: ("--n-active", model(c)["n_active"], "--tokens", model(c)["tokens"]),
    "optimal": lambda c: ("--flops", c),
    "plan": lambda c: ("--flops", c),
    "reach": lambda c: ("--loss", reachable(JOINT, c), "--experts", 8),
    "speedup": lambda c: ("--flops", c),
    "speedup --n-active": lambda c: (model(c)["n_active"], "--experts", 8),
    "learning-rate": lambda c: ("--d-model", 1024, "--tokens", 2e10, "--experts", rated(c).experts),
    "next-runs": lambda c: ("--flops", 1e20, "--ask", f"optimum:{c:g},8", "--max-runs", 2, "--widths", "256,512"),
    "describe": lambda c: ("config.json", "--tokens", c / 1e11),
    "compare": lambda c: ("--flops", c),
}
NOT_IN_THE_SHELL = {
    "scale-out": "counts bytes and seconds; no law of the loss",
    "fit": "fits measured runs",
    "forecast": "asks laws of the runs, far from which it is not trusted: tests/scaling_law/forecasting",
    "live": "follows the curve of a run: tests/scaling_law/forecasting/test_running.py",
    "diagnose": "counts seconds; the loss of a law stands beside a measured one",
    "promote": "compares runs, and asks no law: tests/scaling_law/forecasting/test_promote.py",
    "release": "publishes",
    "explore": "serves; what its page and tools answer is asked below",
}
FORCED = ("optimal", "plan", "reach", "speedup", "speedup --n-active", "next-runs", "describe", "compare")
PROGRAMS: dict[str, Callable[[float], dict[str, Any]]] = {  # the tools of the API and of the MCP server
    "optimal": lambda c: {"flops": f"{c:g}"},
    "plan": lambda c: {"flops": f"{c:g}"},
    "loss": lambda c: model(c),
    "reach": lambda c: {"loss": reachable(JOINT, c), "experts": 8},
    "speedup": lambda c: {"flops": f"{c:g}"},
}


def shell(command: str, *words: object) -> Any:
    return CliRunner().invoke(app, [*command.split(), *map(str, words)], env={"COLUMNS": "160", "NO_COLOR": "1"})


def test_every_command_stands_here():
    commands = [name for panel in PLACES.values() for name in panel]
    asked = {words.split()[0] for words in SHELL}
    assert {*commands} == {*asked, *NOT_IN_THE_SHELL}
    assert not asked & {*NOT_IN_THE_SHELL}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What commands read: a configuration, a table of runs, a law, and laws of both kinds without ranges."""
    made = tmp_path_factory.mktemp("asked")
    (made / "config.json").write_text(json.dumps(SWITCH))
    tiny_runs().to_pandas().rename(columns={"loss": "eval_loss"}).to_csv(made / "runs.csv", index=False)
    JOINT.save_pretrained(made / "law")
    UNRANGED[JointLaw](JOINT).save_pretrained(made / "unranged")
    UNRANGED[LearningRateLaw](LearningRateLaw.published()).save(made / "rates.json")
    return made


@pytest.mark.parametrize("command", SHELL)
def test_the_shell_says_by_its_status_what_an_answer_is_worth(command, folder, monkeypatch):
    """0: as far out as backtests support, or forced; 1: answered, and not to be trusted; 2: refused."""
    monkeypatch.chdir(folder)
    own = {"learning-rate": (), "compare": ("--laws", "chinchilla,besiroglu")}
    law = own.get(command, ("--law", "law"))
    near, far = (shell(command, *SHELL[command](c), *law) for c in (NEAR, FAR))
    assert near.exit_code == 0, near.output
    assert far.exit_code in (1, 2), far.output
    if far.exit_code == 2:
        assert far.stdout == ""
        assert "beyond the limit" in far.stderr
    if command in FORCED:
        rate = ("--learning-rate", 1e-5) if command == "plan" else ()
        forced = shell(command, *SHELL[command](FAR), *law, *rate, "--force")
        assert forced.exit_code == 0, forced.output
        assert any(words in forced.output for words in ("do not act", "not trusted", "the answer is too far"))


@pytest.mark.parametrize("command", SHELL)
def test_the_shell_does_not_trust_a_law_without_ranges(command, folder, monkeypatch):
    monkeypatch.chdir(folder)
    law = {"learning-rate": ("--law", "rates.json"), "compare": ("--laws", "abnar,hunyuan")}
    noise = ("--noise", 1e-3) if command == "next-runs" else ()
    found = shell(command, *SHELL[command](NEAR), *law.get(command, ("--law", "unranged")), *noise)
    assert found.exit_code == 1, found.output
    assert found.stdout


def test_programs_are_answered_as_the_shell_is():
    laws = {"published": JOINT, "unranged": UNRANGED[JointLaw](JOINT)}
    own = {tool.__name__: tool for tool in tools(laws, reads_files=False)}
    # These are asked of a model or a log that exists: tests/scaling_law/explorer/test_programs.py.
    assert {*own} == {*PROGRAMS, "describe", "diagnose", "live"}
    for name, program in PROGRAMS.items():
        near, far = (partial(own[name], **program(c)) for c in (NEAR, FAR))
        assert worth(near) == "trusted"
        assert worth(far) in ("refused", "flagged")
        assert worth(partial(near, law="unranged")) == "flagged"


@pytest.mark.parametrize("unit", ["flops", pytest.param("hours", marks=pytest.mark.slow)])
def test_the_page_refuses_and_flags_under_every_view(unit):
    pytest.importorskip("plotly")
    from scaling_law.explorer.answer import answer
    from scaling_law.explorer.question import UNITS, VIEWS, Question

    assert unit in UNITS
    budgets = ("1e21", "1e32") if unit == "flops" else ("168", "1e13")
    for view in VIEWS:
        near, far = (Question(unit=unit, **{unit: budget}, memory="", view=view) for budget in budgets)
        assert "do not act" not in answer(near, JOINT).table
        assert "carries no fitted ranges" in answer(near, UNRANGED[JointLaw](JOINT)).table
        with pytest.raises(ExtrapolationError):
            answer(far, JOINT)
