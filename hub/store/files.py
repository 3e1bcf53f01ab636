"""Which files of a run's folder are released, and what is checked before they are.

The list is one of what is allowed, not of what is forbidden: a training folder holds optimizer states, and files such
as `training_args.bin` that are pickled and hold an access token. Weights are safetensors only. Text is searched for
access tokens before anything is sent.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hub.plain import atomic, strict_json
from hub.plain.errors import FilesError, RecordError, contains_token

WEIGHTS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\.safetensors")
_NAMES = frozenset(
    [
        "config.json",
        "generation_config.json",
        "log.jsonl",
        "model.safetensors.index.json",
        "README.md",
        "run.json",
        "scaling_law.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "vocab.txt",
        "merges.txt",
        "tokenizer.model",
        "spiece.model",
        "chat_template.jinja",
    ]
)
_PATTERNS = (WEIGHTS, re.compile(r"[a-z_][a-z0-9_]*\.py"), re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\.(?:png|svg)"))
_MAX_TEXT_BYTES = 64 * 1024 * 1024
_MAX_HEADER_BYTES = 100_000_000  # of a safetensors file, by its format
_MAX_FILES = 1000

# What a tokenizer's configuration says of the machine that wrote it, and not of the tokenizer.
_MACHINE_SETTINGS = ("local_files_only",)

Content = Path | bytes  # a file on this machine, or its bytes


@dataclass(frozen=True)
class Release:
    """What is to be released from one folder.

    Attributes:
        folder: where the files lie.
        files: name in the repository -> path on this machine, sorted by name; bytes where the file is sent otherwise
            than it lies there (`portable_tokenizer_config`).
        weights_sha256: name of each weights file -> sha256 (hex).
        skipped: names of what lies in the folder and is not on the list.
    """

    folder: Path
    files: Mapping[str, Content]
    weights_sha256: Mapping[str, str]
    skipped: tuple[str, ...]


def is_allowed(name: str) -> bool:
    """Whether a file of this name may be part of a release; names with a folder in them may not."""
    return name in _NAMES or any(pattern.fullmatch(name) for pattern in _PATTERNS)


def release_of(folder: str | Path) -> Release:
    """Collect and check the files of a run's folder.

    Raises:
        FilesError: no folder, no config.json, no weights, shards that do not match their index, a weights file that is
            not safetensors inside, or a text file that holds an access token.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FilesError(f"there is no folder {folder}")
    entries = sorted(folder.iterdir())
    paths = {entry.name: entry for entry in entries if entry.is_file() and is_allowed(entry.name)}
    files: dict[str, Content] = dict(paths)
    skipped = tuple(entry.name for entry in entries if entry.name not in files)
    weights = [name for name in files if WEIGHTS.fullmatch(name)]
    if "config.json" not in files:
        raise FilesError(f"{folder} has no config.json, so nothing could load it")
    if not weights:
        hint = ", ".join(name for name in skipped if name.endswith((".bin", ".pt", ".pth", ".ckpt", ".pkl")))
        found = f" ({hint} is pickled and never released)" if hint else ""
        raise FilesError(f"{folder} has no weights: allowed are .safetensors files{found}")
    if len(files) > _MAX_FILES:
        raise FilesError(f"{folder} has {len(files)} files to release, allowed are {_MAX_FILES}")
    _check_shards(paths, weights)
    for name in weights:
        safetensors_header(paths[name])
    if (tokenizer := "tokenizer_config.json") in files:
        files[tokenizer] = portable_tokenizer_config(paths[tokenizer].read_bytes())
    check_secrets(files)
    return Release(folder, files, {name: atomic.sha256_of(paths[name]) for name in weights}, skipped)


def portable_tokenizer_config(content: bytes) -> bytes:
    """A `tokenizer_config.json` without `local_files_only`, which transformers saves and obeys when it loads.

    Anything else, also what is no JSON object, is returned as it is.
    """
    try:
        config = json.loads(content)
    except ValueError:
        return content
    if not isinstance(config, dict) or not set(_MACHINE_SETTINGS) & set(config):
        return content
    kept = {name: value for name, value in config.items() if name not in _MACHINE_SETTINGS}
    return (json.dumps(kept, indent=2, ensure_ascii=False) + "\n").encode()


