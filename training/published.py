"""The paper authors' released checkpoints, as folders for `from_pretrained` with the run record of what is known.

`python -m training.published list`, or `pull 512 8 8 15258 --to FOLDER` (d_model, experts, heads, optimizer steps).
What their public training code does not say (seed, losses, hardware, the revision of the data) is null in the record.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from hub.base import atomic, commands
from hub.base.atomic import weights_sha256
from hub.base.errors import FilesError, NotFoundError
from hub.base.units import format_count
from hub.record.names import format_tokens
from hub.record.run_record import RunRecord
from hub.release.cards import model_card
from hub.store import cache
from hub.store.base import StoredFile
from hub.store.hub import stored_file
from hub.store.transport import Transport
from modeling_switch_moe.convert import ConversionError, convert
from scaling_law.size.architecture import Architecture
from scaling_law.size.recipe import PAPER, BatchRamp
from training.configuration.reading import from_dict
from training.run.model import peak_learning_rate
from training.run.results import configured_fields

REPOSITORY = "maciek-pioro/joint-moe-scaling-laws"
SWEEP = "joint-moe-scaling-laws"

# Optimizer steps of a run -> nominal tokens: 128 sequences of 512 below step 7629, 256 below step 11444, then 512.
STEP_TOKENS = {
    7629: 500_000_000,
    11443: 1_000_000_000,
    15258: 2_000_000_000,
    22888: 4_000_000_000,
    38146: 8_000_000_000,
    68664: 16_000_000_000,
    129699: 32_000_000_000,
    190734: 48_000_000_000,
    251769: 64_000_000_000,
    312805: 80_000_000_000,
    373840: 96_000_000_000,
    434875: 112_000_000_000,
    495910: 128_000_000_000,
}
_RAMP = BatchRamp(PAPER.batch_ramp, PAPER.sequence_length)
# Fields of a run that nobody knows. A capacity group was a micro-batch on a device, of a size that differed between
# runs.
_UNKNOWN = (
    "train_loss",
    "seed",
    "tokens_per_second",
    "hardware",
    "wall_time_seconds",
    "capacity_group_tokens",
    "micro_batch_sequences",
    "gradient_checkpointing",
    "compile",
)
# A section of a converted checkpoint's card.
ORIGIN = (
    "Converted from `{path}` of [{repository}](https://huggingface.co/{repository}/tree/{commit}) at commit "
    "`{commit}`, the checkpoints that the authors of the paper released; see there for their licence and "
    "how to cite them. The weights are theirs, in the layout of `modeling_switch_moe`. The recipe above is that "
    "of their public training code; what it does not say is left open."
)
_NUMBER = "([1-9][0-9]{0,8})"
_PATH = re.compile(rf"{_NUMBER}/{_NUMBER}/{_NUMBER}/{_NUMBER}\.pt")

app = commands.App(name="published", help="List, fetch and convert the checkpoints that the paper's authors released.")
Repository = Annotated[str, typer.Option(help="Where the checkpoints lie.")]


class PublishedRun(NamedTuple):
    """One of the authors' runs, by the numbers in its path: width, number of experts, heads, optimizer steps."""

    d_model: int
    experts: int
    n_heads: int
    steps: int

    @property
    def path(self) -> str:
        """Path of the file in the repository."""
        return "/".join(map(str, self)) + ".pt"

    @property
    def tokens(self) -> int | None:
        """Trained tokens by the authors' step table (nominal, e.g. 2_000_000_000); None for other steps."""
        return STEP_TOKENS.get(self.steps)


@app.command("list")
def list_command(repository: Repository = REPOSITORY, revision: commands.Revision = None) -> None:
    """List the checkpoints, as arguments of `pull`."""
    _, files = _files(Transport(), repository, revision)
    for run in sorted(files):
        typer.echo(f"{run.d_model} {run.experts} {run.n_heads} {run.steps}  {format_count(run.tokens)} tokens")


