"""The metadata of a card: the YAML block that the Hub reads and searches by (`huggingface_hub.RepoCard`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from hub.plain.errors import FilesError

if TYPE_CHECKING:
    from huggingface_hub import RepoCard


def read_card(text: str) -> RepoCard:
    """The card with this text, if the Hub would accept its metadata.

    Raises:
        FilesError: the block between the two `---` lines is missing, is not YAML, or is no mapping of names to values.
    """
    import yaml
    from huggingface_hub import RepoCard
    from huggingface_hub.repocard import REGEX_YAML_BLOCK

    if REGEX_YAML_BLOCK.search(text) is None:
        raise FilesError("README.md: a card starts with metadata between two lines of ---")
    try:
        return RepoCard(text)
    except (yaml.YAMLError, ValueError, TypeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise FilesError(f"README.md: its metadata must be a YAML mapping of names to values: {reason}") from None


def tags_of(card: str) -> list[str]:
    """The tags in a card's metadata; none if the metadata cannot be read."""
    tags = _value(card, "tags")
    return [tag for tag in tags if isinstance(tag, str)] if isinstance(tags, list) else []


def license_of(card: str) -> str | None:
    """The licence in a card's metadata, if there is one."""
    found = _value(card, "license")
    return found if isinstance(found, str) else None


def _value(card: str, name: str) -> Any:
    try:
        return read_card(card).data.get(name)
    except FilesError:
        return None


def with_metadata(metadata: Mapping[str, Any], parts: Iterable[str]) -> str:
    """A card from its metadata and the parts of its text."""
    from huggingface_hub import CardData

    return f"---\n{CardData(**metadata).to_yaml()}\n---\n\n" + "\n\n".join(part.strip() for part in parts) + "\n"


def updated(card: str, fresh: Mapping[str, Any], owned: Iterable[str]) -> str:
    """The card with the `owned` fields of its metadata as in `fresh`; a field that `fresh` lacks is removed.

    Tags that somebody added stay behind ours, and so does every other field. A card whose metadata already says all
    this, or cannot be read, keeps its exact text.
    """
    try:
        found = read_card(card)
    except FilesError:
        return card  # refused where it is checked
    before = found.data.to_dict()
    for name in owned:
        found.data.pop(name)
        if name in fresh:
            found.data[name] = fresh[name]
    if "tags" in owned:
        ours = fresh.get("tags", [])
        found.data["tags"] = [*ours, *(tag for tag in tags_of(card) if tag not in ours)] or None
    return card if found.data.to_dict() == before else str(found)
