"""The steps of the demo.

corpus -> tokenizer -> sweep -> release -> fit -> query -> use, each with the code that a cluster runs. Nothing is
downloaded: the text is the documentation of the installed packages, and the hub is a local folder. Starting it again
resumes where it stopped.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

import modeling_switch_moe  # noqa: F401 - registers the architecture; else its code in the release is needed
from hub import RunRecord, open_store, release_runs
from hub.plain.tables import Table, print_table
from hub.plain.units import format_bytes, format_count
from hub.release.cards import loading_code
from scaling_law import FitResult, JointLaw, fit, load_runs
from scaling_law.commands.release import LawOnRuns, release_law
from scaling_law.figures import drawing, law_figures
from training import corpus
from training.data.text import TextSource
from training.data.tokenizer import load_tokenizer, train_tokenizer
from training.demo import report
from training.run.evaluation import evaluate
from training.run.inputs import held_out
from training.sweep.file import Sweep
from training.sweep.plan import plan_sweep
from training.sweep.runner import run_sweep, sweep_progress

# The question of step 6: an answer for one H100 that serves 16k tokens of context in bf16.
QUESTION = {"flops": 1e22, "max_memory_bytes": 80e9, "kv_cache_tokens": 16384}
PROMPT = "Returns the number of"
VOCABULARY = 1024


@dataclass(frozen=True)
class Settings:
    """What the full and the fast demo differ in."""

    sweep_file: str  # in training/configs
    corpus_bytes: int | None  # of text; None for all there is
    bootstrap_resamples: int


FULL = Settings("demo.yaml", corpus_bytes=None, bootstrap_resamples=500)
FAST = Settings("demo-fast.yaml", corpus_bytes=4_000_000, bootstrap_resamples=100)


class DemoError(RuntimeError):
    """A step failed; the message says which, and where its log is."""

    exit_status = 1


@dataclass
class Demo:
    """The steps in their order; each leaves its result in a folder of its own under `folder`."""

    folder: Path
    settings: Settings
    workers: int
    seconds: dict[str, float] = field(default_factory=dict)

    def run(self) -> None:
        """All steps, then the summary."""
        with self._step("1 Corpus", "the documentation of the installed packages, in the columns of FineWeb-Edu"):
            text = corpus.build(self._corpus, max_bytes=self.settings.corpus_bytes)
            print(text)
        with self._step("2 Tokenizer", f"a byte-level BPE of {VOCABULARY:,} tokens, trained on it"):
            self.tokenizer()
        with self._step("3 Sweep", "dense and Switch-MoE models: each size one trunk, with decay branches"):
            sweep = self.sweep()
        with self._step("4 Release", "checkpoints, cards and run records, in the layout of a release on the Hub"):
            released = self.release(sweep)
        with self._step("5 Fit", "the joint law, from the records of the release"):
            result, law = self.fit(sweep)
        with self._step("6 Query", "what the paper's law buys for 1e22 FLOPs and an 80 GB GPU"):
            paper = self.query(result)
        with self._step("7 Use", "a released checkpoint, loaded and asked as any model of transformers"):
            model = self.use(sweep, released)
        trunks = {record.parent_run_id for record in released}
        tokens = sum(r.tokens - r.branch_point_tokens for r in released)
        tokens += sum(max(r.branch_point_tokens for r in released if r.parent_run_id == trunk) for trunk in trunks)
        command, own = report.own_question(law, f"{self.folder}/law")
        rows = [
            ("corpus", str(text)),
            ("sweep", f"{len(released)} runs on {len(trunks)} trunks, {format_count(tokens)} tokens trained"),
            ("losses", report.loss_range(released)),
            ("our fit", f"RMSE {result.rmse:.4f} nats; {own}"),
            ("paper's law", paper),
            ("time", ", ".join(f"{name.split()[1].lower()} {spent:.0f} s" for name, spent in self.seconds.items())),
            ("figures", f"{self.folder}/figures"),
            ("release", f"{self.folder}/hub, as it lies on the Hub"),
            ("refit", f"scaling-law fit {self.folder}/hub/datasets/{sweep.name}-runs/main"),
            ("ask", command),
            ("", "scaling-law optimal --flops 1e22 --memory 80GB --kv-tokens 16k"),
        ]
        print_table(Table((), rows, title="The whole loop is done"))
        print("\nTo load the model in any Python that has transformers (this runs the code of the release):\n")
        print(loading_code(str(model.resolve())))

    # The names of these two folders are what the run records call the dataset and the tokenizer.
    @property
    def _corpus(self) -> Path:
        return self.folder / "installed-documentation"

    @property
    def _tokenizer(self) -> Path:
        return self.folder / f"byte-level-bpe-{VOCABULARY}"

    @contextmanager
    def _step(self, name: str, what: str) -> Iterator[None]:
        print(f"── {name} ── {what}")
        started = time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - started
        print(f"{self.seconds[name]:.0f} s\n")

    def tokenizer(self) -> None:
        """Train the tokenizer, unless that is done."""
        if not (self._tokenizer / "tokenizer.json").exists():
            train_tokenizer(TextSource(str(self._corpus)).documents(), VOCABULARY, self._tokenizer, progress=False)
        tokenizer = load_tokenizer(str(self._tokenizer))
        text = next(TextSource(str(self._corpus), split="validation").documents())[:5000]
        ids = tokenizer(text)["input_ids"]
        pieces = "|".join(tokenizer.decode([i]) for i in ids[:14])
        print(f"{len(text.encode()) / len(ids):.2f} bytes per token, such as {pieces!r}")

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
        print_table(plan_sweep(sweep))
        with sweep_progress(sweep) as watch:
            outcome = run_sweep(sweep, self.workers, watch)
        if outcome.failed:
            lines = [f"{name}: exit status {status}, see {log}" for name, (status, log) in outcome.failed.items()]
            raise DemoError("training failed; run the same command to resume\n  " + "\n  ".join(lines))
        print_table(report.runs_table([RunRecord.load(folder) for run in sweep.runs for folder in run.finished()]))
        return sweep

    def release(self, sweep: Sweep) -> list[RunRecord]:
        """Push every finished run to the local hub, then the index; what is there already is left alone."""
        store = open_store(self.folder / "hub")
        folders = [folder for run in sweep.runs for folder in run.finished()]
        result = release_runs(store, [(folder, RunRecord.load(folder)) for folder in folders])
        if result.failed:
            raise result.failed
        released, index = result.records, result.indexes[sweep.name]
        weights = (self.folder / "hub").rglob("*.safetensors")
        size = sum(path.stat().st_size for path in weights if path.parent.name != "main")  # which has copies
        print(
            f"{len(released)} revisions in {len({record.repo for record in released})} model repositories "
            f"({format_bytes(size)} of weights) and the index {index.repo}, under {self.folder / 'hub'}"
        )
        return released

    def fit(self, sweep: Sweep) -> tuple[FitResult, JointLaw]:
        """Fit the joint law to the released records, with a bootstrap over trunks, and release the law with them."""
        runs = load_runs(self.folder / "hub" / "datasets" / f"{sweep.name}-runs" / "main", loss="eval_loss")
        result = fit(runs, law="joint")
        law = result.bootstrap(self.settings.bootstrap_resamples, seed=0).law
        print_table(result.summary())
        print("How far can this fit be trusted?", *report.trust(runs, result, law), sep="\n- ")
        law.save_pretrained(self.folder / "law")
        release_law(open_store(self.folder / "hub"), sweep.name, LawOnRuns(law, runs, fitted=True))
        return result, law

    def query(self, result: FitResult) -> str:
        """Ask the published law, and draw the figures; returns the answer."""
        law = JointLaw.published()
        table = law.optimal(**QUESTION, integral=True)
        print_table(table)
        drawn = {
            "demo-predicted-against-observed": law_figures.predicted_against_observed(result),
            "published-isoflop": law_figures.isoflop(law),
            "published-memory-optimal": law_figures.memory_optimal(law, flops=1e22),
        }
        for name, axes in drawn.items():
            print(f"wrote {drawing.save(axes, self.folder / 'figures' / f'{name}.png')}")
        return report.answer(table)

    def use(self, sweep: Sweep, released: list[RunRecord]) -> Path:
        """Load the best released checkpoint as a user would, let it write, and measure its loss again.

        Returns:
            Its folder.

        Raises:
            DemoError: the reloaded model's loss is not the recorded one.
        """
        best = min(released, key=lambda record: record.eval_loss)
        folder = self.folder / "hub" / "models" / best.repo / best.branch
        model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
        torch.manual_seed(0)
        prompt = tokenizer(PROMPT, return_tensors="pt")
        written = model.generate(**prompt, max_new_tokens=60, do_sample=True, top_p=0.9, temperature=0.8)
        print(f"{folder}\n> {' '.join(tokenizer.decode(written[0], skip_special_tokens=True).split())}")
        arguments = next(r.arguments for r in sweep.runs if r.arguments.model.d_model == best.d_model)
        sequences = held_out(arguments, tokenizer).wait()
        loss = evaluate(model, sequences, arguments.run.micro_batch_sequences, torch.device("cpu")).loss
        print(f"held-out loss {loss:.6f}, recorded {best.eval_loss:.6f} nats per token")
        if abs(loss - best.eval_loss) > 1e-5:
            raise DemoError(f"the reloaded model has loss {loss}, its record says {best.eval_loss}")
        return folder
