"""The shell command `scaling-law`: ask a law, plan runs, fit laws to runs, report, release.

Every command takes --help, which begins with an example; `hub.base.commands` has the exit statuses.
"""

from __future__ import annotations

import gc
import os

from hub.base.commands import App

# Panels of the help, with the places of their commands, which are imported when they are called.
_PANELS = {
    "Ask a law": "questions:loss questions:optimal questions:reach questions:speedup questions:compare "
    "questions:describe learning_rate:learning_rate",
    "Plan runs": "plan:plan plan:scale_out plan:next_runs",
    "Fit runs": "fitting:fit forecast:forecast live:live diagnose:diagnose promote:promote",
    "Publish and look": "release:release explore:explore",
}
PLACES = {  # panel → command → module:function
    panel: {place.partition(":")[2].replace("_", "-"): f"scaling_law.commands.{place}" for place in places.split()}
    for panel, places in _PANELS.items()
}
app = App(
    help="Joint scaling laws of dense and MoE models: how many experts, how big, how many tokens?\n\n"
    "    scaling-law optimal --flops 1e22 --memory 80GB",
    places=PLACES,
)


def main() -> None:
    """Entry point of the console script."""
    # Most of a short command is imports, whose objects stay: looking for garbage among them takes a tenth of it.
    gc.set_threshold(100_000)
    # Nobody extends how a command reads its options; pydantic would look for plugins in every installed package.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    app()


if __name__ == "__main__":
    main()
