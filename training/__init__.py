"""Training of Switch-MoE models for scaling laws: one run, or a sweep of them. Nothing is imported before it is used.

`configuration` says what a run is, `data` what it reads, `run` is the process and `sweep` many of them. The packages
that training needs come with `pip install "joint-moe-scaling-laws[train]"`.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

import lazy_loader

import scaling_law  # noqa: F401 - before `hub` is imported: names a file of the user that hides it

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


class MissingPackagesError(ModuleNotFoundError):
    """Packages that training needs are not installed; the message says how to install them."""

    exit_status = 2


def _check_packages() -> None:
    packages = (
        "accelerate",
        "datasets",
        "psutil",
        "pyarrow",
        "safetensors",
        "tokenizers",
        "torch",
        "transformers",
    )
    missing = [name for name in packages if find_spec(name) is None]
    if not missing:
        return
    message = f'training needs {", ".join(missing)}: pip install "joint-moe-scaling-laws[train]"'
    # A command (`python -m training.…` or train.py) ends with this line alone.
    if sys.argv[:1] == ["-m"] or Path(sys.argv[0]).resolve() == Path(__file__).parents[1] / "train.py":
        print(f"error: {message}", file=sys.stderr)
        raise SystemExit(MissingPackagesError.exit_status)
    raise MissingPackagesError(message, name=missing[0])


_check_packages()
