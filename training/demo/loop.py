"""The demo: the whole loop, from a corpus to a fitted law, on this machine.

corpus -> tokenizer -> sweep -> release -> fit -> ask -> use, each with the code that a cluster runs; the hub is a
local folder. A law fitted to its runs under the public prior predicts an optimum and the longest run of the largest
MoE, which is left out of the fit. Re-run it to resume.
"""

from __future__ import annotations

import itertools
import math
import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

# This comes before any Hugging Face library is imported: the demo shows that none of it needs a network.
os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1", HF_HUB_DISABLE_PROGRESS_BARS="1")

import numpy as np
import torch
from rich.text import Text
from transformers import AutoModelForCausalLM

import modeling_switch_moe  # noqa: F401 - registers the architecture; else its code in the release is needed
from hub import RunRecord, load_records, open_store, release_runs
from hub.base.tables import Table, print_table
from hub.base.units import format_bytes, format_count, format_experts, format_flops
from scaling_law import FitResult, Law, Runs, load_runs
from scaling_law.answer.answer import span
from scaling_law.commands.release import LawOnRuns, release_law
from training.configuration.reading import read_yaml
from training.data.text import TextSource
from training.data.tokenizer import load_tokenizer, train_tokenizer
from training.demo import corpus
from training.demo.scales import Scale, fit_law
from training.run.evaluation import evaluate
from training.run.inputs import HeldOutText
from training.sweep.file import Sweep
from training.sweep.run import run_sweep, sweep_progress

PROMPT = "Returns the number of"
# The bytes, and the end of a text.
VOCABULARY = 257
PAGES = (
    "docs/studies/demo_runs.md says what such a law is worth (with a whole model left out its intervals held 42 of 42 "
    "losses), docs/studies/evidence.md what the published one is"
)
# Columns of a printed page, where no terminal is narrower.
PAGE_WIDTH = 100


class DemoError(RuntimeError):
    """A step failed; the message says which, and where its log is."""

    exit_status = 1


