"""The files of a run's folder that are released, and the checks before they are.

The list says what is allowed, because a training folder also holds optimizer states and pickled files, such as
`training_args.bin`, which contains an access token.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hub.base import atomic
from hub.base.errors import FilesError, IntegrityError, secret_in
from hub.base.paths import check_links
from hub.base.types import Strings

WEIGHTS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\.safetensors")
# As one text, the list is easier to read.
_NAMES = frozenset(
    """
    config.json generation_config.json log.jsonl model.safetensors.index.json README.md run.json scaling_law.json
    tokenizer.json tokenizer_config.json special_tokens_map.json added_tokens.json vocab.json vocab.txt merges.txt
    tokenizer.model spiece.model chat_template.jinja
    """.split()  # noqa: SIM905
)
_PATTERNS = (WEIGHTS, re.compile(r"[a-z_][a-z0-9_]*\.py"), re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\.(?:png|svg)"))
_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_MAX_TEXT_BYTES = 64 * 1024 * 1024
# Longest header of a safetensors file, by its format.
_MAX_HEADER_BYTES = 100_000_000
_MAX_FILES = 1000
# Levels of folders that are searched for runs.
_DEPTH = 6

# A file on this machine, or its bytes.
Content = Path | bytes
# Files by their names, and the sha256 of files, in hex.
Contents = Mapping[str, Content]
Hashes = Mapping[str, str]


@dataclass(frozen=True)
class Release:
    """The files to release from one folder, by name; bytes where the released file differs from the local one."""

    folder: Path
    files: Contents
    weights_sha256: Hashes
    # Names in the folder that are not on the list.
    skipped: Strings


def is_allowed(name: str) -> bool:
    """Return whether a release may hold a file of this name; names with a folder in them never qualify."""
    return name in _NAMES or any(pattern.fullmatch(name) for pattern in _PATTERNS)


def check_allowed(names: Iterable[str]) -> None:
    """Raise FilesError for the first name that a release may not hold."""
    for name in names:
        if not is_allowed(name):
            raise FilesError(f"file {name!r} is not on the list of what a release may hold")


def release_of(folder: str | Path) -> Release:
    """Collect and check the files of a run's folder.

    Raises FilesError for no folder, config.json or weights, a link that leads out of the folder, shards that do not
    match their index, weights that are not safetensors inside, or a text with a secret.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FilesError(f"there is no folder {folder}")
    entries = sorted(folder.iterdir())
    check_links([entry for entry in entries if is_allowed(entry.name)], str(folder))
    paths = {entry.name: entry for entry in entries if entry.is_file() and is_allowed(entry.name)}
    for path in paths.values():
        target = path.resolve()
        if not target.is_relative_to(folder.resolve()):
            raise FilesError(f"{path.name} is a link to {target}, which is outside {folder}; copy the file into it")
    skipped = tuple(entry.name for entry in entries if entry.name not in paths)
    weights = [name for name in paths if WEIGHTS.fullmatch(name)]
    if "config.json" not in paths:
        raise FilesError(f"{folder} has no config.json, so nothing could load it")
    if not weights:
        pickled = ", ".join(name for name in skipped if name.endswith(_PICKLED))
        hint = f" ({pickled} is pickled and never released)" if pickled else ""
        raise FilesError(f"{folder} has no weights: allowed are .safetensors files{hint}")
    if len(paths) > _MAX_FILES:
        raise FilesError(f"{folder} has {len(paths)} files to release, allowed are {_MAX_FILES}")
    _check_weights(folder, weights)
    files: dict[str, Content] = dict(paths)
    tokenizer = paths.get("tokenizer_config.json")
    if tokenizer is not None:
        files[tokenizer.name] = portable_tokenizer_config(tokenizer.read_bytes())
    check_secrets(files)
    return Release(folder, files, {name: atomic.sha256_of(paths[name]) for name in weights}, skipped)


def copy_release(folder: Path, destination: Path) -> Path:
    """Copy the files of a release into `destination`; those that are there must be the same, else IntegrityError."""
    check_links([file for file in folder.iterdir() if is_allowed(file.name)], str(folder))
    destination.mkdir(parents=True, exist_ok=True)
    for file in folder.iterdir():
        if not file.is_file() or not is_allowed(file.name):
            continue
        copy = destination / file.name
        if not copy.exists():
            atomic.copy_file(file, copy)
        if sha256_of(copy) != sha256_of(file):
            raise IntegrityError(f"{copy} has other content than {file}")
    return destination


