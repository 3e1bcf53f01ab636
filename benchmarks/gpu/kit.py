"""Runs cases one after the other, each in a process of its own, and keeps every result at once.

Each number is written down as it comes, so that a call that is killed loses none. A case that fails, whether it
raises, runs out of memory, dies or does not end, is kept with its reason in one line and with what it had measured
before, and the next one is started. One that has a result for its options is not run again. So a part can be stopped
at any time, and goes on.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.cases import Case, Options
from benchmarks.report import gpus, machine, stamp, versions, write_result

Keep = Callable[..., None]  # takes named results, each as soon as it is measured
Measure = Callable[[Options, Path, Keep], None]
UNFINISHED = "unfinished"  # the status of a case that is measured now, or was when the call was killed
STOP_SECONDS = 45  # for a training run to save its checkpoint
LONGEST_REASON = 300
SUMMARY = {  # what a result's line shows of it
    "tokens_per_second": "{:,.0f} tokens/s",
    "mfu": "MFU {:.1%}",
    "seconds_to_fourth_step": "{:.1f} s until the fourth step",
    "host_share": "{:.0%} of a step without a kernel",
}


class Skipped(RuntimeError):
    """What a case needs is not there; the message says what."""


@dataclass
class Results:
    """The results of one part on one kind of GPU, in a file of their own: `<folder>/<part>-<GPU>.json`."""

    part: str
    path: Path
    cases: dict[str, dict[str, Any]]

    @classmethod
    def open(cls, folder: Path, part: str) -> Results:
        """Those that this machine's GPU has."""
        path = folder / f"{part}-{re.sub('[^a-z0-9]+', '-', gpus().lower())}.json"
        cases = json.loads(path.read_text(encoding="utf-8"))["cases"] if path.exists() else {}
        return cls(part, path, cases)

    def has(self, case: Case, retry: bool = False) -> bool:
        """Whether the case has a result for its options; with `retry`, only what was measured is one."""
        result = self.cases.get(case.name)
        if result is None or result["options"] != case.options or result["status"] == UNFINISHED:
            return False
        return result["status"] == "measured" or not retry

    def keep(self, case: Case, found: dict[str, Any]) -> None:
        """Write down one more."""
        self.cases[case.name] = {"options": case.options, **found, "cpu": machine()["cpu"], **stamp()}
        part = {"part": self.part, "machine": machine(), "versions": versions(), "cases": self.cases}
        write_result(self.path, part)


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


@dataclass(frozen=True)
class Kit:
    """One call of the kit: its folders, how it starts processes, and when it ends, by `time.monotonic`.

    `retry` runs again what failed. `kept` is called after each result; an error of its own is printed.
    """

    folder: Path
    work: Path
    processes: BaseContext
    ends: float
    retry: bool = False
    kept: Callable[[], object] = lambda: None

    def run(self, part: str, cases: Sequence[Case], measure: Measure, case_seconds: float) -> tuple[int, int]:
        """Run what has no result yet, until the call ends; returns how many of the cases failed now and are left."""
        results = Results.open(self.folder, part)
        failed, left = 0, 0
        for case in (case for case in cases if not results.has(case, self.retry)):
            seconds = self.ends - time.monotonic()
            if seconds < case.seconds:
                left += 1
                continue
            allowed = min(seconds, case_seconds)
            print(f"{part}: {case.name} ...", flush=True)
            outcome = self._run_one(case, measure, allowed, results)
            if outcome["status"] == "late" and allowed < case_seconds:
                print("  stopped: no time left for it in this call", flush=True)
                results.keep(case, outcome | {"status": UNFINISHED})
                left += 1
                continue
            if outcome["status"] == "late":
                outcome |= {"status": "failed", "reason": f"took longer than {allowed:.0f} s"}
            results.keep(case, outcome)
            failed += outcome["status"] == "failed"
            print(f"  {outcome['status']} in {outcome['seconds']:.0f} s{summary(outcome)}", flush=True)
            try:
                self.kept()
            except Exception as error:  # a page that cannot be written costs no measurement
                print(f"  the page was not written: {one_line(error)}", flush=True)
        return failed, left

    def _run_one(self, case: Case, measure: Measure, seconds: float, results: Results) -> dict[str, Any]:
        """Run one case in a process of its own, writing down what comes; its status is "late" if it did not end."""
        receiver, sender = self.processes.Pipe(duplex=False)
        process = self.processes.Process(target=_child, args=(measure, case.options, self.work, sender))
        started, result, outcome = time.monotonic(), dict[str, Any](), dict[str, Any]()
        process.start()
        sender.close()
        try:
            while not outcome:
                # Also for its end: what it started may outlive it, and hold its side of the pipe.
                ready = wait([receiver, process.sentinel], max(0.0, started + seconds - time.monotonic()))
                if not ready:
                    process.terminate()
                    outcome = {"status": "late"}
                elif receiver in ready:
                    outcome, more = receiver.recv()
                    result |= more
                    if not outcome:
                        spent = round(time.monotonic() - started, 1)
                        results.keep(case, {"status": UNFINISHED, "result": result, "seconds": spent})
                else:
                    break
        except EOFError:  # it died
            pass
        process.join(STOP_SECONDS)
        process.kill()
        process.join(STOP_SECONDS)  # not for ever: one that waits for a device that hangs cannot be ended
        if not outcome:
            code = process.exitcode or 0
            reason = f"its process was ended by signal {-code}" if code < 0 else f"its process exited with {code}"
            outcome = {"status": "failed", "reason": reason}
        return outcome | {"result": result, "seconds": round(time.monotonic() - started, 1)}


def summary(outcome: dict[str, Any]) -> str:
    """Why a case has no result, and what a training step was measured at."""
    result = outcome["result"]
    values = [outcome.get("reason")]
    values += [text.format(result[name]) for name, text in SUMMARY.items() if result.get(name) is not None]
    return "".join(f"; {value}" for value in values if value)


def one_line(error: BaseException) -> str:
    """The kind of an error, and the beginning of what it says."""
    text = f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(": ")
    return text if len(text) <= LONGEST_REASON else text[:LONGEST_REASON] + "…"


def _child(measure: Measure, options: Options, work: Path, sender: Connection) -> None:
    try:
        measure(options, work, lambda **more: sender.send(({}, more)))
        outcome = {"status": "measured"}
    except Skipped as error:
        outcome = {"status": "skipped", "reason": str(error)}
    except Exception as error:  # whatever a kernel or a library raises
        outcome = {"status": "failed", "reason": one_line(error)}
    sender.send((outcome, {}))
