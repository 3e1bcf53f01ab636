"""The GPU kit: what to measure on the day a GPU is at hand, in parts that stop in time and go on where they stopped.

    python -m benchmarks.gpu                      # everything, most informative first
    python -m benchmarks.gpu steps --limit 540    # one part, for at most nine minutes
    python -m benchmarks.gpu --smoke              # the same code on tiny shapes, on a CPU, too
    python -m benchmarks.render                   # docs/benchmarks.md again, from the results

`cases` lists what is measured, `measure` does it with the code of `training` and the other benchmarks, `kit` runs each
case in a process of its own and keeps its result, `page` shows them, `baselines` sets them beside earlier commits.
"""
