"""Text to training batches: tokenising, reading, and waiting, beside the usual ways.

    python -m benchmarks.data_pipeline --dataset FOLDER --tokenizer FOLDER [--processes 2] [--parts encode build ...]

encode: MB of text per CPU second of one core, batch by batch in turns: the cache's encoder against a fast transformers
    tokenizer with its ids made into numpy arrays, as a `datasets.map` does it. Bound: `tokenizers` alone, its ids left
    where they are.
build: wall time from the files to ids on disk with `--processes` threads or processes: `data.builder.build` against
    `datasets.map(batched=True, num_proc=...)` and packing with numpy. Start-up is in both. Bound: reading the text,
    encoding it as above and writing the ids, in one process, shared perfectly.
read: tokens/s of batches of 32 shuffled sequences, in turns: the cache, a plain loop over one memory map, and torch's
    DataLoader over the same map with two workers. Bound: one slice of that map, in its order, widened to int64.
wait: the part of a training run's time (real runs of `train.py`'s code, on this machine's CPU) spent waiting for
    data, after its first step: while the cache is being built (the run could read all of the text, and is stopped as
    soon as that is tokenised, so every step that counts was made beside the builder), and as many steps with the
    cache that is there then; least: 0. The benchmark fails where the cache did not grow while it was read.

Without `--dataset` (or BENCH_DATASET) the text is the documentation of the installed packages
(`training.corpus`), without `--tokenizer` (or BENCH_TOKENIZER) a byte-level BPE is trained on it.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_PROGRESS_BARS="1", TOKENIZERS_PARALLELISM="false")

import datasets
import numpy as np
import torch

from benchmarks.report import Report, parse
from benchmarks.report import seconds as wall_seconds
from training.configuration.reading import from_dict
from training.data import cache as tokens
from training.data.batches import SequenceOrder
from training.data.builder import build, encoder, lock_of
from training.data.cache import TokenCache, open_cache
from training.data.text import TextSource
from training.data.tokenizer import description, load_tokenizer, train_tokenizer
from training.run.main import Run

LENGTH = 512
BATCH = 32
LENGTH_OF_RUN = 128  # of the sequences of the runs that may wait
BATCH_OF_RUN = 2  # sequences: small, so that many steps are made while the cache grows


def text_megabytes(texts: list[str]) -> float:
    return sum(len(text.encode()) for text in texts) / 1e6


def cpu_seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def encode(report: Report, texts: list[str], tokenizer) -> None:
    ours = encoder(description(tokenizer), tokenizer.eos_token_id, "<u2")
    backend, eos = tokenizer.backend_tokenizer, tokenizer.eos_token_id

    def peer(batch):
        ids = tokenizer(batch, add_special_tokens=False, return_attention_mask=False)["input_ids"]
        return np.concatenate([np.asarray([*one, eos], dtype="<u2") for one in ids]).tobytes()

    ways = {"ours": lambda b: b"".join(ours(b)), "transformers + numpy": peer}
    seconds = dict.fromkeys(["bound", *ways], 0.0)
    for start in range(0, len(texts), 256):
        batch, results = texts[start : start + 256], set()
        seconds["bound"] += cpu_seconds(lambda b=batch: backend.encode_batch_fast(b, add_special_tokens=False))
        for name, way in ways.items():
            seconds[name] += cpu_seconds(lambda way=way, batch=batch, results=results: results.add(way(batch)))
        if len(results) != 1:
            raise SystemExit(f"the ways disagree on the ids of documents {start} to {start + len(batch)}")
    megabytes = text_megabytes(texts)
    speed = {name: megabytes / spent for name, spent in seconds.items()}
    for name in list(ways)[1:]:
        bound = ("tokenizers alone", speed["bound"])
        report.add(f"encode {megabytes:.1f} MB", speed["ours"], "MB/s", peer=(name, speed[name]), bound=bound)


def build_all(source: TextSource, tokenizer, folder: Path) -> TokenCache:
    cache = open_cache(source, tokenizer, folder)
    with lock_of(cache.folder, timeout=0):
        build(source, cache.folder)
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


def read_encode_write(source: TextSource, tokenizer, path: Path) -> None:
    """The work that cannot be left out, in one process that is already there."""
    encode = encoder(description(tokenizer), tokenizer.eos_token_id, "<u2")
    with path.open("wb") as file:
        for texts, _ in source.batches(256):
            file.write(b"".join(encode(texts)))
        file.flush()
        os.fsync(file.fileno())


def build_and_map(report: Report, source: TextSource, tokenizer, folder: Path) -> None:
    processes = report.options.processes
    os.environ.update(RAYON_NUM_THREADS=str(processes), TOKENIZERS_PARALLELISM="true")
    ours = wall_seconds(lambda: build_all(source, tokenizer, folder / "ours"))
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    theirs = wall_seconds(lambda: map_and_pack(source, tokenizer, folder / "peer.bin", processes))
    least = wall_seconds(lambda: read_encode_write(source, tokenizer, folder / "least.bin")) / processes
    cache = build_all(source, tokenizer, folder / "ours")
    if not np.array_equal(cache.read(0, len(cache)), np.memmap(folder / "peer.bin", dtype="<u2", mode="r")):
        raise SystemExit("build: the ids differ from those of datasets.map")
    bound = ("reading, encoding, writing, shared perfectly", least)
    name, note = f"build a cache of {len(cache):,} tokens", f"processes of both: {processes}"
    report.add(name, ours, "s", peer=("datasets.map and numpy", theirs), bound=bound, note=note)


class Sequences(torch.utils.data.Dataset):
    """One memory map of tokens as a map-style data set."""

    def __init__(self, path: Path):
        self.tokens = np.memmap(path, dtype="<u2", mode="r")

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // LENGTH

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.from_numpy(self.tokens[i * LENGTH : i * LENGTH + LENGTH + 1].astype(np.int64))


def read(report: Report, cache: TokenCache, folder: Path) -> None:
    path = folder / "one.bin"
    cache.read(0, len(cache)).astype("<u2").tofile(path)
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

    ways = {"ours": ours, "a loop over a memory map": loop, "DataLoader, 2 workers": lambda step: next(loader)}
    ways["slice"] = slice_of
    batches = min(report.options.batches, n // BATCH - 2)
    seconds = dict.fromkeys(ways, 0.0)
    for step in range(batches):
        for name, way in ways.items():
            seconds[name] += wall_seconds(lambda way=way, step=step: way(step))
    speed = {name: batches * BATCH * LENGTH / spent for name, spent in seconds.items()}
    for name in list(ways)[1:3]:
        bound = ("one slice of the map", speed["slice"])
        title = f"read {batches} batches of {BATCH} × {LENGTH}"
        report.add(title, speed["ours"], "tokens/s", peer=(name, speed[name]), bound=bound)


@dataclass(frozen=True)
class Moment:
    """What is seen after a step: seconds so far, those of them that were spent waiting, and tokens in the cache."""

    seconds: float
    waited: float
    tokens: int


class Watched:
    """A run that notes every step and stops after `steps` of them, or, without a number, once its cache is whole."""

    def __init__(self, arguments, steps: int | None = None):
        self.run, self.steps, self.moments = Run(arguments), steps, []
        self.cache = self.run.data.tokens.cache
        self.run.stop.requested = self.is_over

    def is_over(self) -> bool:
        """Asked after every step, which it notes."""
        self.cache.refresh()
        self.moments.append(Moment(time.perf_counter(), self.run.data.wait_seconds, len(self.cache)))
        return self.cache.complete if self.steps is None else len(self.moments) > self.steps

    def execute(self) -> None:
        self.run.execute()  # which ends with the status of a run that was asked to stop
        if len(self.moments) < 4:
            raise SystemExit(f"wait: {len(self.moments)} steps were made until the cache was whole; give more text")

    def waiting(self) -> tuple[float, Moment, Moment]:
        """The percentage of the time between the first step and the last that was waited, and those two moments."""
        first, last = self.moments[1], self.moments[-1]  # the first step has the start of the builder in it
        return 100 * (last.waited - first.waited) / (last.seconds - first.seconds), first, last


def wait(report: Report, dataset: str, tokenizer: str, folder: Path) -> None:
    tokens.SHARD_TOKENS = 1 << 13
    steps = None
    for name in ("growing", "warm"):
        watched = Watched(run_arguments(report, dataset, tokenizer, folder, name), steps)
        watched.execute()
        share, first, last = watched.waiting()
        steps = len(watched.moments) - 1
        if name == "growing" and last.tokens <= first.tokens:
            raise SystemExit(f"wait: the cache did not grow while it was read: {first.tokens:,} tokens all the time")
        note = (
            f"{steps - 1} steps in {last.seconds - first.seconds:.1f} s; tokens there at the first and the last: "
            f"{first.tokens:,}, {last.tokens:,}; read: {steps * BATCH_OF_RUN * LENGTH_OF_RUN:,}"
        )
        report.add(f"waiting for data, {name} cache", share, "%", bound=("nothing", 0.0), note=note)


def run_arguments(report: Report, dataset: str, tokenizer: str, folder: Path, name: str):
    """A run that could read all of the text, in small windows."""
    return from_dict(
        {
            "run": {
                **{"output_dir": str(folder / name), "precision": "fp32", "micro_batch_sequences": BATCH_OF_RUN},
                **{"eval_sequences": 16, "progress": False},
            },
            "model": {"d_model": 64, "experts": 2},
            "data": {
                **{"dataset": dataset, "split": report.options.split, "tokenizer": tokenizer},
                **{"sequence_length": LENGTH_OF_RUN, "cache_dir": str(folder / "tokens")},
                **{"shuffle_window": 64, "held_out_per_mille": 20},
            },
            "schedule": {"tokens": ["1B"], "warmup_tokens": 4096, "batch_ramp": [f"0:{BATCH_OF_RUN}"]},
            "optimizer": {"learning_rate": 0.003},
        }
    )


def corpus(folder: Path, options) -> tuple[str, str]:
    """Data set and tokenizer folder: those given, or made from the documentation that is installed."""
    dataset, tokenizer_folder = options.dataset, options.tokenizer
    if dataset is None:
        from training.corpus import build as build_corpus

        dataset = folder / "corpus"
        build_corpus(str(dataset), max_bytes=int(1e6 * options.megabytes))
    if tokenizer_folder is None:
        tokenizer_folder = folder / "tokenizer"
        texts = list(TextSource(str(dataset), split=options.split).documents())
        train_tokenizer(texts[:2000], 8192, str(tokenizer_folder), progress=False)
    return str(dataset), str(tokenizer_folder)


def from_environment(name: str) -> Path | None:
    return Path(os.environ[name]) if os.environ.get(name) else None


def main() -> None:
    parts = ["encode", "build", "read", "wait"]
    options = parse(
        __doc__,
        ("--dataset", {"type": Path, "default": from_environment("BENCH_DATASET")}),
        ("--split", {"default": "train"}),
        ("--tokenizer", {"type": Path, "default": from_environment("BENCH_TOKENIZER")}),
        ("--megabytes", {"type": float, "default": 8.0, "help": "of documentation, without --dataset"}),
        ("--processes", {"type": int, "default": len(os.sched_getaffinity(0))}),
        ("--batches", {"type": int, "default": 500}),
        ("--parts", {"nargs": "+", "choices": parts, "default": parts}),
        fast={"megabytes": 4.0, "batches": 4},
    )
    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        dataset, tokenizer_folder = corpus(folder, options)
        source, tokenizer = TextSource(dataset, split=options.split), load_tokenizer(tokenizer_folder)
        report = Report("data_pipeline", options)
        if "encode" in options.parts:
            encode(report, list(source.documents()), tokenizer)
        if "build" in options.parts:
            build_and_map(report, source, tokenizer, folder)
        if "read" in options.parts:
            read(report, build_all(source, tokenizer, folder / "ours"), folder)
        if "wait" in options.parts:
            wait(report, dataset, tokenizer_folder, folder)
        report.finish()


if __name__ == "__main__":
    main()
