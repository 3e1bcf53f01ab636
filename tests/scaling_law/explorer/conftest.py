"""The explorer, served on this machine for all tests of the session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def uploads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Gradio puts what is uploaded."""
    return tmp_path_factory.mktemp("uploads")


@pytest.fixture(scope="session")
def address(uploads: Path) -> Iterator[str]:
    """The page's address; nothing is stored but in `uploads`."""
    gradio = pytest.importorskip("gradio")
    from scaling_law import explore

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADIO_TEMP_DIR", str(uploads))
        yield explore(browser=False, wait=False)
    gradio.close_all()
