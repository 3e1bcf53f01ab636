"""The shelf: published laws by name, each with its equation, its source, and how it counts.

>>> from scaling_law import published
>>> published("chinchilla").loss(70e9, 1.4e12)
1.9208...

`literature.json` holds them; laws of one paper share its fields. No number there is from memory: `source` names where
each was read, and `evidence` what that is: the text of the "paper", the authors' "code", or a "secondary" report by
others. What could not be found is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import exp
from pathlib import Path
from typing import Any, Literal

from hub.base.errors import InputError, unknown
from hub.base.fields import reads
from hub.base.tables import ResultTable, Summarised, Table
from hub.base.types import Fields, Strings
from scaling_law.formulas.conditions import LABELS, Conditions
from scaling_law.formulas.literature import read_literature
from scaling_law.law import LAWS, JointLaw, Law
from scaling_law.law.base import LawT


@dataclass(frozen=True, repr=False)
class PublishedLaw(Summarised):
    """A law as its paper has it; `coefficients` is None where they are not public.

    `parameters`, `flops`, `corpus`, `tokenizer` and `loss` say how it counts: losses on different corpora and
    tokenizers are not comparable; None where the sources do not say. `ranges` are the ranges of its runs, by variable.
    `by` is the class method of its kind that takes the coefficients (None: the class itself); a name `log_a` holds the
    natural logarithm of a. A publication that gives no loss has no `kind`: it gives `answers` as a function of
    `depends_on`.
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
    answers: str = "loss"
    depends_on: Strings = ()
    arxiv: str | None = None
    by: str | None = None
    coefficients: Mapping[str, Any] | None = None
    flops: str | None = None
    corpus: str | None = None
    tokenizer: str | None = None
    loss: str | None = None
    vocab_size: int | None = None
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
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
    def variables(self) -> Strings:
        """The variables of the answer, by their names in `law.loss` and `Architecture.variables`."""
        return self.depends_on if self.kind is None else self.kind.form.variables

    @property
    def conditions(self) -> Conditions:
        """The ranges of its runs, and where they were read."""
        ranges = {LABELS.get(name, name): bounds for name, bounds in self.ranges.items()}
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
        arguments = dict(_argument(name, value) for name, value in self.coefficients.items())
        make_law = getattr(self.kind, self.by) if self.by else self.kind
        law: Law = make_law(**arguments)
        return law if law.conditions is not None else replace(law, conditions=self.conditions)

    def to_dict(self) -> Fields:
        """Return plain JSON values."""
        law = self.law() if self.published and self.kind is not None else None
        return {
            "name": self.name,
            "authors": self.authors,
            "year": self.year,
            "arxiv": self.arxiv,
            "part": self.part,
            "answers": self.answers,
            "equation": self.equation,
            "source": self.source,
            "evidence": self.evidence,
            "parameters": self.parameters,
            "flops": self.flops,
            "corpus": self.corpus,
            "tokenizer": self.tokenizer,
            "vocab_size": self.vocab_size,
            "loss": self.loss,
            "kind": None if self.kind is None else self.kind.name,
            "variables": list(self.variables),
            "coefficients": None if law is None else law.coefficients,
            "published": self.published,
            "ranges": {name: list(bounds) for name, bounds in self.ranges.items()},
            "runs": self.n_runs,
        }

    def summary(self) -> Table:
        """Show the law, how it counts, and its coefficients."""
        values = self.to_dict()
        fields = ("equation", "source", "evidence", "answers", "parameters", "flops", "corpus", "tokenizer", "loss")
        cells = {name: values[name] for name in fields}
        coefficients = [f"{name} = {value:.10g}" for name, value in (values["coefficients"] or {}).items()]
        if not coefficients:
            coefficients = ["published" if self.published else "none: a form to fit"]
        ranges = [f"{name}: {low:g} to {high:g}" for name, (low, high) in self.ranges.items()]
        cells["coefficients"] = "\n".join(coefficients)
        cells["ranges"] = "\n".join(ranges) or None
        return Table(
            (),
            list(cells.items()),
            title=f"{self.name}: {self.citation}",
            notes=["–: not stated in the sources read"],
        )


def _argument(name: str, value: Any) -> tuple[str, Any]:
    """Return an argument of a law from a name and value of `literature.json`."""
    if name.startswith("log_"):
        return name.removeprefix("log_"), exp(value)
    return name, value


def _read() -> dict[str, PublishedLaw]:
    entries = {}
    for row in read_literature():
        row["ranges"] = {name: tuple(bounds) for name, bounds in row.get("ranges", {}).items()}
        row["depends_on"] = tuple(row.get("depends_on", ()))
        if "kind" in row:
            row["kind"] = LAWS[row["kind"]]
            row.setdefault("equation", row["kind"].formula)
        entries[row["name"]] = PublishedLaw(**row)
    return entries


SHELF = _read()


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
        """Show a row for each law."""
        header = ("law", "of", "answers", "variables", "corpus", "evidence")
        rows = []
        for entry in self.entries:
            row = (
                entry.name,
                f"{entry.authors} {entry.year}",
                entry.answers,
                ", ".join(entry.variables),
                entry.corpus,
                entry.evidence if entry.published else "form only",
            )
            rows.append(row)
        notes = [
            "scaling-law compare --laws NAME shows the equation, source and coefficients of a law, and how it counts"
        ]
        count = sum(entry.published for entry in self.entries)
        title = f"{len(self.entries)} scaling laws from the literature, {count} with public coefficients"
        return Table(header, rows, title=title, notes=notes)

    def _headline(self) -> str:
        return f"{len(self.entries)} scaling laws from the literature"


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
