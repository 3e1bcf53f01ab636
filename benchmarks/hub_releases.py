"""Releasing and loading a sweep of 280 runs against a Hub on this machine: this package beside the obvious way.

    python -m benchmarks.hub_releases                 # 280 runs in 40 repositories, about a minute
    python -m benchmarks.hub_releases --runs 56 --delay 0.02

The obvious way is `create_repo`, `create_branch` and `upload_folder` for each run, and `model_info` and the `run.json`
of each run to load. Both talk to the loopback Hub of the tests over HTTP, in one process; `--delay` adds a network's
latency to every request. A run has 15 files, as training leaves them. Counted are calls of the API (which the Hub
limits: 1,000 in five minutes for a free account), all requests, and seconds. The obvious way checks nothing that was
sent, fills no `main`, and has no index that a fit could read; ours does all three.

The pace that keeps below the limit (`Pace`) does not wait here: the seconds are those of the work, and how long
it would have waited is a row of its own.

Bounds: one call for each commit, to push again one read of each repository, to load one call in all.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

os.environ.update(
    HF_HUB_OFFLINE="0", HF_HUB_DISABLE_XET="1", HF_HUB_DISABLE_TELEMETRY="1", HF_HUB_DISABLE_PROGRESS_BARS="1"
)

import pyarrow.parquet  # noqa: F401 (imported here, so that it is not timed)
from huggingface_hub import HfApi, hf_hub_download, logging

from benchmarks.report import Report, parse, seconds
from hub import HubStore, RunRecord, load_index, push_runs
from hub.record.names import branch_name, repo_name
from hub.release.cards import model_card
from hub.release.push import push_listing
from hub.store.hub import Pace
from tests.hub.loopback import TOKEN, Fault, LoopbackHub
from tests.hub.samples import make_record, write_safetensors

RUNS_PER_REPOSITORY = 7
# With weights, record, log, card and two pictures 15 files, as a model of today is released.
JSON_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json")
CODE_FILES = (
    *("modeling_switch_moe.py", "configuration_switch_moe.py"),
    *("experts.py", "losses.py", "routing.py"),
)


@dataclass(frozen=True)
class Cost:
    """What one way of doing it took."""

    calls: int
    requests: int
    seconds: float


def make_runs(folder: Path, count: int) -> list[tuple[Path, RunRecord]]:
    """Folders as training leaves them, with a few kilobytes of weights each."""
    made = []
    for number in range(count):
        size = 64 * (1 + number // RUNS_PER_REPOSITORY)
        record = make_record(
            run_id=f"run{number}", d_model=size, n_heads=size // 64, seed=number % RUNS_PER_REPOSITORY
        )
        run = folder / record.run_id
        run.mkdir()
        write_safetensors(run / "model.safetensors", [float(number)] * 1024)
        for name in JSON_FILES:
            (run / name).write_text("{}")
        for name in (*CODE_FILES, "log.jsonl"):
            (run / name).write_text(f"# {name}\n")
        for name in ("training_curve.png", "expert_load.png"):
            (run / name).write_bytes(b"\x89PNG" + number.to_bytes(4, "big"))
        (run / "README.md").write_text(model_card(record))
        record.save(run)
        made.append((run, record))
    return made


def measured(server: LoopbackHub, work: Callable[[], object]) -> Cost:
    requests, calls = len(server.requests), len(server.api_calls())
    spent = seconds(work)
    return Cost(len(server.api_calls()) - calls, len(server.requests) - requests, spent)


def ours(server: LoopbackHub, runs: list[tuple[Path, RunRecord]], cache: Path) -> tuple[dict[str, Cost], float]:
    """The costs, and the seconds that the pace would have waited in the first push."""
    waits = [0.0]
    pace = Pace(sleep=waits.append)

    def push() -> None:
        store = HubStore("org", endpoint=server.endpoint, token=TOKEN, cache_dir=cache, pace=pace)
        push_listing(store, "demo", push_runs(store, runs, workers=4))

    costs = {"push": measured(server, push)}
    waited = max(waits)  # nobody waited, so each wait is counted from now
    costs["push again"] = measured(server, push)
    empty = HubStore("org", endpoint=server.endpoint, token=TOKEN, cache_dir=cache / "empty")
    found: list[RunRecord] = []
    costs["load the records"] = measured(server, lambda: found.extend(load_index(empty, "demo")))
    assert len(found) == len(runs)
    return costs, waited


def the_obvious_way(server: LoopbackHub, runs: list[tuple[Path, RunRecord]], cache: Path) -> dict[str, Cost]:
    api = HfApi(endpoint=server.endpoint, token=TOKEN)
    places = [(f"org/{repo_name(record)}", branch_name(record)) for _, record in runs]

    def push() -> None:
        for (folder, _), (repo, branch) in zip(runs, places, strict=True):
            api.create_repo(repo, exist_ok=True)
            api.create_branch(repo, branch=branch, exist_ok=True)
            api.upload_folder(repo_id=repo, folder_path=folder, revision=branch, commit_message="Add a run")

    def load() -> None:
        for repo, branch in places:
            commit = api.model_info(repo, revision=branch).sha
            where = {"endpoint": server.endpoint, "token": TOKEN, "cache_dir": cache}
            RunRecord.load(hf_hub_download(repo, "run.json", revision=commit, **where))

    return {
        name: measured(server, work)
        for name, work in (("push", push), ("push again", push), ("load the records", load))
    }


def add_rows(report: Report, here: dict[str, Cost], there: dict[str, Cost]) -> None:
    count = report.options.runs
    least = {
        "push": ("one for each commit", 1.0),
        "push again": ("one read of each repository", -(-count // RUNS_PER_REPOSITORY) / count),
        "load the records": ("one in all", 1 / count),
    }
    for work, one in here.items():
        other, bound = there[work], least[work]
        for what in ("calls", "requests"):
            name = f"{work}: {what.replace('calls', 'API calls')} per run"
            peer = ("the obvious way", getattr(other, what) / count)
            report.add(name, getattr(one, what) / count, "", peer=peer, bound=bound)
        report.add(f"{work}: time", one.seconds, "s", peer=("the obvious way", other.seconds))


@contextmanager
def hub(delay: float) -> Iterator[LoopbackHub]:
    with LoopbackHub() as server:
        if delay:
            server.faults.append(Fault(lambda _: True, "before", times=10**9, action=lambda: time.sleep(delay)))
        yield server


def main() -> None:
    options = parse(
        __doc__,
        ("--runs", {"type": int, "default": 280}),
        ("--delay", {"type": float, "default": 0.0, "help": "seconds added to every request"}),
        fast={"runs": 14},
    )
    report = Report("hub_releases", options)
    logging.set_verbosity_error()  # "no files have been modified", once for each run
    with tempfile.TemporaryDirectory() as scratch:
        runs = make_runs(Path(tempfile.mkdtemp(dir=scratch)), options.runs)
        with hub(options.delay) as server:
            here, waited = ours(server, runs, Path(scratch) / "cache")
        with hub(options.delay) as server:
            there = the_obvious_way(server, runs, Path(scratch) / "other cache")
    add_rows(report, here, there)
    report.add("push: waiting for the pace", waited, "s")
    report.finish()


if __name__ == "__main__":
    main()
