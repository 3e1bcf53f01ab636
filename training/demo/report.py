"""What the demo says of its results: a table of its runs, how far its fit can be trusted, answers in a sentence."""

from __future__ import annotations

import numpy as np

from hub import RunRecord
from hub.plain.tables import Table
from hub.plain.units import format_count, format_decimal, format_flops
from scaling_law import FitResult, JointLaw, OptimalTable, Runs, fit


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


def own_question(law: JointLaw, folder: str) -> tuple[str, str]:
    """A command that asks the demo's own law, saved in `folder`, what its runs can tell; and the answer."""
    runs, experts = law.conditions.overall, law.conditions.experts
    flops = float(f"{np.sqrt(np.prod(runs.training_flops)):.0e}")  # in the middle of the runs
    try:
        return f"scaling-law optimal --law {folder} --flops {flops:.0e}", answer(law.optimal(flops, experts))
    except ValueError as error:  # no optimum within the range of the runs
        n_active, tokens = (format_count(float(np.sqrt(np.prod(ends)))) for ends in (runs.n_active, runs.tokens))
        sizes = f"--n-active {n_active} --tokens {tokens} --experts {','.join(f'{e:g}' for e in experts)}"
        return f"scaling-law loss --law {folder} {sizes}", str(error)


def answer(table: OptimalTable) -> str:
    """The best row in a sentence."""
    best = table.best
    interval = "" if best.loss_interval is None else " ({:.3f} to {:.3f}, 95 %)".format(*best.loss_interval)
    return (
        f"{format_flops(table.flops)} FLOPs buy E = {best.experts:g}, {format_count(best.n_active)} active of "
        f"{format_count(best.n_total)} parameters, {format_count(best.tokens)} tokens: loss {best.loss:.3f}{interval}"
        + (f"; {table.comparison}" if table.comparison else "")
    )


def loss_range(records: list[RunRecord]) -> str:
    """The highest and the lowest held-out loss, and of which runs."""
    ends = [pick(records, key=lambda record: record.eval_loss) for pick in (max, min)]
    return " down to ".join(
        f"{r.eval_loss:.3f} (E = {r.experts}, {format_count(r.n_active)} active, {format_count(r.tokens)} tokens)"
        for r in ends
    )


def _span(values: np.ndarray) -> str:
    return f"{format_count(values.min())} to {format_count(values.max())} ({values.max() / values.min():.0f}x)"
