"""The table of runs that a law is fitted on: columns that were checked once, and what is known about them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hub.base.errors import InputError, shorten, unknown
from hub.base.fields import reads
from hub.base.tables import Summarised, Table, column_name
from hub.base.types import Fields, Strings
from hub.base.units import format_count
from scaling_law.formulas.conditions import Conditions, FittedRange, fitted_ranges
from scaling_law.formulas.law import check_shapes, numbers
from scaling_law.runs.checks import check_rows, find_rising_runs, unit_warnings
from scaling_law.runs.columns import INPUTS
from scaling_law.runs.rows import FloatArray, RunsError
from scaling_law.runs.settings import HOLDERS, Blend, Recipe, find_blend
from scaling_law.runs.trunks import OWN
from scaling_law.size.architecture import training_flops
from scaling_law.size.arrays import BoolArray, Columns, IntArray, merge_rounded

if TYPE_CHECKING:
    import pandas

# Columns that every table has, in the order of the fields of `Runs`.
OWN_COLUMNS = (*INPUTS, "loss", "trunk")
# Sizes closer than this in ln N count as one.
SAME_SIZE = 0.05


@dataclass(frozen=True, repr=False)
class Runs(Summarised):
    """Measured runs as columns [n]; the loss is in nats per token, `trunk` holds cluster ids from 0.

    `columns` are the other numeric columns of the source, NaN where a run has no value; `runs[name]` is any of them.
    `texts` are columns of words that groups of runs share, None where a run has none. `skipped` lists the rows that
    were left out and why. `warmup_tokens` is the longest warm-up, `vocab_size` the shared vocabulary (None: unknown or
    mixed). `recipe` has the known columns of `runs.settings`, [n] each. `read_as` is the format and the mapping of
    columns (None: the source had our columns). `thinned` describes the sample, if the table is one of a larger table.
    """

    n_active: FloatArray
    tokens: FloatArray
    experts: FloatArray
    loss: FloatArray
    trunk: IntArray
    run_id: Strings
    source: str = "columns"
    loss_name: str = "loss"
    skipped: Strings = field(default=(), repr=False)
    dataset: str | None = None
    commit: str | None = None
    trunk_source: str = "given"
    warmup_tokens: float | None = None
    vocab_size: int | None = None
    where: str | None = None
    read_as: str | None = None
    thinned: str = ""
    columns: Columns = field(default_factory=dict, repr=False)
    recipe: Recipe = field(default_factory=dict, repr=False)
    texts: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for name in OWN_COLUMNS:
            kind = np.int64 if name == "trunk" else float
            object.__setattr__(self, name, _freeze(getattr(self, name), kind))
        object.__setattr__(self, "columns", {name: _freeze(values) for name, values in self.columns.items()})

    @classmethod
    @reads
    def from_columns(
        cls,
        n_active: ArrayLike,
        tokens: ArrayLike,
        experts: ArrayLike,
        loss: ArrayLike,
        trunk: ArrayLike | Literal["auto", "run"] | None = None,
        run_id: Sequence[str] | None = None,
        *,
        source: str = "columns",
        loss_name: str = "loss",
        columns: Mapping[str, ArrayLike] | None = None,
    ) -> Runs:
        """Make runs from arrays; scalars broadcast, those of `columns` too. RunsError for bad values.

        `trunk`: one id per run; "auto" or None joins runs of equal n_active and experts, "run" joins none.
        """
        arrays = {}
        for name, values in (("n_active", n_active), ("tokens", tokens), ("experts", experts), ("loss", loss)):
            arrays[name] = np.atleast_1d(numbers(name, values))
        check_shapes(arrays)
        inputs: Fields = dict(zip(arrays, np.broadcast_arrays(*arrays.values()), strict=True))
        shape = inputs["loss"].shape
        if len(shape) != 1:
            raise RunsError(f"columns must be one-dimensional, not of shape {shape}")
        count = shape[0]
        names = tuple(f"row-{i}" for i in range(count)) if run_id is None else tuple(run_id)
        for name in INPUTS:
            inputs[name] = merge_rounded(inputs[name])
        clusters, trunk_source = _read_trunks(trunk, inputs["n_active"], inputs["experts"])
        if len(names) != count or len(clusters) != count:
            raise RunsError(f"run_id and trunk must have one entry for each of the {count} runs")
        other_columns = {name: _read_column(name, column, count) for name, column in (columns or {}).items()}

        table = {"run_id": names, **inputs, **other_columns}
        rows = [dict(zip(table, cells, strict=True)) for cells in zip(*table.values(), strict=True)]
        trunks = clusters if trunk_source == "given" else None
        check_rows(rows, range(count), "loss", source, source_loss=loss_name, trunk=trunks, settings=[*other_columns])
        return cls(
            **inputs,
            trunk=clusters,
            run_id=names,
            source=source,
            loss_name=loss_name,
            trunk_source=trunk_source,
            columns=other_columns,
        )

    def __len__(self) -> int:
        return len(self.loss)

    @property
    def names(self) -> Strings:
        """Names of all numeric columns."""
        return (*INPUTS, "loss", *self.columns)

    @reads
    def column(self, name: str) -> FloatArray:
        """Return a numeric column [n] by its name, `n_active`, `tokens`, `experts` and `loss` included.

        RunsError lists the columns there are.
        """
        if name in INPUTS:
            return np.asarray(getattr(self, name))
        if name in ("loss", self.loss_name):
            return self.loss
        column = column_name(name, self.columns)
        if column not in self.columns:
            raise RunsError(f"{self.source}: {unknown('numeric column ', name, self.names)}")
        return self.columns[column]

    __getitem__ = column

    def positive(self, name: str, or_zero: bool = False) -> FloatArray:
        """Return a numeric column [n]; RunsError names the first run whose value is not positive and finite."""
        values = self.column(name)
        is_right = values >= 0 if or_zero else values > 0
        wrong_rows = np.flatnonzero(~is_right | ~np.isfinite(values))
        if wrong_rows.size:
            first = wrong_rows[0]
            run = f"{self.source}: {self.run_id[first]}"
            sign = "finite and not negative" if or_zero else "positive and finite"
            raise RunsError(f"{run}: {name}={values[first]:g} must be {sign}")
        return values

    def __contains__(self, name: object) -> bool:
        names = (*self.names, self.loss_name)
        return isinstance(name, str) and column_name(name, names) in names

    @property
    def flops(self) -> FloatArray:
        return np.asarray(training_flops(self.n_active, self.tokens))

    def subset(self, mask: BoolArray) -> Runs:
        """Return the runs where `mask` [n] is True; trunks keep their ids."""
        return self.take(np.flatnonzero(np.asarray(mask, bool)))

    def take(self, rows: NDArray[np.integer[Any]]) -> Runs:
        """Return the runs of these rows, in their order; trunks keep their ids."""

        def pick(values: Sequence[Any]) -> tuple[Any, ...]:
            return tuple(values[row] for row in rows)

        selected: Fields = {name: getattr(self, name)[rows] for name in OWN_COLUMNS}
        return replace(
            self,
            **selected,
            run_id=pick(self.run_id),
            columns={name: values[rows] for name, values in self.columns.items()},
            recipe={name: pick(values) for name, values in self.recipe.items()},
            texts={name: pick(values) for name, values in self.texts.items()},
        )

    @property
    def n_trunks(self) -> int:
        return len(np.unique(self.trunk))

    @property
    def n_sizes(self) -> int:
        """The number of sizes; those within `SAME_SIZE` of each other count once."""
        if not len(self):
            return 0
        log_sizes = np.sort(np.log(self.n_active))
        return 1 + int(np.sum(np.diff(log_sizes) > SAME_SIZE))

    def ranges(self) -> tuple[FittedRange, ...]:
        return fitted_ranges(self.n_active, self.tokens, self.experts)

    @property
    def warnings(self) -> Strings:
        """Sentences that say what is odd about the units of N, D and the loss, and about losses that rise with D."""
        has_shapes = "d_model" in self.columns
        units = unit_warnings(self._sizes, self.loss, self.loss_name, self.vocab_size, has_shapes)
        return (*units, *find_rising_runs(self._sizes, self.loss, self.run_id))

    @property
    def _sizes(self) -> dict[str, FloatArray]:
        return {name: getattr(self, name) for name in INPUTS}

    def blend(self, agreed: Collection[str] = ()) -> Blend | None:
        """Find the columns that tell runs of equal N, D and E with different losses apart.

        Columns that are `agreed` do not count, nor do columns of the recipe, which `check_mix` checks.
        """
        texts = {**self.recipe, **self.texts}
        agreed = {column_name(name, (*self.columns, *texts)) for name in agreed}
        # Names of trunks, and columns that have another check.
        checked = {"parent_run_id", "trunk", self.trunk_source.removeprefix("column ")}
        checked.update(column_name(name, texts) for name in HOLDERS)
        return find_blend(self._sizes, self.loss, self.columns, texts, checked, {*agreed, *self.recipe})

    def doubts(self, agreed: Collection[str] = ()) -> tuple[Strings, bool]:
        """Find what is odd about these runs, a sentence each, and whether no law that blends them is to be trusted.

        They may differ in the columns `agreed`, the variables of the law and what the user agreed to mix.
        """
        blend = self.blend(agreed)
        if blend is None:
            return self.warnings, False
        return (str(blend), *self.warnings), blend.harmful

    def without_settings(self, keep: Collection[str]) -> Runs:
        """Leave out all columns but those to `keep`, for fits within an answer whose runs are checked."""
        columns = {name: values for name, values in self.columns.items() if name in keep}
        return replace(self, columns=columns, recipe={}, texts={})

    def conditions(self, provenance: str, **fit: Any) -> Conditions:
        """Describe the runs that a law was fitted on; `fit` has further fields."""
        return Conditions(
            provenance,
            n_runs=len(self),
            ranges=self.ranges(),
            dataset=self.dataset,
            commit=self.commit,
            vocab_size=self.vocab_size,
            where=self.where,
            **fit,
        )

    def to_pandas(self) -> pandas.DataFrame:
        import pandas

        columns: Fields = {"run_id": list(self.run_id)}
        for name in OWN_COLUMNS:
            columns[name] = list(getattr(self, name))
        columns.update(self.columns)
        return pandas.DataFrame(columns)

    def summary(self) -> Table:
        """Tabulate what the runs of each E cover, from the least to the most; rich and notebooks show it."""
        rows = []
        for e in np.unique(self.experts):
            runs = self.subset(self.experts == e)
            rows.append(
                (
                    f"{e:g}",
                    len(runs),
                    runs.n_trunks,
                    _span(runs.n_active, format_count),
                    _span(runs.tokens, format_count),
                    _span(runs.loss, "{:.4f}".format),
                )
            )
        header = ("E", "runs", "trunks", "N_act", "tokens", self.loss_name)
        title = f"{len(self)} runs from {self.source}"
        return Table(header, rows, title=title, notes=self.skipped, warnings=self.warnings)

    def __repr__(self) -> str:
        values = ", ".join(f"{e:g}" for e in np.unique(self.experts))
        count = f"{len(self)} runs of {self.n_trunks} trunks"
        return f"Runs({count}, E in {{{values}}}, {self.loss_name}, from {self.source})"


def _span(values: FloatArray, format_value: Callable[[float], str]) -> str:
    """Write the least and the largest value of a column."""
    return f"{format_value(values.min())} – {format_value(values.max())}"


def _freeze(values: ArrayLike, kind: Any = float) -> NDArray[Any]:
    """Copy values to an array that nobody can write to."""
    column = np.array(values, kind)
    column.setflags(write=False)
    return column


def _read_trunks(
    trunk: ArrayLike | Literal["auto", "run"] | None,
    n_active: FloatArray,
    experts: FloatArray,
) -> tuple[IntArray, str]:
    """Number the trunk of each run from 0, and say how it was found."""
    source = "given"
    if trunk is None or (isinstance(trunk, str) and trunk == "auto"):
        # A bootstrap draws trunks by their numbers, which follow the sizes.
        sizes = np.column_stack([n_active, experts])
        trunk = np.unique(sizes, axis=0, return_inverse=True)[1]
        source = "runs of equal n_active, experts"
    elif isinstance(trunk, str):
        if trunk != "run":
            raise InputError(f"trunk={trunk!r} must be 'auto', 'run' or one id for each run")
        trunk = np.arange(len(n_active))
        source = OWN

    try:
        return np.unique(np.asarray(trunk), return_inverse=True)[1].ravel(), source
    except (TypeError, ValueError):
        raise RunsError(f"trunk={shorten(trunk)} must be one id for each run") from None


def _read_column(name: str, values: ArrayLike, count: int) -> FloatArray:
    """Read a further column of `Runs.from_columns`."""
    if name in OWN_COLUMNS or name == "run_id":
        raise RunsError(f"columns: {name!r} is an argument itself, not one of columns")

    try:
        return np.broadcast_to(np.asarray(values, float), (count,))
    except ValueError:
        raise RunsError(f"columns: {name!r} must hold {count} numbers, or one for all runs") from None
