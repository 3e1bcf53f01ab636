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
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

os.environ.update(
    HF_HUB_OFFLINE="0", HF_HUB_DISABLE_XET="1", HF_HUB_DISABLE_TELEMETRY="1", HF_HUB_DISABLE_PROGRESS_BARS="1"
)

import pyarrow.parquet  # noqa: F401 (imported here, so that it is not timed)
from huggingface_hub import HfApi, constants, hf_hub_download, logging
from transformers.dynamic_module_utils import get_relative_import_files

from benchmarks.report import ROOT, Options, Report, benchmark, seconds
from hub import HubStore, RunRecord, load_index, push_runs
from hub.record.names import branch_name, repo_name
from hub.release.cards import model_card
from hub.release.push import push_listing
from hub.store.hub import Pace
from tests.hub.loopback import TOKEN, Fault, LoopbackHub
from tests.hub.samples import make_record, write_safetensors

RUNS_PER_REPOSITORY = 7
MODEL_CODE = ROOT / "modeling_switch_moe" / "modeling_switch_moe.py"


@dataclass(frozen=True)
class Cost:
    """Calls of the API, all requests, and seconds of one work."""

    api_calls: int
    requests: int
    seconds: float


# Work → its cost.
Costs = dict[str, Cost]


def released_files() -> list[str]:
    """Return the files of a release of today, without weights, record and card.

    `save_pretrained` copies the file of the model and all that it imports from its folder.
    """
    imported = {Path(path).name for path in get_relative_import_files(MODEL_CODE)}
    return [
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "log.jsonl",
        "training_curve.png",
        "expert_load.png",
        MODEL_CODE.name,
        *sorted(imported),
    ]


def make_runs(folder: Path, count: int) -> list[tuple[Path, RunRecord]]:
    """Make folders as training leaves them, with a few kilobytes of weights each."""
    files = released_files()
    runs = []
    for number in range(count):
        blocks = 1 + number // RUNS_PER_REPOSITORY
        seed = number % RUNS_PER_REPOSITORY
        record = make_record(run_id=f"run{number}", d_model=64 * blocks, n_heads=blocks, seed=seed)
        run = folder / record.run_id
        run.mkdir()
        write_safetensors(run / "model.safetensors", [float(number)] * 1024)
        for name in files:
            (run / name).write_text(_file_content(name, number))
        (run / "README.md").write_text(model_card(record))
        record.save(run)
        runs.append((run, record))
    return runs


def _file_content(name: str, number: int) -> str:
    """Return the content of a file of a run; only pictures differ between runs."""
    if name.endswith(".json"):
        return "{}"
    if name.endswith(".png"):
        return f"# {name} {number}"
    return f"# {name} 0"


def measure(server: LoopbackHub, works: dict[str, Callable[[], object]]) -> Costs:
    """Count the calls, requests and seconds of each work."""
    costs = {}
    for name, work in works.items():
        calls_before = len(server.api_calls())
        requests_before = len(server.requests)
        elapsed = seconds(work)
        calls = len(server.api_calls()) - calls_before
        costs[name] = Cost(calls, len(server.requests) - requests_before, elapsed)
    return costs


def ours(server: LoopbackHub, runs: list[tuple[Path, RunRecord]], cache: Path) -> tuple[Costs, float]:
    """Measure this package; return the costs, and the seconds that the pace would have waited in the first push."""
    waits = [0.0]
    pace = Pace(sleep=waits.append)

    def push() -> None:
        store = HubStore("org", endpoint=server.endpoint, token=TOKEN, pace=pace)
        with mock.patch.object(constants, "HF_HUB_CACHE", str(cache)):
            push_listing(store, "demo", push_runs(store, runs, workers=4))

    def load() -> None:
        store = HubStore("org", endpoint=server.endpoint, token=TOKEN)
        with mock.patch.object(constants, "HF_HUB_CACHE", str(cache / "empty")):
            assert len(load_index(store, "demo")) == len(runs)

    costs = measure(server, {"push": push})
    # Nobody waited, so each wait is counted from now.
    waited = max(waits)
    costs.update(measure(server, {"push again": push, "load the records": load}))
    return costs, waited


def the_obvious_way(server: LoopbackHub, runs: list[tuple[Path, RunRecord]], cache: Path) -> Costs:
    """Measure a push and a load of each run by itself."""
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
            path = hf_hub_download(
                repo,
                "run.json",
                revision=commit,
                endpoint=server.endpoint,
                token=TOKEN,
                cache_dir=cache,
            )
            RunRecord.load(path)

    return measure(server, {"push": push, "push again": push, "load the records": load})


def add_rows(report: Report, our_costs: Costs, peer_costs: Costs) -> None:
    """Add the rows of each work beside the obvious way."""
    count = report.options.runs
    bounds = {
        "push": ("one for each commit", 1.0),
        "push again": ("one read of each repository", -(-count // RUNS_PER_REPOSITORY) / count),
        "load the records": ("one in all", 1 / count),
    }
    way = "the obvious way"
    for work, bound in bounds.items():
        cost = our_costs[work]
        peer = peer_costs[work]
        calls_of_peer = (way, peer.api_calls / count)
        report.add(f"{work}: API calls per run", cost.api_calls / count, "", calls_of_peer, bound)
        requests_of_peer = (way, peer.requests / count)
        report.add(f"{work}: requests per run", cost.requests / count, "", requests_of_peer, bound)
        report.add(f"{work}: time", cost.seconds, "s", (way, peer.seconds))


def delay_requests(server: LoopbackHub, delay: float) -> None:
    """Make a server answer every request later."""
    fault = Fault(lambda _: True, "before", times=10**9, action=lambda: time.sleep(delay))
    server.faults.append(fault)


@benchmark({"--runs": (280, 14), "--delay": (0.0, 0.0, "seconds added to every request")})
def main(report: Report, options: Options) -> None:
    # Else it says "no files have been modified", once for each run.
    logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as scratch:
        runs = make_runs(Path(tempfile.mkdtemp(dir=scratch)), options.runs)
        with LoopbackHub() as our_server, LoopbackHub() as peer_server:
            if options.delay:
                delay_requests(our_server, options.delay)
                delay_requests(peer_server, options.delay)
            our_costs, waited = ours(our_server, runs, Path(scratch) / "cache")
            peer_costs = the_obvious_way(peer_server, runs, Path(scratch) / "other cache")
    add_rows(report, our_costs, peer_costs)
    report.add("push: waiting for the rate limit", waited, "s")


if __name__ == "__main__":
    main()
