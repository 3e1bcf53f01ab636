"""Laws as files: one JSON, `scaling_law.json`, with coefficients at full precision, conditions and draws.

Files are written atomically. What is read is validated: it may come from anyone's repository.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hub  # lazy: its rooms are imported when a law is read from the Hub
from hub.plain import strict_json
from scaling_law.law_files.card import law_card, law_pictures
from scaling_law.laws import LAWS, ChinchillaLaw, Conditions, Law

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
    data = strict_json.checked(data, FORMAT, VERSION, source)
    kind = LAWS.get(str(data.get("law")))
    if kind is None:
        raise ValueError(f"{source}: law={data.get('law')!r} is not one of {sorted(LAWS)}")
    options: dict[str, Any] = {name: data[name] for name in ("experts", "draws") if data.get(name) is not None}
    try:
        if data.get("conditions") is not None:
            options["conditions"] = Conditions.from_dict(data["conditions"])
        return kind(**data["coefficients"], **options)
    except (KeyError, TypeError):
        raise ValueError(f"{source}: coefficients must be exactly {list(kind.coefficient_names())}") from None
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None


def law_to_json(law: Law) -> bytes:
    """The content of `scaling_law.json`; NaN and infinities are refused."""
    return strict_json.versioned(FORMAT, VERSION, law_to_dict(law))


def save_law(law: Law, folder: str | Path) -> Path:
    """Write `scaling_law.json` (coefficients at full precision, conditions, draws) into `folder`; its path."""
    return strict_json.write(Path(folder) / FILE_NAME, FORMAT, VERSION, law_to_dict(law))


def load_law(source: str | Path, revision: str | None = None) -> Law:
    """A law from a folder, a JSON file, or a Hub repo "owner/name" (only if no such path exists).

    Raises:
        FileNotFoundError: nothing there, and no such repository on the Hub.
        ValueError: what is there is no law.
    """
    path = Path(source)
    try:
        content = path.read_bytes() if path.is_file() else hub.read_file(source, FILE_NAME, revision)
    except hub.NotFoundError as error:
        what = f"neither a folder or Hub repo with a {FILE_NAME}, nor a law's file ({error})"
        raise FileNotFoundError(f"{source}: {what}") from None
    data = strict_json.loads(content, what=str(source), max_bytes=strict_json.MAX_FILE_BYTES)
    return law_from_dict(data, str(source))


def push_law(
    law: Law, repo: str, *, token: str | None = None, private: bool = False, license: str | None = None
) -> str:
    """Push the law, its card and its figures to the main branch of the Hub repo "owner/name", in one commit.

    Returns the commit's id (sha). The card names a licence (an identifier of the Hub's list) only if one is given.
    ValueError for a name of another form; `hub.HubError` for what the Hub refuses.
    """
    owner, slash, name = repo.partition("/")
    if not owner or not slash or not name or "/" in name:
        raise ValueError(f"repo={repo!r} must have the form owner/name")
    pictures = law_pictures(law)
    card = law_card(law, repo, tuple(pictures), license=license).encode()
    store = hub.HubStore(owner, private=private, token=token)
    files = {FILE_NAME: law_to_json(law), "README.md": card, **pictures}
    return hub.publish_files(store, name, files, message=f"Add a {law.name} scaling law").commit
