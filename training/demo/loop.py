"""The demo: the whole loop, from a corpus to a fitted law, on this machine.

corpus -> tokenizer -> sweep -> release -> fit -> ask -> use, each with the code that a cluster runs; the hub is a
local folder. A law fitted to its runs, with the coefficients that they cannot tell kept as published, predicts an
optimum and the longest run of the largest MoE, which is left out of the fit. Re-run it to resume.
"""

from __future__ import annotations

import itertools
import math
import os
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

# This comes before any Hugging Face library is imported: the demo shows that none of it needs a network.
os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1", HF_HUB_DISABLE_PROGRESS_BARS="1")

import torch
from rich.text import Text
from transformers import AutoModelForCausalLM

import modeling_switch_moe  # noqa: F401 - registers the architecture; else its code in the release is needed
from hub import RunRecord, open_store, release_runs
from hub.base.tables import print_table
from hub.base.units import format_bytes, format_flops
from hub.release.cards import loading_code
from scaling_law import FitResult, Law, load_runs
from scaling_law.answer.columns import tabulate
from scaling_law.commands.release import LawOnRuns, release_law
from training.configuration.reading import read_yaml
from training.data.text import TextSource
from training.data.tokenizer import load_tokenizer, train_tokenizer
from training.demo import corpus
from training.demo.scales import Scale
from training.run.evaluation import evaluate
from training.run.inputs import HeldOutText
from training.sweep.file import Sweep
from training.sweep.plan import plan_sweep
from training.sweep.run import run_sweep, sweep_progress

PROMPT = "Returns the number of"
# The bytes, and the end of a text.
VOCABULARY = 257
# Columns of a printed page, where no terminal is narrower.
PAGE_WIDTH = 100
# The expected times weigh as much as so many seconds of steps that are done: a first, short step says little.
TRUSTED_SECONDS = 60.0


class DemoError(RuntimeError):
    """A step failed; the message says which, and where its log is."""

    exit_status = 1


@dataclass
class Steps:
    """The steps of a demo: those done with their seconds, and how long the others should take.

    A machine that has been slower than the one `expected` was measured on is taken to stay so, the surer the more
    seconds have passed.
    """

    expected: Mapping[str, float]
    resumed: bool
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str, description: str) -> Iterator[None]:
        """Announce a step with its number and the time left, and time it."""
        number = len(self.seconds) + 1
        estimate = ""
        if not self.resumed:
            estimate = f"; about {format_minutes(self.seconds_left())} left"
        say(f"── {number} of {len(self.expected)}: {name} ── {description}{estimate}")
        start = time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - start
        print(f"{self.seconds[name]:.0f} s\n")

    def seconds_left(self) -> float:
        """Estimate the seconds of the steps that are not done."""
        expected_done = sum(self.expected[name] for name in self.seconds)
        expected_left = sum(self.expected.values()) - expected_done
        slowdown = (sum(self.seconds.values()) + TRUSTED_SECONDS) / (expected_done + TRUSTED_SECONDS)
        return expected_left * max(slowdown, 1.0)


@dataclass(frozen=True)
class DemoFit:
    """Fit of the released runs that `where` selects, all but `run`, and its law with a bootstrap's draws."""

    fit: FitResult
    law: Law
    where: str
    run: RunRecord


