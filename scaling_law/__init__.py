"""Joint scaling laws of dense and Mixture-of-Experts models: query, fit, and say how sure (arXiv 2502.05172).

    >>> from scaling_law import JointLaw
    >>> table = JointLaw.published().optimal(1e22, memory=80e9, kv_tokens=16_384)
    >>> table.best.experts
    8.0

Importing this package and asking a law need numpy only; fitting, figures and tables import what they use when used.
The names stand in `__init__.pyi`.
"""

from importlib.util import find_spec
from pathlib import Path

import lazy_loader

# Before anything imports `hub`: a hub.py beside the user's script would be imported in its place.
_hub = find_spec("hub")
if _hub is not None and _hub.origin is not None and not (Path(_hub.origin).parent / "base").is_dir():
    raise ImportError(f"{_hub.origin} hides the package `hub` that scaling_law needs: rename or move that file")

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
