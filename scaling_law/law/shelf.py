"""The shelf: published laws by name, each with its equation, its source, and how it counts.

>>> from scaling_law import published
>>> published("chinchilla").loss(70e9, 1.4e12)
1.9208...

The files of `formulas/laws` hold them. No number there is from memory: `source` names where each was read, and
`evidence` what that is: the text of the "paper", the authors' "code", or a "secondary" report by others. What could
not be found is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from numpy.typing import ArrayLike

from hub.base.errors import InputError, unknown
from hub.base.fields import reads
from hub.base.tables import Summarised, Table
from hub.base.types import Fields, Strings
from scaling_law.answer.answer import ResultTable
from scaling_law.formulas.conditions import LABELS, Conditions, RangeCheck, rate_guard_of
from scaling_law.formulas.files import LOSS, PUBLISHED, ROWS, power_law
from scaling_law.formulas.law import positive
from scaling_law.law import LAWS, JointLaw, Law
from scaling_law.law.base import LawT
from scaling_law.size.arrays import FloatArray

# What a publication answers that gives peak learning rates and batches.
RATES = "learning rate, batch"
# Fields of a law that its table shows, and those that JSON has besides.
CELLS = ("equation", "source", "evidence", "answers", "parameters", "flops", "corpus", "tokenizer", "loss")
IN_JSON = ("name", "authors", "year", "arxiv", "part", "vocab_size", "published", *CELLS)


@dataclass(frozen=True, repr=False)
class PublishedLaw(Summarised):
    """A law as its paper has it; `coefficients` is None where they are not public.

    `parameters`, `flops`, `corpus`, `tokenizer` and `loss` say how it counts: losses on different corpora and
    tokenizers are not comparable; None where the sources do not say. `ranges` are the ranges of its runs, by variable.
    A publication that gives no loss has no `kind`: it gives `answers` as a function of `depends_on`.
    """

    name: str
    authors: str
    year: int
    part: str
    equation: str
    source: str
    evidence: Literal["paper", "code", "secondary"]
    parameters: str
    kind: type[Law] | None = None
    answers: str = LOSS
    depends_on: Sequence[str] = ()
    arxiv: str | None = None
    coefficients: Mapping[str, Any] | None = None
    flops: str | None = None
    corpus: str | None = None
    tokenizer: str | None = None
    loss: str | None = None
    vocab_size: int | None = None
    ranges: Mapping[str, Sequence[float]] = field(default_factory=dict)
    n_runs: int | None = None

    @property
    def citation(self) -> str:
        """Authors, year and the part of the paper."""
        place = f"arXiv {self.arxiv}, {self.part}" if self.arxiv else self.part
        return f"{self.authors} {self.year}, {place}"

    @property
    def published(self) -> bool:
        """True if its coefficients are public."""
        return self.coefficients is not None

    @property
    def has_optimum(self) -> bool:
        """True if its coefficients are public and give a loss that depends on tokens."""
        return self.published and self.answers == LOSS and "tokens" in self.variables

    @property
    def variables(self) -> Strings:
        """The variables of the answer, by their names in `law.loss` and `Architecture.variables`."""
        return tuple(self.depends_on) if self.kind is None else self.kind.form.variables

    @property
    def conditions(self) -> Conditions:
        """The ranges of its runs, and where they were read."""
        ranges = {LABELS.get(name, name): (low, high) for name, (low, high) in self.ranges.items()}
        return Conditions(
            self.citation,
            n_runs=self.n_runs,
            vocab_size=self.vocab_size,
            variables=ranges or None,
        )

    def law(self) -> Law:
        """Return the law with its ranges as conditions.

        ValueError where there are no public coefficients, and for a publication that gives no loss.
        """
        if self.kind is None:
            raise InputError(f"{self.name}: {self.citation} gives {self.answers}, no loss: {self.equation}")
        if self.coefficients is None:
            advice = f"fit(runs, kind={self.kind.name!r}) fits its form"
            raise InputError(f"{self.name}: {self.citation} prints no coefficients; {advice}")
        if self.name == PUBLISHED:
            return JointLaw.published()
        return self.kind(**self.coefficients, conditions=self.conditions)

    def to_dict(self) -> Fields:
        """Return plain JSON values."""
        values = {name: getattr(self, name) for name in IN_JSON}
        return {
            **values,
            "kind": self.kind and self.kind.name,
            "variables": list(self.variables),
            "coefficients": self.kind and self.coefficients,
            "ranges": {name: list(bounds) for name, bounds in self.ranges.items()},
            "runs": self.n_runs,
        }

    def summary(self) -> Table:
        """Show the law, how it counts, and its coefficients."""
        coefficients = ["published" if self.published else "none: a form to fit"]
        if self.published and self.kind is not None:
            coefficients = [f"{name} = {value:.10g}" for name, value in self.law().coefficients.items()]
        ranges = [f"{name}: {low:g} to {high:g}" for name, (low, high) in self.ranges.items()]
        rows = [(name, getattr(self, name)) for name in CELLS]
        rows += [("coefficients", "\n".join(coefficients)), ("ranges", "\n".join(ranges) or None)]
        notes = ["–: not stated in the sources read"]
        return Table((), rows, title=f"{self.name}: {self.citation}", notes=notes)


SHELF: dict[str, PublishedLaw] = {}
for _name, _row in ROWS.items():
    _kind = LAWS[_row["law"]] if "law" in _row else None
    _values = {"kind": _kind, "equation": _kind.formula if _kind else "", **_row}
    SHELF[_name] = PublishedLaw(
        **{field.name: _values[field.name] for field in fields(PublishedLaw) if field.name in _values}
    )


@dataclass(frozen=True, repr=False)
class Shelf(ResultTable):
    """The published laws."""

    entries: tuple[PublishedLaw, ...]

    def to_rows(self) -> list[Fields]:
        """Return each law as plain JSON values."""
        return [entry.to_dict() for entry in self.entries]

    def to_dict(self) -> Fields:
        """Return plain JSON values: the laws."""
        return {"laws": self.to_rows()}

    def summary(self) -> Table:
        """Show a row for each law, or a single one in full."""
        if len(self.entries) == 1:
            return self.entries[0].summary()
        return super().summary()

    def _headline(self) -> str:
        count = sum(entry.published for entry in self.entries)
        return f"{len(self.entries)} scaling laws from the literature, {count} with public coefficients"

    def _cells(self) -> list[Fields]:
        cells = []
        for entry in self.entries:
            row = {
                "law": entry.name,
                "of": f"{entry.authors} {entry.year}",
                "answers": entry.answers,
                "variables": ", ".join(entry.variables),
                "corpus": entry.corpus,
                "evidence": entry.evidence if entry.published else "form only",
            }
            cells.append(row)
        return cells

    def _footnotes(self) -> list[str]:
        return [
            "scaling-law compare --laws NAME shows the equation, source and coefficients of a law, and how it counts"
        ]


def laws() -> Shelf:
    """Return all published laws that the toolkit knows."""
    return Shelf(tuple(SHELF.values()))


@reads
def published(name: str) -> Any:
    """Return the published law of this name.

    ValueError for unknown names, for laws whose coefficients are not public, and for publications that give no loss.
    """
    return entry(name).law()


def entry(name: str) -> PublishedLaw:
    """Return the entry of a law. ValueError lists the names on the shelf."""
    if name not in SHELF:
        raise InputError(unknown("law=", name, SHELF))
    return SHELF[name]


def published_rates(name: str, *, force: bool = False, **variables: ArrayLike) -> dict[str, FloatArray]:
    """Return the peak `learning_rate` and `batch_tokens` that a published law gives; `variables` broadcast.

    ValueError for a law that gives no rates, for missing and unknown variables, and for values that are not positive
    and finite; ExtrapolationError beyond the range guard, unless `force`.
    """
    law = entry(name)
    if law.answers != RATES or law.coefficients is None:
        names = ", ".join(entry_name for entry_name, row in SHELF.items() if row.answers == RATES)
        raise InputError(f"law={name!r} gives {law.answers}, no rates; there are {names}")
    if {*variables} != {*law.variables}:
        inputs = ", ".join(variables) or "nothing"
        raise InputError(f"{name} depends on {', '.join(law.variables)}, not on {inputs}")
    values = {variable: positive(variable, value) for variable, value in variables.items()}
    check = RangeCheck(law.conditions, law.variables, values, rate_guard_of, trusts_guard=True)
    check.refuse(force)
    return {rate: power_law(law.coefficients[rate], values) for rate in ("learning_rate", "batch_tokens")}


def choose_law(name: str, kind: type[LawT] = Law, flag: str = "--law") -> LawT:  # type: ignore[assignment]
    """Load the law of a name, folder or Hub repo that `flag` gives. ValueError if there is none of this kind."""
    if name in ("published", "recovered", "printed"):
        law: Any = JointLaw.published(rounded=name == "printed")
    elif name in SHELF:
        if SHELF[name].kind is None:
            raise InputError(f"{flag} {name}: it gives {SHELF[name].answers}, no loss")
        law = published(name)
    elif Path(name).exists() or "/" in name:
        law = Law.from_pretrained(name)
    else:
        raise InputError(f"{unknown(f'{flag} ', name, ['published', 'printed', *SHELF])}, a folder, or a Hub repo")
    if not isinstance(law, kind):
        raise InputError(f"{flag} {name}: a {law.name} law cannot answer this; a joint law is needed")
    return law
