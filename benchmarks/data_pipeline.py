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
LENGTH_OF_RUN = 128  # of the sequences of the runs that may wait
BATCH_OF_RUN = 2  # sequences: small, so that many steps are made while the cache grows
SOURCE: dict[str, tuple] = {  # of the text
    "--dataset": (Path, None),
    "--tokenizer": (Path, None),
    "--megabytes": (8.0, 4.0, "of documentation, without --dataset"),
}


def build_all(source: TextSource, tokenizer, folder: Path) -> TokenCache:
    cache = open_cache(source, tokenizer, folder)
    with lock_of(cache.folder, timeout=0):
        build(source, cache.folder)
    cache.refresh()
    return cache


def map_and_pack(source: TextSource, tokenizer, path: Path, processes: int | None) -> Path:
    """The usual way: a dataset of lists of ids, then one array in a file."""
    datasets.disable_progress_bars()
    name, options = source.loading_options()
    rows = datasets.load_dataset(name, split=source.split, cache_dir=str(path.parent / "peer"), **options)

    def encode(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        texts = batch[source.text_column]
        ids = tokenizer(texts, return_attention_mask=False, split_special_tokens=True)["input_ids"]
        return {"ids": [[*one, tokenizer.eos_token_id] for one in ids]}

    encoded = rows.map(encode, batched=True, num_proc=processes, remove_columns=rows.column_names)
    with path.open("wb") as file:
        for batch in encoded.with_format("arrow").iter(1000):
            file.write(batch["ids"].combine_chunks().flatten().to_numpy(zero_copy_only=False).astype("<u2").tobytes())
    return path


def read_encode_write(source: TextSource, tokenizer, path: Path) -> None:
    """The work that cannot be left out, in one process that is already there."""
    text_description = read_names_as_text(description(tokenizer), special_tokens(tokenizer))
    encode = encoder(text_description, tokenizer.eos_token_id, "<u2")
    with path.open("wb") as file:
        for texts, _ in source.batches(256):
            file.write(b"".join(encode(texts)))
    atomic.sync(path)


def build_and_map(report: Report, source: TextSource, tokenizer, folder: Path) -> TokenCache:
    processes = len(os.sched_getaffinity(0))
    os.environ.update(RAYON_NUM_THREADS=str(processes), TOKENIZERS_PARALLELISM="true")
    ours = seconds(lambda: build_all(source, tokenizer, folder / "ours"))
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    theirs = seconds(lambda: map_and_pack(source, tokenizer, folder / "peer.bin", processes))
    least = seconds(lambda: read_encode_write(source, tokenizer, folder / "least.bin")) / processes
    cache = build_all(source, tokenizer, folder / "ours")
    if not np.array_equal(cache.read(0, len(cache)), np.fromfile(folder / "peer.bin", dtype="<u2")):
        raise SystemExit("build: the ids differ from those of datasets.map")
    bound = ("reading, encoding, writing, shared perfectly", least)
    name, note = f"build a cache of {len(cache):,} tokens", f"processes of both: {processes}"
    report.add(name, ours, "s", peer=("datasets.map and numpy", theirs), bound=bound, note=note)
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
    plain, order, n = Sequences(path), SequenceOrder(0, 1 << 16), cache.n_sequences(LENGTH)
    loader = iter(torch.utils.data.DataLoader(plain, BATCH, shuffle=True, num_workers=2, persistent_workers=True))
    next(loader)  # its workers have started

    def ours(step: int) -> torch.Tensor:
        return torch.from_numpy(cache.sequences(order.indices(step * BATCH, BATCH, n), LENGTH))

    def loop(step: int) -> torch.Tensor:
        return torch.stack([plain[int(i)] for i in torch.randint(len(plain), (BATCH,))])

    def slice_of(step: int) -> torch.Tensor:
        first = step * BATCH * LENGTH
        return torch.from_numpy(plain.tokens[first : first + BATCH * (LENGTH + 1)].astype(np.int64))

    peers = {"a loop over a memory map": loop, "DataLoader, 2 workers": lambda step: next(loader)}
    ways = {"ours": ours, "one slice of the map": slice_of, **peers}
    batches = min(report.options.batches, n // BATCH - 2)
    spent = [[seconds(partial(way, step)) for way in ways.values()] for step in range(batches)]
    speed = dict(zip(ways, batches * BATCH * LENGTH / np.sum(spent, axis=0), strict=True))
    for name in peers:
        title, bound = f"read {batches} batches of {BATCH} × {LENGTH}", "one slice of the map"
        report.add(title, float(speed["ours"]), "tokens/s", (name, float(speed[name])), (bound, float(speed[bound])))


def wait(report: Report, dataset: str, tokenizer: str, folder: Path) -> None:
    """A run while its cache grows, which stops once that is whole, and one of as many steps with the whole cache."""
    tokens.SHARD_TOKENS = 1 << 13
    steps = None
    for name in ("growing", "warm"):
        moments = watched(Run(run_arguments(dataset, tokenizer, folder, name)), steps)
        steps = len(moments) - 1
        if steps < 3:
            raise SystemExit(f"wait: {steps} steps were made until the cache was whole; give more text")
        # From the second step on: in the first the builder starts.
        (began, waited, first), (ended, waited_at_end, last) = moments[1], moments[-1]
        if name == "growing" and last <= first:
            raise SystemExit(f"wait: the cache did not grow while it was read: {first:,} tokens all the time")
        share = 100 * (waited_at_end - waited) / (ended - began)
        note = f"{steps - 1} steps in {ended - began:.1f} s; tokens there at the first and the last: "
        note += f"{first:,}, {last:,}; read: {steps * BATCH_OF_RUN * LENGTH_OF_RUN:,}"
        report.add(f"waiting for data, {name} cache", share, "%", bound=("nothing", 0.0), note=note)


def watched(run: Run, steps: int | None) -> list[tuple[float, float, int]]:
    """Seconds, those of them spent waiting, and tokens in the cache, after each step of a run."""
    cache, moments = run.data.tokens.cache, []

    def is_over() -> bool:
        cache.refresh()
        moments.append((time.perf_counter(), run.data.wait_seconds, len(cache)))
        return cache.complete if steps is None else len(moments) > steps

    run.stop.requested = is_over  # which is asked after every step
    run.execute()
    return moments


def run_arguments(dataset: str, tokenizer: str, folder: Path, name: str) -> TrainingArguments:
    """A run that could read all of the text, in small windows."""
    run = {"output_dir": str(folder / name), "precision": "fp32", "micro_batch_sequences": BATCH_OF_RUN}
    run |= {"eval_sequences": 16, "progress": False}
    data = {"dataset": dataset, "tokenizer": tokenizer, "cache_dir": str(folder / "tokens")}
    data |= {"shuffle_window": 64, "held_out_per_mille": 20}
    return arguments_of_steps(run, {"d_model": 64, "experts": 2}, LENGTH_OF_RUN).replaced(data=data)


def corpus(folder: Path, options) -> tuple[str, str]:
    """Dataset and tokenizer folder: those given, or made from the documentation that is installed."""
    dataset, tokenizer_folder = options.dataset or folder / "corpus", options.tokenizer or folder / "tokenizer"
    if options.dataset is None:
        build_corpus(dataset, max_bytes=int(1e6 * options.megabytes))
    if options.tokenizer is None:
        texts = list(TextSource(str(dataset)).documents())
        train_tokenizer(texts[:2000], 8192, str(tokenizer_folder), progress=False)
    return str(dataset), str(tokenizer_folder)


@benchmark(SOURCE | {"--batches": (500, 4)})
def main(report: Report, options: Options) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        dataset, tokenizer_folder = corpus(folder, options)
        source, tokenizer = TextSource(dataset), load_tokenizer(tokenizer_folder)
        cache = build_and_map(report, source, tokenizer, folder)
        read(report, cache, folder / "peer.bin")
        wait(report, dataset, tokenizer_folder, folder)


if __name__ == "__main__":
    main()
