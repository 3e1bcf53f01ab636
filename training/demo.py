"""`python -m training.demo`, or `make demo`: the whole loop, from a corpus to a fitted law, on this machine.

corpus -> tokenizer -> sweep -> release -> fit -> query -> use, each with the code that a cluster runs, the hub being a
local folder. Starting it again resumes where it stopped.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Annotated

# Before any Hugging Face library is imported: the demo shows that none of it needs a network.
os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1", HF_HUB_DISABLE_PROGRESS_BARS="1")

import numpy as np
import torch
import typer
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

import modeling_switch_moe  # noqa: F401 - registers the architecture; else its code in the release is needed
from hub import RunRecord, open_store, release_runs
from hub.plain.commands import App, Version, Workers
from hub.plain.tables import Table, print_table
from hub.plain.units import format_bytes, format_count, format_decimal, format_flops
from hub.release.cards import loading_code
from scaling_law import FitResult, JointLaw, Runs, fit, load_runs
from scaling_law.commands.release import LawOnRuns, release_law
from scaling_law.figures import drawing, law_figures
from training import corpus
from training.data.text import TextSource
from training.data.tokenizer import load_tokenizer, train_tokenizer
from training.run.evaluation import evaluate
from training.run.inputs import held_out
from training.sweep.file import Sweep
from training.sweep.plan import plan_sweep
from training.sweep.run import run_sweep, sweep_progress

# The question of step 6: an answer for one H100 that serves 16k tokens of context in bf16.
QUESTION = {"flops": 1e22, "max_memory_bytes": 80e9, "kv_cache_tokens": 16384}
PROMPT = "Returns the number of"
VOCABULARY = 1024
FAST_CORPUS_BYTES = 4_000_000  # of text; the full demo takes all there is

CORES = os.cpu_count() or 1

app = App(single=True)


class DemoError(RuntimeError):
    """A step failed; the message says which, and where its log is."""

    exit_status = 1


class Demo:
    """The steps in their order; each leaves its result in a folder of its own under `folder`."""

    def __init__(self, folder: Path, fast: bool, workers: int) -> None:
        self.folder, self.fast, self.workers = folder, fast, workers
        # The names of these two folders are what the run records call the dataset and the tokenizer.
        self._corpus, self._tokenizer = folder / "installed-documentation", folder / f"byte-level-bpe-{VOCABULARY}"
        self.seconds: dict[str, float] = {}

    def run(self) -> None:
        """All steps, then the summary."""
        with self._step("1 Corpus", "the documentation of the installed packages, in the columns of FineWeb-Edu"):
            text = corpus.build(self._corpus, max_bytes=FAST_CORPUS_BYTES if self.fast else None)
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
        ranges = law.conditions.overall
        n_active, tokens = (format_count(float(np.sqrt(np.prod(ends)))) for ends in (ranges.n_active, ranges.tokens))
        sizes = f"--n-active {n_active} --tokens {tokens} --experts 1,4"  # in the middle of the runs
        rows = [
            ("corpus", str(text)),
            ("sweep", f"{len(released)} runs on {len(trunks)} trunks"),
            ("our fit", f"RMSE {result.rmse:.4f} nats"),
            ("paper's law", paper),
            ("time", ", ".join(f"{name.split()[1].lower()} {spent:.0f} s" for name, spent in self.seconds.items())),
            ("figures", f"{self.folder}/figures"),
            ("release", f"{self.folder}/hub, as it lies on the Hub"),
            ("refit", f"scaling-law fit {self.folder}/hub/datasets/{sweep.name}-runs/main"),
            ("ask", f"scaling-law loss --law {self.folder}/law {sizes}"),
            ("", "scaling-law optimal --flops 1e22 --memory 80GB --kv-tokens 16k"),
        ]
        print_table(Table((), rows, title="The whole loop is done"))
        print("\nTo load the model in any Python that has transformers (this runs the code of the release):\n")
        print(loading_code(str(model.resolve())))

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
        """Train what is not trained yet; raises DemoError where a run failed."""
        file = resources.files("training") / "configs" / ("demo-fast.yaml" if self.fast else "demo.yaml")
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
        folders = {"dataset": self._corpus, "tokenizer": self._tokenizer, "cache_dir": self.folder / "tokens"}
        values["base"]["data"] |= {name: str(folder) for name, folder in folders.items()}
        sweep = Sweep.from_dict(values, self.folder / "runs")
        print_table(plan_sweep(sweep))
        with sweep_progress(sweep) as watch:
            outcome = run_sweep(sweep, self.workers, watch)
        if outcome.failed:
            lines = [f"{name}: exit status {status}, see {log}" for name, (status, log) in outcome.failed.items()]
            raise DemoError("training failed; run the same command to resume\n  " + "\n  ".join(lines))
        print_table(runs_table([record for run in sweep.runs for record in run.records()]))
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
        law = result.bootstrap(100 if self.fast else 500, seed=0).law
        print_table(result.summary())
        print("How far can this fit be trusted?", *trust(runs, result, law), sep="\n- ")
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
        best = table.best
        return (
            f"{format_flops(table.flops)} FLOPs buy E = {best.experts:g}, {format_count(best.n_active)} active of "
            f"{format_count(best.n_total)} parameters, {format_count(best.tokens)} tokens: loss {best.loss:.3f}"
        )

    def use(self, sweep: Sweep, released: list[RunRecord]) -> Path:
        """Load the best released checkpoint as a user would, let it write, and measure its loss again.

        Returns its folder; raises DemoError where the reloaded model's loss is not the recorded one.
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


