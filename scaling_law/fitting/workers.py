"""Helper processes for a large grid of starts: one BLAS thread each, no demands on the calling script.

Each helper is `python -m scaling_law.fitting.workers`, fed through its standard input. Unlike a process pool of the
standard library it does not import the caller's script again, so a fit needs no `if __name__ == "__main__"` around it;
and BLAS threads, which would fight each other over small matrices, are limited before numpy is imported.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

# Arrays of a batch come and go at each step; without this glibc hands their pages back each time, a third of the work.
MEMORY_VARIABLES = {"MALLOC_MMAP_THRESHOLD_": "268435456", "MALLOC_TRIM_THRESHOLD_": "268435456"}
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


def map_in_processes(
    function: Callable[[Any, Any], Any], shared: Any, items: Sequence[Any], workers: int | None = None
) -> Iterator[tuple[int, Any]]:
    """Yield (index, function(shared, item)) as results come, computed by `workers` processes (None: one per core).

    `function` must be importable. With one worker, or where no interpreter can be started, it runs here. An exception
    in a helper is raised here.
    """
    count = min(workers or available_cores(), len(items))
    if count <= 1 or not sys.executable:
        for i, item in enumerate(items):
            yield i, function(shared, item)
        return
    with ExitStack() as stack:
        helpers = [stack.enter_context(_Helper(function, shared)) for _ in range(count)]
        idle = list(helpers)

        def ask(i: int) -> tuple[int, Any]:
            helper = idle.pop()  # list operations are atomic, and there are as many threads as helpers
            try:
                return i, helper.ask(items[i])
            finally:
                idle.append(helper)

        threads = stack.enter_context(ThreadPoolExecutor(count))
        for future in as_completed([threads.submit(ask, i) for i in range(len(items))]):
            yield future.result()


def available_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Helper:
    """One process and the two pipes to it."""

    def __init__(self, function: Callable[[Any, Any], Any], shared: Any) -> None:
        root = str(Path(__file__).resolve().parents[2])
        paths = [root, *(p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p)]
        limits = {**dict.fromkeys(THREAD_VARIABLES, "1"), **MEMORY_VARIABLES, "PYTHONPATH": os.pathsep.join(paths)}
        command = [sys.executable, "-m", "scaling_law.fitting.workers"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **limits}
        )
        self._send((function, shared))

    def __enter__(self) -> _Helper:
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is not None:
            self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.process.wait()

    def ask(self, item: Any) -> Any:
        self._send(item)
        assert self.process.stdout is not None
        try:
            failed, value = pickle.load(self.process.stdout)
        except EOFError:
            raise RuntimeError(f"a helper process ended with code {self.process.wait()}") from None
        if failed:
            raise value
        return value

    def _send(self, value: Any) -> None:
        assert self.process.stdin is not None
        pickle.dump(value, self.process.stdin)
        self.process.stdin.flush()


def serve(questions: IO[bytes], answers: IO[bytes]) -> None:
    """The helper's side: first (function, shared), then items until the pipe closes. Reads from its parent only."""
    function, shared = pickle.load(questions)
    while True:
        try:
            item = pickle.load(questions)
        except EOFError:
            return
        try:
            answer = (False, function(shared, item))
        except Exception as error:
            answer = (True, error)
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    replies, sys.stdout = sys.stdout.buffer, sys.stderr  # nothing that prints may spoil the pipe
    serve(sys.stdin.buffer, replies)
