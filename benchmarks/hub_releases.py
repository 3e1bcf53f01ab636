"""Releasing and loading a sweep of 280 runs against a Hub on this machine: this package beside the obvious way.

    python -m benchmarks.hub_releases [--runs 56] [--delay 0.02]

The obvious way is `create_repo`, `create_branch` and `upload_folder` for each run, and `model_info` and the `run.json`
of each run to load. Both talk to the loopback Hub of the tests over HTTP, in one process; `--delay` adds a network's
latency. Counted are calls of the API (which the Hub limits: 1,000 in five minutes for a free account), all requests,
and seconds. The obvious way checks nothing that was sent, fills no `main`, and has no index that a fit could read.
How long `Pace` would have waited to keep below the limit is a row of its own.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.update(
    HF_HUB_OFFLINE="0", HF_HUB_DISABLE_XET="1", HF_HUB_DISABLE_TELEMETRY="1", HF_HUB_DISABLE_PROGRESS_BARS="1"
)

import pyarrow.parquet  # noqa: F401 (imported here, so that it is not timed)
from huggingface_hub import HfApi, hf_hub_download, logging

from benchmarks.report import Options, Report, benchmark, seconds
from hub import HubStore, RunRecord, load_index, push_runs
from hub.record.names import branch_name, repo_name
from hub.release.cards import model_card
from hub.release.push import push_listing
from hub.store.hub import Pace
from tests.hub.loopback import TOKEN, Fault, LoopbackHub
from tests.hub.samples import make_record, write_safetensors

RUNS_PER_REPOSITORY = 7
# With weights, record and card 15 files, as a model of today is released.
FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "log.jsonl", "training_curve.png")
FILES += ("expert_load.png", "modeling_switch_moe.py", "configuration_switch_moe.py", "experts.py", "losses.py")
FILES += ("routing.py",)
Costs = dict[str, tuple[int, int, float]]  # of each work: calls of the API, all requests, seconds


def make_runs(folder: Path, count: int) -> list[tuple[Path, RunRecord]]:
    """Folders as training leaves them, with a few kilobytes of weights each."""
    made = []
    for number in range(count):
        blocks, seed = 1 + number // RUNS_PER_REPOSITORY, number % RUNS_PER_REPOSITORY
        record = make_record(run_id=f"run{number}", d_model=64 * blocks, n_heads=blocks, seed=seed)
        run = folder / record.run_id
        run.mkdir()
        write_safetensors(run / "model.safetensors", [float(number)] * 1024)
        for name in FILES:  # of which only pictures differ between runs
            (run / name).write_text("{}" if name.endswith(".json") else f"# {name} {number * name.endswith('.png')}")
        (run / "README.md").write_text(model_card(record))
        record.save(run)
        made.append((run, record))
    return made


def measured(server: LoopbackHub, works: dict[str, Callable[[], object]]) -> Costs:
    costs = {}
    for name, work in works.items():
        calls, requests = len(server.api_calls()), len(server.requests)
        spent = seconds(work)
        costs[name] = len(server.api_calls()) - calls, len(server.requests) - requests, spent
    return costs


def ours(server: LoopbackHub, runs: list[tuple[Path, RunRecord]], cache: Path) -> tuple[Costs, float]:
    """The costs, and the seconds that the pace would have waited in the first push."""
    waits = [0.0]
    pace = Pace(sleep=waits.append)

    def push() -> None:
        store = HubStore("org", endpoint=server.endpoint, token=TOKEN, cache_dir=cache, pace=pace)
        push_listing(store, "demo", push_runs(store, runs, workers=4))

    def load() -> None:
        empty = HubStore("org", endpoint=server.endpoint, token=TOKEN, cache_dir=cache / "empty")
        assert len(load_index(empty, "demo")) == len(runs)

    costs = measured(server, {"push": push})
    waited = max(waits)  # nobody waited, so each wait is counted from now
    return costs | measured(server, {"push again": push, "load the records": load}), waited


def the_obvious_way(server: LoopbackHub, runs: list[tuple[Path, RunRecord]], cache: Path) -> Costs:
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

    return measured(server, {"push": push, "push again": push, "load the records": load})


def add_rows(report: Report, here: Costs, there: Costs) -> None:
    count = report.options.runs
    least = {
        "push": ("one for each commit", 1.0),
        "push again": ("one read of each repository", -(-count // RUNS_PER_REPOSITORY) / count),
        "load the records": ("one in all", 1 / count),
    }
    for work, bound in least.items():
        *numbers, (seconds, others) = zip(here[work], there[work], strict=True)
        for what, (one, other) in zip(("API calls", "requests"), numbers, strict=True):
            peer = ("the obvious way", other / count)
            report.add(f"{work}: {what} per run", one / count, "", peer=peer, bound=bound)
        report.add(f"{work}: time", seconds, "s", peer=("the obvious way", others))


@benchmark({"--runs": (280, 14), "--delay": (0.0, 0.0, "seconds added to every request")})
def main(report: Report, options: Options) -> None:
    logging.set_verbosity_error()  # "no files have been modified", once for each run
    with tempfile.TemporaryDirectory() as scratch:
        runs = make_runs(Path(tempfile.mkdtemp(dir=scratch)), options.runs)
        with LoopbackHub() as server, LoopbackHub() as other:
            for hub in (server, other) if options.delay else ():
                hub.faults.append(
                    Fault(lambda _: True, "before", times=10**9, action=lambda: time.sleep(options.delay))
                )
            here, waited = ours(server, runs, Path(scratch) / "cache")
            there = the_obvious_way(other, runs, Path(scratch) / "other cache")
    add_rows(report, here, there)
    report.add("push: waiting for the pace", waited, "s")


if __name__ == "__main__":
    main()
