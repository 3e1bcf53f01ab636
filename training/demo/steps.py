"""The steps of the demo.

corpus -> tokenizer -> sweep -> release -> fit -> query -> use, each with the code that a cluster runs. Nothing is
downloaded: the text is the documentation of the installed packages, and the hub is a local folder. Starting it again
goes on where it stopped.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

import yaml
from rich.console import Console
from rich.panel import Panel

from hub import RunRecord, open_store, release_runs
from scaling_law import JointLaw, OptimalTable, fit, load_runs
from scaling_law.commands.release import JudgedLaw, release_law
from training import corpus as documentation
from training.corpus import CorpusReport
from training.data.text import TextSource
from training.data.tokenizer import load_tokenizer, train_tokenizer
from training.demo import report as demo_report
from training.sweep.file import Sweep
from training.sweep.plan import plan_sweep
from training.sweep.runner import run_sweep, sweep_progress

# The question of step 6: an answer for one H100 that serves 16k tokens of context in bf16.
QUESTION = {"flops": 1e22, "max_memory_bytes": 80e9, "kv_cache_tokens": 16384}
PROMPT = "Returns the number of"


@dataclass(frozen=True)
class Settings:
    """What the full and the fast demo differ in."""

    sweep_file: str  # in training/configs
    corpus_bytes: int | None  # of text; None for all there is
    vocab_size: int
    bootstrap_resamples: int


FULL = Settings("demo.yaml", corpus_bytes=None, vocab_size=1024, bootstrap_resamples=500)
FAST = Settings("demo-fast.yaml", corpus_bytes=4_000_000, vocab_size=1024, bootstrap_resamples=100)


class DemoError(RuntimeError):
    """A step did not do its work; the message says which and where to look."""


@dataclass
class Demo:
    """The steps in their order; each leaves its result in a folder of its own under `folder`."""

    folder: Path
    settings: Settings
    workers: int
    console: Console
    seconds: dict[str, float] = field(default_factory=dict)

    def run(self) -> None:
        """All steps, then the summary."""
        with self._step("1 Corpus", "the documentation of the installed packages, in the columns of FineWeb-Edu"):
            corpus = self.corpus()
        with self._step("2 Tokenizer", f"a byte-level BPE of {self.settings.vocab_size:,} tokens, trained on it"):
            self.tokenizer()
        with self._step("3 Sweep", "dense and Switch-MoE models: each size one trunk, with decay branches"):
            sweep = self.sweep()
        with self._step("4 Release", "checkpoints, cards and run records, in the layout of a release on the Hub"):
            released = self.release(sweep)
        with self._step("5 Fit", "the joint law, from the records of the release"):
            fitted = self.fit(sweep)
        with self._step("6 Query", "what the paper's law buys for 1e22 FLOPs and an 80 GB GPU"):
            answer = self.query(fitted)
        with self._step("7 Use", "a released checkpoint, loaded and asked as any model of transformers"):
            sample = self.use(sweep, released)
        self.console.print(demo_report.summary(self.seconds, corpus, released, fitted, answer, sample, self.folder))
        demo_report.show_loading(self.console, sample)

    # The names of these two folders are what the run records call the data set and the tokenizer.
    @property
    def _corpus(self) -> Path:
        return self.folder / "installed-documentation"

    @property
    def _tokenizer(self) -> Path:
        return self.folder / f"byte-level-bpe-{self.settings.vocab_size}"

    @contextmanager
    def _step(self, name: str, what: str) -> Iterator[None]:
        self.console.rule(f"[bold]{name}[/] — {what}", align="left")
        started = time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - started
        self.console.print(f"[dim]{self.seconds[name]:.0f} s[/]\n")

    def corpus(self) -> CorpusReport:
        """Build the corpus, or take the one that is there."""
        report = documentation.build(self._corpus, max_bytes=self.settings.corpus_bytes)
        self.console.print(str(report))
        return report

    def tokenizer(self) -> None:
        """Train the tokenizer, unless that is done."""
        folder = self._tokenizer
        if not (folder / "tokenizer.json").exists():
            source = TextSource(str(self._corpus))
            train_tokenizer(source.documents(), self.settings.vocab_size, folder, progress=False)
        tokenizer = load_tokenizer(str(folder))
        text = next(TextSource(str(self._corpus), split="validation").documents())[:5000]
        ids = tokenizer(text)["input_ids"]
        self.console.print(
            f"{len(text.encode()) / len(ids):.2f} bytes per token, such as "
            f"{'|'.join(tokenizer.decode([i]) for i in ids[:14])!r}",
            markup=False,
        )

    def sweep(self) -> Sweep:
        """Train what is not trained yet.

        Raises:
            DemoError: a run failed; the others are finished.
        """
        text = (resources.files("training") / "configs" / self.settings.sweep_file).read_text(encoding="utf-8")
        values = yaml.safe_load(text)
        values["base"]["data"] |= {
            "dataset": str(self._corpus),
            "tokenizer": str(self._tokenizer),
            "cache_dir": str(self.folder / "tokens"),
        }
        sweep = Sweep.from_dict(values, self.folder / "runs")
        self.console.print(plan_sweep(sweep))
        with sweep_progress(sweep) as watch:
            outcome = run_sweep(sweep, self.workers, watch)
        if outcome.failed:
            lines = [f"{name}: exit status {status}, see {log}" for name, (status, log) in outcome.failed.items()]
            raise DemoError("training failed; start again to go on\n  " + "\n  ".join(lines))
        records = [RunRecord.load(folder) for run in sweep.runs for folder in run.finished()]
        self.console.print(demo_report.runs_table(records))
        return sweep

    def release(self, sweep: Sweep) -> list[RunRecord]:
        """Push every finished run to the local hub, then the index; what is there already is left alone."""
        store = open_store(self.folder / "hub")
        folders = [folder for run in sweep.runs for folder in run.finished()]
        with self.console.status("releasing"):
            result = release_runs(store, [(folder, RunRecord.load(folder)) for folder in folders])
        if result.failed:
            raise result.failed
        released, index = result.records, result.indexes[sweep.name]
        weights = (self.folder / "hub").rglob("*.safetensors")
        size = sum(path.stat().st_size for path in weights if path.parent.name != "main")  # which has copies
        repos = len({record.repo for record in released})
        self.console.print(
            f"{len(released)} revisions in {repos} model repositories ({size / 1e6:.0f} MB of weights) and the index "
            f"{index.repo} (runs.jsonl, runs.parquet, README.md), under {self.folder / 'hub'}",
            highlight=False,
        )
        return released

    def fit(self, sweep: Sweep) -> demo_report.Fitted:
        """Fit the joint law to the released records, with a bootstrap over trunks, and release the law with them."""
        runs = load_runs(self.folder / "hub" / "datasets" / f"{sweep.name}-runs" / "main", loss="eval_loss")
        result = fit(runs, law="joint")
        bootstrap = result.bootstrap(self.settings.bootstrap_resamples, seed=0)
        self.console.print(result.summary())
        fitted = demo_report.Fitted(runs, result, bootstrap, demo_report.extrapolate(runs))
        trust = demo_report.trust(fitted)
        self.console.print(Panel(trust, title="How far can this fit be trusted?", border_style="yellow"))
        bootstrap.law.save_pretrained(self.folder / "law")
        release_law(open_store(self.folder / "hub"), sweep.name, JudgedLaw(bootstrap.law, runs, fitted=True))
        return fitted

    def query(self, fitted: demo_report.Fitted) -> OptimalTable:
        """Ask the published law, and draw the figures."""
        law = JointLaw.published()
        table = law.optimal(**QUESTION, integral=True)
        self.console.print(table)
        paths = demo_report.figures(self.folder / "figures", law, fitted.result)
        self.console.print("Figures: " + ", ".join(str(path) for path in paths), highlight=False)
        return table

    def use(self, sweep: Sweep, released: list[RunRecord]) -> demo_report.Sample:
        """Load the best released checkpoint as a user would, let it write, and measure its loss again.

        Raises:
            DemoError: the reloaded model's loss is not the recorded one.
        """
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        import modeling_switch_moe  # noqa: F401 (registers the architecture; else its code in the release is needed)
        from training.run.evaluation import evaluate
        from training.run.inputs import held_out

        best = min(released, key=lambda record: record.eval_loss)
        folder = self.folder / "hub" / "models" / best.repo / best.branch
        model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
        prompt = tokenizer(PROMPT, return_tensors="pt")
        torch.manual_seed(0)
        written = model.generate(**prompt, max_new_tokens=60, do_sample=True, top_p=0.9, temperature=0.8)
        text = tokenizer.decode(written[0], skip_special_tokens=True)
        arguments = next(r.arguments for r in sweep.runs if r.arguments.model.d_model == best.d_model)
        sequences = held_out(arguments, tokenizer).wait()
        loss = evaluate(model, sequences, arguments.run.micro_batch_sequences, torch.device("cpu")).loss
        self.console.print(f"{folder}\n> {text}", markup=False, highlight=False)
        self.console.print(f"held-out loss {loss:.6f}, recorded {best.eval_loss:.6f} nats per token")
        if abs(loss - best.eval_loss) > 1e-5:
            raise DemoError(f"the reloaded model has loss {loss}, its record says {best.eval_loss}")
        return demo_report.Sample(best, folder, text, loss)
