"""`python -m training.presets` lists the presets of train.py; `python -m training.presets show NAME` prints one."""

from __future__ import annotations

import json
from typing import Annotated

import typer
import yaml

from hub.plain.commands import App, Json, Version
from hub.plain.tables import Table, print_table
from hub.plain.units import format_count
from training.configuration.presets import PAPER, listing, recipes
from training.configuration.reading import from_dict

app = App(help="List and show the presets of train.py.", invoke_without_command=True, no_args_is_help=False)


@app.callback()
def show_list(context: typer.Context, as_json: Json = False, version: Version = False) -> None:
    """List the presets: the recipes, and the paper's 51 configurations with their sizes and tokens."""
    if context.invoked_subcommand:
        return
    if as_json:
        sizes = ("n_active", "n_total", "d_model", "experts", "n_blocks", "n_heads")
        rows = [
            {"preset": listed.name}
            | {name: getattr(listed.architecture, name) for name in sizes}
            | {"tokens": listed.tokens}
            for listed in listing().values()
        ]
        print(json.dumps(rows, indent=1))
        return
    runs = sum(len(listed.tokens) for listed in listing().values())
    title = f"{len(listing())} configurations of the paper, {runs} runs"
    header = ("preset", "N_act", "N_total", "E", "blocks", "heads", "tokens of its runs")
    rows = []
    for listed in listing().values():
        arch = listed.architecture
        counts = [format_count(arch.n_active), format_count(arch.n_total)]
        counts += [str(value) for value in (arch.experts, arch.n_blocks, arch.n_heads)]
        rows.append([listed.name, *counts, ", ".join(format_count(tokens) for tokens in listed.tokens)])
    print_table(Table(header, rows, title=title))
    print(f"recipes: {PAPER} (the defaults), {', '.join(recipes())}")


@app.command()
def show(preset: Annotated[list[str], typer.Argument(help="Presets; the later win.")]) -> None:
    """Print the whole configuration that a preset gives, as YAML."""
    arguments = from_dict({"preset": preset, "run": {"output_dir": "runs/NAME"}}).with_capacity_group()
    print(yaml.safe_dump(arguments.to_dict(), sort_keys=False), end="")


if __name__ == "__main__":
    app()
