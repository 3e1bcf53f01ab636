"""Tokenising, beside the engines that it could have been: MB/s per core.

    python -m benchmarks.tokenising --dataset FOLDER --tokenizer FOLDER

Text per second of processor time, of all threads together, from parquet files to ids on disk, which are compared. Ours
is `build`, with checksums and documents drawn across files. Peers are `Dataset.map` without processes and
packing with numpy, and, if it is installed, datatrove's DocumentTokenizer in a LocalPipelineExecutor of one worker,
which keeps the order of the files. Bound: `tokenizers` alone, on text that is in memory.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_PROGRESS_BARS="1", DATATROVE_COLORIZE_LOGS="0")

import numpy as np
from tokenizers import Tokenizer

from benchmarks.data_pipeline import SOURCE, build_all, corpus, map_and_pack
from benchmarks.report import Options, Report, benchmark
from training.data.text import TextSource
from training.data.tokenizer import description, load_tokenizer, read_names_as_text, special_tokens


def by_map(source: TextSource, tokenizer, path: Path) -> np.ndarray:
    """Tokenise by `Dataset.map`."""
    return np.fromfile(map_and_pack(source, tokenizer, path, processes=None), dtype="<u2")


def by_datatrove(source: TextSource, tokenizer, folder: Path) -> np.ndarray:
    """Tokenise by datatrove."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import ParquetReader
    from datatrove.pipeline.tokens import DocumentTokenizer
    from loguru import logger

    logger.remove()
    text_description = read_names_as_text(description(tokenizer), special_tokens(tokenizer))
    folder.with_suffix(".json").write_text(text_description)
    end = Tokenizer.from_str(text_description).id_to_token(tokenizer.eos_token_id)
    reader = ParquetReader(source.dataset, glob_pattern=f"{source.split}-*.parquet", text_key=source.text_column)
    writer = DocumentTokenizer(
        str(folder),
        tokenizer_name_or_path=str(folder.with_suffix(".json")),
        eos_token=end,
        shuffle_documents=False,
    )
    LocalPipelineExecutor([reader, writer], logging_dir=f"{folder}-logs", skip_completed=False).run()
    return np.concatenate([np.fromfile(path, dtype="<u2") for path in sorted(folder.glob("*.ds"))])


def measure(work: Callable[[], np.ndarray]) -> tuple[float, np.ndarray]:
    """Measure the seconds of processor time, and count how often there is each id."""
    started = time.process_time()
    ids = work()
    return time.process_time() - started, np.bincount(ids)


@benchmark(SOURCE)
def main(report: Report, options: Options) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        dataset, tokenizer_folder = corpus(folder, options)
        source = TextSource(dataset, file_seed=0)
        tokenizer = load_tokenizer(tokenizer_folder)
        texts = list(source.documents())
        megabytes = sum(len(text.encode()) for text in texts) / 1e6
        encode = tokenizer.backend_tokenizer.encode_batch_fast
        # After the first call its threads have started.
        encode(texts[:1])

        def encode_all() -> np.ndarray:
            return np.array([len(encode(texts[i : i + 256])) for i in range(0, len(texts), 256)])

        def build_and_read() -> np.ndarray:
            cache = build_all(source, tokenizer, folder / "ours")
            return cache.read(0, len(cache))

        our_seconds, id_counts = measure(build_and_read)
        least_seconds, _ = measure(encode_all)
        title = f"{megabytes:.1f} MB of text, {id_counts.sum():,} tokens, per core"
        bound = ("tokenizers alone", megabytes / least_seconds)
        peers = {
            "datasets.map and numpy": partial(by_map, source, tokenizer, folder / "map.bin"),
            "datatrove": partial(by_datatrove, source, tokenizer, folder / "datatrove"),
        }
        for name, work in peers.items():
            try:
                peer_seconds, peer_counts = measure(work)
            except ImportError:
                report.skipped.append(f"{name}: it is not installed")
                continue
            if not np.array_equal(peer_counts, id_counts):
                raise SystemExit(f"the ids differ from those of {name}")
            report.add(title, megabytes / our_seconds, "MB/s", (name, megabytes / peer_seconds), bound)


if __name__ == "__main__":
    main()
