"""The command of `scaling-law` that opens the explorer."""

from __future__ import annotations

from typing import Annotated

from hub.base.errors import InputError
from scaling_law.commands.options import option, rare
from scaling_law.explorer import app
from scaling_law.explorer.question import FITTED
from scaling_law.fitting.fitting import fit
from scaling_law.law import Law
from scaling_law.law.modules import read_law
from scaling_law.runs.loading import load_runs

# Resamples of the bootstrap, for which the page waits to open.
RESAMPLES = 200


def explore(
    law: Annotated[list[str], option("Another law: a folder, a file or a Hub repo (repeatable).", "--law")] = [],  # noqa: B006
    runs: Annotated[str | None, option("Runs, as for `scaling-law fit`; their joint law comes first.")] = None,
    host: Annotated[str, rare("Address to listen on; 0.0.0.0 lets other machines in.")] = "127.0.0.1",
    port: Annotated[int | None, option("Port. [default: the first free one from 7860]", min=1, max=65_535)] = None,
    browser: Annotated[bool, option("Open the browser.", "--browser/--no-browser")] = True,
) -> None:
    """Open the explorer: figures and answers behind sliders, with an API and an MCP server.

        scaling-law explore

    No request leaves this machine.

    More examples:

        scaling-law explore --law my-law --port 7860 --no-browser
    """
    laws: dict[str, Law] = {name: read_law(name) for name in law}
    if runs is not None:
        laws = {FITTED: _fit_with_draws(runs), **laws}
    app.explore(laws, host=host, port=port, browser=browser)


def _fit_with_draws(runs: str) -> Law:
    """Fit the joint law of a table of runs; it has draws unless the runs are of one trunk."""
    result = fit(load_runs(runs))
    try:
        return result.bootstrap(RESAMPLES).law
    except InputError:
        return result.law
