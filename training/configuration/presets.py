"""Named parts of a configuration, for `--preset NAME` and for `preset: NAME` in a YAML file.

    paper                 the recipe of Ludziejewski et al. 2025: the defaults of the fields of `arguments`
    paper/d1024-E8        the recipe with one of the 51 configurations of the paper's listing: size, E, tokens
    selective-decay, …    recipes that differ from the paper's; one YAML file each in `configs/presets`

`python -m training.presets` lists them; with `show NAME` it prints a whole configuration.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from hub.record.names import size_name
from scaling_law.size.architecture import Architecture
from scaling_law.size.recipe import ROWS
from training.configuration.arguments import ConfigurationError

PAPER = "paper"
FOLDER = Path(__file__).parents[1] / "configs" / "presets"


@dataclass(frozen=True)
class Listed:
    """One configuration of the paper's listing with the token counts of all its runs, ascending."""

    architecture: Architecture
    tokens: tuple[int, ...]

    @property
    def sizes(self) -> dict[str, Any]:
        """Parameters and shape."""
        arch = self.architecture
        return {"n_active": arch.n_active, "n_total": arch.n_total, **arch.shape}

    def sections(self) -> dict[str, dict]:
        """What it sets. The depth and heads stand there only where they are not d_model / 64."""
        arch = self.architecture
        model = {"d_model": arch.d_model, "experts": arch.experts}
        if (arch.n_blocks, arch.n_heads) != (arch.d_model // 64,) * 2:
            model |= {"n_blocks": arch.n_blocks, "n_heads": arch.n_heads}
        return {"model": model, "schedule": {"tokens": list(self.tokens)}}


@cache
def listing() -> dict[str, Listed]:
    """The configurations of the paper (Appendix "Experiments Listing") by name, smallest first.

    The listing has some configurations in two rows; here each stands once, with the tokens of all its rows.
    """
    tokens: dict[Architecture, set[int]] = {}
    for row in ROWS:
        tokens.setdefault(row.architecture, set()).update(round(billions * 1e9) for billions in row.tokens)
    found = {}
    for arch in sorted(tokens, key=lambda a: (a.n_active, a.experts)):
        found[f"{PAPER}/{size_name(**arch.shape)}"] = Listed(arch, tuple(sorted(tokens[arch])))
    return found


def recipes() -> dict[str, Path]:
    """The recipes other than the paper's: name -> YAML file."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}


def names() -> list[str]:
    """All presets."""
    return [PAPER, *recipes(), *listing()]


def sections(preset: str | list[str]) -> dict[str, Any]:
    """What a preset sets, by section; of several, the later win.

    Raises:
        ConfigurationError: there is no preset of that name; the message has the nearest ones.
    """
    return merged(*(_one(name) for name in (preset if isinstance(preset, list) else [preset])))


def merged(*layers: dict[str, Any]) -> dict[str, Any]:
    """Sections of fields as one, of which the later win. A section that is none is left for validation to refuse."""
    sections: dict[str, Any] = {}
    for name, fields in (item for layer in layers for item in layer.items() if item[0] != "preset"):
        before = sections.setdefault(name, {})
        if isinstance(before, dict):
            sections[name] = {**before, **fields} if isinstance(fields, dict) else fields
    return sections


def _one(name: str) -> dict[str, dict]:
    if name == PAPER:
        return {}  # the defaults of `arguments` are the paper's recipe
    if name in listing():
        return listing()[name].sections()
    if name in recipes():
        return yaml.safe_load(recipes()[name].read_text(encoding="utf-8"))
    # A size of the paper whose number of experts or shape is not given as there gets all of that width offered.
    width = str(name).partition("-")[0] + "-"
    near = [known for known in names() if known.startswith(width) and "/" in known]
    near = near or difflib.get_close_matches(str(name), names(), n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}? " if near else ""
    raise ConfigurationError(f"preset: no preset is named {name!r}; {hint}`python -m training.presets` lists them all")
