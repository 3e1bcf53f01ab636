"""The licences that a card's metadata may name, by their identifiers on the Hub.

Nothing here chooses one: whoever releases weights says under which licence, or the card names none.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hub.plain.errors import FilesError
from hub.plain.markdown import license_of

# huggingface.co/docs/hub/repositories-licenses
_IDENTIFIERS = """
apache-2.0 mit openrail bigscience-openrail-m creativeml-openrail-m bigscience-bloom-rail-1.0 bigcode-openrail-m
afl-3.0 artistic-2.0 bsl-1.0 bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear c-uda cc cc0-1.0 cc-by-2.0 cc-by-2.5
cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nd-4.0 cc-by-nc-nd-3.0
cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cdla-sharing-1.0 cdla-permissive-1.0
cdla-permissive-2.0 wtfpl ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2 agpl-3.0 gfdl gpl gpl-2.0 gpl-3.0
lgpl lgpl-2.1 lgpl-3.0 isc h-research intel-research lppl-1.3c ms-pl apple-ascl apple-amlr mpl-2.0 odc-by odbl
openmdw-1.0 openrail++ osl-3.0 postgresql ofl-1.1 ncsa unlicense zlib pddl lgpl-lr deepfloyd-if-license
fair-noncommercial-research-license llama2 llama3 llama3.1 llama3.2 llama3.3 llama4 grok2-community gemma unknown
other
"""
LICENSES = frozenset(_IDENTIFIERS.split())


def checked_license(identifier: str) -> str:
    """`identifier`, if the Hub knows such a licence.

    Raises:
        FilesError: it does not.
    """
    if identifier not in LICENSES:
        raise FilesError(
            f"license {identifier[:60]!r}: allowed are the Hub's identifiers, such as apache-2.0, mit, cc-by-4.0, "
            "cc0-1.0 or other"
        )
    return identifier


def without_license(folders: Iterable[Path]) -> str:
    """A message for whoever releases these folders on how many runs' cards name no licence; empty if all do."""
    cards = [folder / "README.md" for folder in folders]
    texts = [card.read_text(encoding="utf-8", errors="replace") if card.is_file() else "" for card in cards]
    if not (missing := sum(license_of(text) is None for text in texts)):
        return ""
    return f"no licence: {missing} of {len(cards)} runs name none; pass --license, such as --license apache-2.0"
