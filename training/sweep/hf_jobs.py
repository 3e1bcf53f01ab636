"""Hugging Face Jobs: a job for each trunk and its branches, whose folders lie in a bucket that the jobs mount.

Experimental: tested against `huggingface_hub` and a stand-in for the service, never against the service. A job that
ends early, say at its time limit, resumes from the bucket when the sweep is submitted again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from hub.base.atomic import write_bytes
from hub.base.errors import AccessError, NotFoundError
from hub.store.transport import Transport
from training.configuration.arguments import ConfigurationError
from training.data.pins import pinned_with_sweep
from training.data.text import is_local_path
from training.sweep.engine import Engine, Job, Outcome, seconds_of, unfinished
from training.sweep.file import Sweep, SweepRun
from training.sweep.status import Queued, State

MOUNT = "/runs"  # of the bucket, in a job
KEPT = ("log.jsonl", "run.json")  # what is brought here from the bucket
UV_IMAGE = "ghcr.io/astral-sh/uv:python3.12-bookworm"
_BUCKETS = "hf://buckets/"
_UNITS = {"second": 1, "minute": 60, "hour": 3600}  # seconds of a unit of the price list
_ENDED: dict[str, State | None] = {"COMPLETED": None, "CANCELED": "waiting", "ERROR": "failed", "DELETED": "waiting"}

_SCRIPT = """\
set -eu
{setup}mkdir -p "$FOLDER"
printf %s "$CONFIG" > "$FOLDER/launch.yaml"
exec uv run --no-project --with "$PACKAGE" accelerate launch --num_machines 1 --mixed_precision no \\
  --dynamo_backend no -m training.run --config "$FOLDER/launch.yaml" --run.progress false
