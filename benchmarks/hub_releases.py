"""Releasing and loading a sweep of 280 runs against a Hub on this machine: this package beside the obvious way.

    python -m benchmarks.hub_releases                 # 280 runs in 40 repositories, about a minute
    python -m benchmarks.hub_releases --runs 56 --delay 0.02

The obvious way is `create_repo`, `create_branch` and `upload_folder` for each run, and `model_info` and the `run.json`
of each run to load. Both talk to the loopback Hub of the tests over HTTP, in one process; `--delay` adds a network's
latency to every request. What is printed: calls of the API (which the Hub limits), all requests, and seconds, each as
a ratio too. The obvious way checks nothing that was sent, and has no index that a fit could read; ours does both.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

os.environ.update(
    HF_HUB_OFFLINE="0", HF_HUB_DISABLE_XET="1", HF_HUB_DISABLE_TELEMETRY="1", HF_HUB_DISABLE_PROGRESS_BARS="1"
)

import pyarrow.parquet  # noqa: F401 (imported here, so that it is not timed)
from huggingface_hub import HfApi, hf_hub_download, logging
from rich.console import Console
from rich.table import Table

from hub import HubStore, RunRecord, load_index, push_index, push_repo_cards, push_runs
from hub.names import branch_name, repo_name
from tests.hub.loopback import TOKEN, Fault, LoopbackHub
from tests.hub.samples import make_record, write_safetensors

RUNS_PER_REPOSITORY = 7


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
        for name in ("config.json", "tokenizer.json"):
            (run / name).write_text("{}")
        record.save(run)
        made.append((run, record))
    return made


def measured(server: LoopbackHub, work: Callable[[], object]) -> Cost:
    before, calls, started = len(server.requests), len(server.api_calls()), time.perf_counter()
    work()
    seconds = time.perf_counter() - started
    return Cost(len(server.api_calls()) - calls, len(server.requests) - before, seconds)


def ours(server: LoopbackHub, runs: list[tuple[Path, RunRecord]], cache: Path, workers: int) -> dict[str, Cost]:
    def store() -> HubStore:
        return HubStore("org", endpoint=server.endpoint, token=TOKEN, cache_dir=cache)

    def push() -> None:
        target = store()
        pushed = push_runs(target, runs, workers=workers)
        push_index(target, "demo", pushed)
        push_repo_cards(target, "demo", [record.repo or "" for record in pushed])

    costs = {"push": measured(server, push), "push again": measured(server, push)}
    empty = cache / "empty"

    def load() -> None:
        found = load_index(HubStore("org", endpoint=server.endpoint, token=TOKEN, cache_dir=empty), "demo")
        assert len(found) == len(runs)

    return {**costs, "load the records": measured(server, load)}


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
        "push": measured(server, push),
        "push again": measured(server, push),
        "load the records": measured(server, load),
    }


def report(count: int, workers: int, here: dict[str, Cost], there: dict[str, Cost]) -> Table:
    table = Table(title=f"{count} runs in {-(-count // RUNS_PER_REPOSITORY)} repositories, {workers} workers")
    table.add_column("")
    for heading in ("API calls per run", "requests per run", "seconds"):
        table.add_column(heading, justify="right")
    for work, one in here.items():
        other = there[work]
        for name, cost in (("ours", one), ("obvious", other)):
            per_run = (cost.calls / count, cost.requests / count)
            table.add_row(f"{work}, {name}", *(f"{value:.2f}" for value in per_run), f"{cost.seconds:.1f}")
        ratios = (other.calls / one.calls, other.requests / one.requests, other.seconds / one.seconds)
        table.add_row(f"[bold]{work}, ratio[/]", *(f"[bold]{ratio:.2f}×[/]" for ratio in ratios), end_section=True)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=280)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--delay", type=float, default=0.0, help="seconds added to every request")
    options = parser.parse_args()
    logging.set_verbosity_error()  # "no files have been modified", once for each run
    costs = []
    with tempfile.TemporaryDirectory() as scratch:
        runs = make_runs(Path(tempfile.mkdtemp(dir=scratch)), options.runs)
        ways: list[Callable[[LoopbackHub, Path], dict[str, Cost]]] = [
            lambda server, cache: ours(server, runs, cache, options.workers),
            lambda server, cache: the_obvious_way(server, runs, cache),
        ]
        for number, way in enumerate(ways):
            with LoopbackHub() as server:
                if options.delay:
                    server.faults.append(Fault(lambda _: True, "delay", seconds=options.delay, times=10**9))
                costs.append(way(server, Path(scratch) / f"cache{number}"))
    Console().print(report(options.runs, options.workers, *costs))


if __name__ == "__main__":
    main()
