"""Training of Switch-MoE models for scaling laws: data, schedule, loop, checkpoints, branches, sweeps, and the demo.

The way of the data: `tokens` (text to a cache of token ids) -> `batches` -> `loop` -> `checkpoint`, `step_log` ->
`results` (model folder and run record) -> `release`. `run` is one training process from top to bottom, `sweep` starts
many of them, `demo` goes the whole way on the text that `corpus` finds on this machine.
"""
