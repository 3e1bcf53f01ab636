"""The card of a law on the Hub: formula, coefficients, conditions, figures, and the code that loads it."""

from __future__ import annotations

import json
import math

from hub.plain.markdown import escaped
from hub.plain.tables import Table
from hub.plain.units import format_count
from scaling_law.figures import law_figures as figures
from scaling_law.figures.drawing import png
from scaling_law.laws import Conditions, JointLaw, Law
from scaling_law.planning.optimum import has_optimum

ISOFLOP_EXPERTS = (1.0, 4.0, 16.0)
ISOFLOP_BUDGETS, MEMORY_BUDGET = (1e19, 1e20, 1e21, 1e22), 1e22  # the paper's figures; FLOPs
LARGEST_PAPER_RUN = 5.3e20
_METADATA = """---
{license}tags:
- scaling-laws
- mixture-of-experts
- joint-moe-scaling-laws
---
"""


def law_card(law: Law, repo: str, pictures: tuple[str, ...] = (), *, license: str | None = None) -> str:
    """The README.md of a law's repository, with metadata that the Hub accepts; it names a licence if one is given."""
    kind = type(law).__name__
    parts = [
        f"# {kind}: `{law.formula}`",
        "N is active parameters, D training tokens, Ê the transformed number of experts "
        "([Ludziejewski et al. 2025](https://arxiv.org/abs/2502.05172)); losses are in nats per token.",
        loading_code(law, repo),
        "## Coefficients",
        Table(("Coefficient", "Value"), [(name, repr(value)) for name, value in law.coefficients.items()]).markdown(),
    ]
    if law.draws is not None:
        parts.append(f"`scaling_law.json` also holds {len(law.draws)} bootstrap draws of them, for intervals.")
        if law.conditions is not None and law.conditions.draws is not None:
            parts.append(f"The draws: {escaped(law.conditions.draws)}.")
    if law.conditions is not None:
        parts += ["## Conditions", *_conditions(law.conditions)]
    parts += [f"![{name.removesuffix('.png')}]({name})" for name in pictures]
    metadata = _METADATA.format(license=f"license: {license}\n" if license else "")
    return metadata + "\n" + "\n\n".join(parts) + "\n"


def loading_code(law: Law, place: str) -> str:
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
    if conditions.set_aside:
        names = ", ".join(escaped(name) for name in conditions.set_aside[:20])
        more = ", …" if len(conditions.set_aside) > 20 else ""
        parts.append(f"Set aside as outliers, and not among these runs: {names}{more}.")
    rows = []
    for r in conditions.ranges:
        spans = (r.n_active, r.tokens, r.tokens_per_parameter)
        cells = [f"{format_count(low)} to {format_count(high)}" for low, high in spans]
        rows.append(["all" if r.experts is None else f"{r.experts:g}", *cells])
    parts.append(Table(("E", "Active parameters", "Tokens", "Tokens per parameter"), rows).markdown())
    parts.append("Predictions outside these ranges are extrapolations and come with a warning.")
    if conditions.vocab_size is not None:
        parts.append(f"Sizes count the vocabulary of these runs, {conditions.vocab_size:,} tokens.")
    return [*parts, f"```json\n{json.dumps(conditions.objective, indent=1)}\n```"]


def law_pictures(law: Law) -> dict[str, bytes]:
    """isoFLOP and memory-optimal figures as PNG, by file name; none for laws that have no optimum.

    Budgets are as far from the law's largest run as the paper's figures are from the paper's.
    """
    if not isinstance(law, JointLaw) or not has_optimum(law.chinchilla_coefficients(ISOFLOP_EXPERTS)).any():
        return {}
    fitted = law.conditions.overall if law.conditions else None
    scale = 10.0 ** round(math.log10(fitted.training_flops[1] / LARGEST_PAPER_RUN)) if fitted else 1.0
    return {
        "isoflop.png": png(figures.isoflop(law, [scale * f for f in ISOFLOP_BUDGETS], ISOFLOP_EXPERTS)),
        "memory_optimal.png": png(figures.memory_optimal(law, scale * MEMORY_BUDGET)),
    }
