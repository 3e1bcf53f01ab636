"""The commits of a Hub dataset and tokenizer that a run is pinned to, from its first start on.

A run keeps them in `data.json`, and a sweep those of its members in `pins.json`. The folder of the token caches
remembers them too (`commits.json`), so a node without a network finds what was made with one.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import cast

from filelock import FileLock

from hub.base import atomic
from hub.base.errors import HubError, UnavailableError
from hub.base.types import Fields
from hub.store import cache
from hub.store.transport import Transport
from training.configuration.arguments import ConfigurationError, TrainingArguments
from training.data.text import is_local_path

logger = logging.getLogger(__name__)

DATA = "data.json"
# The field of `data` with the revision of each kind.
FIELDS = {"dataset": "revision", "tokenizer": "tokenizer_revision"}


@dataclass(frozen=True)
class Pin:
    """A dataset or tokenizer (`kind`) of the Hub at a commit; `revision` is as configured, None for the newest."""

    kind: str
    id: str
    revision: str | None
    commit: str


@dataclass(frozen=True)
class RunData:
    """Data of a run's first start, which its folder keeps in `data.json`.

    The identity of its dataset and of its tokenizer, its pins, and its peak learning rate, which earlier versions did
    not keep.
    """

    dataset: Fields | None = None
    tokenizer: Fields | None = None
    pins: list[Pin] = field(default_factory=list)
    peak_learning_rate: float | None = None

    @classmethod
    def of(cls, folder: Path) -> RunData:
        """Read the data of the run in `folder`, empty before its first start.

        Raises IntegrityError for a damaged file.
        """
        return cast(RunData, atomic.read_json(folder / DATA, cls(), cls))

    def save(self, folder: Path) -> None:
        """Write the data into the run's folder."""
        atomic.write_json(folder / DATA, asdict(self))


def pinned(
    arguments: TrainingArguments, folder: Path, shared: Iterable[Pin] = ()
) -> tuple[TrainingArguments, list[Pin]]:
    """Resolve revisions to commits; return the arguments with them, and the pins of what is on the Hub.

    The pins in the run's `folder` hold if it was started before, else the `shared` ones of its sweep.

    Raises:
        ConfigurationError: the run is pinned to another commit than the configured one, the Hub has no such dataset
            or revision, or it cannot be reached and no commit is remembered.
    """
    pins = []
    for kind, name, revision in _names_on_hub(arguments):
        pins_of_sweep = (pin for pin in shared if (pin.kind, pin.id, pin.revision) == (kind, name, revision))
        pin = _pin_of_run(folder, kind, name, revision) or next(pins_of_sweep, None)
        pin = pin or _resolve(kind, name, revision, Path(arguments.data.cache_dir))
        if pin:
            pins.append(pin)
    return arguments.replaced(data={FIELDS[pin.kind]: pin.commit for pin in pins}), pins


def _pin_of_run(folder: Path, kind: str, name: str, revision: str | None) -> Pin | None:
    """Find the pin of a run that was started before. Raises ConfigurationError if it is of another revision."""
    pin = next((pin for pin in RunData.of(folder).pins if (pin.kind, pin.id) == (kind, name)), None)
    if pin is not None and revision not in (None, pin.revision, pin.commit):
        raise ConfigurationError(
            f"data.{FIELDS[kind]}: {revision!r}, but the run in {folder} is pinned to {pin.commit}; leave it out "
            "or choose another run.output_dir"
        )
    return pin


def pinned_with_sweep(arguments: TrainingArguments, folder: Path) -> TrainingArguments:
    """Pin the member of a sweep in `folder` as the others are, and return its arguments. Raises as `pinned`."""
    if not any(_names_on_hub(arguments)):
        return arguments
    sweep = folder.parent
    sweep.mkdir(parents=True, exist_ok=True)
    path = sweep / "pins.json"
    with FileLock(sweep / ".pins.lock"):
        shared = atomic.read_json(path, [], list[Pin])
        arguments, pins = pinned(arguments, folder, shared)
        new_pins = [pin for pin in pins if pin not in shared]
        if new_pins:
            atomic.write_json(path, [vars(pin) for pin in shared + new_pins])
    return arguments


def _names_on_hub(arguments: TrainingArguments) -> Iterator[tuple[str, str, str | None]]:
    """Yield (kind, name, configured revision) of the dataset and the tokenizer, unless they are local."""
    for kind, revision_field in FIELDS.items():
        name = getattr(arguments.data, kind)
        if not is_local_path(name):
            yield kind, name, getattr(arguments.data, revision_field)


def _resolve(kind: str, name: str, revision: str | None, cache_dir: Path) -> Pin | None:
    """Find the commit of a revision, from the Hub or, where that cannot be reached, as the caches remember it.

    None for a tokenizer of which nothing is known; loading it will say what is wrong.
    """
    # The file maps "kind name" -> revision -> commit; the revision "" stands for None.
    path = cache_dir / "commits.json"
    commits_by_name = atomic.read_json(path, {}, dict[str, dict[str, str]])
    commits = commits_by_name.get(f"{kind} {name}", {})
    commit = revision
    if not re.fullmatch("[0-9a-f]{40}", revision or ""):
        try:
            commit = _ask(kind, name, revision)
        except UnavailableError as error:
            commit = commits.get(revision or "")
            if not commit and kind == "tokenizer":
                # The Hub's client may have downloaded it.
                file = cache.find(name, "tokenizer_config.json", revision=revision)
                commit = file.parent.name if file else None
            if commit is None and kind == "dataset":
                raise ConfigurationError(
                    f"data.revision: {revision!r}, but the Hub cannot be asked for the commit of {name!r} ({error}) "
                    f"and no cache in {cache_dir} is of it; give a commit"
                ) from None
            logger.warning("the Hub cannot be reached: using the last known commit of %s, %s", name, commit)
    if commit is None:
        return None
    current_commits = {"": commit, **commits, revision or "": commit}
    if current_commits != commits:
        atomic.write_json(path, {**commits_by_name, f"{kind} {name}": current_commits})
    return Pin(kind, name, revision, commit)


def _ask(kind: str, name: str, revision: str | None) -> str | None:
    """Ask the Hub for a commit; None where it has no such tokenizer, about which loading it says more."""
    transport = Transport(None, None, timeout=30.0, attempts=3, longest_wait=60.0)
    info = transport.api.dataset_info if kind == "dataset" else transport.api.model_info
    try:
        return transport.call(lambda: info(name, revision=revision)).sha
    except UnavailableError:
        raise
    except HubError as error:
        if kind == "tokenizer" and revision is None:
            return None
        setting = f"data.{kind}: {name!r}" if revision is None else f"data.{FIELDS[kind]}: {revision!r} of {name!r}"
        raise ConfigurationError(f"{setting}, which cannot be read from the Hub: {error}") from None
