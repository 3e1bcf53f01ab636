"""Modules for `evaluate`, loaded from their folders: `evaluate.load(metrics.path("held_out_perplexity"))`."""

from pathlib import Path


def path(name: str = "held_out_perplexity") -> str:
    """The folder of a module, for `evaluate.load`, also in an installed package. ValueError for an unknown name."""
    folder = Path(__file__).parent / name
    if not (folder / f"{name}.py").exists():
        there = sorted(module.parent.name for module in folder.parent.glob("*/*.py"))
        raise ValueError(f"name: no metric module is called {name!r}; there are {', '.join(there)}")
    return str(folder)
