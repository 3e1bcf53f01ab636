"""What is known of a published law: equation, source, how it counts, the ranges of its runs, and the law itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from hub.base.errors import InputError
from hub.base.tables import Summarised, Table
from scaling_law.formulas.answers import OwnQuestion
from scaling_law.formulas.conditions import LABELS, Conditions
from scaling_law.law import Law


@dataclass(frozen=True)
class PublishedLaw(Summarised):
    """A law as its paper has it; `make` is None where the coefficients are not public.

    `parameters`, `flops`, `corpus`, `tokenizer` and `loss` say how it counts: losses on different corpora and
    tokenizers are not comparable; None where the sources do not say. `ranges` are those of its runs, by variable.
    """

    name: str
    authors: str
    year: int
    arxiv: str | None
    part: str
    equation: str
    source: str
    evidence: Literal["paper", "code", "secondary"]
    make: Callable[[], Law | OwnQuestion] | None
    kind: type[Law] | type[OwnQuestion]
    parameters: str
    flops: str | None = None
    corpus: str | None = None
    tokenizer: str | None = None
    loss: str | None = None
    vocab_size: int | None = None
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    n_runs: int | None = None

    @property
    def citation(self) -> str:
        place = f"arXiv {self.arxiv}, {self.part}" if self.arxiv else self.part
        return f"{self.authors} {self.year}, {place}"

    @property
    def answers(self) -> str:
        """What it can be asked."""
        return self.kind.answers if issubclass(self.kind, OwnQuestion) else "loss"

    @property
    def variables(self) -> tuple[str, ...]:
        """What the answer depends on, by the names of `law.loss` and `Architecture.variables`."""
        if issubclass(self.kind, Law):
            return self.kind.form.variables
        return cast(OwnQuestion, self.law()).variables

    def law(self) -> Law | OwnQuestion:
        """The law, with its ranges as conditions. ValueError where there are no public coefficients."""
        if self.make is None:
            how = f"fit(runs, kind={getattr(self.kind, 'name', '')!r}) fits its form"
            raise InputError(f"{self.name}: {self.citation} prints no coefficients; {how}")
        law = self.make()
        if law.conditions is not None:
            return law
        ranges = {LABELS.get(name, name): ends for name, ends in self.ranges.items()}
        fit = Conditions(self.citation, n_runs=self.n_runs, vocab_size=self.vocab_size, variables=ranges or None)
        return law.replace(conditions=fit) if isinstance(law, Law) else replace(law, conditions=fit)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        names = ("name", "authors", "year", "arxiv", "part", "answers", "equation", "source", "evidence", "parameters")
        values = {name: getattr(self, name) for name in (*names, "flops", "corpus", "tokenizer", "vocab_size", "loss")}
        law = self.law() if self.make else None
        return values | {
            "kind": self.kind.name if issubclass(self.kind, Law) else None,
            "variables": list(self.variables),
            "coefficients": law.coefficients if isinstance(law, Law) else None,
            "published": law is not None,
            "ranges": {name: list(ends) for name, ends in self.ranges.items()},
            "runs": self.n_runs,
        }

    def summary(self) -> Table:
        row = self.to_dict()
        cells = {name: row[name] for name in ("equation", "source", "evidence", "answers")}
        cells |= {name: row[name] for name in ("parameters", "flops", "corpus", "tokenizer", "loss")}
        cells["coefficients"] = "\n".join(f"{k} = {v:.10g}" for k, v in (row["coefficients"] or {}).items())
        cells["coefficients"] = cells["coefficients"] or ("published" if row["published"] else "none: a form to fit")
        cells["ranges"] = "\n".join(f"{k}: {low:g} to {high:g}" for k, (low, high) in self.ranges.items()) or None
        return Table(
            (), list(cells.items()), title=f"{self.name}: {self.citation}", notes=["–: not stated in the sources read"]
        )