@app.command("pull")
def pull_command(
    d_model: Annotated[int, typer.Argument(metavar="D", help="Width d_model.")],
    experts: Annotated[int, typer.Argument(metavar="E", help="Number of experts.")],
    heads: Annotated[int, typer.Argument(metavar="HEADS", help="Attention heads.")],
    steps: Annotated[int, typer.Argument(metavar="STEPS", help="Optimizer steps.")],
    to: Annotated[Path, typer.Option("--to", help="New or empty folder.")],
    repository: Repository = REPOSITORY,
    revision: commands.Revision = None,
) -> None:
    """Fetch one checkpoint and convert it to a folder for from_pretrained, with its run record and card."""
    run = PublishedRun(d_model, experts, heads, steps)
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise FilesError(f"{to} exists and is not an empty folder; nothing was fetched")
    transport = Transport()
    commit, files = _files(transport, repository, revision)
    if run not in files:
        raise NotFoundError(f"{repository} has no {run.path} at {commit}; {_nearest(run, sorted(files))}")
    local = cache.download(transport, repository, run.path, files[run], revision=commit)
    try:
        model = convert(local)
    except (ConversionError, OSError) as error:
        raise FilesError(f"{run.path}: {error}") from None
    config = model.config
    sizes = (config.hidden_size, config.num_experts, config.num_attention_heads)
    if sizes != (d_model, experts, heads):
        raise FilesError(f"{run.path} holds a model of width, experts and heads {sizes}")
    to.parent.mkdir(parents=True, exist_ok=True)
    with atomic.atomic_folder(to) as folder:
        model.save_pretrained(folder)
        origin = {"repository": repository, "commit": commit, "path": run.path}
        record = run_record(run, config.num_hidden_layers, config.vocab_size, weights_sha256(folder), origin)
        record.save(folder)
        card = model_card(record, sections={"Where it comes from": ORIGIN.format(**origin)}, license="other")
        (folder / "README.md").write_text(card, encoding="utf-8")
    typer.echo(f"{to} {repository}@{commit}")


def _files(transport: Transport, repository: str, revision: str | None) -> tuple[str, dict[PublishedRun, StoredFile]]:
    """Look up the commit of a revision, and its checkpoints as the Hub lists them."""
    info = transport.call(
        lambda: transport.api.repo_info(repository, revision=revision, files_metadata=True), patient=False
    )
    files = {}
    for item in info.siblings or []:
        match = _PATH.fullmatch(item.rfilename)
        if match:
            files[PublishedRun(*map(int, match.groups()))] = stored_file(item)
    return str(info.sha), files


def _nearest(run: PublishedRun, runs: list[PublishedRun]) -> str:
    """Name the available checkpoints of the width, else of all widths."""
    same_width = [candidate for candidate in runs if candidate.d_model == run.d_model]
    names = [candidate.path for candidate in same_width or runs]
    return f"available: {', '.join(names[:30]) or 'none'}"


def run_record(
    run: PublishedRun, n_blocks: int, vocab_size: int, weights: dict[str, str], origin: dict[str, str]
) -> RunRecord:
    """Make the record of one of the authors' runs; steps that end none of them make an intermediate checkpoint."""
    arch = Architecture(run.d_model, run.experts, n_blocks, run.n_heads, vocab_size)
    tokens = run.tokens or _RAMP.tokens(run.steps)
    # The defaults are the authors' recipe.
    recipe = from_dict({"run": {"output_dir": "unused", "sweep": SWEEP}, "model": arch.shape})
    fields = configured_fields(recipe, arch, *peak_learning_rate(recipe, arch))
    fields["schedule"].update(
        horizon_tokens=tokens,
        warmup_tokens=_RAMP.tokens(_RAMP.steps(PAPER.warmup_tokens)),
        decay_tokens=round(tokens * PAPER.decay_fraction) if run.tokens else 0,
    )
    fields.update(
        run_id=f"published-d{run.d_model}-E{run.experts}-h{run.n_heads}-tokens{format_tokens(tokens)}",
        status="final" if run.tokens else "intermediate",
        tokens=tokens,
        steps=run.steps,
        train_loss_window_tokens=0,
        attention_precision="compute",
        dataset={"id": PAPER.dataset, "fingerprint": None},
        tokenizer={"id": PAPER.tokenizer, "fingerprint": None},
        training_flops=float(arch.training_flops(tokens)),
        versions={},
        weights_sha256=weights,
        published_as=origin,
    )
    fields.update(dict.fromkeys(_UNKNOWN))
    return RunRecord(**fields)


if __name__ == "__main__":
    app(prog_name="python -m training.published")