class Demo:
    """The steps in their order; each leaves its result in a folder of its own under `folder`."""

    def __init__(self, folder: Path, scale: Scale, workers: int, seed: int = 0) -> None:
        self.folder = folder
        self.scale = scale
        self.workers = workers
        self.seed = seed
        # The run records call the dataset and the tokenizer by the names of these two folders.
        self._corpus = folder / "installed-documentation"
        self._tokenizer = folder / "bytes"

    def run(self) -> None:
        """Run all steps, then print their results."""
        steps = Steps(self.scale.seconds, resumed=(self.folder / "runs").exists())
        step = steps.step
        with step("Corpus", "docstrings of installed packages"):
            say(corpus.build(self._corpus, max_bytes=self.scale.corpus_bytes))
        with step("Tokenizer", "every byte is a token"):
            self.tokenizer()
        with step("Sweep", "dense and Switch-MoE models"):
            sweep = self.sweep()
        with step("Release", "checkpoints and records, as on the Hub"):
            released = self.release(sweep)
        with step("Fit", "the joint law of all runs but one"):
            demo_fit = self.fit(sweep, released)
        with step("Ask", "the best model for a budget"):
            self.ask(demo_fit)
        with step("Use", "the best checkpoint, in transformers"):
            model = self.use(sweep, released)
        print("── The whole loop is done ──")
        times = [f"{name.lower()} {seconds:.0f} s" for name, seconds in steps.seconds.items()]
        say("Time: " + ", ".join(times))
        print("\nTo go on, in a shell, from this folder:\n")
        print(*self.commands(sweep, demo_fit), sep="\n\n")
        print("\nTo load the best model, in any Python that has transformers (this runs the code of the release):\n")
        print(loading_code(str(model)))

    def tokenizer(self) -> None:
        """Make the tokenizer, unless that is done."""
        if not (self._tokenizer / "tokenizer.json").exists():
            documents = TextSource(str(self._corpus)).documents()
            train_tokenizer(documents, VOCABULARY, self._tokenizer, progress=False)
        held_out = TextSource(str(self._corpus), split="validation")
        text = next(held_out.documents())[:40]
        tokenizer = load_tokenizer(str(self._tokenizer))
        ids = tokenizer(text)["input_ids"]
        first_ids = " ".join(map(str, ids[:12]))
        say(f"{text!r} is {len(ids)} tokens: {first_ids} …")

    def sweep(self) -> Sweep:
        """Train unfinished runs. Raises DemoError if a run failed."""
        file = resources.files("training") / "configs" / self.scale.sweep
        values = read_yaml(str(file), "demo")
        values["base"]["run"]["seed"] = self.seed
        values["base"]["data"].update(
            dataset=str(self._corpus), tokenizer=str(self._tokenizer), cache_dir=str(self.folder / "tokens")
        )
        sweep = Sweep.from_dict(values, self.folder / "runs")
        show(plan_sweep(sweep))
        with sweep_progress(sweep) as watch:
            outcome = run_sweep(sweep, self.workers, watch)
        if outcome.failed:
            lines = ["training failed; re-run this command to resume"]
            lines += [f"{name}: {failure}" for name, failure in outcome.failed.items()]
            raise DemoError("\n  ".join(lines))
        if outcome.elsewhere:
            names = ", ".join(outcome.elsewhere)
            raise DemoError(f"another process trains {names}; re-run this when it is done")
        return sweep

    def release(self, sweep: Sweep) -> list[RunRecord]:
        """Push every finished run to the local hub, then the index; pushed runs are skipped."""
        store = open_store(self.folder / "hub")
        folders = itertools.chain(*(run.finished() for run in sweep.runs))
        finished_runs = [(folder, RunRecord.load(folder)) for folder in folders]
        result = release_runs(store, finished_runs)
        if result.failed:
            raise result.failed
        repositories = {record.repo for record in result.records}
        weights = (self.folder / "hub").rglob("*.safetensors")
        # The branch `main` has copies.
        size = sum(path.stat().st_size for path in weights if path.parent.name != "main")
        say(
            f"{len(result.records)} revisions in {len(repositories)} model repositories ({format_bytes(size)} of "
            f"weights) and the index {result.indexes[sweep.name].repo}, under {self.folder / 'hub'}"
        )
        rows = []
        for record in result.records:
            sizes = {name: getattr(record, name) for name in ("d_model", "experts", "n_active", "n_total", "tokens")}
            rows.append({**sizes, "loss": record.eval_loss})
        show(tabulate(rows))
        return result.records

    def index(self, sweep: Sweep) -> Path:
        """Return the folder of the released index, which `load_runs` and `scaling-law fit` read."""
        return self.folder / "hub" / "datasets" / f"{sweep.name}-runs" / "main"

    def fit(self, sweep: Sweep, released: Sequence[RunRecord]) -> DemoFit:
        """Fit without the longest run of the largest MoE, predict it, and release the law."""
        scale = self.scale
        run = max(released, key=lambda record: (record.experts, record.n_active, record.tokens))
        where = f"{scale.where}, run_id != {run.run_id}"
        runs = load_runs(self.index(sweep), where=where)
        result = scale.fit_law(runs)
        show(result)
        bootstrap = result.bootstrap(scale.draws, seed=0, progress=True)
        law = bootstrap.law
        law.save_pretrained(self.folder / "law")
        release_law(open_store(self.folder / "hub"), sweep.name, LawOnRuns(law, runs, fitted=True))
        size = (run.n_active, run.tokens, run.experts)
        low, high = bootstrap.prediction_interval(*size, kind="prediction")
        predicted = f"{float(law.loss(*size)):.3f} ({low:.3f} to {high:.3f})"
        say(f"{run.run_id}, left out of the fit: predicted loss {predicted}, measured {run.eval_loss:.3f}")
        return DemoFit(result, law, where, run)

    def ask(self, demo_fit: DemoFit) -> None:
        """Ask for the best model for a budget inside the range of the runs, and print it."""
        experts = sorted({*demo_fit.fit.runs.experts.tolist()})
        try:
            answer = demo_fit.law.optimal(self.scale.flops, experts=experts)
        except ValueError as error:
            # A law of a few runs need not have an optimum.
            say(f"This law has no answer for {format_flops(self.scale.flops)} FLOPs: {error}")
        else:
            show(answer)

    def use(self, sweep: Sweep, released: Sequence[RunRecord]) -> Path:
        """Load the best released checkpoint as a user would, let it write, and measure its loss again.

        Returns its folder. Raises DemoError if the loss of the reloaded model is not the recorded one.
        """
        # The branch `main` of a model has its longest run.
        longest = {str(record.repo): record for record in sorted(released, key=lambda record: record.tokens)}
        best = min(longest.values(), key=lambda record: record.eval_loss or math.inf)
        folder = self.folder / "hub" / "models" / str(best.repo) / "main"
        model = AutoModelForCausalLM.from_pretrained(folder)
        tokenizer = load_tokenizer(str(folder))
        torch.manual_seed(0)
        prompt = tokenizer(PROMPT, return_tensors="pt")
        # transformers annotates `generate` with a protocol that its own models do not fulfil.
        ids = model.generate(  # type: ignore[misc]
            **prompt, max_new_tokens=200, do_sample=True, top_p=0.9, temperature=0.8
        )
        text = str(tokenizer.decode(ids[0], skip_special_tokens=True))
        print(folder)
        say(f"> {' '.join(text.split())}")
        arguments = next(run.arguments for run in sweep.runs if run.architecture.d_model == best.d_model)
        sequences = HeldOutText(arguments, tokenizer).wait()
        loss = evaluate(model, sequences, arguments.run.micro_batch_sequences, torch.device("cpu")).loss
        say(f"held-out loss {loss:.6f}, recorded {best.eval_loss:.6f} nats per byte")
        if abs(loss - (best.eval_loss or math.inf)) > 1e-5:
            raise DemoError(f"the reloaded model has loss {loss}, its record says {best.eval_loss}")
        return folder

    def commands(self, sweep: Sweep, demo_fit: DemoFit) -> list[str]:
        """Write questions to the law, the fit and the published law, as a shell takes them."""
        run = demo_fit.run
        law = self.folder / "law"
        numbers = sorted({run.arguments.model.experts for run in sweep.runs})
        experts = ["--experts", ",".join(map(str, numbers))]
        size = ["--n-active", run.n_active, "--tokens", run.tokens]
        flops = format_flops(self.scale.flops)
        options = ["--where", demo_fit.where]
        for name, value in self.scale.fixed.items():
            options += ["--fix", f"{name}={value:.5g}"]
        if not self.scale.as_published:
            options += ["--prior", "published"]
        return [
            scaling_law("loss", "--law", law, *size, *experts),
            scaling_law("optimal", "--law", law, "--flops", flops, *experts),
            scaling_law("fit", self.index(sweep), *options),
            scaling_law("optimal", "--flops", "1e22", "--memory", "80GB", "--kv-tokens", "16k"),
        ]


def show(renderable: Any) -> None:
    """Print a table or a text on a page of `PAGE_WIDTH` columns, or in a narrower terminal."""
    print_table(renderable, PAGE_WIDTH)


def say(text: str) -> None:
    """Print prose, broken between words."""
    show(Text(text))


def format_minutes(seconds: float) -> str:
    """Format a time left: 40 seconds, 1 minute, 6 minutes."""
    if seconds < 60:
        return f"{max(10, 10 * round(seconds / 10))} seconds"
    minutes = round(seconds / 60)
    return f"{minutes} minute{'s' if minutes > 1 else ''}"


def scaling_law(*words: Any) -> str:
    """Write a command of `scaling-law` by the path of this Python: no PATH need lead to it."""
    return shlex.join([os.path.relpath(sys.executable), "-m", "scaling_law", *map(str, words)])
