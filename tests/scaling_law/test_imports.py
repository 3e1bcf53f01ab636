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
from scaling_law.size.recipe import published_design
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