def runs_table(records: list[RunRecord]) -> Table:
    """Held-out losses: a row per size, a column per token count."""
    tokens = sorted({record.schedule.horizon_tokens for record in records})
    rows = []
    for d_model, experts in sorted({(record.d_model, record.experts) for record in records}):
        of_size = {r.schedule.horizon_tokens: r for r in records if (r.d_model, r.experts) == (d_model, experts)}
        last = of_size[max(of_size)]
        losses = [format_decimal(of_size[count].eval_loss, 3) if count in of_size else "" for count in tokens]
        routing = [f"{last.expert_load_max_over_mean:.2f}", f"{last.drop_rate:.1%}"] if experts > 1 else ["", ""]
        rows.append([d_model, experts, format_count(last.n_active), format_count(last.n_total), *losses, *routing])
    header = ["d_model", "E", "N_act", "N_total", *map(format_count, tokens), "load max/mean", "dropped"]
    return Table(header, rows, title="Held-out loss, nats per token", keys=("d_model", "E"))


def trust(runs: Runs, result: FitResult, law: JointLaw) -> list[str]:
    """How far the demo's fit can be trusted, from its own numbers; `law` has the draws of a bootstrap over trunks."""
    said = [
        f"{len(runs)} runs on {len(set(runs.trunk))} trunks for {len(result.law.coefficients)} coefficients; N_act "
        f"spans {_span(runs.n_active)}, tokens {_span(runs.tokens)}, and the fitted RMSE is {result.rmse:.3f} nats. "
        f"The paper's fit has 0.006 on 270 runs over {2.72e9 / 79e6:.0f}x and 160x."
    ]
    if vague := [*result.status.undetermined, *result.status.bounds_hit]:
        said.append(f"Not identifiable from these runs: {', '.join(dict.fromkeys(vague))}; ignore their values.")
    largest = runs.n_active == runs.n_active.max()
    rest, left_out = runs.subset(~largest), runs.subset(largest)
    if len(rest) > len(JointLaw.coefficient_names()):
        rmse = float(np.sqrt(np.mean(fit(rest, law="joint").errors_on(left_out) ** 2)))
        spread = float(left_out.loss.std())
        said.append(
            f"Fitted to the {len(rest)} smaller runs only, it predicts the {len(left_out)} of N_act = "
            f"{format_count(runs.n_active.max())} with an RMSE of {rmse:.3f} nats, "
            f"{'better' if rmse < spread else 'no better'} than their mean ({spread:.3f})."
        )
    beyond = "; ".join(map(str, law.conditions.excesses(1e9, 2e10, 1)))
    said.append(f"A dense model of 1B parameters on 20B tokens is too far outside its runs to ask for: {beyond}.")
    return said


def _span(values: np.ndarray) -> str:
    return f"{format_count(values.min())} to {format_count(values.max())} ({values.max() / values.min():.0f}x)"


@app.command()
def main(
    fast: Annotated[bool, typer.Option("--fast", help="A smaller sweep: about a minute.")] = False,
    output_dir: Annotated[Path | None, typer.Option(help="Where everything goes.")] = None,
    workers: Workers = CORES,
    version: Version = False,
) -> None:
    """The whole loop, from a corpus to a fitted law, on this machine. Run it again to resume."""
    Demo(output_dir or Path("demo-output-fast" if fast else "demo-output"), fast, workers).run()


if __name__ == "__main__":
    app()
