"""Runs cases one after the other, each in a process of its own, and keeps every result at once.

Each number is written down as it comes, so that a call that is killed loses none. A case that fails, whether it
raises, runs out of memory, dies or does not end, is kept with its reason in one line and with what it had measured
before, and the next one is started. One that has a result of this code for its options is not run again; one whose
result is of other code is, after those that have none. So a part can be stopped at any time, and goes on.
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
from benchmarks.gpu.code import code_now, stamp_of_code
from benchmarks.report import gpus, machine, versions, write_result

# Takes named results, each as soon as it is measured.
Keep = Callable[..., None]
Measure = Callable[[Options, Path, Keep], None]
# The status of a case that is measured now, or was when the call was killed.
UNFINISHED = "unfinished"
# Seconds that a training run has to save its checkpoint.
STOP_SECONDS = 45
LONGEST_REASON = 300
# Fields of a result that its line shows, and how.
SUMMARY = {
    "tokens_per_second": "{:,.0f} tokens/s",
    "mfu": "MFU {:.1%}",
    "seconds_to_fourth_step": "{:.1f} s until the fourth step",
    "host_share": "{:.0%} of a step without a kernel",
}


class Skipped(RuntimeError):
    """Something that a case needs is not there; the message says what."""


@dataclass
class Results:
    """The results of one part on one kind of GPU, in a file of their own: `<folder>/<part>-<GPU>.json`."""

    part: str
    path: Path
    cases: dict[str, dict[str, Any]]

    @classmethod
    def open(cls, folder: Path, part: str) -> Results:
        """Read the results that this machine's GPU has."""
        gpu = re.sub("[^a-z0-9]+", "-", gpus().lower())
        path = folder / f"{part}-{gpu}.json"
        if not path.exists():
            return cls(part, path, {})
        stored = json.loads(path.read_text(encoding="utf-8"))
        for result in stored["cases"].values():
            # Results of earlier versions of the kit have those of their file.
            result.setdefault("versions", stored["versions"])
        return cls(part, path, stored["cases"])

    def has_any(self, case: Case) -> bool:
        """Return whether the case has a result for its options, of whatever code."""
        result = self.cases.get(case.name)
        return result is not None and result["options"] == case.options and result["status"] != UNFINISHED

    def has(self, case: Case, retry: bool = False) -> bool:
        """Return whether it has one of this code; with `retry`, only what was measured is one."""
        if not self.has_any(case):
            return False
        result = self.cases[case.name]
        is_current = all(result.get(name) == value for name, value in code_now().items())
        return is_current and (result["status"] == "measured" or not retry)

    def keep(self, case: Case, outcome: dict[str, Any]) -> None:
        """Write down one more result; one of other code stays until the new one is whole."""
        if outcome["status"] == UNFINISHED and self.has_any(case):
            return
        self.cases[case.name] = {"options": case.options, **outcome, "cpu": machine()["cpu"], **stamp_of_code()}
        part = {"part": self.part, "machine": machine(), "versions": versions(), "cases": self.cases}
        write_result(self.path, part)


