"""Laws as files: one JSON, `scaling_law.json`, with coefficients at full precision, conditions and draws.

Written to a temporary name, synced and renamed, so that a reader never sees half a file. What is read is validated:
it may come from anyone's repository.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from scaling_law.conditions import Conditions
from scaling_law.laws import LAWS, ChinchillaLaw, Law

FILE_NAME = "scaling_law.json"
FORMAT, VERSION = "scaling_law", 1


def law_to_dict(law: Law) -> dict[str, Any]:
    """Plain JSON values from which `law_from_dict` makes an equal law (floats keep every bit)."""
    data: dict[str, Any] = {"format": FORMAT, "version": VERSION, "law": law.name, "formula": law.formula}
    data["coefficients"] = law.coefficients
    if isinstance(law, ChinchillaLaw) and law.experts is not None:
        data["experts"] = law.experts
    if law.conditions is not None:
        data["conditions"] = law.conditions.to_dict()
    if law.draws is not None:
        data["draws"] = law.draws.tolist()
    return data


def law_from_dict(data: Any, source: str = "law") -> Law:
    """Read what `law_to_dict` made; ValueError naming `source` and the field for anything else."""
    if not isinstance(data, Mapping) or data.get("format") != FORMAT:
        raise ValueError(f"{source}: format is not {FORMAT!r}: this is not a law's file")
    if data.get("version") != VERSION:
        raise ValueError(f"{source}: version={data.get('version')!r} is not supported, this code reads {VERSION}")
    kind = LAWS.get(str(data.get("law")))
    if kind is None:
        raise ValueError(f"{source}: law={data.get('law')!r} is not one of {sorted(LAWS)}")
    coefficients = data.get("coefficients")
    if not isinstance(coefficients, Mapping) or set(coefficients) != set(kind.coefficient_names()):
        raise ValueError(f"{source}: coefficients must be exactly {list(kind.coefficient_names())}")
    for name, value in coefficients.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"{source}: coefficients.{name}={value!r} is not a number")
    options: dict[str, Any] = {"experts": data["experts"]} if "experts" in data and kind is ChinchillaLaw else {}
    if data.get("conditions") is not None:
        options["conditions"] = Conditions.from_dict(data["conditions"])
    if data.get("draws") is not None:
        options["draws"] = np.array(data["draws"], float)
    try:
        return kind(**coefficients, **options)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None


def save_law(law: Law, folder: str | Path) -> Path:
    """Write `scaling_law.json` into `folder` (made if missing), atomically."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / FILE_NAME
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=f".{FILE_NAME}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(law_to_dict(law), file, indent=1, allow_nan=False)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)  # mkstemp makes it private; a law is meant to be read
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return target


def load_law(source: str | Path, revision: str | None = None) -> Law:
    """A law from a folder, a JSON file, or a Hub repo "owner/name" (only if no such path exists)."""
    path = Path(source)
    if path.is_dir():
        path = path / FILE_NAME
    elif not path.exists():
        path = _download(str(source), revision)
    if not path.is_file():
        raise FileNotFoundError(f"{source}: no {FILE_NAME} there")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not valid JSON ({error})") from None
    return law_from_dict(data, str(path))


def push_law(law: Law, repo: str, *, token: str | None = None, private: bool = False) -> str:
    """Upload the law's file to the Hub model repo in one commit; returns the commit's URL."""
    from huggingface_hub import CommitOperationAdd, HfApi

    api = HfApi(token=token)
    api.create_repo(repo, exist_ok=True, private=private)
    content = (json.dumps(law_to_dict(law), indent=1, allow_nan=False) + "\n").encode()
    operation = CommitOperationAdd(path_in_repo=FILE_NAME, path_or_fileobj=content)
    commit = api.create_commit(repo, [operation], commit_message=f"Add a {law.name} scaling law")
    return str(commit.commit_url)


def _download(repo: str, revision: str | None) -> Path:
    parts = repo.split("/")
    if len(parts) != 2 or not all(parts) or repo.startswith((".", "~")):
        raise FileNotFoundError(f"{repo}: neither a folder, nor a {FILE_NAME}, nor a Hub repo of the form owner/name")
    from huggingface_hub import hf_hub_download

    return Path(hf_hub_download(repo, FILE_NAME, revision=revision))
