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


def download(transport: Transport, repo_id: str, path: str, expected: StoredFile, **options: Any) -> Path:
    """Fetch a file of the Hub into its cache, or a `local_dir`, with the content that the Hub lists.

    `options` are those of `hf_hub_download`. Raises IntegrityError if the Hub sends something else.
    """
    fetch = transport.api.hf_hub_download
    for force_download in (False, True):
        request = partial(fetch, repo_id, path, force_download=force_download, **options)
        file = Path(transport.call(request, patient=False))
        if expected.holds(file):
            return file
    raise IntegrityError(f"{path} of {repo_id} was received with other content than the Hub lists")


def find(repo_id: str, path: str, **options: Any) -> Path | None:
    """Find a file of a revision in the cache; `options` are those of `try_to_load_from_cache`."""
    from huggingface_hub import try_to_load_from_cache

    try:
        entry = try_to_load_from_cache(repo_id, path, **options)
    except UnicodeDecodeError:
        # The file that says at which commit a branch was is damaged.
        return None
    return Path(entry) if isinstance(entry, str) else None


def check(file: Path, content: Content, repo_id: str) -> None:
    """Raise IntegrityError if `content`, read from a file of a snapshot, lacks the hash that names the file's blob.

    In a cache without symbolic links (Windows) blobs have no names, and nothing is checked.
    """
    if not file.is_symlink():
        return
    # One link only: a blob may be a link into the store that repositories share, where names are other hashes.
    blob = Path(os.path.normpath(file.parent.resolve() / file.readlink()))
    if not _HASH.fullmatch(blob.name):
        return
    if len(blob.name) == 64:
        expected = StoredFile(size_of(content), sha256=blob.name)
    else:
        expected = StoredFile(size_of(content), sha256=None, blob_id=blob.name)
    if not expected.holds(content):
        problem = f"{file.name} of {repo_id} is damaged in the Hub's cache"
        raise IntegrityError(f"{problem}: fetch it again with a network, or delete {blob}")


def restore(repo_id: str, path: str, revision: str | None) -> None:
    """Fetch damaged files beside a model's cached file again, weights aside, for libraries that do not check.

    Raises IntegrityError if the Hub cannot be reached.
    """
    cached_file = find(repo_id, path, revision=revision)
    if cached_file is None:
        return
    for file in cached_file.parent.iterdir():
        # A link may have lost its blob.
        is_lost = file.is_symlink() and not file.exists()
        if not (file.is_file() or is_lost) or not is_allowed(file.name) or WEIGHTS.fullmatch(file.name):
            continue
        try:
            if is_lost:
                raise IntegrityError(f"{file.name} of {repo_id} has lost its content in the Hub's cache: {file}")
            check(file, file, repo_id)
        except IntegrityError as error:
            transport = Transport()
            # A snapshot's folder is named after its commit.
            options = {"revision": file.parent.name, "force_download": True}
            try:
                transport.call(partial(transport.api.hf_hub_download, repo_id, file.name, **options), patient=False)
            except UnavailableError:
                raise error from None
            check(file, file, repo_id)
