"""Runs cases one after the other, each in a process of its own, and keeps every result at once.

A case that fails, whether it raises, runs out of memory or dies, is kept with its reason in one line, and the next one
is started. One that has a result for its options is not run again. So a part can be stopped at any time, and goes on.
"""

from __future__ import annotations

import datetime
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.cases import Case, Options
from benchmarks.report import commit, gpus, machine, versions
from hub.base import atomic
from hub.base.errors import InputError

Measure = Callable[[Options, Path], dict[str, Any]]
STOP_SECONDS = 60  # for a training run to save its checkpoint
LONGEST_REASON = 300


class Skipped(RuntimeError):
    """What a case needs is not there; the message says what."""


@dataclass
class Results:
    """The results of one part in one file, `<folder>/<part>.json`, of one machine."""

    path: Path
    cases: dict[str, dict[str, Any]]

    @classmethod
    def open(cls, folder: Path, part: str) -> Results:
        """Those there are. ValueError if they are of another machine."""
        path = folder / f"{part}.json"
        if not path.exists():
            return cls(path, {})
        found = json.loads(path.read_text(encoding="utf-8"))
        there, here = ({name: of[name] for name in ("cpu", "gpu")} for of in (found["machine"], machine()))
        if there != here:
            raise InputError(f"{path} holds results of {there}, this machine is {here}; give another --results")
        return cls(path, found["cases"])

    def has(self, case: Case, retry: bool = False) -> bool:
        """Whether the case has a result for its options; with `retry`, only what was measured is one."""
        found = self.cases.get(case.name)
        return found is not None and found["options"] == case.options and not (retry and found["status"] != "measured")

    def keep(self, case: Case, found: dict[str, Any]) -> None:
        """Write down one more."""
        date = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
        self.cases[case.name] = {"options": case.options, **found, "date": date, "commit": commit()}
        part = {"part": self.path.stem, "machine": machine(), "versions": versions(), "cases": self.cases}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_bytes(self.path, (json.dumps(part, indent=1, ensure_ascii=False) + "\n").encode())


@dataclass(frozen=True)
class Clock:
    """When a call ends, by `time.monotonic`, and the seconds that one case may take."""

    ends: float
    case_seconds: float

    @property
    def left(self) -> float:
        return self.ends - time.monotonic()


def processes(preload: str) -> BaseContext:
    """How to start processes: forked from a server that has imported `preload`, or anew where CUDA bears no fork."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is downloaded
    # Else asking whether there is a GPU, as many imports do, would start CUDA in the server.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload([preload])
    if gpus() != "none":
        probe = server.Process(target=_use_the_gpu)
        probe.start()
        probe.join()
        if probe.exitcode:
            return multiprocessing.get_context("spawn")
    return server


def _use_the_gpu() -> None:
    torch.zeros(1, device="cuda")


def run(
    cases: Sequence[Case],
    measure: Measure,
    results: Results,
    work: Path,
    clock: Clock,
    processes: BaseContext,
    retry: bool = False,
    kept: Callable[[], object] = lambda: None,
) -> tuple[int, int]:
    """Run what has no result yet, until the clock ends; returns how many of the cases failed now and are left.

    `kept` is called after each result.
    """
    waiting, failed = [case for case in cases if not results.has(case, retry)], 0
    while waiting and clock.left > 0:
        case = waiting.pop(0)
        print(f"{results.path.stem}: {case.name} ...", flush=True)
        found = run_one(case, measure, work, clock, processes)
        if found is None:
            waiting.insert(0, case)
            print("  stopped: no time left for it in this call", flush=True)
            break
        results.keep(case, found)
        kept()
        failed += found["status"] == "failed"
        print(f"  {found['status']} in {found['seconds']:.0f} s {found.get('reason', '')}".rstrip(), flush=True)
    return failed, len(waiting)


def run_one(case: Case, measure: Measure, work: Path, clock: Clock, processes: BaseContext) -> dict[str, Any] | None:
    """The result of one case, or None if this call ended before the time that a case may take."""
    receiver, sender = processes.Pipe(duplex=False)
    process = processes.Process(target=_child, args=(measure, case.options, work, sender))
    started, allowed = time.monotonic(), min(clock.left, clock.case_seconds)
    process.start()
    sender.close()
    there = receiver.poll(allowed)  # also where the process died: then there is nothing to read
    try:
        found = receiver.recv() if there else {}
    except EOFError:
        process.join()
        found = {"status": "failed", "reason": died(process.exitcode or 0)}
    if not there:
        process.terminate()
        if allowed >= clock.case_seconds:
            found = {"status": "failed", "reason": f"took longer than {clock.case_seconds:.0f} s"}
    process.join(STOP_SECONDS)
    process.kill()
    process.join()
    return found | {"seconds": round(time.monotonic() - started, 1)} if found else None


def died(exit_code: int) -> str:
    """Why a process ended that reported nothing."""
    return f"its process was ended by signal {-exit_code}" if exit_code < 0 else f"its process exited with {exit_code}"


def one_line(error: BaseException) -> str:
    """The kind of an error, and the beginning of what it says."""
    text = f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(": ")
    return text if len(text) <= LONGEST_REASON else text[:LONGEST_REASON] + "…"


def _child(measure: Measure, options: Options, work: Path, outcome: Connection) -> None:
    try:
        outcome.send({"status": "measured", "result": measure(options, work)})
    except Skipped as error:
        outcome.send({"status": "skipped", "reason": one_line(error).partition(": ")[2]})
    except Exception as error:  # whatever a kernel or a library raises
        outcome.send({"status": "failed", "reason": one_line(error)})
