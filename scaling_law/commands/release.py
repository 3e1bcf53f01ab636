"""Release a sweep with its law: `python -m training.release RUNS STORE [--law LAW]`.

What `python -m hub push` does, and beside it what `hub` knows nothing of: a joint law is fitted to the runs (or the
one given is taken), each run's card says what it predicts for the run, the law becomes a model repository
`<sweep>-law`, and the card of the sweep's index shows it with its figure. `--tag` names the commit of the index that
has all this, and `--collection` puts the repositories together.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from hub import (
    Publication,
    RunRecord,
    Store,
    describe_index,
    open_store,
    publish_files,
    release_runs,
    run_folders,
)
from hub.plain.commands import App, Collection, License, Private, Tag, Version
from hub.plain.commands import Store as StoreArgument
from hub.plain.errors import FilesError
from hub.plain.markdown import escaped
from hub.plain.tables import Table
from hub.release.discovery import check_options
from hub.release.push import MAX_WORKERS
from scaling_law import Runs, fit, load_runs
from scaling_law.figures.drawing import png
from scaling_law.figures.law_figures import predicted_against_observed
from scaling_law.law_files.card import law_card, loading_code
from scaling_law.law_files.serialization import FILE_NAME, law_to_json, load_law
from scaling_law.laws import Law

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


def release_law(store: Store, sweep: str, judgement: JudgedLaw, license: str | None = None) -> tuple[str, Publication]:
    """Publish the law as `<sweep>-law`, then show it in the card of the sweep's index.

    Returns:
        The law's repository, and the index as it is then.

    Raises:
        HubError: e.g. the sweep has no index yet.
    """
    repo = store.repo_id(sweep + _REPO_SUFFIX)
    figure = png(predicted_against_observed(judgement))  # type: ignore[arg-type] # has the runs and residuals of a fit
    files = {
        FILE_NAME: law_to_json(judgement.law),
        "README.md": law_card(judgement.law, repo, (FIGURE,), license=license).encode(),
        FIGURE: figure,
    }
    publish_files(store, sweep + _REPO_SUFFIX, files, message=f"The law of the sweep {sweep}")
    return repo, describe_index(store, sweep, law_section(judgement, repo), {FIGURE: figure})


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
            Table(("Coefficient", "Value"), rows).markdown(),
            loading_code(law, place),
        ]
    )


app = App(single=True)
_log = Console(stderr=True)


@app.command()
def main(
    runs: Annotated[Path, typer.Argument(metavar="RUNS", help="The sweep's output folder.")],
    store: StoreArgument,
    law: Annotated[str | None, typer.Option(help="A law's folder or repository; default: fitted to the runs.")] = None,
    license: License = None,
    tag: Tag = "",
    collection: Collection = False,
    private: Private = False,
    workers: Annotated[int, typer.Option(min=1, max=MAX_WORKERS, help="Runs that are pushed at the same time.")] = 4,
    version: Version = False,
) -> None:
    """Release every finished run of a sweep, its index, and its law; started again, it goes on where it stopped.

    Exit status: 2 bad input, nothing was written; 4 not all of it is pushed.
    """
    logging.basicConfig(format="%(levelname)s %(message)s")
    target = open_store(store, private=private)
    check_options(target, license=license, tag=tag, collection=collection)
    sweep = _sweep(runs)
    given = load_law(law) if law else None
    _release(target, sweep, given, workers=workers, license=license, tag=tag, collection=collection)


def _sweep(source: Path) -> list[tuple[Path, RunRecord]]:
    """Folder and record of each run of one sweep."""
    runs = [(folder, RunRecord.load(folder)) for folder in run_folders(source)]
    sweeps = sorted({record.sweep for _, record in runs})
    if len(sweeps) > 1:
        raise FilesError(f"{source} holds runs of several sweeps, {', '.join(sweeps)}; release one at a time")
    return runs


def _release(
    store: Store, runs: list[tuple[Path, RunRecord]], given: Law | None, *, license: str | None, **options: Any
) -> None:
    """Push the runs, the index, `main` of the repositories, and the law; tag and collect them if asked to."""
    with _log.status("fitting the law"):
        judgement = judged([record for _, record in runs], given)
    describe = partial(release_law, store, judgement=judgement, license=license) if judgement else None
    with _log.status(f"pushing {len(runs)} runs"):
        predictions = judgement.predictions() if judgement else {}
        released = release_runs(
            store, runs, predicted_losses=predictions, license=license, describe=describe, **options
        )
    for index in released.indexes.values():
        typer.echo(f"index {index.repo} {index.commit}")
    if released.failed:
        raise released.failed
    if judgement:
        law = store.repo_id(runs[0][1].sweep + _REPO_SUFFIX)
        typer.echo(f"law {law}, RMSE {judgement.rmse:.4f} nats")
    for line in released.messages:
        typer.echo(line)
