"""The shell command `scaling-law`: ask a law, find the best model for a budget, fit runs, draw, report, release.

Every command takes --help with examples; `hub.plain.commands` has the exit statuses.
"""

from __future__ import annotations

from hub.plain.commands import App
from scaling_law.commands import describe, explore, fitting, questions, release, scale_out, shelf

app = App(help="Joint scaling laws of dense and MoE models: how many experts, how big, how many tokens?")
for _command in (
    questions.loss,
    questions.optimal,
    questions.plan,
    questions.reach,
    questions.speedup,
    questions.break_even,
    scale_out.scale_out,
    questions.learning_rate,
    questions.figures,
    questions.next_runs,
    describe.describe,
    shelf.laws,
    shelf.compare,
    fitting.fit,
    fitting.calibrate,
    fitting.profile,
    fitting.split,
    fitting.fit_learning_rate,
    fitting.report,
    release.release,
    explore.explore,
):
    app.command(_command.__name__.replace("_", "-"))(_command)


def main() -> None:
    """Entry point of the console script."""
    app()


if __name__ == "__main__":
    main()
