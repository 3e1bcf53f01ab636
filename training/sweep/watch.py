"""A sweep's finished runs against a law, as they come in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hub import RunRecord
from hub.base.tables import Table
from scaling_law import Law, Runs, errors_of, load_runs


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