@dataclass(frozen=True)
class DemoFit:
    """Fit of the released runs that `where` selects, all but `run`, and its law with a bootstrap's draws."""

    fit: FitResult
    law: Law
    where: str
    run: RunRecord
    # Of that run, in a sentence.
    prediction: str


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
        self._is_resumed = (folder / "runs").exists()

    def run(self) -> None:
        """Run all steps, then say in ten lines what came of them."""
        start = time.monotonic()
        facts: dict[str, str] = {}
        with self.step("Corpus", "docstrings of installed packages"):
            facts["corpus"] = corpus.build(self._corpus, max_bytes=self.scale.corpus_bytes)
        with self.step("Tokenizer", "every byte is a token"):
            self.tokenizer()
        with self.step("Sweep", "dense and Switch-MoE models"):
            sweep = self.sweep()
        with self.step("Release", "checkpoints and records, as on the Hub"):
            released, text = self.release(sweep)
        facts["trained"] = describe_runs(released)
        facts["released"] = text
        with self.step("Fit", "the joint law of all runs but one"):
            demo_fit = self.fit(sweep, released)
        facts["law"] = demo_fit.fit.verdict
        facts["predicts"] = demo_fit.prediction
        with self.step("Ask", "the best model for a budget"):
            facts["answers"] = self.ask(demo_fit)
        with self.step("Use", "the best checkpoint, in transformers"):
            facts["loads"], facts["generates"] = self.use(sweep, released)
        facts["pages"] = PAGES
        total = format_minutes(time.monotonic() - start)
        show(Table((), list(facts.items()), title=f"── The whole loop works on this machine: {total} ──"))
        print("\nTo go on:", *self.commands(sweep, demo_fit), sep="\n")

    @contextmanager
    def step(self, name: str, description: str) -> Iterator[None]:
        """Announce a step with its number and the time left, unless the demo is resumed; say how long it took."""
        names = list(self.scale.seconds)
        index = names.index(name)
        estimate = ""
        if not self._is_resumed:
            seconds = sum(list(self.scale.seconds.values())[index:])
            estimate = f"; about {format_minutes(seconds)} left"
        # A text of rich is broken between words.
        show(Text(f"── {index + 1} of {len(names)}: {name} ── {description}{estimate}"))
        start = time.monotonic()
        yield
        print(f"{time.monotonic() - start:.0f} s\n")

    def tokenizer(self) -> None:
        """Make the tokenizer, unless that is done."""
        if not (self._tokenizer / "tokenizer.json").exists():
            documents = TextSource(str(self._corpus)).documents()
            train_tokenizer(documents, VOCABULARY, self._tokenizer, progress=False)

    def sweep(self) -> Sweep:
        """Train unfinished runs. Raises DemoError if a run failed."""
        file = resources.files("training") / "configs" / self.scale.sweep
        values = read_yaml(str(file), "demo")
        values["base"]["run"]["seed"] = self.seed
        values["base"]["data"].update(
            dataset=str(self._corpus), tokenizer=str(self._tokenizer), cache_dir=str(self.folder / "tokens")
        )
        sweep = Sweep.from_dict(values, self.folder / "runs")
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

    def release(self, sweep: Sweep) -> tuple[list[RunRecord], str]:
        """Push every finished run to the local hub, then the index, and read it back; pushed runs are skipped.

        Returns the records, and what was released in a sentence. Raises DemoError for an index without some run.
        """
        store = open_store(self.folder / "hub")
        folders = itertools.chain(*(run.finished() for run in sweep.runs))
        finished_runs = [(folder, RunRecord.load(folder)) for folder in folders]
        result = release_runs(store, finished_runs)
        if result.failed:
            raise result.failed
        records = result.records
        repositories = {record.repo for record in records}
        weights = (self.folder / "hub").rglob("*.safetensors")
        # The branch `main` has copies.
        size = sum(path.stat().st_size for path in weights if path.parent.name != "main")
        index = load_records(self.index(sweep))
        missing = {record.run_id for record in records} - {record.run_id for record in index}
        if missing:
            raise DemoError(f"the index {self.index(sweep)} lacks {', '.join(sorted(missing))}")
        text = f"{len(records)} revisions in {len(repositories)} model repositories ({format_bytes(size)} of weights)"
        return records, f"{text}; their index was read back with all of them"

    def index(self, sweep: Sweep) -> Path:
        """Return the folder of the released index, which `load_runs` and `scaling-law fit` read."""
        return self.folder / "hub" / "datasets" / f"{sweep.name}-runs" / "main"

    def fit(self, sweep: Sweep, released: Sequence[RunRecord]) -> DemoFit:
        """Fit without the longest run of the largest MoE, predict it, and release the law."""
        scale = self.scale
        run = max(released, key=lambda record: (record.experts, record.n_active, record.tokens))
        where = f"{scale.where}, run_id != {run.run_id}"
        runs = load_runs(self.index(sweep), where=where)
        result = fit_law(runs)
        bootstrap = result.bootstrap(scale.draws, seed=0, progress=True)
        law = bootstrap.law
        law.save_pretrained(self.folder / "law")
        release_law(open_store(self.folder / "hub"), sweep.name, LawOnRuns(law, runs, fitted=True))
        size = (run.n_active, run.tokens, run.experts)
        interval = bootstrap.prediction_interval(*size, kind="prediction")
        return DemoFit(result, law, where, run, describe_prediction(run, float(law.loss(*size)), interval, runs))

    def ask(self, demo_fit: DemoFit) -> str:
        """Ask for the best model for a budget inside the range of the runs, and return the answer."""
        experts = sorted({*demo_fit.fit.runs.experts.tolist()})
        flops = format_flops(self.scale.flops)
        try:
            return f"{flops} FLOPs: {demo_fit.law.optimal(self.scale.flops, experts=experts).verdict}"
        except ValueError as error:
            # A law of a few runs need not have an optimum.
            return f"{flops} FLOPs: no answer, {error}"

    def use(self, sweep: Sweep, released: Sequence[RunRecord]) -> tuple[str, str]:
        """Load the best released checkpoint as a user would, measure its loss again, and let it write.

        Returns a sentence and a text. Raises DemoError if the loss of the reloaded model is not the recorded one.
        """
        # The branch `main` of a model has its longest run.
        longest = {str(record.repo): record for record in sorted(released, key=lambda record: record.tokens)}
        best = min(longest.values(), key=lambda record: record.eval_loss or math.inf)
        folder = self.folder / "hub" / "models" / str(best.repo) / "main"
        model = AutoModelForCausalLM.from_pretrained(folder)
        tokenizer = load_tokenizer(str(folder))
        arguments = next(run.arguments for run in sweep.runs if run.architecture.d_model == best.d_model)
        sequences = HeldOutText(arguments, tokenizer).wait()
        loss = evaluate(model, sequences, arguments.run.micro_batch_sequences, torch.device("cpu")).loss
        if abs(loss - (best.eval_loss or math.inf)) > 1e-5:
            raise DemoError(f"the reloaded model has loss {loss}, its record says {best.eval_loss}")
        torch.manual_seed(0)
        prompt = tokenizer(PROMPT, return_tensors="pt")
        # transformers annotates `generate` with a protocol that its own models do not fulfil.
        ids = model.generate(  # type: ignore[misc]
            **prompt, max_new_tokens=80, do_sample=True, top_p=0.9, temperature=0.8
        )
        text = str(tokenizer.decode(ids[0], skip_special_tokens=True))
        return f"{folder}: held-out loss {loss:.4f} nats per byte, as recorded", " ".join(text.split())

    def commands(self, sweep: Sweep, demo_fit: DemoFit) -> list[str]:
        """Write a question to the law and the fit again, as a shell takes them."""
        numbers = sorted({run.arguments.model.experts for run in sweep.runs})
        experts = ["--experts", ",".join(map(str, numbers))]
        return [
            scaling_law("optimal", "--law", self.folder / "law", "--flops", format_flops(self.scale.flops), *experts),
            scaling_law("fit", self.index(sweep), "--prior", "public", "--where", demo_fit.where),
        ]


