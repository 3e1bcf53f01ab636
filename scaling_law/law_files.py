"""Laws as files and as Hub repositories: `scaling_law.json`, and a card with its figures.

Files are written atomically; what is read may come from anyone's repository, and is validated.
"""

from __future__ import annotations

import json
import math

# Its rooms are imported when a law is pushed to the Hub.
import hub
from hub.base import strict_json
from hub.base.errors import InputError
from hub.base.markdown import compose_card, escape_markdown
from hub.base.tables import Table
from hub.base.units import format_count
from scaling_law import figures
from scaling_law.formulas import Conditions, Formula
from scaling_law.formulas.files import FORMAT, VERSION
from scaling_law.formulas.law import has_optimum

FILE_NAME = "scaling_law.json"
# Tags of a card.
TAGS = ["scaling-laws", "mixture-of-experts", "joint-moe-scaling-laws"]
# The paper's figures, with budgets in FLOPs.
ISOFLOP_EXPERTS = (1.0, 4.0, 16.0)
ISOFLOP_BUDGETS = (1e19, 1e20, 1e21, 1e22)
MEMORY_BUDGET = 1e22
LARGEST_PAPER_RUN = 5.3e20
# Laws whose classes the package itself has.
LOADABLE = ("joint", "chinchilla", "routed", "stack")
# A card names so many outliers.
MOST_OUTLIERS = 20
# Columns of the table of ranges, and the fields of `FittedRange` that they show.
RANGE_COLUMNS = {
    "Active parameters": "n_active",
    "Tokens": "tokens",
    "Tokens per parameter": "tokens_per_parameter",
}


def law_to_json(law: Formula) -> bytes:
    """Return the content of `scaling_law.json`; NaN and infinities are refused."""
    return strict_json.versioned(FORMAT, VERSION, law.to_dict())


def push_law(
    law: Formula,
    repo: str,
    *,
    token: str | None = None,
    private: bool = False,
    license: str | None = None,
) -> str:
    """Push a law with its card and figures, and return the commit: see `Law.push_to_hub`."""
    owner, slash, name = repo.partition("/")
    if not owner or not slash or not name or "/" in name:
        raise InputError(f"repo={repo!r} must have the form owner/name")
    pictures = law_pictures(law)
    card = law_card(law, repo, tuple(pictures), license=license).encode()
    store = hub.HubStore(owner, private=private, token=token)
    files = {
        FILE_NAME: law_to_json(law),
        "README.md": card,
        **pictures,
    }
    return hub.publish_files(store, name, files, message=f"Add a {law.name} scaling law").commit


def law_card(law: Formula, repo: str, pictures: tuple[str, ...] = (), *, license: str | None = None) -> str:
    """Write the README.md of a law's repository, with metadata that the Hub accepts and the licence, if any."""
    coefficients = [(name, repr(value)) for name, value in law.coefficients.items()]
    blocks = [
        f"# {type(law).__name__}: `{law.formula}`",
        f"{_variables(law)}; losses are in nats per token.",
        loading_code(law, repo),
        "## Coefficients",
        Table(("Coefficient", "Value"), coefficients).markdown(),
    ]
    if law.repetition is not None:
        blocks.append(f"It counts {law.repetition} ([Muennighoff et al. 2023](https://arxiv.org/abs/2305.16264)).")
    if law.draws is not None:
        blocks.append(f"`scaling_law.json` also holds {len(law.draws)} bootstrap draws of them, for intervals.")
        if law.conditions is not None and law.conditions.draws is not None:
            blocks.append(f"The draws: {escape_markdown(law.conditions.draws)}.")
    if law.conditions is not None:
        blocks += ["## Conditions", *_conditions(law.conditions)]
    blocks += [f"![{name.removesuffix('.png')}]({name})" for name in pictures]
    return compose_card({"license": license, "tags": TAGS}, blocks)


def _variables(law: Formula) -> str:
    """Explain the variables of a law."""
    if {*law.variables} <= {"n_active", "tokens", "experts"} and law.is_packaged:
        source = "[Ludziejewski et al. 2025](https://arxiv.org/abs/2502.05172)"
        return f"N is active parameters, D training tokens, Ê the transformed number of experts ({source})"
    return f"Its variables are {', '.join(f'`{name}`' for name in law.variables)}"


