"""The explorer, served on this machine for all tests of the session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The page's address."""
    gradio = pytest.importorskip("gradio")
    from scaling_law import explore

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADIO_TEMP_DIR", str(tmp_path_factory.mktemp("gradio")))
        yield explore(browser=False, wait=False)
    gradio.close_all()