def describe_runs(records: Sequence[RunRecord]) -> str:
    """Say in a sentence which models were trained, on how many bytes."""
    experts = " or ".join(format_experts(sorted({record.experts for record in records})))
    models = {record.repo for record in records}
    sizes = span([record.n_active for record in records], format_count)
    tokens = span([record.tokens for record in records], format_count)
    return f"{len(records)} runs of {len(models)} models with {experts} experts: {sizes} active on {tokens} bytes"


def describe_prediction(run: RunRecord, predicted: float, interval: tuple[float, float], runs: Runs) -> str:
    """Say what the law predicts of a run that it was not fitted on, what was measured, and what a regression says.

    The regression is of ln L on ln N, ln D and ln E.
    """
    logarithms = np.log([np.full_like(runs.loss, math.e), runs.n_active, runs.tokens, runs.experts])
    slopes = np.linalg.lstsq(logarithms.T, np.log(runs.loss), rcond=None)[0]
    regression = float(np.exp(slopes @ np.log([math.e, run.n_active, run.tokens, run.experts])))
    loss = float(run.eval_loss or math.nan)
    nearer = "the law" if abs(predicted - loss) < abs(regression - loss) else "the regression"
    low, high = interval
    return (
        f"the longest run of the largest MoE, left out: {predicted:.3f} ({low:.3f} to {high:.3f}), measured "
        f"{loss:.3f}; a regression on the logarithms says {regression:.3f}: {nearer} is nearer"
    )


def show(renderable: Any) -> None:
    """Print a table or a text on a page of `PAGE_WIDTH` columns, or in a narrower terminal."""
    print_table(renderable, PAGE_WIDTH)


def format_minutes(seconds: float) -> str:
    """Format an estimate: 40 seconds, 1 minute, 6 minutes."""
    if seconds < 60:
        return f"{max(10, 10 * round(seconds / 10))} seconds"
    minutes = round(seconds / 60)
    return f"{minutes} minute{'s' if minutes > 1 else ''}"


def scaling_law(*words: Any) -> str:
    """Write a command of `scaling-law` by the path of this Python: no PATH need lead to it."""
    return shlex.join([os.path.relpath(sys.executable), "-m", "scaling_law", *map(str, words)])