def portable_tokenizer_config(content: bytes) -> bytes:
    """Remove `local_files_only` from a `tokenizer_config.json`: transformers saves it, and obeys it when it loads."""
    try:
        config = json.loads(content)
    except ValueError:
        return content
    if not isinstance(config, dict) or "local_files_only" not in config:
        return content
    del config["local_files_only"]
    return (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode()


def run_folders(source: str | Path) -> list[Path]:
    """Find the folders with a run.json at or below `source`, sorted, each once, without a store's copies on `main`.

    Raises FilesError if there is none.
    """
    source = Path(source)
    if not source.is_dir():
        raise FilesError(f"there is no folder {source}")
    folders: list[Path] = []
    # A link that leads back up is not followed.
    visited = set(source.resolve().parents)
    level = [source]
    # Level by level, so that the shorter of two paths to a run counts.
    for _ in range(_DEPTH + 1):
        next_level: list[Path] = []
        for folder in level:
            target = folder.resolve()
            if target in visited:
                continue
            visited.add(target)
            # A folder that may not be read has no entries.
            entries = sorted(folder.glob("[!.]*"))
            check_links(entries, str(source))
            if folder / "run.json" in entries:
                folders.append(folder)
            else:
                next_level += [entry for entry in entries if entry.is_dir()]
        level = next_level
    if not folders:
        raise FilesError(f"{source}: no run.json in it or in its folders (searched {_DEPTH} levels down)")
    runs_per_parent = Counter(folder.parent for folder in folders)
    return sorted(folder for folder in folders if folder.name != "main" or runs_per_parent[folder.parent] == 1)


def check_secrets(files: Contents) -> None:
    """Raise FilesError for an access token or a private key in a text, a picture's text, or the header of weights."""
    for name, content in files.items():
        text = _read_text(name, content).decode("utf-8", "replace")
        secret = secret_in(text)
        if secret:
            raise FilesError(f"{name} holds what looks like {secret}; take it out before pushing")


def _read_text(name: str, content: Content) -> bytes:
    """Read the bytes of a file that can hold text: the header of weights, everything of any other file."""
    if name.endswith(".safetensors"):
        with io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as file:
            header_length = int.from_bytes(file.read(8), "little")
            return file.read(min(header_length, _MAX_HEADER_BYTES))
    size = size_of(content)
    if size > _MAX_TEXT_BYTES:
        raise FilesError(f"{name}: {size:,} bytes, allowed for a file without weights are {_MAX_TEXT_BYTES:,}")
    return content_of(content)


def _check_weights(folder: Path, weights: list[str]) -> None:
    """Raise FilesError unless the weights are one safetensors file, or the shards that an index names."""
    from huggingface_hub import get_local_safetensors_metadata
    from huggingface_hub.errors import NotASafetensorsRepoError, SafetensorsParsingError

    try:
        shards = sorted(get_local_safetensors_metadata(folder).files_metadata)
    except NotASafetensorsRepoError:
        advice = "allowed are model.safetensors, or shards with their index"
        raise FilesError(f"weights files are {weights}: {advice}") from None
    # The library takes it for granted that headers and an index are mappings, and that all shards are there.
    except (SafetensorsParsingError, AttributeError, TypeError, ValueError, FileNotFoundError) as error:
        raise FilesError(f"{folder}: not a safetensors file, or no shard of its index: {error}") from None
    if shards != sorted(weights):
        raise FilesError(f"{folder}: weights are {shards} by their index, the folder has {sorted(weights)}")


def content_of(content: Content) -> bytes:
    """Return the bytes of a file that is to be released."""
    return content if isinstance(content, bytes) else content.read_bytes()


def size_of(content: Content) -> int:
    """Return the size in bytes of a file that is to be released."""
    return len(content) if isinstance(content, bytes) else content.stat().st_size


def sha256_of(content: Content) -> str:
    """Compute the sha256 (hex) of a file that is to be released."""
    return hashlib.sha256(content).hexdigest() if isinstance(content, bytes) else atomic.sha256_of(content)


def git_id_of(content: Content) -> str:
    """Compute git's id (hex) of a file's content, by which the Hub knows a small file."""
    data = content_of(content)
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
