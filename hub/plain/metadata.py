"""The metadata block of a card: YAML between two lines of `---`, which the Hub reads and searches by."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from hub.plain.errors import FilesError

_METADATA = re.compile(r"---[ \t]*\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|$)", re.DOTALL)


def metadata_of(card: str) -> dict[str, Any]:
    """The metadata of a card.

    Raises:
        FilesError: the block between the two `---` lines is missing, is not YAML, or is no mapping of names to values.
    """
    import yaml

    match = _METADATA.match(card)
    if match is None:
        raise FilesError("README.md: a card starts with metadata between two lines of ---")
    try:
        metadata = yaml.safe_load(match[1])
    except yaml.YAMLError as error:
        raise FilesError(f"README.md: its metadata is not YAML: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(metadata, dict) or not all(isinstance(name, str) for name in metadata):
        raise FilesError(
            f"README.md: its metadata is a {type(metadata).__name__}, allowed is a mapping of names to values"
        )
    return metadata


def check_metadata(card: str) -> None:
    """Refuse a card whose metadata block the Hub would refuse, before anything is sent; raises as `metadata_of`."""
    metadata_of(card)


def tags_of(card: str) -> list[str]:
    """The tags in a card's metadata; none if the metadata cannot be read."""
    try:
        tags = metadata_of(card).get("tags")
    except FilesError:
        return []
    return [tag for tag in tags if isinstance(tag, str)] if isinstance(tags, list) else []


def license_of(card: str) -> str | None:
    """The licence in a card's metadata, if there is one."""
    try:
        found = metadata_of(card).get("license")
    except FilesError:
        return None
    return found if isinstance(found, str) else None


def with_metadata(metadata: Mapping[str, Any], parts: Iterable[str]) -> str:
    """A card from its metadata and the parts of its text."""
    return _header(metadata) + "\n" + "\n\n".join(part.strip() for part in parts) + "\n"


def updated(card: str, fresh: Mapping[str, Any], owned: Iterable[str]) -> str:
    """The card with those fields of its metadata that are `owned` as in `fresh`; a field that `fresh` lacks goes.

    Tags that somebody added stay behind ours, and so does every other field. A card whose metadata says all this
    already keeps its very text.
    """
    try:
        there = metadata_of(card)
    except FilesError:
        return card  # is refused where it is checked
    names = set(owned)
    kept = {name: value for name, value in there.items() if name not in names or name in fresh}
    wanted = {**kept, **{name: fresh[name] for name in fresh if name in names}}
    if "tags" in names:
        wanted["tags"] = [*fresh.get("tags", ()), *(tag for tag in tags_of(card) if tag not in fresh.get("tags", ()))]
    if wanted == there:
        return card
    return _header(wanted) + card[_METADATA.match(card).end() :]  # type: ignore[union-attr]


def _header(metadata: Mapping[str, Any]) -> str:
    import yaml

    # safe_dump quotes whatever could be read as another type or as markup, so that metadata stays data.
    return f"---\n{yaml.safe_dump(dict(metadata), sort_keys=False, allow_unicode=True, width=10_000)}---\n"
