"""The authors' released checkpoints: one `.pt` file per run in one repository of the Hub.

`maciek-pioro/joint-moe-scaling-laws` has `<d_model>/<experts>/<heads>/<steps>.pt`, steps standing for the tokens that
a run was trained on (512 sequences of 512 tokens per step, fewer in the first steps of the batch ramp). This module
finds and fetches a file; what is inside is read and converted by a function that is handed in, because `hub` knows no
model. A package that can convert announces its function as an entry point of the group `CONVERTERS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from hub.plain.atomic import sha256_of
from hub.plain.errors import FilesError, IntegrityError, NotFoundError
from hub.store.transport import Transport

REPOSITORY = "maciek-pioro/joint-moe-scaling-laws"

# Optimizer steps of a run -> tokens it was trained on: 128 sequences below step 7629, 256 below step 11444, then 512.
STEP_TOKENS: Mapping[int, int] = {
    steps: billions * 10**9 // 10
    for steps, billions in (
        *((7629, 5), (11443, 10), (15258, 20), (22888, 40), (38146, 80), (68664, 160), (129699, 320)),
        *((190734, 480), (251769, 640), (312805, 800), (373840, 960), (434875, 1120), (495910, 1280)),
    )
}

_PATH = re.compile(r"([1-9][0-9]{0,8})/([1-9][0-9]{0,8})/([1-9][0-9]{0,8})/([1-9][0-9]{0,8})\.pt")

CONVERTERS = "joint_moe_scaling_laws.converters"  # group of entry points; each is a `Convert`

Convert = Callable[["PublishedFile", Path], object]


@dataclass(frozen=True)
class PublishedRun:
    """One of the authors' runs, by the numbers in its path: width, number of experts, heads, optimizer steps."""

    d_model: int
    experts: int
    n_heads: int
    steps: int

    @property
    def path(self) -> str:
        """The file's path in the repository."""
        return f"{self.d_model}/{self.experts}/{self.n_heads}/{self.steps}.pt"

    @property
    def tokens(self) -> int | None:
        """Trained tokens by the authors' step table (nominal, e.g. 2_000_000_000); None for other steps."""
        return STEP_TOKENS.get(self.steps)


@dataclass(frozen=True)
class PublishedFile:
    """One of the authors' files, fetched: the run, the file on this machine, and where it is from."""

    run: PublishedRun
    path: Path
    repository: str
    commit: str


def installed_converter() -> EntryPoint:
    """The converter that an installed package offers.

    Raises:
        FilesError: there is none.
    """
    if found := list(entry_points(group=CONVERTERS)):
        return found[0]
    raise FilesError(
        f"no installed package converts these checkpoints (entry points {CONVERTERS!r}); install "
        "joint-moe-scaling-laws again with its training part"
    )


def list_published(
    repository: str = REPOSITORY, *, revision: str | None = None, **access: str | None
) -> list[PublishedRun]:
    """All runs in the repository, sorted by size, experts, heads and steps; `access`: `endpoint`, `token`."""
    transport = Transport(access.get("endpoint"), access.get("token"))
    return _runs(transport.read(lambda: transport.api.list_repo_files(repository, revision=revision)))


def pull_published(
    run: PublishedRun,
    destination: str | Path,
    convert: Convert | None = None,
    *,
    repository: str = REPOSITORY,
    revision: str | None = None,
    cache_dir: str | Path | None = None,
    **access: str | None,
) -> str:
    """Fetch one of the authors' checkpoints at one commit and have it converted.

    Args:
        run: which.
        destination: the folder that `convert` fills.
        convert: called with the `PublishedFile` and the destination; it must read the file as data only
            (`torch.load(..., weights_only=True)`). Default: that of `installed_converter()`.
        repository: where the files lie.
        revision: a branch or commit; default: the newest commit, which is then pinned for all requests.
        cache_dir: where the download is kept; default: the Hub's cache.
        access: `endpoint` and `token`, as for `HubStore`.

    Returns:
        The commit that the file was read at.

    Raises:
        FilesError: no `convert` was given and none is installed.
        NotFoundError: no such run; the message lists what there is for the size.
        IntegrityError: the file that arrived is not the one that the repository has.
    """
    from huggingface_hub import hf_hub_download

    chosen = convert or installed_converter()  # found first, loaded once the run is found: that takes seconds
    transport = Transport(access.get("endpoint"), access.get("token"))
    info = transport.read(lambda: transport.api.repo_info(repository, revision=revision, files_metadata=True))
    files = {item.rfilename: item for item in info.siblings or []}
    if run.path not in files:
        raise NotFoundError(f"{repository} has no {run.path} at {info.sha}; {_nearest(run, _runs(files))}")
    converter: Convert = chosen.load() if isinstance(chosen, EntryPoint) else chosen
    local = transport.read(
        lambda: hf_hub_download(repository, run.path, revision=info.sha, cache_dir=cache_dir, **transport.access)
    )
    expected = files[run.path].lfs.sha256 if files[run.path].lfs else None
    if expected is not None and (found := sha256_of(Path(local))) != expected:
        raise IntegrityError(f"{run.path} was received with sha256 {found}, the Hub says {expected}")
    converter(PublishedFile(run, Path(local), repository, str(info.sha)), Path(destination))
    return str(info.sha)


def _runs(names: Iterable[str]) -> list[PublishedRun]:
    """Those of the files that are checkpoints, sorted."""
    matches = filter(None, map(_PATH.fullmatch, names))
    runs = (PublishedRun(*map(int, match.groups())) for match in matches)
    return sorted(runs, key=lambda run: (run.d_model, run.experts, run.n_heads, run.steps))


def _nearest(run: PublishedRun, there: list[PublishedRun]) -> str:
    """What there is of the size, else at all."""
    same = [other.path for other in there if (other.d_model, other.experts) == (run.d_model, run.experts)]
    experts = [f"{other.d_model}/{other.experts}" for other in there if other.d_model == run.d_model]
    sizes = [str(other.d_model) for other in there]
    found = list(dict.fromkeys(same or sorted(experts) or sizes))
    return f"there are {', '.join(found[:30]) or 'no checkpoints'}"
