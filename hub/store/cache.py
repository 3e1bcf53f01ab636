"""Files in huggingface_hub's cache, compared with their hashes before they are used.

A blob in the cache is named after its content: git's id of a small file, the sha256 of a large one. A damaged file is
therefore found without a network, too; with one it is fetched again, once.
"""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path
from typing import Any

from hub.base.errors import IntegrityError, UnavailableError
from hub.store.base import StoredFile
from hub.store.files import WEIGHTS, Content, is_allowed, size_of
from hub.store.transport import Transport

_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def download(transport: Transport, repo_id: str, path: str, listed: StoredFile, **where: Any) -> Path:
    """A file of the Hub in its cache, or in a `local_dir`, with the content that the Hub lists.

    `where` has what `hf_hub_download` takes. Raises IntegrityError if the Hub sends something else.
    """
    fetch = transport.api.hf_hub_download
    for again in (False, True):
        file = Path(transport.call(partial(fetch, repo_id, path, force_download=again, **where), patient=False))
        if listed.holds(file):
            return file
    raise IntegrityError(f"{path} of {repo_id} was received with other content than the Hub lists")


def cached(repo_id: str, path: str, **where: Any) -> Path | None:
    """The cache's file for a revision, if it has one; `where` has what `try_to_load_from_cache` takes."""
    from huggingface_hub import try_to_load_from_cache

    try:
        entry = try_to_load_from_cache(repo_id, path, **where)
    except UnicodeDecodeError:  # the file that says at which commit a branch was is damaged
        return None
    return Path(entry) if isinstance(entry, str) else None


def check(file: Path, content: Content, repo_id: str) -> None:
    """Raise IntegrityError if `content`, read from a file of a snapshot, is not what the file's blob is named after.

    In a cache without symbolic links (Windows) blobs have no names, and nothing is checked.
    """
    if not file.is_symlink():
        return
    # One link only: a blob may be a link into the store that repositories share, where names are other hashes.
    blob = Path(os.path.normpath(file.parent.resolve() / file.readlink()))
    large = len(blob.name) == 64
    named = StoredFile(size_of(content), blob.name if large else None, None if large else blob.name)
    if _HASH.fullmatch(blob.name) and not named.holds(content):
        where = f"{file.name} of {repo_id} is damaged in the Hub's cache"
        raise IntegrityError(f"{where}: fetch it again with a network, or delete {blob}")


def restore(repo_id: str, path: str, revision: str | None) -> None:
    """Fetch what is damaged beside a model's cached file again, weights aside, for libraries that do not check.

    Raises IntegrityError if the Hub cannot be reached.
    """
    cached_file = cached(repo_id, path, revision=revision)
    for file in cached_file.parent.iterdir() if cached_file else ():
        if file.is_file() and is_allowed(file.name) and not WEIGHTS.fullmatch(file.name):
            try:
                check(file, file, repo_id)
            except IntegrityError as error:
                transport, where = Transport(), {"revision": file.parent.name, "force_download": True}
                try:
                    transport.call(partial(transport.api.hf_hub_download, repo_id, file.name, **where), patient=False)
                except UnavailableError:
                    raise error from None
                check(file, file, repo_id)
