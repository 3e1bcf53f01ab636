"""The oldest transformers that runs this model; importing this file refuses an older one in one line.

It travels with released checkpoints. The other files import it before anything that an older transformers lacks.
"""

import transformers
from packaging.version import Version

TRANSFORMERS = "5.17"


def check_transformers() -> None:
    """Raise ImportError if the installed transformers is too old; development versions count as their release."""
    installed = Version(transformers.__version__).release
    if installed < Version(TRANSFORMERS).release:
        raise ImportError(
            f"this model's code needs transformers {TRANSFORMERS} or newer, found {transformers.__version__}; "
            f"type: pip install --upgrade 'transformers>={TRANSFORMERS}'"
        )


check_transformers()
