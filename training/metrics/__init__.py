"""Modules for `evaluate`, loaded from their folders: `evaluate.load(metrics.path())`."""

from pathlib import Path

from hub.base.errors import InputError


def path(name: str = "held_out_perplexity") -> str:
    """The folder of a module, for `evaluate.load`, also in an installed package. ValueError for an unknown name."""
    names = sorted(module.parent.name for module in Path(__file__).parent.glob("*/*.py"))
    if name not in names:
        raise InputError(f"name: no metric module is called {name!r}; available: {', '.join(names)}")
    return str(Path(__file__).parent / name)
