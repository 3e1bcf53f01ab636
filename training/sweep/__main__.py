"""Many runs from one file: `python -m training.sweep plan|run|status|cancel|config SWEEP.yaml`.

`file.SweepFile` describes the file. Each run is one `accelerate launch train.py`, which resumes from what is there.
"""

from hub.base.commands import App

_COMMANDS = ("plan", "status", "run", "cancel", "config")

app = App(
    help="Plan, execute and follow a sweep of training runs.",
    places={"Commands": {name: f"training.sweep.commands:{name}" for name in _COMMANDS}},
)

if __name__ == "__main__":
    app()
