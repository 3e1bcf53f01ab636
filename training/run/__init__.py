"""One training run, from its configuration to its records; `main` has the loop, top to bottom.

`inputs` (what is read) -> `step` (one update) -> `step_log`, `checkpoint`, `evaluation` -> `results` (model and
record) -> `releaser`. `dry_run` estimates the cost before; `devices` and `memory` know processes and hardware.
"""
