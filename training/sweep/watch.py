"""A sweep's finished runs against a law, as they come in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hub import RunRecord
from hub.base.tables import Table
from scaling_law import Law, Runs, errors_of, load_runs
from scaling_law.figures import drawing


def finished(records: Sequence[RunRecord]) -> Runs | None:
    """The runs that have a final held-out loss; None before there is one."""
    final = [record for record in records if record.status == "final" and record.eval_loss is not None]
    return load_runs(final) if final else None


def against(law: Law, runs: Runs) -> Table:
    """Measured losses beside those of the law, moved to this corpus by one constant, its mean error."""
    errors = errors_of(law, runs)
    off = errors.mean() - errors  # measured − predicted
    columns = {"N_act": runs.n_active, "tokens": runs.tokens, "E": runs.experts, "loss": runs.loss}
    columns |= {"law": runs.loss - off, "off": off}
    rows = [{"run": run, **{name: float(x[i]) for name, x in columns.items()}} for i, run in enumerate(runs.run_id)]
    moved = f"the law moved by {-errors.mean():+.3f} nats: RMSE {np.sqrt(np.mean(off**2)):.3f} over {len(runs)} runs"
    return Table.of([{**row, "off": f"{row['off']:+.4f}"} for row in rows], title=moved, keys=("run",))


def drawn(law: Law, runs: Runs, ax: Any = None) -> Any:
    """Measured losses against tokens on `ax`, which is returned, a line of the moved law for each size and E."""
    ax = drawing.axes_or_new(ax)
    moved = errors_of(law, runs).mean()
    for n, e in sorted({*zip(runs.n_active, runs.experts, strict=True)}):
        part = runs.subset((runs.n_active == n) & (runs.experts == e))
        tokens = np.geomspace(part.tokens.min() / 2, part.tokens.max() * 2, 40)
        others = {name: part.column(name)[0] for name in law.form.variables if name != "tokens"}
        ax.plot(tokens, law.loss(**others, tokens=tokens) - moved, color=drawing.colour_of(e), linewidth=0.9)
        ax.plot(part.tokens, part.loss, "o", color=drawing.colour_of(e), label=drawing.label_of(e))
    drawing.log_axis(ax, drawing.TOKENS)
    ax.set_ylabel(drawing.LOSS)
    drawing.legend(ax)
    return ax
