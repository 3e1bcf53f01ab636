"""Settings for every test (nothing leaves the machine), and the fixtures of a run that takes a second.

The fixtures import what they use, so that this file also loads where torch and pyarrow are not installed.
"""

import gc
import os
import random
import socket
import sys
import time

os.environ.update(
    HF_HUB_OFFLINE="1",
    HF_HUB_DISABLE_TELEMETRY="1",
    HF_XET_TELEMETRY_ENABLED="0",
    HF_HUB_DISABLE_UPDATE_CHECK="1",
    HF_HUB_DISABLE_PROGRESS_BARS="1",
    TOKENIZERS_PARALLELISM="false",
    MPLBACKEND="agg",
)
os.environ.setdefault("OMP_NUM_THREADS", "2")

import pytest
from hypothesis import settings


def examples(few: int, many: int) -> settings:
    """Try a property on a few examples, and on many in `make test-slow`."""
    return settings(max_examples=many if "MANY_EXAMPLES" in os.environ else few)


def sweep(cases, fast) -> list:
    """Mark cases whose path another one takes, too, as slow: all but those in `fast`."""
    return [case if case in fast else pytest.param(*_as_tuple(case), marks=pytest.mark.slow) for case in cases]


def _as_tuple(case) -> tuple:
    return case if isinstance(case, tuple) else (case,)


# No test depends on how busy the machine is.
settings.register_profile("untimed", examples(25, 100), deadline=None)
settings.load_profile("untimed")

# Tests end processes and never the machine, so nothing waits for the disk.
os.fsync = os.fstat


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collect no garbage while the tests are imported: what they import stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish():
    """Leave what was imported out of later garbage collections, and collect a tenth as often."""
    _freeze_modules()
    gc.set_threshold(10 * gc.get_threshold()[0], *gc.get_threshold()[1:])


def pytest_runtest_teardown():
    """Leave out, too, what tests have imported since, such as torch's compiler."""
    if len(sys.modules) > _frozen_modules + 100:
        _freeze_modules()


# How many modules no garbage collection looks at, which would take half a second for them.
_frozen_modules = 0


def _freeze_modules() -> None:
    global _frozen_modules
    gc.collect()
    gc.freeze()
    _frozen_modules = len(sys.modules)


WORDS = ("model", "expert", "token", "router", "loss", "data", "law", "scale", "train", "dense", "budget", "memory")


def make_documents(count: int, seed: int) -> list[str]:
    """Sentences with a little structure, so that a model can learn something."""
    generator = random.Random(seed)
    return [
        " ".join(generator.choice(WORDS[i % 3 :: 3]) for i in range(generator.randint(30, 120))) + "."
        for _ in range(count)
    ]


def write_dataset(folder, documents_by_split: dict[str, list[str]]) -> None:
    import pyarrow
    import pyarrow.parquet

    folder.mkdir(parents=True, exist_ok=True)
    for split, documents in documents_by_split.items():
        columns = {"text": documents, "id": [f"<urn:uuid:{split}-{i}>" for i in range(len(documents))]}
        pyarrow.parquet.write_table(pyarrow.table(columns), folder / f"{split}-00000-of-00001.parquet")


@pytest.fixture(autouse=True)
def _own_precision():
    """Accelerate keeps the precision of the first Accelerator of a process; each test chooses its own."""
    yield
    if state := sys.modules.get("accelerate.state"):
        state.AcceleratorState._reset_state()


@pytest.fixture(scope="module")
def shared_searches():
    """Let fits of the same runs with the same settings share the search for their optimum, which is deterministic."""
    from tests.scaling_law.searches import search_once

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scaling_law.fitting.fitting._search", search_once)
        yield


@pytest.fixture(scope="session")
def browser():
    """The Chromium of this machine, one for all tests: Playwright runs once in a process."""
    pytest.importorskip("playwright")
    from tests.scaling_law.explorer import chromium

    if chromium.program() is None:
        pytest.skip(f"no browser: none of {', '.join(chromium.NAMES)} is on PATH, and CHROMIUM names none")
    with chromium.started() as opened:
        yield opened


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "corpus"
    write_dataset(folder, {"train": make_documents(300, 0), "validation": make_documents(40, 1)})
    return folder


@pytest.fixture(scope="session")
def tokenizer_folder(corpus, tmp_path_factory):
    from training.data.text import TextSource
    from training.data.tokenizer import train_tokenizer

    folder = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer(TextSource(str(corpus)).documents(), 300, folder, progress=False)
    return folder


@pytest.fixture(scope="session")
def token_caches(tmp_path_factory):
    """Shared by all runs, as on a real machine: only the first has to tokenise."""
    return tmp_path_factory.mktemp("token-caches")


@pytest.fixture
def tiny(corpus, tokenizer_folder, token_caches, tmp_path):
    """A function: arguments of a tiny run, with changes such as {"model.experts": 1}, or of a whole section."""
    from training.configuration.reading import from_dict

    def build(**changes):
        values = {
            "run": {
                "output_dir": str(tmp_path / "run"),
                "sweep": "tiny",
                "precision": "fp32",
                "micro_batch_sequences": 2,
                "eval_sequences": 8,
                "log_steps": 1,
                "progress": False,
            },
            "model": {"d_model": 64, "experts": 4},
            "data": {
                "dataset": str(corpus),
                "validation_split": "validation",
                "tokenizer": str(tokenizer_folder),
                "sequence_length": 32,
                "cache_dir": str(token_caches),
            },
            "schedule": {"tokens": [1280, 2560], "warmup_tokens": 256, "batch_ramp": ["0:2", "512:4"]},
            "optimizer": {"learning_rate": 0.01},
        }
        for name, value in changes.items():
            section, _, field = name.replace("__", ".").partition(".")
            if field:
                values[section][field] = value
            else:
                values[section] = value
        return from_dict(values)

    return build


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_for(what: str, holds, timeout: float = 600):
    """Until `holds()`; `what` it is about is told if that takes too long."""
    deadline = time.monotonic() + timeout
    while not holds():
        assert time.monotonic() < deadline, f"waited {timeout:.0f} s for {what}"
        time.sleep(0.1)
