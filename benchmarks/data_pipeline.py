"""Text to training batches: tokenising, reading, and waiting, beside the usual ways.

    python -m benchmarks.data_pipeline --dataset FOLDER --tokenizer FOLDER

build: wall time from the files to ids on disk with a thread or process for each core, start-up included. Peer:
    `datasets.map(batched=True, num_proc=...)` and packing with numpy.
read: tokens/s of batches of 32 shuffled sequences. Peers: a loop over one memory map, and torch's DataLoader over it.
    Bound: one slice of that map, in its order, widened to int64.
wait: the part of a training run's time spent waiting for data, after its first step: while the cache is being built
    (the run is stopped as soon as all text is tokenised), and as many steps with the cache that is there then.

Without `--dataset` (or BENCH_DATASET) the text is the docstrings of the installed packages
(`training.demo.corpus`), without `--tokenizer` (or BENCH_TOKENIZER) a byte-level BPE is trained on it.
"""

from __future__ import annotations

import os
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_PROGRESS_BARS="1", TOKENIZERS_PARALLELISM="false")

import datasets
import numpy as np
import torch

from benchmarks.report import Options, Report, benchmark, seconds
from hub.base import atomic
from training.configuration.arguments import TrainingArguments
from training.data import cache as tokens
from training.data.batches import SequenceOrder
from training.data.cache import TokenCache, open_cache
from training.data.files import PARQUET, format_of
from training.data.filling import build, encoder, lock_of
from training.data.text import TextSource
from training.data.tokenizer import (
    description,
    load_tokenizer,
    read_names_as_text,
    special_tokens,
    train_tokenizer,
)
from training.demo.corpus import build as build_corpus
from training.run.main import Run
from training.run.timing import arguments_of_steps

LENGTH = 512
BATCH = 32
# The length and the number of sequences of a step of the runs that may wait: small, so that many steps are made while
# the cache grows.
LENGTH_OF_RUN = 128
BATCH_OF_RUN = 2
# Options of the text.
SOURCE: dict[str, tuple] = {
    "--dataset": (Path, None),
    "--tokenizer": (Path, None),
    "--megabytes": (8.0, 4.0, "of documentation, without --dataset"),
}


def build_all(source: TextSource, tokenizer, folder: Path) -> TokenCache:
    """Build the cache of a text."""
    cache = open_cache(source, tokenizer, folder)
    with lock_of(cache.folder, timeout=0):
        build(source, cache.folder)
    cache.refresh()
    return cache


