"""Choosing the store that a text names."""

from __future__ import annotations

import re
from pathlib import Path

from hub.plain.errors import FilesError
from hub.store.base import Store
from hub.store.folder import LocalStore
from hub.store.hub import HubStore


def open_store(uri: str | Path, *, private: bool = False) -> Store:
    """The store at `uri`: a folder (`path` or `file:path`), or an organisation or user of the Hub (`hf://name`).

    Args:
        uri: where. Only an `hf://` URI ever leads to a network call.
        private: repositories that are made on the Hub are private.

    Raises:
        FilesError: the URI has another form.
    """
    text = str(uri)
    if text.startswith("hf://"):
        return HubStore(text.removeprefix("hf://").strip("/"), private=private)
    if isinstance(uri, str) and re.match(r"[A-Za-z][A-Za-z0-9+.-]+:", uri) and not uri.startswith("file:"):
        raise FilesError(f"store {uri!r}: allowed are a folder, file:FOLDER and hf://ORGANISATION")
    path = text.removeprefix("file:")
    return LocalStore(Path("/" + path.lstrip("/") if path.startswith("//") else path))
