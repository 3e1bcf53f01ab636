"""The GPU kit: cases that fail, die or do not end, going on, and its page; `make gpu-smoke` tries what it measures."""

import json
import math
import os
import re
import signal
import time
from pathlib import Path

import pytest

from benchmarks.gpu import kit, measure, page
from benchmarks.gpu.cases import PARTS, Case, cases, first
from benchmarks.gpu.gaps import Interval, idle
from benchmarks.report import ROOT, machine, versions
from training.run.model import architecture
from training.run.timing import LEARNING_RATE, session_on_random_tokens, timed_step


def behave(options, work):
    """A measurement that does what its options say."""
    with open(work / "calls", "a") as file:
        file.write(options["do"] + "\n")
    match options["do"]:
        case "raise":
            raise MemoryError("no\nroom " * 100)
        case "exit":
            os._exit(5)
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "skip":
            raise kit.Skipped("liger_kernel is not installed")
        case "sleep":
            time.sleep(60)
    return {"value": options.get("value")}


@pytest.fixture(scope="module")
def processes():
    started = kit.processes(preload=__name__)
    first = started.Process(target=time.monotonic)  # the server is slow to start, and cases are timed
    first.start()
    first.join()
    return started


@pytest.fixture
def run(tmp_path, processes):
    def run(*listed, limit=120.0, case_seconds=60.0, retry=False):
        results = kit.Results.open(tmp_path / "results", "steps")
        clock = kit.Clock(time.monotonic() + limit, case_seconds)
        return kit.run(listed, behave, results, tmp_path, clock, processes, retry), results.cases

    return run


def calls(folder: Path) -> list[str]:
    path = folder / "calls"
    return path.read_text().split() if path.exists() else []


ROWS = {do: Case(do, {"do": do}) for do in ("raise", "exit", "die", "fine")}


def test_a_case_that_fails_is_recorded_and_the_rest_goes_on(run, tmp_path):
    (failed, left), found = run(*ROWS.values())
    assert (failed, left) == (3, 0)
    assert [found[name]["status"] for name in ROWS] == ["failed", "failed", "failed", "measured"]
    assert found["raise"]["reason"].startswith("MemoryError: no room no room")
    assert found["raise"]["reason"].endswith("…")
    assert "\n" not in found["raise"]["reason"]
    assert found["exit"]["reason"] == "its process exited with 5"
    assert found["die"]["reason"] == "its process was ended by signal 9"
    assert found["fine"]["result"] == {"value": None}

    assert run(*ROWS.values())[0] == (0, 0)  # all of them have a result
    assert calls(tmp_path) == [*ROWS]
    assert run(*ROWS.values(), retry=True)[0] == (3, 0)
    assert calls(tmp_path)[len(ROWS) :] == ["raise", "exit", "die"]


def test_what_is_not_there_is_skipped_in_one_line_and_tried_again(run, tmp_path):
    skipped = Case("liger", {"do": "skip"})
    (failed, left), found = run(skipped)
    assert (failed, left) == (0, 0)
    assert (found["liger"]["status"], found["liger"]["reason"]) == ("skipped", "liger_kernel is not installed")
    run(skipped)
    run(skipped, retry=True)
    assert calls(tmp_path) == ["skip", "skip"]
    part = {"part": "heads", "machine": machine(), "versions": versions()}
    cases = {"liger": found["liger"] | {"date": "2026-11-23", "commit": "abc"}}
    assert page.of_part(part | {"cases": cases}).endswith("Skipped:\n\n- liger: liger_kernel is not installed\n")


def test_the_page_is_written_after_each_case(tmp_path, processes):
    results, written = kit.Results.open(tmp_path / "results", "steps"), []
    clock = kit.Clock(time.monotonic() + 60, 60)
    kept = [ROWS["fine"], ROWS["raise"]]
    kit.run(kept, behave, results, tmp_path, clock, processes, kept=lambda: written.append([*results.cases]))
    assert written == [["fine"], ["fine", "raise"]]