def processes(preload: str) -> BaseContext:
    """Choose how processes start: forked from a server with `preload` imported, or anew where CUDA bears no fork."""
    # Nothing is downloaded.
    os.environ["HF_HUB_OFFLINE"] = "1"
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

    `retry` runs again what failed. `after_case` is called after each result; an error of its own is printed.
    """

    folder: Path
    work: Path
    processes: BaseContext
    deadline: float
    retry: bool = False
    after_case: Callable[[], object] = lambda: None

    def run(self, part: str, cases: Sequence[Case], measure: Measure, case_seconds: float) -> tuple[int, int]:
        """Run what has no result yet, then what has one of other code, until the call ends.

        Returns how many cases failed now and how many wait.
        """
        results = Results.open(self.folder, part)
        failed = 0
        waiting = 0
        for case in sorted(cases, key=results.has_any):
            if results.has(case, self.retry):
                continue
            seconds_left = self.deadline - time.monotonic()
            if seconds_left < case.seconds:
                waiting += 1
                continue
            print(f"{part}: {case.name} ...", flush=True)
            outcome = self._run_case(case, measure, min(seconds_left, case_seconds), results)
            if outcome["status"] == "late" and seconds_left < case_seconds:
                print("  stopped: no time left for it in this call", flush=True)
                results.keep(case, {**outcome, "status": UNFINISHED})
                waiting += 1
                continue
            if outcome["status"] == "late":
                outcome["status"] = "failed"
                outcome["reason"] = f"took longer than {case_seconds:.0f} s"
            results.keep(case, outcome)
            failed += outcome["status"] == "failed"
            print(f"  {outcome['status']} in {outcome['seconds']:.0f} s{summary(outcome)}", flush=True)
            self._finish_case()
        return failed, waiting

    def _finish_case(self) -> None:
        """Call `after_case`: a page that cannot be written costs no measurement."""
        try:
            self.after_case()
        except Exception as error:
            print(f"  the page was not written: {one_line(error)}", flush=True)

    def _run_case(self, case: Case, measure: Measure, seconds: float, results: Results) -> dict[str, Any]:
        """Run one case in a process of its own, writing down what comes; its status is "late" if it did not end."""
        receiver, sender = self.processes.Pipe(duplex=False)
        process = self.processes.Process(target=_measure_in_child, args=(measure, case.options, self.work, sender))
        started = time.monotonic()
        result: dict[str, Any] = {}
        outcome: dict[str, Any] = {}
        process.start()
        sender.close()
        try:
            while not outcome:
                # Also wait for its end: what it started may outlive it, and hold its side of the pipe.
                ready = wait([receiver, process.sentinel], max(0.0, started + seconds - time.monotonic()))
                if not ready:
                    process.terminate()
                    outcome = {"status": "late"}
                elif receiver in ready:
                    outcome, numbers = receiver.recv()
                    result.update(numbers)
                    if not outcome:
                        elapsed = round(time.monotonic() - started, 1)
                        results.keep(case, {"status": UNFINISHED, "result": result, "seconds": elapsed})
                else:
                    break
        except EOFError:
            # The process died.
            pass
        process.join(STOP_SECONDS)
        process.kill()
        # Not for ever: a process that waits for a device that hangs cannot be ended.
        process.join(STOP_SECONDS)
        if not outcome:
            outcome = {"status": "failed", "reason": _why_it_ended(process.exitcode or 0)}
        return {**outcome, "result": result, "seconds": round(time.monotonic() - started, 1)}


def _why_it_ended(exit_code: int) -> str:
    """Return why a process without an outcome ended."""
    if exit_code < 0:
        return f"its process was ended by signal {-exit_code}"
    return f"its process exited with {exit_code}"


def summary(outcome: dict[str, Any]) -> str:
    """Format why a case has no result, and what a training step was measured at."""
    result = outcome["result"]
    texts = [outcome.get("reason")]
    for name, form in SUMMARY.items():
        if result.get(name) is not None:
            texts.append(form.format(result[name]))
    return "".join(f"; {text}" for text in texts if text)


def one_line(error: BaseException) -> str:
    """Format the kind of an error, and the beginning of what it says."""
    text = f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(": ")
    return text if len(text) <= LONGEST_REASON else text[:LONGEST_REASON] + "…"


def _measure_in_child(measure: Measure, options: Options, work: Path, sender: Connection) -> None:
    """Measure a case in its environment and send what comes, and at the end its outcome."""
    os.environ.update(options.get("environment", {}))
    try:
        measure(options, work, lambda **numbers: sender.send(({}, numbers)))
        outcome = {"status": "measured"}
    except Skipped as error:
        outcome = {"status": "skipped", "reason": str(error)}
    except Exception as error:
        # A kernel or a library may raise whatever it likes.
        outcome = {"status": "failed", "reason": one_line(error)}
    sender.send((outcome, {}))
