"""`python -m training.presets` lists the presets of train.py; `python -m training.presets show NAME` prints one."""

from __future__ import annotations

from typing import Annotated

import typer
import yaml

from hub.base.commands import App, Json, Version
from hub.base.tables import show
from hub.base.types import Fields
from hub.base.units import format_count
from scaling_law.answer.columns import tabulate
from training.configuration.reading import PAPER, from_dict, listing, recipes

app = App(help="List and show the presets of train.py.", invoke_without_command=True, no_args_is_help=False)


@app.callback()
def show_list(context: typer.Context, as_json: Json = False, version: Version = False) -> None:
    """List the presets: the recipes, and the paper's 51 configurations with their sizes and tokens."""
    if context.invoked_subcommand:
        return
    rows: list[Fields] = []
    table_rows = []
    for name, configuration in listing().items():
        row = {"preset": name, **configuration.sizes, "tokens": configuration.tokens}
        rows.append(row)
        table_rows.append({**row, "tokens": ", ".join(map(format_count, configuration.tokens))})
    runs = sum(len(row["tokens"]) for row in rows)
    title = f"{len(rows)} configurations of the paper, {runs} runs"
    notes = [f"recipes: {PAPER} (the defaults), {', '.join(recipes())}"]
    show(rows, as_json, tabulate(table_rows, title=title, notes=notes))


@app.command("show")
def show_preset(preset: Annotated[list[str], typer.Argument(help="Presets; the later win.")]) -> None:
    """Print the whole configuration that a preset gives, as YAML."""
    arguments = from_dict({"preset": preset, "run": {"output_dir": "runs/NAME"}}).with_capacity_group()
    print(yaml.safe_dump(arguments.to_dict(), sort_keys=False), end="")


if __name__ == "__main__":
    app()