@pytest.mark.parametrize("smoke", [False, True])
def test_the_first_cases_are_of_the_parts_and_answer_each_question(smoke):
    listed = first(smoke)
    assert all(case in cases(part, smoke) for part, case in listed)
    assert len({(part, case.name) for part, case in listed}) == len(listed)
    if not smoke:
        steps = [case.options for part, case in listed if part == "steps"]
        models = {(o["model"], o["width"], o["experts"]) for o in steps}
        assert models >= {("ours", width, experts) for width in (512, 1024) for experts in (1, 8, 32)}
        assert models >= {(model, width, 8) for width in (512, 1024) for model in ("mixtral", "qwen3_moe")}
        assert {o["optimizer"] for o in steps} == {"adamw", "muon"}
        assert {o["top_k"] for o in steps} == {1, 2, 4, 8}
        assert all(o["precision"] == "bf16" for o in steps)
        assert {part for part, _ in listed} == {"steps", "suite", "data", "heads"}


def test_finer_experts_have_the_active_weights_of_whole_ones():
    """At E = 8 k of which k are active; ours with as many experts is as large."""
    listed = {case.name: case.options for case in cases("steps")}
    names = ["mixtral d1024 E8, grouped_mm", *(n for n in listed if "top k" in n and "d1024" in n)]
    sizes = [architecture(measure.arguments_of(listed[name]).model, 50257) for name in names]
    assert len(sizes) == 4
    assert len({(size.n_active, size.n_total) for size in sizes}) == 1


def test_a_result_counts_for_its_options_only(run):
    for value in (1, 1, 2):
        assert run(Case("fine", {"do": "fine", "value": value}))[1]["fine"]["result"] == {"value": value}


def test_what_does_not_end_is_a_failure_and_what_the_clock_cuts_is_left(run, tmp_path, processes):
    slow = Case("slow", {"do": "sleep"})
    (failed, left), found = run(slow, ROWS["fine"], case_seconds=5)
    assert (failed, left) == (1, 0)
    assert found["slow"]["reason"] == "took longer than 5 s"
    assert found["fine"]["status"] == "measured"

    other = Case("other", {"do": "sleep"})
    started = time.monotonic()
    clock = kit.Clock(time.monotonic() + 2, 60)  # the case may take longer than what is left of this call
    results = kit.Results.open(tmp_path / "results", "steps")
    assert kit.run([other], behave, results, tmp_path, clock, processes) == (0, 1)
    assert time.monotonic() - started < 50
    assert "other" not in kit.Results.open(tmp_path / "results", "steps").cases


def test_results_of_another_machine_are_not_mixed(tmp_path):
    results = kit.Results.open(tmp_path, "steps")
    results.keep(ROWS["fine"], {"status": "measured", "result": {}})
    stored = json.loads(results.path.read_text())
    stored["machine"]["gpu"] = "8 x another"
    results.path.write_text(json.dumps(stored))
    with pytest.raises(ValueError, match=r"8 x another.*give another --results"):
        kit.Results.open(tmp_path, "steps")


@pytest.mark.parametrize("smoke", [False, True])
@pytest.mark.parametrize("part", PARTS)
def test_cases_have_names_of_their_own_and_options_that_a_file_keeps(part, smoke):
    listed = cases(part, smoke)
    assert len({case.name for case in listed}) == len(listed) > 0
    assert len({json.dumps(case.options, sort_keys=True) for case in listed}) == len(listed)
    for case in listed:
        assert json.loads(json.dumps(case.options)) == case.options
    with pytest.raises(ValueError, match="part 'other'; it must be one of steps, suite"):
        cases("other")


