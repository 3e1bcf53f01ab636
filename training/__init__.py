"""Training of Switch-MoE models for scaling laws: data, schedule, loop, checkpoints, branches, sweeps, and the demo.

The way of the data: `text` -> `tokens` (the cache) -> `order` and `data` (global batches) -> `loop` -> `checkpoint`,
`step_log` -> `results` (model folder and run record). `run` is one training process from top to bottom.
"""
