"""Laws as files and as Hub repositories: `scaling_law.json`, and a card with its figures.

Files are written atomically; what is read may come from anyone's repository, and is validated.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

import hub  # lazy: its rooms are imported when a law is read from the Hub
from hub.base import strict_json
from hub.base.errors import InputError
from hub.base.markdown import escaped
from hub.base.tables import Table
from hub.base.units import format_count
from scaling_law.figures import drawing, law_figures
from scaling_law.formulas import ChinchillaForm, Conditions, Formula
from scaling_law.formulas.law import has_optimum

FILE_NAME = "scaling_law.json"
FORMAT, VERSION = "scaling_law", 1
ISOFLOP_EXPERTS = (1.0, 4.0, 16.0)
ISOFLOP_BUDGETS, MEMORY_BUDGET = (1e19, 1e20, 1e21, 1e22), 1e22  # the paper's figures; FLOPs
LARGEST_PAPER_RUN = 5.3e20


def law_to_dict(law: Formula) -> dict[str, Any]:
    """Plain JSON values from which `scaling_law.law.base.law_from_dict` makes an equal law (floats keep every bit)."""
    data: dict[str, Any] = {"format": FORMAT, "version": VERSION, "law": law.name, "formula": law.formula}
    # A stack has laws of its own.
    if laws := getattr(law, "laws", ()):
        data |= {"laws": [law_to_dict(one) for one in laws], "coefficients": {"weights": [*law.weights]}}  # type: ignore[attr-defined]
    else:
        data["coefficients"] = law.coefficients
    # The law holds for one E.
    if (experts := getattr(law, "experts", None)) is not None:
        data["experts"] = experts
    if law.repetition is not None:
        data["repetition"] = asdict(law.repetition)
    if law.conditions is not None:
        data["conditions"] = law.conditions.to_dict()
    if law.draws is not None:
        data["draws"] = law.draws.tolist()
    return data


def law_to_json(law: Formula) -> bytes:
    """The content of `scaling_law.json`; NaN and infinities are refused."""
    return strict_json.versioned(FORMAT, VERSION, law_to_dict(law))


def push_law(
    law: Formula, repo: str, *, token: str | None = None, private: bool = False, license: str | None = None
) -> str:
    """Answer `Law.push_to_hub`."""
    owner, slash, name = repo.partition("/")
    if not owner or not slash or not name or "/" in name:
        raise InputError(f"repo={repo!r} must have the form owner/name")
    pictures = law_pictures(law)
    card = law_card(law, repo, tuple(pictures), license=license).encode()
    store = hub.HubStore(owner, private=private, token=token)
    files = {FILE_NAME: law_to_json(law), "README.md": card, **pictures}
    return hub.publish_files(store, name, files, message=f"Add a {law.name} scaling law").commit


def law_card(law: Formula, repo: str, pictures: tuple[str, ...] = (), *, license: str | None = None) -> str:
    """The README.md of a law's repository, with metadata that the Hub accepts; it names a licence if one is given."""
    variables = f"Its variables are {', '.join(f'`{name}`' for name in law.variables)}"
    if {*law.variables} <= {"n_active", "tokens", "experts"}:
        variables = "N is active parameters, D training tokens, Ê the transformed number of experts "
        variables += "([Ludziejewski et al. 2025](https://arxiv.org/abs/2502.05172))"
    parts = [
        f"# {type(law).__name__}: `{law.formula}`",
        f"{variables}; losses are in nats per token.",
        loading_code(law, repo),
        "## Coefficients",
        Table(("Coefficient", "Value"), [(name, repr(value)) for name, value in law.coefficients.items()]).markdown(),
    ]
    if law.repetition is not None:
        parts.append(f"It counts {law.repetition} ([Muennighoff et al. 2023](https://arxiv.org/abs/2305.16264)).")
    if law.draws is not None:
        parts.append(f"`scaling_law.json` also holds {len(law.draws)} bootstrap draws of them, for intervals.")
        if law.conditions is not None and law.conditions.draws is not None:
            parts.append(f"The draws: {escaped(law.conditions.draws)}.")
    if law.conditions is not None:
        parts += ["## Conditions", *_conditions(law.conditions)]
    parts += [f"![{name.removesuffix('.png')}]({name})" for name in pictures]
    tags = ["tags:", "- scaling-laws", "- mixture-of-experts", "- joint-moe-scaling-laws"]
    metadata = ["---", *([f"license: {license}"] if license else []), *tags, "---"]
    return "\n\n".join(["\n".join(metadata), *parts]) + "\n"