def test_a_model_whose_steps_are_timed_does_not_diverge():
    """The loss of random tokens stays what it was drawn with, in every case and as many steps as one makes."""
    listed = [case for smoke in (False, True) for case in cases("steps", smoke) if case.options["model"] != "matmul"]
    rates = {measure.arguments_of(case.options).optimizer.learning_rate for case in listed}
    assert rates == {LEARNING_RATE}
    options = listed[-1].options | {"model": "ours", "experts": 8, "precision": "fp32", "length": 64}
    session = session_on_random_tokens(measure.arguments_of(options), options["vocab"])
    losses = [timed_step(session)[0].loss for _ in range(14)]
    assert losses == pytest.approx([math.log(options["vocab"])] * 14, rel=0.02)


def test_every_part_has_a_target_and_every_test_of_the_suite_exists():
    makefile = (ROOT / "Makefile").read_text()
    (line,) = [line for line in makefile.splitlines() if line.startswith("GPU_PARTS :=")]
    assert tuple(line.split()[2:]) == PARTS
    tests = re.findall(r"^def (test_\w+)", (ROOT / "tests/gpu/test_device.py").read_text(), re.MULTILINE)
    assert sorted(case.options["test"] for case in cases("suite")) == sorted(tests)


def test_idle_time_lies_between_intervals():
    ran = [Interval(0, 10, "a"), Interval(2, 4, "inside"), Interval(15, 20, "b"), Interval(20, 21, "c")]
    ran.append(Interval(41, 50, "d"))
    assert idle(ran, longest=1) == {
        "idle_share": 0.5,
        "gaps": [{"microseconds": 20, "after": "c", "before": "d"}],
    }
    assert idle(ran)["gaps"][1] == {"microseconds": 5, "after": "a", "before": "b"}
    assert idle([]) == {"idle_share": None, "gaps": []}


def of_steps(**speeds: float) -> dict:
    """A part with these cases measured, and one that failed."""
    result = {"peak_memory_bytes": 2e9, "idle_share": 0.02, "optimizer_share": 0.031}
    gaps = [{"microseconds": 31.5, "after": "a", "before": "a kernel"}]
    found = {
        name: {"status": "measured", "result": result | {"tokens_per_second": speed, "mfu": speed / 1e6, "gaps": gaps}}
        for name, speed in speeds.items()
    }
    found["mixtral d1024 E8, deepgemm"] = {"status": "failed", "reason": "ImportError: no kernel"}
    every = {name: case | {"date": "2026-11-22", "commit": "abc"} for name, case in found.items()}
    return {"part": "steps", "machine": machine(), "versions": versions(), "cases": every}


def test_the_page_shows_steps_beside_dense_and_bound_and_the_goals():
    speeds = {"matmul d1024 E1, auto": 1e6, "ours d1024 E1, auto": 500_000, "ours d1024 E8, auto": 430_000}
    text = page.of_part(of_steps(**speeds))
    row = "| ours d1024 E8, auto | 430,000 tokens/s | our dense model | 500,000 tokens/s | 0.86× |"
    assert row in text
    assert "E = 8 at 0.86 of the dense model's speed (meets the goal of 0.85)" in text
    assert "MFU 43.0% at d_model 1024, E = 8 (meets the goal of 40%)" in text
    assert "31.5 µs before a kernel" in text
    assert "- mixtral d1024 E8, deepgemm: ImportError: no kernel" in text
    assert "misses the goal of 0.85" in page.of_part(of_steps(**speeds | {"ours d1024 E8, auto": 300_000}))
    assert "Goals: not measured." in page.of_part(of_steps(**{"ours d512 E8, auto": 1.0}))


def test_the_page_is_what_the_results_give():
    assert page.PAGE.read_text(encoding="utf-8") == page.page(page.RESULTS), (
        "docs/benchmarks.md differs from benchmarks/results/gpu: run python -m benchmarks.gpu.page"
    )


def test_a_part_without_results_is_empty(tmp_path):
    text = page.page(tmp_path)
    for part in PARTS:
        assert f"<!-- gpu {part} -->\n<!-- end -->\n" in text
