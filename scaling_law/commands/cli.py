"""The shell command `scaling-law`: ask a law, plan runs, fit laws to runs, report, release.

Every command takes --help, which begins with an example; `hub.base.commands` has the exit statuses.
"""

from __future__ import annotations

from hub.base.commands import App

PLACES = {  # panel → command → where it stands; its module is imported when it is called
    "Ask a law": {
        "loss": "questions:loss",
        "optimal": "questions:optimal",
        "reach": "questions:reach",
        "speedup": "questions:speedup",
        "compare": "questions:compare",
        "describe": "questions:describe",
        "learning-rate": "learning_rate:learning_rate",
    },
    "Plan runs": {
        "plan": "plan:plan",
        "scale-out": "plan:scale_out",
        "next-runs": "plan:next_runs",
    },
    "Fit runs": {
        "fit": "fitting:fit",
        "forecast": "forecast:forecast",
        "report": "fitting:report",
    },
    "Publish and look": {
        "release": "release:release",
        "explore": "explore:explore",
    },
    "Paper": {
        "figures": "figures:figures",
    },
}
app = App(
    help="Joint scaling laws of dense and MoE models: how many experts, how big, how many tokens?\n\n"
    "    scaling-law optimal --flops 1e22 --memory 80GB",
    places={
        panel: {name: f"scaling_law.commands.{place}" for name, place in commands.items()}
        for panel, commands in PLACES.items()
    },
)


def main() -> None:
    """Entry point of the console script."""
    app()


if __name__ == "__main__":
    main()
