"""Text to training batches: tokenising, reading, and waiting, beside the usual ways.

    python benchmarks/data_pipeline.py --dataset FOLDER --tokenizer FOLDER [--processes 2] [--parts encode build ...]

encode: CPU seconds of one core, batch by batch in turns: `DocumentEncoder` against `tokenizers` and against a fast
    transformers tokenizer with its ids made into numpy arrays, as a `datasets.map` does it.
build: wall time from the files to ids on the disk with `--processes` processes: `token_writer.build` against
    `datasets.map(batched=True, num_proc=...)` and packing with numpy. Start-up is in both.
read: tokens/s of batches of 32 shuffled sequences, in turns: the cache, a plain loop over one memory map, and torch's
    DataLoader over the same map with two workers.
wait: the share of a training run's time (real runs of `train.py`'s code, on this machine's CPU) spent waiting for
    data: with a cache that grows meanwhile (small shards and windows, so that it does), and with a warm one.

Without `--dataset` the text is the documentation of the installed packages (`training.documentation_corpus`), with
`--tokenizer` a byte-level BPE trained on it.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_PROGRESS_BARS="1", TOKENIZERS_PARALLELISM="false")

import datasets
import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from hub import RunRecord
from training import tokens
from training.configuration import from_dict
from training.encoding import DocumentEncoder
from training.order import SequenceOrder
from training.run import Run
from training.text import TextSource
from training.token_writer import build, lock_of
from training.tokenizer import description, load_tokenizer, train_tokenizer
from training.tokens import TokenCache, open_cache

LENGTH = 512
BATCH = 32


def cpu_seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def wall_seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def encode(texts: list[str], tokenizer) -> Table:
    encoder = DocumentEncoder(description(tokenizer), tokenizer.eos_token_id, "<u2")
    backend, eos = tokenizer.backend_tokenizer, tokenizer.eos_token_id

    def rust(batch):
        ids = [encoding.ids for encoding in backend.encode_batch_fast(batch, add_special_tokens=False)]
        return b"".join(np.asarray([*one, eos], dtype="<u2").tobytes() for one in ids)

    def peer(batch):
        ids = tokenizer(batch, add_special_tokens=False, return_attention_mask=False)["input_ids"]
        return np.concatenate([np.asarray([*one, eos], dtype="<u2") for one in ids]).tobytes()

    ways = {"training.encoding": lambda b: b"".join(encoder(b)), "tokenizers": rust, "transformers + numpy": peer}
    seconds = dict.fromkeys(ways, 0.0)
    for start in range(0, len(texts), 256):
        batch, results = texts[start : start + 256], set()
        for name, way in ways.items():
            seconds[name] += cpu_seconds(lambda way=way, batch=batch, results=results: results.add(way(batch)))
        if len(results) != 1:
            raise SystemExit(f"the ways disagree on the ids of documents {start} to {start + len(batch)}")
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    table = Table(title=f"encode: {megabytes:.1f} MB of text, one core", title_justify="left")
    for heading in ("", "MB per CPU second", "training.encoding is faster by"):
        table.add_column(heading, justify="right")
    for name, spent in seconds.items():
        table.add_row(name, f"{megabytes / spent:.2f}", f"×{spent / seconds['training.encoding']:.2f}")
    return table


def build_all(source: TextSource, tokenizer, folder: Path, processes: int) -> TokenCache:
    cache, source = open_cache(source, tokenizer, folder)
    with lock_of(cache.folder, timeout=0):
        build(source, cache.folder, processes=processes)
    cache.refresh()
    return cache


def map_and_pack(source: TextSource, tokenizer, path: Path, processes: int) -> None:
    """The usual way: a data set of lists of ids, then one array."""
    name, options = source._loader()
    rows = datasets.load_dataset(name, split=source.split, cache_dir=str(path.parent / "peer"), **options)
    encoded = rows.map(
        lambda batch: {
            "ids": [
                [*ids, tokenizer.eos_token_id]
                for ids in tokenizer(batch[source.text_column], return_attention_mask=False)["input_ids"]
            ]
        },
        batched=True,
        num_proc=processes,
        remove_columns=rows.column_names,
    )
    out = np.memmap(path, dtype="<u2", mode="w+", shape=(sum(map(len, encoded["ids"])),))
    filled = 0
    for batch in encoded.with_format("arrow").iter(1000):
        ids = batch["ids"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        out[filled : filled + len(ids)] = ids
        filled += len(ids)
    out.flush()


def build_and_map(source: TextSource, tokenizer, folder: Path, megabytes: float, processes: int) -> Table:
    ours = wall_seconds(lambda: build_all(source, tokenizer, folder / "ours", processes))
    theirs = wall_seconds(lambda: map_and_pack(source, tokenizer, folder / "peer.bin", processes))
    cache = build_all(source, tokenizer, folder / "ours", processes)
    same = np.array_equal(cache.read(0, len(cache)), np.memmap(folder / "peer.bin", dtype="<u2", mode="r"))
    table = Table(title=f"build: {len(cache):,} tokens, {processes} processes, same ids: {same}", title_justify="left")
    for heading in ("", "wall time", "MB/s", "MB/s per process"):
        table.add_column(heading, justify="right")
    for name, spent in {"token cache": ours, "datasets.map + numpy": theirs}.items():
        speed = megabytes / spent
        table.add_row(name, f"{spent:.1f} s", f"{speed:.1f}", f"{speed / processes:.2f}")
    table.caption = f"the cache is built ×{theirs / ours:.2f} as fast"
    return table


class Sequences(torch.utils.data.Dataset):
    """One memory map of tokens as a map-style data set."""

    def __init__(self, path: Path):
        self.tokens = np.memmap(path, dtype="<u2", mode="r")

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // LENGTH

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.from_numpy(self.tokens[i * LENGTH : i * LENGTH + LENGTH + 1].astype(np.int64))


def read(cache: TokenCache, folder: Path, batches: int) -> Table:
    path = folder / "one.bin"
    cache.read(0, len(cache)).astype("<u2").tofile(path)
    plain, order, n = Sequences(path), SequenceOrder(0, 1 << 16), cache.n_sequences(LENGTH)
    loader = iter(torch.utils.data.DataLoader(plain, BATCH, shuffle=True, num_workers=2, persistent_workers=True))
    next(loader)  # its workers have started

    def ours(step: int) -> torch.Tensor:
        return torch.from_numpy(cache.sequences(order.indices(step * BATCH, BATCH, n), LENGTH))

    def loop(step: int) -> torch.Tensor:
        return torch.stack([plain[int(i)] for i in torch.randint(len(plain), (BATCH,))])

    ways = {"token cache": ours, "memmap loop": loop, "DataLoader, 2 workers": lambda step: next(loader)}
    batches = min(batches, n // BATCH - 2)
    seconds = dict.fromkeys(ways, 0.0)
    for step in range(batches):
        for name, way in ways.items():
            seconds[name] += wall_seconds(lambda way=way, step=step: way(step))
    table = Table(title=f"read: {batches} batches of {BATCH} × {LENGTH} tokens", title_justify="left")
    for heading in ("", "tokens/s", "token cache is faster by"):
        table.add_column(heading, justify="right")
    for name, spent in seconds.items():
        speed = batches * BATCH * LENGTH / spent
        table.add_row(name, f"{speed:,.0f}", f"×{spent / seconds['token cache']:.2f}")
    return table


def wait(dataset: str, split: str, tokenizer: str, folder: Path) -> Table:
    tokens.SHARD_TOKENS = 1 << 13
    table = Table(title="wait: d_model 64, E = 2, 32 steps of 8 × 128 tokens on CPU", title_justify="left")
    for heading in (
        "cache",
        "before the first step",
        "training",
        "of it waiting for data",
        "tokens there at start, end",
    ):
        table.add_column(heading, justify="right")
    for name in ("growing", "warm"):
        sections = {
            "run": {"output_dir": str(folder / name), "precision": "fp32", "micro_batch_sequences": 8},
            "model": {"d_model": 64, "experts": 2},
            "data": {"dataset": dataset, "split": split, "tokenizer": tokenizer, "sequence_length": 128},
            "schedule": {"tokens": [32 * 8 * 128], "warmup_tokens": 4096, "batch_ramp": ["0:8"]},
            "optimizer": {"learning_rate": 0.003},
        }
        sections["run"] |= {"eval_sequences": 16, "progress": False}
        sections["data"] |= {"cache_dir": str(folder / "tokens"), "shuffle_window": 64, "held_out_per_mille": 20}
        began = time.perf_counter()
        run = Run(from_dict(sections))
        cache = run.data._tokens.cache
        started, there = time.perf_counter() - began, len(cache)
        run.execute()
        (record,) = (RunRecord.load(path) for path in (folder / name).glob("*/model/run.json"))
        share = run.data.wait_seconds / record.wall_time_seconds
        counts = f"{there:,}, {len(cache):,}"
        table.add_row(name, f"{started:.1f} s", f"{record.wall_time_seconds:.1f} s", f"{share:.2%}", counts)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ("encode", "build", "read", "wait")
    parser.add_argument("--dataset")
    parser.add_argument("--split", default="train")
    parser.add_argument("--tokenizer")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--batches", type=int, default=500)
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts)
    arguments = parser.parse_args()
    datasets.disable_progress_bars()
    console = Console()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        dataset, tokenizer_folder = arguments.dataset, arguments.tokenizer
        if dataset is None:
            from training.documentation_corpus import build as build_corpus

            dataset = str(folder / "corpus")
            build_corpus(dataset, max_bytes=20_000_000)
        source = TextSource(dataset, split=arguments.split)
        texts = list(source.documents())
        if tokenizer_folder is None:
            tokenizer_folder = str(folder / "tokenizer")
            train_tokenizer(texts[:2000], 8192, tokenizer_folder, progress=False)
        tokenizer = load_tokenizer(tokenizer_folder)
        load = os.getloadavg()[0]
        console.print(f"{len(os.sched_getaffinity(0))} cores, load {load:.1f} before this; torch {torch.__version__}")
        megabytes = sum(len(text.encode()) for text in texts) / 1e6
        if "encode" in arguments.parts:
            console.print(encode(texts, tokenizer))
        if "build" in arguments.parts:
            console.print(build_and_map(source, tokenizer, folder, megabytes, arguments.processes))
        if "read" in arguments.parts:
            cache = build_all(source, tokenizer, folder / "ours", arguments.processes)
            console.print(read(cache, folder, arguments.batches))
        if "wait" in arguments.parts:
            console.print(wait(dataset, arguments.split, tokenizer_folder, folder))


if __name__ == "__main__":
    main()