def loading_code(law: Formula, place: str) -> str:
    """A block of Python that loads this law from `place`; a law of another package is imported from there."""
    kind, module = type(law).__name__, type(law).__module__
    module = "scaling_law" if module.startswith("scaling_law.") else module
    return f'```python\nfrom {module} import {kind}\n\nlaw = {kind}.from_pretrained("{place}")\nprint(law)\n```'


def _conditions(conditions: Conditions) -> list[str]:
    """What the law was fitted on, paragraph by paragraph."""
    parts = [escaped(conditions.provenance)]
    if conditions.dataset is not None:
        link = f"[{escaped(conditions.dataset)}](https://huggingface.co/datasets/{conditions.dataset})"
        parts.append(f"The runs: {link}{f' at commit `{conditions.commit}`' if conditions.commit else ''}.")
        if conditions.commit:
            where = f", where={str(conditions.where)!r}" if conditions.where else ""
            code = f'runs = load_runs("{conditions.dataset}", revision="{conditions.commit}"{where})'
            parts.append(f"```python\nfrom scaling_law import load_runs\n\n{code}\n```")
    if conditions.rmse is not None:
        trunks = f" of {conditions.trunks} trunks ({conditions.trunk_source})" if conditions.trunks else ""
        runs = escaped(f"{conditions.n_runs} runs{trunks}")
        parts.append(f"{runs}, RMSE {conditions.rmse:.4f} nats. {escaped(conditions.status or '')}")
    parts += [f"⚠ {escaped(sentence)}." for sentence in (*conditions.doubts, *conditions.omitted)]
    if conditions.set_aside:
        names = ", ".join(escaped(name) for name in conditions.set_aside[:20])
        more = ", …" if len(conditions.set_aside) > 20 else ""
        parts.append(f"Excluded as outliers: {names}{more}.")
    header = {"Active parameters": "n_active", "Tokens": "tokens", "Tokens per parameter": "tokens_per_parameter"}
    rows = []
    for r in conditions.ranges:
        spans = [" to ".join(map(format_count, getattr(r, name))) for name in header.values()]
        rows.append(["all" if r.experts is None else f"{r.experts:g}", *spans])
    if rows:
        parts.append(Table(("E", *header), rows).markdown())
    if conditions.variables:
        ends = [(name, format_count(low), format_count(high)) for name, (low, high) in conditions.variables.items()]
        parts.append(Table(("Variable", "Lowest", "Highest"), ends).markdown())
    if rows or conditions.variables:
        parts.append("Predictions outside these ranges are extrapolations and come with a warning.")
    if conditions.vocab_size is not None:
        parts.append(f"Sizes count the vocabulary of these runs, {conditions.vocab_size:,} tokens.")
    fitted = [f"```json\n{json.dumps(conditions.objective, indent=1)}\n```"] if conditions.objective else []
    return [*parts, *fitted]


def law_pictures(law: Formula) -> dict[str, bytes]:
    """isoFLOP and memory-optimal figures as PNG, by file name; none for laws that have no optimum.

    Budgets are as far from the law's largest run as the paper's figures are from the paper's.
    """
    if not isinstance(law, ChinchillaForm) or "experts" not in law.variables:
        return {}
    if not has_optimum(law.chinchilla_coefficients(ISOFLOP_EXPERTS)).any():
        return {}
    fitted = law.conditions.overall if law.conditions else None
    scale = 10.0 ** round(math.log10(fitted.training_flops[1] / LARGEST_PAPER_RUN)) if fitted else 1.0
    return {
        "isoflop.png": drawing.png(law_figures.isoflop(law, [scale * f for f in ISOFLOP_BUDGETS], ISOFLOP_EXPERTS)),
        "memory_optimal.png": drawing.png(law_figures.memory_optimal(law, scale * MEMORY_BUDGET)),
    }