def run_folders(source: str | Path, depth: int = 4) -> list[Path]:
    """The folders with a run.json at or below `source`, sorted; of a store the branches, not their copies on `main`.

    Raises:
        FilesError: there is none.
    """
    source = Path(source)
    if not source.is_dir():
        raise FilesError(f"there is no folder {source}")
    found = [source] if (source / "run.json").is_file() else []
    level = [source]
    for _ in range(0 if found else depth):
        level = [entry for folder in level for entry in sorted(folder.iterdir()) if entry.is_dir()]
        level = [entry for entry in level if not entry.name.startswith(".")]
        found += [entry for entry in level if (entry / "run.json").is_file()]
    if not found:
        raise FilesError(f"{source} has no run.json, nor has a folder in it (looked {depth} levels down)")
    return without_copies(sorted(found))


def without_copies(folders: Sequence[Path]) -> list[Path]:
    """The folders without each `main` that lies beside others: in a store it is a copy of one of them."""
    parents = Counter(folder.parent for folder in folders)
    return [folder for folder in folders if folder.name != "main" or parents[folder.parent] == 1]


def check_secrets(files: Mapping[str, Content]) -> None:
    """Refuse what holds an access token: in a text, in the texts of a picture, in the header of a weights file.

    Raises:
        FilesError: names the file; the token is not repeated.
    """
    for name, content in files.items():
        if contains_token(_searched(name, content).decode("utf-8", "replace")):
            raise FilesError(f"{name} holds what looks like an access token; take it out before pushing")


def _searched(name: str, content: Content) -> bytes:
    """The part of a file that can hold a text: of weights the header, of all others everything."""
    if name.endswith(".safetensors"):
        if isinstance(content, bytes):
            return content[8 : 8 + int.from_bytes(content[:8], "little")]
        with content.open("rb") as file:
            return file.read(min(int.from_bytes(file.read(8), "little"), _MAX_HEADER_BYTES))
    if (size := size_of(content)) > _MAX_TEXT_BYTES:
        raise FilesError(f"{name}: {size:,} bytes, allowed for a file without weights are {_MAX_TEXT_BYTES:,}")
    return content_of(content)


def safetensors_header(path: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors in a safetensors file, from its header alone.

    Raises:
        FilesError: the file is not safetensors.
    """
    with path.open("rb") as file:
        return parse_safetensors_header(file.read(8), file.read, path.stat().st_size, path.name)


def parse_safetensors_header(prefix: bytes, read: object, size: int, name: str) -> dict[str, tuple[int, ...]]:
    """Parse a header; `prefix` are the first 8 bytes (its length, little endian), `read(n)` gives the next n bytes."""
    length = int.from_bytes(prefix, "little")
    if len(prefix) != 8 or not 2 <= length <= min(size - 8, _MAX_HEADER_BYTES) or not callable(read):
        raise FilesError(f"{name} is not a safetensors file: its header says {length} of {size} bytes")
    try:
        header = strict_json.loads(read(length), what=name, max_bytes=length)
        tensors = {key: value for key, value in header.items() if key != "__metadata__"}
        return {key: tuple(int(extent) for extent in value["shape"]) for key, value in tensors.items()}
    except (RecordError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise FilesError(f"{name} is not a safetensors file: {error}") from None


def content_of(content: Content) -> bytes:
    """The bytes of a file that is to be released."""
    return content if isinstance(content, bytes) else content.read_bytes()


def size_of(content: Content) -> int:
    """The size in bytes of a file that is to be released."""
    return len(content) if isinstance(content, bytes) else content.stat().st_size


def content_hash(content: Content, *, large: bool) -> str:
    """The hash (hex) by which the Hub knows a file: sha256 if it is a large file, else git's id of the blob."""
    if large:
        return hashlib.sha256(content).hexdigest() if isinstance(content, bytes) else atomic.sha256_of(content)
    data = content_of(content)
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def weights_of(files: Mapping[str, str | None]) -> dict[str, str | None]:
    """The weights files among `files` (name -> sha256)."""
    return {name: digest for name, digest in files.items() if name.endswith(".safetensors")}


def _check_shards(files: Mapping[str, Path], weights: Iterable[str]) -> None:
    """Without an index there is one weights file; with one, the shards are those that it names."""
    index = files.get("model.safetensors.index.json")
    if index is None:
        listed = list(weights)
        if listed != ["model.safetensors"]:
            raise FilesError(f"weights files are {listed}: allowed are model.safetensors, or shards with their index")
        return
    content = strict_json.loads(index.read_bytes(), what=index.name, max_bytes=_MAX_TEXT_BYTES)
    mapping = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(mapping, dict):
        raise FilesError(f"{index.name} has no weight_map")
    if set(mapping.values()) != set(weights):
        raise FilesError(f"{index.name} names {sorted(set(mapping.values()))}, the folder has {sorted(weights)}")