def loading_code(law: Formula, place: str) -> str:
    """Write a block of Python that loads this law from `place`; a class whose form is no data is imported first."""
    kind = type(law).__name__
    module = type(law).__module__
    if module.startswith("scaling_law.") or law.form.is_data:
        module = "scaling_law"
        kind = kind if law.name in LOADABLE else "Law"
    return f'```python\nfrom {module} import {kind}\n\nlaw = {kind}.from_pretrained("{place}")\nprint(law)\n```'


def _conditions(conditions: Conditions) -> list[str]:
    """Describe the runs and the fit of a law, paragraph by paragraph."""
    blocks = [escape_markdown(conditions.provenance)]
    if conditions.dataset is not None:
        blocks += _dataset(conditions)
    if conditions.rmse is not None:
        runs = f"{conditions.n_runs} runs"
        if conditions.trunks:
            runs += f" of {conditions.trunks} trunks ({conditions.trunk_source})"
        blocks.append(
            f"{escape_markdown(runs)}, RMSE {conditions.rmse:.4f} nats. {escape_markdown(conditions.status or '')}"
        )
    blocks += [f"⚠ {escape_markdown(sentence)}." for sentence in (*conditions.doubts, *conditions.omitted)]
    if conditions.set_aside:
        names = ", ".join(map(escape_markdown, conditions.set_aside[:MOST_OUTLIERS]))
        ellipsis = ", …" if len(conditions.set_aside) > MOST_OUTLIERS else ""
        blocks.append(f"Excluded as outliers: {names}{ellipsis}.")
    blocks += _ranges(conditions)
    if conditions.vocab_size is not None:
        blocks.append(f"Sizes count the vocabulary of these runs, {conditions.vocab_size:,} tokens.")
    if conditions.objective:
        blocks.append(f"```json\n{json.dumps(conditions.objective, indent=1)}\n```")
    return blocks


def _dataset(conditions: Conditions) -> list[str]:
    """Link the dataset of the runs, and show the code that reads them again."""
    name = conditions.dataset or ""
    link = f"[{escape_markdown(name)}](https://huggingface.co/datasets/{name})"
    if not conditions.commit:
        return [f"The runs: {link}."]
    where = f", where={str(conditions.where)!r}" if conditions.where else ""
    code = f'runs = load_runs("{name}", revision="{conditions.commit}"{where})'
    return [
        f"The runs: {link} at commit `{conditions.commit}`.",
        f"```python\nfrom scaling_law import load_runs\n\n{code}\n```",
    ]


def _ranges(conditions: Conditions) -> list[str]:
    """Write the tables of the ranges of the runs; [] where none is known."""
    blocks = []
    rows = []
    for fitted_range in conditions.ranges:
        row = ["all" if fitted_range.experts is None else f"{fitted_range.experts:g}"]
        for name in RANGE_COLUMNS.values():
            low, high = getattr(fitted_range, name)
            row.append(f"{format_count(low)} to {format_count(high)}")
        rows.append(row)
    if rows:
        blocks.append(Table(("E", *RANGE_COLUMNS), rows).markdown())
    if conditions.variables:
        bounds = [(name, format_count(low), format_count(high)) for name, (low, high) in conditions.variables.items()]
        blocks.append(Table(("Variable", "Lowest", "Highest"), bounds).markdown())
    if blocks:
        blocks.append("Predictions outside these ranges are extrapolations and come with a warning.")
    return blocks


def law_pictures(law: Formula) -> dict[str, bytes]:
    """Draw isoFLOP and memory-optimal figures as PNG, by file name; none for laws that have no optimum.

    Budgets are as far from the law's largest run as the paper's figures are from the paper's.
    """
    if not law.form.is_chinchilla or "experts" not in law.variables:
        return {}
    if not has_optimum(law.chinchilla_coefficients(ISOFLOP_EXPERTS)).any():
        return {}
    scale = 1.0
    overall = law.conditions.overall if law.conditions else None
    if overall is not None:
        scale = 10.0 ** round(math.log10(overall.training_flops[1] / LARGEST_PAPER_RUN))
    budgets = [scale * flops for flops in ISOFLOP_BUDGETS]
    isoflop = figures.law_figures.isoflop(law, budgets, ISOFLOP_EXPERTS)
    memory_optimal = figures.law_figures.memory_optimal(law, scale * MEMORY_BUDGET)
    return {
        "isoflop.png": figures.drawing.png(isoflop),
        "memory_optimal.png": figures.drawing.png(memory_optimal),
    }
