"""Named parts of a configuration, for `--preset NAME` and for `preset: NAME` in a YAML file.

    paper                 the recipe of Ludziejewski et al. 2025: the defaults of the fields of `arguments`
    paper/d1024-E8        the recipe with one of the 51 configurations of the paper's listing: size, E, tokens
    selective-decay, …    recipes that differ from the paper's; one YAML file each in `configs/presets`

`python -m training.configuration.presets` lists them; with `show NAME` it prints a whole configuration.
"""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated

import typer
import yaml

from hub.plain.units import format_count
from scaling_law.size.architecture import Architecture
from scaling_law.size.listing import ROWS
from training.configuration.arguments import ConfigurationError, ModelArguments

PAPER = "paper"
FOLDER = Path(__file__).parents[1] / "configs" / "presets"

app = typer.Typer(help="List and show the presets of train.py.", invoke_without_command=True)


@dataclass(frozen=True)
class Listed:
    """One configuration of the paper's listing with the token counts of all its runs, ascending."""

    name: str
    architecture: Architecture
    tokens: tuple[int, ...]

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
        size = ModelArguments(arch.d_model, arch.experts, arch.n_blocks, arch.n_heads).name
        found[f"{PAPER}/{size}"] = Listed(f"{PAPER}/{size}", arch, tuple(sorted(tokens[arch])))
    return found


def recipes() -> dict[str, Path]:
    """The recipes other than the paper's: name -> YAML file."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}


def names() -> list[str]:
    """All presets."""
    return [PAPER, *recipes(), *listing()]


def sections(preset: str | list[str]) -> dict[str, dict]:
    """What a preset sets, by section; of several, the later win.

    Raises:
        ConfigurationError: there is no preset of that name; the message has the nearest ones.
    """
    merged: dict[str, dict] = {}
    for name in preset if isinstance(preset, list) else [preset]:
        for section, fields in _one(name).items():
            merged.setdefault(section, {}).update(fields)
    return merged


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
    hint = f"did you mean {', '.join(near)}?" if near else f"there are {', '.join([PAPER, *recipes()])}, and"
    raise ConfigurationError(
        f"preset: no preset is named {name!r}; {hint} `python -m training.configuration.presets` lists them all"
    )


@app.callback()
def show_list(
    context: typer.Context, as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False
) -> None:
    """List the presets: the recipes, and the paper's 51 configurations with their sizes and tokens."""
    if context.invoked_subcommand:
        return
    if as_json:
        print(json.dumps([_row(listed) for listed in listing().values()], indent=1))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{len(listing())} configurations of the paper, {sum_of_runs()} runs")
    for heading in ("preset", "N_act", "N_total", "E", "blocks", "heads", "tokens of its runs"):
        is_text = heading in ("preset", "tokens of its runs")
        table.add_column(heading, justify="left" if is_text else "right", no_wrap=heading == "preset")
    for listed in listing().values():
        arch = listed.architecture
        counts = [format_count(arch.n_active), format_count(arch.n_total)]
        counts += [str(value) for value in (arch.experts, arch.n_blocks, arch.n_heads)]
        table.add_row(listed.name, *counts, ", ".join(format_count(tokens) for tokens in listed.tokens))
    Console().print(table)
    print(f"recipes: {PAPER} (the defaults), {', '.join(recipes())}")


def sum_of_runs() -> int:
    """Runs in the listing, each of its own size, E and tokens."""
    return sum(len(listed.tokens) for listed in listing().values())


def _row(listed: Listed) -> dict:
    arch = listed.architecture
    shape = {name: getattr(arch, name) for name in ("d_model", "experts", "n_blocks", "n_heads")}
    return {
        "preset": listed.name,
        "n_active": arch.n_active,
        "n_total": arch.n_total,
        **shape,
        "tokens": list(listed.tokens),
    }


@app.command()
def show(preset: Annotated[list[str], typer.Argument(help="Presets, the later winning.")]) -> None:
    """Print the whole configuration that a preset gives, as YAML."""
    from training.configuration.reading import from_dict

    try:
        arguments = from_dict({"preset": preset, "run": {"output_dir": "runs/NAME"}}).with_capacity_group()
    except ConfigurationError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    print(yaml.safe_dump(arguments.to_dict(), sort_keys=False), end="")


if __name__ == "__main__":
    app()