"""


@dataclass(frozen=True)
class HfJobs(Engine):
    """Jobs of Hugging Face, in the namespace that owns the bucket; a run uses all GPUs of its hardware.

    The fields are options of `run --on hf-jobs`.
    """

    name: ClassVar[str] = "hf-jobs"
    flavor: str = ""
    bucket: str = ""
    package: str = ""
    time: str = "24:00:00"
    image: str = UV_IMAGE
    setup: Sequence[str] = ()

    def specification(self, sweep: Sweep, run: SweepRun) -> dict[str, Any]:
        """The arguments of `huggingface_hub.run_job` for a run, without secrets.

        Raises ConfigurationError for a missing option, or data that a job cannot read.
        """
        from huggingface_hub import Volume

        for option, example in (("flavor", "a100-large"), ("bucket", "my-org/runs"), ("package", "git+https://…")):
            if not getattr(self, option):
                raise ConfigurationError(f"--{option}: missing; --on hf-jobs needs it, such as {example}")
        if self.bucket.count("/") != 1:
            raise ConfigurationError(f"--bucket: {self.bucket!r}; it must be OWNER/NAME")
        folder = f"{MOUNT}/{sweep.name}/{run.name}"
        arguments = pinned_with_sweep(run.arguments, run.folder).replaced(run={"output_dir": folder})
        for field in ("dataset", "tokenizer"):
            name = getattr(arguments.data, field)
            if is_local_path(name) and not name.startswith(f"{MOUNT}/"):
                raise ConfigurationError(f"data.{field}: {name!r}; a job reads the Hub, or the bucket below {MOUNT}")
        return {
            "image": self.image,
            "command": ["bash", "-c", _SCRIPT.format(setup="".join(f"{line}\n" for line in self.setup))],
            "env": {"FOLDER": folder, "PACKAGE": self.package, "CONFIG": json.dumps(arguments.to_dict())},
            "flavor": self.flavor,
            "timeout": seconds_of(self.time),
            "labels": {"sweep": sweep.name, "run": run.name},
            "volumes": [Volume(type="bucket", source=self.bucket, mount_path=MOUNT)],
            "namespace": self.bucket.partition("/")[0],
        }

    def preview(self, sweep: Sweep, sweep_file: Path) -> str:
        """The specification of every job, as JSON lines."""
        specifications = [self.specification(sweep, run) for run in sweep.runs]
        return "".join(json.dumps(one, default=lambda volume: volume.to_dict()) + "\n" for one in specifications)

    def submit(self, sweep: Sweep, sweep_file: Path) -> Outcome:
        """A job for each run that is neither finished nor waiting or running already."""
        hub = Transport()
        # All of them are checked before one is sent.
        specifications = {run.name: self.specification(sweep, run) for run in sweep.runs if not run.complete}
        place = f"{_BUCKETS}{self.bucket}/{sweep.name}"
        left, outcome = unfinished(self, sweep, place)
        for run in left.runs:
            specification = specifications[run.name]
            secrets = {"HF_TOKEN": _token()} if run.arguments.run.push_to_hub else None
            info = hub.call_once(partial(hub.api.run_job, **specification, secrets=secrets))
            job = Job(self.name, f"{specification['namespace']}/{info.id}", f"{place}/{run.name}")
            outcome.queued[run.name] = job
            job.add_to(run)
        return outcome

    def queue(self, runs: Sequence[SweepRun], places: set[str]) -> Mapping[Job, Queued]:
        """Stage and cost of each job, by the seconds that it ran and the price of its hardware."""
        if not places:
            return {}
        hub = Transport()
        for place in places:
            self._note(hub, place, runs)
        jobs = [job for run in runs for job in Job.of(run) if job.engine == self.name]
        listed = hub.call(hub.api.list_jobs_hardware, patient=False)
        prices = {one.name: one.unit_cost_usd / _UNITS[one.unit_label] for one in listed if one.unit_label in _UNITS}
        queued = {}
        for job in jobs:
            with suppress(NotFoundError):
                queued[job] = _queued(hub.call(partial(hub.api.inspect_job, **_named(job)), patient=False), prices)
        return queued

    def stop(self, jobs: Sequence[Job]) -> None:
        """Cancel jobs; their last checkpoints stay in the bucket."""
        hub = Transport()
        for job in jobs:
            hub.call(partial(hub.api.cancel_job, **_named(job)))

    def collect(self, runs: Sequence[SweepRun]) -> None:
        """Fetch new records and logs from the bucket; models and checkpoints stay there."""
        newest = {run: job for run in runs for job in Job.of(run)[-1:] if job.engine == self.name and job.folder}
        if newest:
            hub = Transport()
            for run, job in newest.items():
                hub.call(partial(_bring, hub.api, job.folder, run.folder), patient=False)

    def _note(self, hub: Transport, place: str, runs: Sequence[SweepRun]) -> None:
        """Add the jobs that the service lists with the labels of these runs."""
        bucket, _, sweep = place.removeprefix(_BUCKETS).rpartition("/")
        namespace, by_name = bucket.partition("/")[0], {run.name: run for run in runs}
        list_jobs = partial(hub.api.list_jobs, namespace=namespace, labels={"sweep": sweep})
        listed = hub.call(lambda: list(list_jobs()), patient=False)
        for info in sorted(listed, key=lambda info: str(info.created_at)):
            run = by_name.get((info.labels or {}).get("run"))
            if run is not None and all(volume.source == bucket for volume in info.volumes or ()):
                Job(self.name, f"{namespace}/{info.id}", f"{place}/{run.name}").add_to(run)


def _bring(api: Any, source: str, here: Path) -> None:
    from huggingface_hub import HfFileSystem

    files = HfFileSystem(endpoint=api.endpoint, token=api.token, skip_instance_cache=True, use_listings_cache=False)
    root = source.removeprefix("hf://")
    with suppress(FileNotFoundError):  # nothing is saved yet
        for path, entry in files.find(root, detail=True).items():
            target = here / path.removeprefix(f"{root}/")
            if target.name in KEPT and not (target.exists() and target.stat().st_size == entry["size"]):
                target.parent.mkdir(parents=True, exist_ok=True)
                write_bytes(target, files.cat_file(path))


def _queued(info: Any, prices: Mapping[str, float]) -> Queued:
    """State and cost from huggingface_hub's JobInfo; `prices` are dollars per second of each flavor."""
    stage = str(getattr(info.status.stage, "value", info.status.stage))
    text = stage.lower() + (f" ({info.status.message})" if info.status.message else "")
    ran = info.durations.running_secs if info.durations else None
    dollars = ran * prices[info.flavor] if ran is not None and info.flavor in prices else None
    is_alive = stage not in _ENDED
    state: State | None = ("running" if stage == "RUNNING" else "waiting") if is_alive else _ENDED[stage]
    return Queued(text, is_alive, state, dollars)


def _named(job: Job) -> dict[str, str]:
    namespace, _, job_id = job.id.partition("/")
    return {"namespace": namespace, "job_id": job_id}


def _token() -> str:
    from huggingface_hub import get_token

    if (token := get_token()) is None:
        raise AccessError("run.push_to_hub: a job needs a token to push with; run `hf auth login` or set HF_TOKEN")
    return token