def map_and_pack(source: TextSource, tokenizer, path: Path, processes: int | None) -> Path:
    """Build in the usual way: a dataset of lists of ids, then one array in a file."""
    datasets.disable_progress_bars()
    files = source.list_files()
    rows = datasets.load_dataset(
        "parquet" if format_of(files[0]) == PARQUET else "json",
        data_files={source.split: files},
        split=source.split,
        cache_dir=str(path.parent / "peer"),
    )

    def encode(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        texts = batch[source.text_column]
        ids = tokenizer(texts, return_attention_mask=False, split_special_tokens=True)["input_ids"]
        return {"ids": [[*document, tokenizer.eos_token_id] for document in ids]}

    encoded = rows.map(encode, batched=True, num_proc=processes, remove_columns=rows.column_names)
    with path.open("wb") as file:
        for batch in encoded.with_format("arrow").iter(1000):
            ids = batch["ids"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
            file.write(ids.astype("<u2").tobytes())
    return path


def read_encode_write(source: TextSource, tokenizer, path: Path) -> None:
    """Do the work that cannot be left out, in one process that is already there."""
    text_description = read_names_as_text(description(tokenizer), special_tokens(tokenizer))
    encode = encoder(text_description, tokenizer.eos_token_id, "<u2")
    with path.open("wb") as file:
        for texts, _ in source.batches(256):
            file.write(b"".join(encode(texts)))
    atomic.sync(path)


def build_and_map(report: Report, source: TextSource, tokenizer, folder: Path) -> TokenCache:
    """Add the row of building a cache, and return the cache."""
    processes = len(os.sched_getaffinity(0))
    os.environ.update(RAYON_NUM_THREADS=str(processes), TOKENIZERS_PARALLELISM="true")
    our_seconds = seconds(lambda: build_all(source, tokenizer, folder / "ours"))
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    peer_seconds = seconds(lambda: map_and_pack(source, tokenizer, folder / "peer.bin", processes))
    least_seconds = seconds(lambda: read_encode_write(source, tokenizer, folder / "least.bin")) / processes
    cache = build_all(source, tokenizer, folder / "ours")
    if not np.array_equal(cache.read(0, len(cache)), np.fromfile(folder / "peer.bin", dtype="<u2")):
        raise SystemExit("build: the ids differ from those of datasets.map")
    report.add(
        f"build a cache of {len(cache):,} tokens",
        our_seconds,
        "s",
        peer=("datasets.map and numpy", peer_seconds),
        bound=("reading, encoding, writing, shared perfectly", least_seconds),
        note=f"processes of both: {processes}",
    )
    return cache


class Sequences(torch.utils.data.Dataset):
    """One memory map of tokens as a map-style dataset."""

    def __init__(self, path: Path):
        self.tokens = np.memmap(path, dtype="<u2", mode="r")

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // LENGTH

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.from_numpy(self.tokens[i * LENGTH : i * LENGTH + LENGTH + 1].astype(np.int64))


def read(report: Report, cache: TokenCache, path: Path) -> None:
    """Add the rows of reading shuffled batches."""
    dataset = Sequences(path)
    order = SequenceOrder(0, 1 << 16)
    n_sequences = cache.n_sequences(LENGTH)
    loader = iter(torch.utils.data.DataLoader(dataset, BATCH, shuffle=True, num_workers=2, persistent_workers=True))
    # After the first batch its workers have started.
    next(loader)

    def ours(step: int) -> torch.Tensor:
        return torch.from_numpy(cache.sequences(order.indices(step * BATCH, BATCH, n_sequences), LENGTH))

    def loop(step: int) -> torch.Tensor:
        return torch.stack([dataset[int(i)] for i in torch.randint(len(dataset), (BATCH,))])

    def slice_of(step: int) -> torch.Tensor:
        first = step * BATCH * LENGTH
        return torch.from_numpy(dataset.tokens[first : first + BATCH * (LENGTH + 1)].astype(np.int64))

    bound = "one slice of the map"
    peers = {"a loop over a memory map": loop, "DataLoader, 2 workers": lambda step: next(loader)}
    ways = {"ours": ours, bound: slice_of, **peers}
    batches = min(report.options.batches, n_sequences // BATCH - 2)
    times = dict.fromkeys(ways, 0.0)
    for step in range(batches):
        for name, way in ways.items():
            times[name] += seconds(partial(way, step))
    speeds = {name: batches * BATCH * LENGTH / spent_seconds for name, spent_seconds in times.items()}
    title = f"read {batches} batches of {BATCH} × {LENGTH}"
    for name in peers:
        report.add(title, speeds["ours"], "tokens/s", (name, speeds[name]), (bound, speeds[bound]))


class Moment(NamedTuple):
    """A step's end: when it was, the seconds spent waiting until then, and the tokens in the cache."""

    time: float
    waited: float
    tokens: int


def wait(report: Report, dataset: str, tokenizer: str, folder: Path) -> None:
    """Add the rows of a run while its cache grows, which stops once that is whole, and one of as many steps after."""
    tokens.SHARD_TOKENS = 1 << 13
    steps = None
    for name in ("growing", "warm"):
        moments = watch(Run(run_arguments(dataset, tokenizer, folder, name)), steps)
        steps = len(moments) - 1
        if steps < 3:
            raise SystemExit(f"wait: {steps} steps were made until the cache was whole; give more text")
        # From the second step on: in the first the builder starts.
        first, last = moments[1], moments[-1]
        if name == "growing" and last.tokens <= first.tokens:
            raise SystemExit(f"wait: the cache did not grow while it was read: {first.tokens:,} tokens all the time")
        elapsed = last.time - first.time
        share = 100 * (last.waited - first.waited) / elapsed
        note = (
            f"{steps - 1} steps in {elapsed:.1f} s; tokens available at the first and the last: "
            f"{first.tokens:,}, {last.tokens:,}; read: {steps * BATCH_OF_RUN * LENGTH_OF_RUN:,}"
        )
        report.add(f"waiting for data, {name} cache", share, "%", bound=("nothing", 0.0), note=note)


def watch(run: Run, steps: int | None) -> list[Moment]:
    """Execute a run until its cache is complete, or for so many steps, and return the moments of its steps."""
    cache = run.data.tokens.cache
    moments: list[Moment] = []

    def is_over() -> bool:
        cache.refresh()
        moments.append(Moment(time.perf_counter(), run.data.wait_seconds, len(cache)))
        return cache.complete if steps is None else len(moments) > steps

    # The run asks this after every step.
    run.stop.requested = is_over
    run.execute()
    return moments


def run_arguments(dataset: str, tokenizer: str, folder: Path, name: str) -> TrainingArguments:
    """Return the arguments of a run that could read all of the text, in small windows."""
    run = {
        "output_dir": str(folder / name),
        "precision": "fp32",
        "micro_batch_sequences": BATCH_OF_RUN,
        "eval_sequences": 16,
        "progress": False,
    }
    data = {
        "dataset": dataset,
        "tokenizer": tokenizer,
        "cache_dir": str(folder / "tokens"),
        "shuffle_window": 64,
        "held_out_per_mille": 20,
    }
    return arguments_of_steps(run, {"d_model": 64, "experts": 2}, LENGTH_OF_RUN).replaced(data=data)


def corpus(folder: Path, options) -> tuple[str, str]:
    """Return dataset and tokenizer folder: the user's, or made from the documentation that is installed."""
    dataset = options.dataset or folder / "corpus"
    tokenizer_folder = options.tokenizer or folder / "tokenizer"
    if options.dataset is None:
        build_corpus(dataset, max_bytes=int(1e6 * options.megabytes))
    if options.tokenizer is None:
        texts = list(TextSource(str(dataset)).documents())
        train_tokenizer(texts[:2000], 8192, str(tokenizer_folder), progress=False)
    return str(dataset), str(tokenizer_folder)


@benchmark({**SOURCE, "--batches": (500, 4)})
def main(report: Report, options: Options) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        dataset, tokenizer_folder = corpus(folder, options)
        source = TextSource(dataset)
        tokenizer = load_tokenizer(tokenizer_folder)
        cache = build_and_map(report, source, tokenizer, folder)
        read(report, cache, folder / "peer.bin")
        wait(report, dataset, tokenizer_folder, folder)


if __name__ == "__main__":
    main()
