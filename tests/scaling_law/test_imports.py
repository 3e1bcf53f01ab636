"""A query imports none of the heavy libraries (how quickly it answers: benchmarks/query_speed.py)."""

import subprocess
import sys

QUERY = """
import sys
import scaling_law
law = scaling_law.JointLaw.published()
table = law.optimal(1e22, max_memory_bytes=80e9, kv_cache_tokens=16384, integral=True)
law.loss(1e9, 2e10, 8), law.compute_optimal(1e21)
heavy = {"torch", "transformers", "datasets", "huggingface_hub", "pydantic", "pandas", "matplotlib", "scipy"}
heavy |= {"rich", "typer"}
print(table.best.experts, sorted(heavy & set(sys.modules)))
"""


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split(maxsplit=1)


def test_query_imports_numpy_only():
    best, heavy = run(QUERY)
    assert float(best) == 16
    assert heavy.strip() == "[]"


def test_fit_imports_no_learning_library():
    code = """
import sys, numpy as np, scaling_law
from scaling_law.size.listing import published_design
d = published_design()
law = scaling_law.JointLaw.published()
runs = scaling_law.Runs.from_columns(*d[:3], law.loss(*d[:3]), d.trunk)
result = scaling_law.fit(runs, starts=[law])
result.bootstrap(2)
print(sorted({"torch", "transformers", "pandas", "matplotlib"} & set(sys.modules)))
"""
    assert run(code) == ["[]"]


def test_every_law_has_its_methods_however_it_was_imported():
    code = "from scaling_law.laws.law import LAWS; print(LAWS['joint'].published().optimal(1e20).best.experts)"
    assert run(code)[0].strip() == "32.0"


def test_every_public_name_resolves():
    import scaling_law

    for name in scaling_law.__all__:
        assert getattr(scaling_law, name).__name__ == name
        assert name in dir(scaling_law)
    assert not hasattr(scaling_law, "no_such_name")


def test_helpers_need_no_guard_in_the_calling_script(tmp_path):
    """A plain script with several workers: same result as one process, and the script is not run again."""
    script = tmp_path / "plain.py"
    script.write_text(
        """
import numpy as np, scaling_law
from scaling_law.fitting.grid_search import run_starts
from scaling_law.size.listing import published_design
from scaling_law.fitting.problem import make_problem, start_points
print("started")
d = published_design()
law = scaling_law.JointLaw.published()
runs = scaling_law.Runs.from_columns(*d[:3], law.loss(*d[:3]), d.trunk)
problem = make_problem(runs, "joint", 0.01, None, 0.0, {}, {}, "paper")
theta = start_points(problem, "paper")[::40]
one, two = (run_starts(problem, theta, workers=w) for w in (1, 2))
assert np.allclose(one.cost, two.cost, rtol=1e-6), abs(one.cost / two.cost - 1).max()
print("same")
"""
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["started", "same"]


def test_helper_errors_arrive():
    import operator

    import pytest

    from scaling_law.fitting.workers import map_in_processes

    assert sorted(map_in_processes(operator.truediv, 6.0, [1.0, 2.0, 3.0], 2)) == [(0, 6.0), (1, 3.0), (2, 2.0)]
    with pytest.raises(ZeroDivisionError):
        list(map_in_processes(operator.truediv, 6.0, [1.0, 0.0, 3.0], 2))
