"""The commits of a Hub dataset and tokenizer that a run is pinned to, from its first start on.

Upstream a commit can come at any time, if only to a README. So the newest commit is asked for once, when a run starts
for the first time, and kept in the run's folder (`data.json`): every later start reads the same text, also without a
network. The members of a sweep are pinned together (`pins.json` in the sweep's folder), whichever of them starts
first. The folder of the token caches remembers the commits that were asked for, too (`commits.json`), so that a cache
made on a machine with a network is found on a node without one.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from filelock import FileLock

from hub.plain.atomic import write_bytes
from training.configuration.arguments import ConfigurationError, TrainingArguments
from training.data.text import is_local_path

logger = logging.getLogger(__name__)

FIELDS = {"dataset": "revision", "tokenizer": "tokenizer_revision"}  # kind -> its field of `data`


@dataclass(frozen=True)
class Pin:
    """A repository of the Hub at a commit.

    Attributes:
        kind: dataset or tokenizer.
        id: the repository.
        asked: the branch, tag or commit that was asked for; None for the newest commit.
        commit: 40 hexadecimal digits.
    """

    kind: str
    id: str
    asked: str | None
    commit: str

    def answers(self, asked: str | None) -> bool:
        """Whether this commit is what is asked for now."""
        return asked in (None, self.asked, self.commit)


def of_run(folder: Path) -> list[Pin]:
    """The pins of a run that was started before; those of earlier versions' runs name their dataset only."""
    path = folder / "data.json"
    if not path.exists():
        return []
    values = json.loads(path.read_text())
    if "pins" in values:
        return [Pin(**pin) for pin in values["pins"]]
    dataset = values["dataset"]
    return [Pin("dataset", dataset["id"], None, dataset["revision"])] if _is_commit(dataset["revision"]) else []


def pinned(arguments: TrainingArguments, folder: Path | None = None) -> tuple[TrainingArguments, list[Pin]]:
    """The arguments with commits in the place of what was asked for, and the pins of what is on the Hub.

    Args:
        folder: of the run, whose pins hold if it was started before; None to ask for no run.

    Raises:
        ConfigurationError: the run is pinned to another commit than the one asked for, there is no such dataset or
            revision, or the Hub cannot be asked and no commit is remembered.
    """
    known, pins = of_run(folder) if folder else [], []
    for kind, field in FIELDS.items():
        name, asked = getattr(arguments.data, kind), getattr(arguments.data, field)
        if is_local_path(name):
            continue
        pin = next((pin for pin in known if (pin.kind, pin.id) == (kind, name)), None)
        if pin is not None and not pin.answers(asked):
            raise ConfigurationError(
                f"data.{field}: {asked!r}, but the run in {folder} is pinned to {pin.commit}; leave it out, or choose "
                "another run.output_dir"
            )
        if pin := pin or _resolved(kind, name, asked, Path(arguments.data.cache_dir)):
            pins.append(pin)
    return _with(arguments, pins), pins


def pinned_with_sweep(arguments: TrainingArguments, folder: Path) -> TrainingArguments:
    """The arguments of a member of a sweep, pinned as the other members are, whoever of them asks first.

    Args:
        folder: of the member; the sweep's is the one that it lies in.

    Raises:
        ConfigurationError: as `pinned`.
    """
    if is_local_path(arguments.data.dataset) and is_local_path(arguments.data.tokenizer):
        return arguments
    sweep = folder.parent
    sweep.mkdir(parents=True, exist_ok=True)
    path = sweep / "pins.json"
    with FileLock(sweep / ".pins.lock"):
        shared = [Pin(**pin) for pin in json.loads(path.read_text())] if path.exists() else []
        own, pins = of_run(folder), []
        for kind, field in FIELDS.items():
            name, asked = getattr(arguments.data, kind), getattr(arguments.data, field)
            if is_local_path(name):
                continue
            found = _first(own, kind, name, asked) or next(
                (pin for pin in shared if (pin.kind, pin.id, pin.asked) == (kind, name, asked)), None
            )
            # A sweep that an earlier version began has no pins yet, but members that were started.
            found = found or _first(
                (pin for run in sorted(sweep.glob("*/")) for pin in of_run(run)), kind, name, asked
            )
            found = found or _resolved(kind, name, asked, Path(arguments.data.cache_dir))
            if found is not None:
                pins.append(replace(found, asked=asked))
        if new := [pin for pin in pins if not any(replace(pin, commit=s.commit) == s for s in shared)]:
            write_bytes(path, (json.dumps([vars(pin) for pin in [*shared, *new]], indent=1) + "\n").encode())
    return _with(arguments, pins)


