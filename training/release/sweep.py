"""Release a sweep with its law: `python -m training.release RUNS STORE [--law LAW]`.

What `python -m hub push` does, and beside it what `hub` knows nothing of: a joint law is fitted to the runs (or the
one given is taken), each run's card says what it predicts for the run, the law becomes a model repository
`<sweep>-law`, and the card of the sweep's index shows it with its figure.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape

from hub import (
    HubError,
    PushErrors,
    RunRecord,
    Store,
    describe_index,
    open_store,
    publish_files,
    push_index,
    push_repo_cards,
    push_runs,
    run_folders,
)
from hub.errors import FilesError
from hub.markdown import escaped, table
from hub.push import MAX_WORKERS
from scaling_law import Runs, fit, load_runs
from scaling_law.drawing import png
from scaling_law.figures import predicted_against_observed
from scaling_law.law_card import law_card, loading_code
from scaling_law.laws import Law
from scaling_law.serialization import FILE_NAME, law_to_json, load_law

logger = logging.getLogger(__name__)

FIGURE = "law_fit.png"
_REPO_SUFFIX = "-law"


@dataclass(frozen=True)
class JudgedLaw:
    """A law and the runs it is judged by: those it was fitted to, or others.

    Attributes:
        law: with `loss(n_active, tokens, experts)` in nats per token.
        runs: the final runs with a held-out loss.
        fitted: whether the law was fitted to these very runs.
    """

    law: Law
    runs: Runs
    fitted: bool

    @property
    def residuals(self) -> np.ndarray:
        """Predicted minus observed loss [n], nats per token."""
        predicted = self.law.loss(self.runs.n_active, self.runs.tokens, self.runs.experts)
        return np.asarray(predicted) - self.runs.loss

    @property
    def rmse(self) -> float:
        """Over all runs, nats per token."""
        return float(np.sqrt(np.mean(self.residuals**2)))

    def predictions(self) -> dict[str, float]:
        """Run id -> predicted loss, nats per token."""
        predicted = self.runs.loss + self.residuals
        return dict(zip(self.runs.run_id, map(float, predicted), strict=True))


def judged(records: Sequence[RunRecord], law: Law | None = None) -> JudgedLaw | None:
    """The given law, or a joint law fitted to the final runs; None where they cannot determine one, with a warning."""
    try:
        runs = load_runs([record for record in records if record.eval_loss is not None])
        if law is not None:
            return JudgedLaw(law, runs, fitted=False)
        result = fit(runs, law="joint")
    except ValueError as error:
        logger.warning("released without a law: %s", error)
        return None
    if not result.status.converged:
        logger.warning("released without a law: %s", result.status)
        return None
    return JudgedLaw(result.law, runs, fitted=True)


def release_law(store: Store, sweep: str, judgement: JudgedLaw) -> str:
    """Publish the law as `<sweep>-law`, then show it in the card of the sweep's index; returns the law's repository.

    Raises:
        HubError: e.g. the sweep has no index yet.
    """
    repo = store.repo_id(sweep + _REPO_SUFFIX)
    figure = png(predicted_against_observed(judgement))
    files = {
        FILE_NAME: law_to_json(judgement.law),
        "README.md": law_card(judgement.law, repo, (FIGURE,)).encode(),
        FIGURE: figure,
    }
    publish_files(store, sweep + _REPO_SUFFIX, files, message=f"The law of the sweep {sweep}")
    describe_index(store, sweep, law_section(judgement, repo), {FIGURE: figure})
    return repo


def law_section(judgement: JudgedLaw, repo: str) -> str:
    """The Markdown of a law in the card of an index."""
    law, count = judgement.law, len(judgement.runs)
    how = f"Fitted to {count} of these runs" if judgement.fitted else f"Fitted elsewhere; compared with {count} runs"
    place = repo if "/" in repo else f"models/{repo}/main"  # in a local store: the folder below its root
    rows = [(name, f"{value:.6g}") for name, value in law.coefficients.items()]
    status = law.conditions.status if law.conditions and law.conditions.status else ""
    return "\n\n".join(
        [
            "## The law",
            f"`{law.formula}`",
            f"{how}: root mean square error {judgement.rmse:.4f} nats per token. {escaped(status, 400)}".strip(),
            f"![Predicted against observed loss]({FIGURE})",
            table(("Coefficient", "Value"), rows, right=(1,)),
            loading_code(law, place),
        ]
    )


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
_out, _log = Console(), Console(stderr=True)


@app.command()
def main(
    runs: Annotated[Path, typer.Argument(metavar="RUNS", help="The sweep's output folder.")],
    store: Annotated[str, typer.Argument(metavar="STORE", help="A folder, or hf://ORGANISATION.")],
    law: Annotated[str | None, typer.Option(help="A law's folder or repository; default: fitted to the runs.")] = None,
    private: Annotated[bool, typer.Option("--private", help="Repositories that are made are private.")] = False,
    workers: Annotated[int, typer.Option(min=1, max=MAX_WORKERS, help="Runs that are pushed at the same time.")] = 4,
) -> None:
    """Release every finished run of a sweep, its index, and its law; started again, it goes on where it stopped."""
    logging.basicConfig(format="%(levelname)s %(message)s")
    try:
        _release(runs, open_store(store, private=private), load_law(law) if law else None, workers)
    except (HubError, OSError, ValueError) as error:
        _log.print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        raise typer.Exit(1) from None


def _release(source: Path, store: Store, given: Law | None, workers: int) -> None:
    folders = run_folders(source)
    records = [RunRecord.load(folder) for folder in folders]
    sweeps = {record.sweep for record in records}
    if len(sweeps) > 1:
        raise FilesError(f"{source} holds runs of several sweeps, {', '.join(sorted(sweeps))}; release one at a time")
    (sweep,) = sweeps
    with _log.status("fitting the law"):
        judgement = judged(records, given)
    failed: PushErrors | None = None
    try:
        with _log.status(f"pushing {len(records)} runs"):
            predictions = judgement.predictions() if judgement else {}
            runs = list(zip(folders, records, strict=True))
            pushed = push_runs(store, runs, workers=workers, predicted_losses=predictions)
    except PushErrors as errors:
        pushed, failed = errors.pushed, errors
    if pushed:
        index = push_index(store, sweep, pushed)
        push_repo_cards(store, sweep, [record.repo or "" for record in pushed])
        _out.print(f"index {index.repo} {index.commit}", highlight=False, markup=False, soft_wrap=True)
    if failed:
        raise failed
    if judgement:
        repo = release_law(store, sweep, judgement)
        _out.print(f"law {repo}, RMSE {judgement.rmse:.4f} nats", highlight=False, markup=False, soft_wrap=True)
