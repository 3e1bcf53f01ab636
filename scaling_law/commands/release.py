"""Release a sweep with its law: `scaling-law release RUNS STORE [--law LAW]`.

Beside what `python -m hub push` does, a joint law is fitted to the runs (or the one given is taken): each run's card
says what it predicts, it becomes a model repository `<sweep>-law`, and the card of the sweep's index shows it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

import hub
from hub.base import commands
from hub.base.errors import FilesError
from hub.base.markdown import escape_markdown
from hub.base.tables import Table, show
from scaling_law.commands.options import command, option
from scaling_law.commands.run_options import Mix
from scaling_law.figures.drawing import png
from scaling_law.figures.law_figures import predicted_against_observed
from scaling_law.fitting.fitting import errors_of, fit
from scaling_law.law import Law
from scaling_law.law_files import FILE_NAME, law_card, law_to_json, loading_code
from scaling_law.runs.loading import load_runs
from scaling_law.runs.table import Runs
from scaling_law.size.arrays import FloatArray

if TYPE_CHECKING:
    from hub import Publication, RunRecord, Store

logger = logging.getLogger(__name__)

FIGURE = "law_fit.png"
_REPO_SUFFIX = "-law"


@dataclass(frozen=True)
class LawOnRuns:
    """A law beside runs: those it was `fitted` to, or others; errors in nats per token."""

    law: Law
    runs: Runs
    fitted: bool

    @property
    def residuals(self) -> FloatArray:
        """Predicted minus observed loss [n]."""
        return errors_of(self.law, self.runs)

    @property
    def rmse(self) -> float:
        return float(np.sqrt(np.mean(self.residuals**2)))

    def predictions(self) -> dict[str, float]:
        """Run id → predicted loss."""
        return dict(zip(self.runs.run_id, (self.runs.loss + self.residuals).tolist(), strict=True))


def law_of(records: Sequence[RunRecord], law: Law | None = None, mix: Collection[str] = ()) -> LawOnRuns | None:
    """The given law, or a joint law fitted to the final runs; None where they cannot determine one, with a warning.

    `mix` as in `fit`.
    """
    try:
        runs = load_runs([record for record in records if record.eval_loss is not None])
        if law is not None:
            return LawOnRuns(law, runs, fitted=False)
        result = fit(runs, kind="joint", mix=mix)
    except ValueError as error:
        logger.warning("released without a law: %s", error)
        return None
    if not result.status.converged:
        logger.warning("released without a law: %s", result.status)
        return None
    return LawOnRuns(result.law, runs, fitted=True)


def release_law(store: Store, sweep: str, found: LawOnRuns, license: str | None = None) -> tuple[str, Publication]:
    """Publish the law as `<sweep>-law` and show it in the card of the index; HubError where there is no index yet."""
    repo, figure = store.repo_id(sweep + _REPO_SUFFIX), png(predicted_against_observed(found))
    files = {
        FILE_NAME: law_to_json(found.law),
        "README.md": law_card(found.law, repo, (FIGURE,), license=license).encode(),
        FIGURE: figure,
    }
    hub.publish_files(store, sweep + _REPO_SUFFIX, files, message=f"The law of the sweep {sweep}")
    return repo, hub.describe_index(store, sweep, law_section(found, repo), {FIGURE: figure})


def law_section(found: LawOnRuns, repo: str) -> str:
    law, count = found.law, len(found.runs)
    how = f"Fitted to {count} of these runs" if found.fitted else f"Fitted elsewhere; compared with {count} runs"
    # In a local store, the folder below its root.
    place = repo if "/" in repo else f"models/{repo}/main"
    rows = [(name, f"{value:.6g}") for name, value in law.coefficients.items()]
    status = law.conditions.status if law.conditions and law.conditions.status else ""
    return "\n\n".join(
        [
            "## The law",
            f"`{law.formula}`",
            f"{how}: root mean square error {found.rmse:.4f} nats per token. {escape_markdown(status, 400)}".strip(),
            f"![Predicted against observed loss]({FIGURE})",
            Table(("Coefficient", "Value"), rows).markdown(),
            loading_code(law, place),
        ]
    )


@command("source store law mix license tag collection private workers", without=("verbose",))
def release(
    as_json: bool,
    source: Annotated[Path, typer.Argument(metavar="RUNS", help="The sweep's output folder.")],
    store: commands.Store,
    law: Annotated[str | None, option("A law's folder or repository. [default: fitted to the runs]")] = None,
    mix: Mix = "",
    license: commands.License = None,
    tag: commands.Tag = "",
    collection: commands.Collection = False,
    private: commands.Private = False,
    workers: commands.Workers = 4,
) -> None:
    """Release every finished run of a sweep, its index, and its law; re-run it to resume.

        scaling-law release runs releases

    Exit status: 2 bad input, nothing was written; 4 not all of it is pushed.

    More examples:

        scaling-law release runs hf://my-org --license apache-2.0 --tag v1 --collection

        scaling-law release runs releases --law my-law
    """
    logging.basicConfig(format="%(levelname)s %(message)s")
    target = hub.open_store(store, private=private)
    runs = [(folder, hub.RunRecord.load(folder)) for folder in hub.run_folders(source)]
    sweeps = sorted({record.sweep for _, record in runs})
    if len(sweeps) > 1:
        raise FilesError(f"{source} holds runs of several sweeps, {', '.join(sweeps)}; release one at a time")
    law_on_runs = law_of([record for _, record in runs], Law.from_pretrained(law) if law else None, mix)
    released = hub.release_runs(
        target,
        runs,
        describe=partial(release_law, target, found=law_on_runs, license=license) if law_on_runs else None,
        predicted_losses=law_on_runs.predictions() if law_on_runs else {},
        license=license,
        tag=tag,
        collection=collection,
        workers=workers,
    )
    lines = [f"index {index.repo} {index.commit}" for index in released.indexes.values()]
    if law_on_runs and not released.failed:
        lines.append(f"law {target.repo_id(sweeps[0] + _REPO_SUFFIX)}, RMSE {law_on_runs.rmse:.4f} nats")
    lines += released.messages
    show({"released": lines}, as_json, "\n".join(lines))
    if released.failed:
        raise released.failed