def _first(pins: Iterable[Pin], kind: str, name: str, asked: str | None) -> Pin | None:
    return next((pin for pin in pins if (pin.kind, pin.id) == (kind, name) and pin.answers(asked)), None)


def _with(arguments: TrainingArguments, pins: list[Pin]) -> TrainingArguments:
    return arguments.replaced(data={FIELDS[pin.kind]: pin.commit for pin in pins})


def _is_commit(revision: str | None) -> bool:
    return re.fullmatch("[0-9a-f]{40}", revision or "") is not None


# -- asking the Hub


def _resolved(kind: str, name: str, asked: str | None, cache_dir: Path) -> Pin | None:
    """The commit of a revision, from the Hub or, where that cannot be reached, as the caches remember it.

    None for a tokenizer of which nothing is known; loading it will say what is wrong.
    """
    memory = _Memory(cache_dir / "commits.json")
    if _is_commit(asked):
        commit = asked
    else:
        try:
            commit = _ask(kind, name, asked)
        except _Unreachable as error:
            commit = memory.get(kind, name, asked) or (_downloaded(name, asked) if kind == "tokenizer" else None)
            if commit is None and kind == "dataset":
                raise ConfigurationError(
                    f"data.revision: {asked!r}, but the Hub cannot be asked for the commit of {name!r} ({error}) and "
                    f"no cache in {cache_dir} was made of it; give a commit"
                ) from None
            if commit is not None:
                logger.warning("the Hub cannot be asked: %s is taken at the commit known here, %s", name, commit)
    if commit is None:
        return None
    memory.put(kind, name, asked, commit)
    return Pin(kind, name, asked, commit)


class _Unreachable(Exception):
    """The Hub did not answer, or is not to be asked."""


def _ask(kind: str, name: str, asked: str | None) -> str | None:
    """The commit as the Hub says; None where it has no such tokenizer, about which loading it says more."""
    from hub.plain.errors import HubError, UnavailableError
    from hub.store.transport import Transport

    transport = Transport(None, None, timeout=30.0, attempts=3, longest_wait=60.0)
    look = transport.api.dataset_info if kind == "dataset" else transport.api.model_info
    try:
        return transport.call(lambda: look(name, revision=asked)).sha
    except UnavailableError as error:
        raise _Unreachable(str(error)) from None
    except HubError as error:
        if kind == "tokenizer" and asked is None:
            return None
        what = f"data.{kind}: {name!r}" if asked is None else f"data.{FIELDS[kind]}: {asked!r} of {name!r}"
        raise ConfigurationError(f"{what}, but the Hub has none that can be read: {error}") from None


def _downloaded(tokenizer: str, asked: str | None) -> str | None:
    """The commit that the Hub's client holds of a tokenizer."""
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(tokenizer, "tokenizer_config.json", revision=asked)
    return Path(path).parent.name if isinstance(path, str) else None


@dataclass(frozen=True)
class _Memory:
    """The commits that were found, in a file beside the token caches; the last one is what `None` stands for."""

    path: Path

    def get(self, kind: str, name: str, asked: str | None) -> str | None:
        return self._read().get(f"{kind} {name}", {}).get(asked or "")

    def put(self, kind: str, name: str, asked: str | None, commit: str) -> None:
        known = self._read()
        of_name = known.setdefault(f"{kind} {name}", {})
        if of_name.get(asked or "") == commit and "" in of_name:
            return
        of_name[asked or ""] = commit
        of_name.setdefault("", commit)
        write_bytes(self.path, (json.dumps(known, indent=1) + "\n").encode())

    def _read(self) -> dict:
        return json.loads(self.path.read_text()) if self.path.exists() else {}
