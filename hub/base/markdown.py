"""The text of cards: their metadata (the YAML block that the Hub searches by), blocks that are replaced, and escaping.

A record may have been written by a stranger, and a card is rendered as Markdown with HTML inside it.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from hub.base.errors import FilesError

if TYPE_CHECKING:
    from huggingface_hub import RepoCard

_SPECIAL = re.compile(r"([`*_{}\[\]#|~$@]|:(?=//)|(?<=\bwww)\.)")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\u2028\u2029\u200b-\u200f\u202a-\u202e\u2066-\u2069]+")


def escape_markdown(text: object, max_length: int = 200) -> str:
    """Write any value as one line of literal text: no HTML, no Markdown, no links, no hidden directions."""
    line = _CONTROL.sub(" ", str(text)).strip()
    if len(line) > max_length:
        line = line[: max_length - 1] + "…"
    # < > & " and the backslash become entities, because a backslash does not stop an HTML parser.
    line = html.escape(line, quote=True).replace("&#x27;", "'").replace("\\", "&bsol;")
    # Markdown's own signs (emphasis, code, links, tables, formulas, automatic links) get a backslash.
    return _SPECIAL.sub(r"\\\1", line)


def block(name: str, text: str) -> str:
    """Put `text` between two comments that a renderer does not show, so that `replace_block` finds it again.

    Nothing that went through `escape_markdown` can hold such a comment.
    """
    return f"<!-- {name} -->\n{text.strip()}\n<!-- /{name} -->"


def block_of(card: str, name: str) -> str | None:
    """Return the text of a named block; None if the card has none."""
    match = _block_pattern(name).search(card)
    return match[1].strip() if match else None


def replace_block(card: str, name: str, text: str) -> str:
    """Put another text into a named block of a card; a card without that block stays as it is."""
    return _block_pattern(name).sub(lambda _: block(name, text), card, count=1)


def _block_pattern(name: str) -> re.Pattern[str]:
    return re.compile(rf"<!-- {re.escape(name)} -->\n(.*?)<!-- /{re.escape(name)} -->", re.DOTALL)


def read_card(text: str) -> RepoCard:
    """Read the card with this text, if the Hub would accept its metadata.

    Raises:
        FilesError: the block between the two `---` lines is missing, not YAML, or not a mapping of names to values.
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
    """List the tags in a card's metadata; none if the metadata cannot be read."""
    return [tag for tag in _metadata_value(card, "tags", list) or [] if isinstance(tag, str)]


def license_of(card: str) -> str | None:
    """Return the licence in a card's metadata, if there is one."""
    return _metadata_value(card, "license", str)


def _metadata_value(card: str, name: str, value_type: type) -> Any:
    try:
        value = read_card(card).data.get(name)
    except FilesError:
        return None
    return value if isinstance(value, value_type) else None


def compose_card(metadata: Mapping[str, Any], paragraphs: Iterable[str]) -> str:
    """Write a card from its metadata and the paragraphs of its text."""
    from huggingface_hub import CardData

    header = f"---\n{CardData(**metadata).to_yaml()}\n---"
    body = [paragraph.strip() for paragraph in paragraphs]
    return "\n\n".join([header, *body]) + "\n"


def update_metadata(card: str, fresh: Mapping[str, Any], names: Iterable[str]) -> str:
    """Set the fields `names` of a card's metadata as in `fresh`; a field that `fresh` lacks is removed.

    Tags that somebody added stay behind ours, and so does every other field. A card whose metadata already says all
    this, or cannot be read, keeps its exact text.
    """
    try:
        parsed = read_card(card)
    except FilesError:
        # It is refused where it is checked.
        return card
    before = parsed.data.to_dict()
    for name in names:
        parsed.data.pop(name)
        if name in fresh:
            parsed.data[name] = fresh[name]
    if "tags" in names:
        our_tags = fresh.get("tags", [])
        added_tags = [tag for tag in tags_of(card) if tag not in our_tags]
        parsed.data["tags"] = [*our_tags, *added_tags] or None
    return card if parsed.data.to_dict() == before else str(parsed)
