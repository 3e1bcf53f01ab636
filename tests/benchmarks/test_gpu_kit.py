"""The GPU kit: cases that fail, die or do not end, going on, and its page; `make gpu-smoke` tries what it measures."""

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import kit, measure, page
from benchmarks.gpu.cases import CASE_SECONDS, PARTS, SMOKE, Case, cases, first
from benchmarks.gpu.measure import idle
from benchmarks.report import ROOT, machine, versions
from scaling_law.machine.memory import training_memory
from training.run.model import architecture
from training.run.timing import LEARNING_RATE

EVERY_STEP = [case for smoke in (False, True) for case in cases("steps", smoke) if case.options["model"] != "matmul"]


def behave(options, work, keep):
    """A measurement that does what its options say."""
    with open(work / "calls", "a") as file:
        file.write(options["do"] + "\n")
    keep(before=1)
    match options["do"]:
        case "raise":
            raise MemoryError("no\nroom " * 100)
        case "exit":
            if not os.fork():  # what it started outlives it, and holds the pipe
                time.sleep(40)
            os._exit(5)
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "skip":
            raise kit.Skipped("liger_kernel is not installed")
        case "sleep":
            time.sleep(60)
    keep(value=options.get("value"))


@pytest.fixture(scope="module")
def processes():
    started = kit.processes(preload=__name__)
    first = started.Process(target=time.monotonic)  # the server is slow to start, and cases are timed
    first.start()
    first.join()
    return started


@pytest.fixture
def run(tmp_path, processes):
    def run(*listed, limit=120.0, case_seconds=60.0, retry=False, kept=lambda: None):
        call = kit.Kit(tmp_path / "results", tmp_path, processes, time.monotonic() + limit, retry, kept)
        return call.run("steps", listed, behave, case_seconds), stored(tmp_path)

    return run


def stored(folder: Path) -> dict:
    return kit.Results.open(folder / "results", "steps").cases


def calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().split()


ROWS = {do: Case(do, {"do": do}) for do in ("raise", "exit", "die", "fine")}


def test_a_case_that_fails_is_recorded_with_what_it_measured_and_the_rest_goes_on(run, tmp_path):
    (failed, left), found = run(*ROWS.values())
    assert (failed, left) == (3, 0)
    assert [found[name]["status"] for name in ROWS] == ["failed", "failed", "failed", "measured"]
    assert found["raise"]["reason"].startswith("MemoryError: no room no room")
    assert found["raise"]["reason"].endswith("…")
    assert "\n" not in found["raise"]["reason"]
    assert found["exit"]["reason"] == "its process exited with 5"
    assert found["exit"]["seconds"] < 30
    assert found["die"]["reason"] == "its process was ended by signal 9"
    assert [found[name]["result"] for name in ROWS] == [{"before": 1}] * 3 + [{"before": 1, "value": None}]

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
    assert of(found, "heads").endswith("Skipped:\n\n- liger: liger_kernel is not installed\n")


def test_the_page_is_written_after_each_case_and_its_errors_stop_nothing(run, tmp_path, capsys):
    written = []

    def write_page():
        written.append([*stored(tmp_path)])
        raise OSError("disk full")

    assert run(ROWS["fine"], ROWS["raise"], kept=write_page)[0] == (1, 0)
    assert written == [["fine"], ["fine", "raise"]]
    assert "the page was not written: OSError: disk full" in capsys.readouterr().out


def test_a_result_counts_for_its_options_only(run):
    for value in (1, 1, 2):
        assert run(Case("fine", {"do": "fine", "value": value}))[1]["fine"]["result"]["value"] == value


def test_what_does_not_end_is_a_failure_and_what_the_clock_cuts_is_left(run, tmp_path):
    (failed, left), found = run(Case("slow", {"do": "sleep"}), ROWS["fine"], case_seconds=5)
    assert (failed, left) == (1, 0)
    assert (found["slow"]["reason"], found["slow"]["result"]) == ("took longer than 5 s", {"before": 1})
    assert found["fine"]["status"] == "measured"

    started = time.monotonic()
    assert run(Case("other", {"do": "sleep"}), limit=2)[0] == (0, 1)
    assert time.monotonic() - started < 50
    assert "other" not in stored(tmp_path)


def test_results_of_another_gpu_are_in_another_file(tmp_path, monkeypatch):
    for gpu in ("1 x NVIDIA H100 80GB HBM3", "1 x NVIDIA H200"):
        monkeypatch.setattr(kit, "gpus", lambda gpu=gpu: gpu)
        results = kit.Results.open(tmp_path, "steps")
        assert not results.has(EVERY_STEP[0])
        results.keep(EVERY_STEP[0], {"status": "measured", "result": {"tokens_per_second": 1.0, "idle_share": None}})
    names = ["steps-1-x-nvidia-h100-80gb-hbm3.json", "steps-1-x-nvidia-h200.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert page.sections("steps", tmp_path).count("### Steps") == 2


def test_the_first_cases_answer_each_question():
    steps = [case.options for case in dict(first())["steps"]]
    models = {(o["model"], o["width"], o["experts"]) for o in steps}
    assert models >= {("ours", width, experts) for width in (512, 1024) for experts in (1, 8, 32)}
    assert models >= {(model, width, 8) for width in (512, 1024) for model in ("mixtral", "qwen3_moe")}
    assert {o["optimizer"] for o in steps} == {"adamw", "muon"}
    assert {o["top_k"] for o in steps} == {1, 2, 4, 8}
    assert all(o["precision"] == "bf16" for o in steps)
    assert {part for part, _ in first()} == {"steps", "suite", "data", "heads"}


def test_every_model_of_ours_fits_into_80_gb_and_does_not_diverge():
    for o in (case.options for case in EVERY_STEP if case.options["model"] == "ours"):
        a = measure.arguments_of(o)
        batch = {"passes": o["passes"], "precision": o["precision"], "capacity_factor": o["capacity_factor"]}
        memory = training_memory(architecture(a.model, o["vocab"]), o["micro_batch"], o["length"], **batch)
        assert memory.total < 72e9, o
        assert a.optimizer.learning_rate == LEARNING_RATE


def test_finer_experts_have_the_active_weights_of_whole_ones():
    """At E = 8 k of which k are active; ours with as many experts is as large."""
    listed = {case.name: case.options for case in cases("steps")}
    names = ["mixtral d1024 E8, grouped_mm", *(n for n in listed if "top k" in n and "d1024" in n)]
    sizes = [architecture(measure.arguments_of(listed[name]).model, 50257) for name in names]
    assert len(sizes) == 4
    assert len({(size.n_active, size.n_total) for size in sizes}) == 1


@pytest.mark.parametrize("part", PARTS)
def test_cases_have_names_of_their_own_and_options_that_a_file_keeps(part):
    for smoke in (False, True):
        listed = cases(part, smoke)
        assert len({case.name for case in listed}) == len(listed) > 0
        assert len({json.dumps(case.options, sort_keys=True) for case in listed}) == len(listed)
        assert all(json.loads(json.dumps(case.options)) == case.options for case in listed)
        of_first = [case for name, some in first(smoke) if name == part for case in some]
        assert all(case in listed for case in of_first)
        assert len({case.name for case in of_first}) == len(of_first)
    assert part in SMOKE
    assert part in CASE_SECONDS
    with pytest.raises(ValueError, match="part 'other'; it must be one of steps, suite"):
        cases("other")


@pytest.mark.parametrize("model", ["ours", "mixtral", "qwen3_moe"])
def test_models_are_drawn_on_the_device_with_heads_that_need_no_logits(model, monkeypatch):
    """Billions of weights take minutes on a CPU; the meta device stands in for a GPU."""
    options = next(case.options for case in cases("steps", smoke=True) if case.options["model"] == model)
    monkeypatch.setattr(measure, "DEVICE", torch.device("meta"))
    monkeypatch.setattr("accelerate.Accelerator.prepare", lambda self, *parts: parts)
    session = measure.session_of(options)
    assert {parameter.device.type for parameter in session.model.parameters()} == {"meta"}
    assert type(session.model.get_output_embeddings()).__name__ == "SwitchMoeHead"


def test_every_test_of_the_suite_is_run():
    tests = re.findall(r"^def (test_\w+)", (ROOT / "tests/gpu/test_device.py").read_text(), re.MULTILINE)
    assert {name.partition("[")[0] for case in cases("suite") for name in case.options["tests"]} == {*tests}


def test_idle_time_lies_between_intervals():
    ran = [(0, 10, "a"), (2, 4, "inside"), (15, 20, "b"), (20, 21, "c"), (41, 50, "d")]
    assert idle(ran, longest=1) == {
        "idle_share": 0.5,
        "gaps": [{"microseconds": 20, "after": "c", "before": "d"}],
    }
    assert idle(ran)["gaps"][1] == {"microseconds": 5, "after": "a", "before": "b"}
    assert idle([]) == {"idle_share": None, "gaps": []}


def of(found: dict, part: str) -> str:
    """The section of a part with these cases."""
    dated = {name: {"cpu": "EPYC", "date": "2026-11-22", "commit": "abc"} | case for name, case in found.items()}
    return page.section({"part": part, "machine": machine(), "versions": versions(), "cases": dated})


def of_steps(**speeds: float) -> str:
    """Steps with these speeds, and a case that failed on its way."""
    gaps = [{"microseconds": 31.5, "after": "a", "before": "a kernel"}]
    result = {"peak_memory_bytes": 2e9, "idle_share": 0.02, "optimizer_share": 0.031, "gaps": gaps}
    found = {
        name: {"status": "measured", "result": result | {"tokens_per_second": speed, "mfu": speed / 1e6}}
        for name, speed in speeds.items()
    }
    failed = {"status": "failed", "reason": "ImportError: no kernel", "result": {"peak_memory_bytes": 3e9}}
    return of(found | {"mixtral d1024 E8, deepgemm": failed}, "steps")


def test_the_page_shows_steps_beside_dense_and_bound_and_the_goals():
    speeds = {"matmul d1024 E1, auto": 1e6, "ours d1024 E1, auto": 500_000, "ours d1024 E8, auto": 430_000}
    text = of_steps(**speeds)
    row = "| ours d1024 E8, auto | 430,000 | 43.0% | 2 GB | 3.1% | 2.0% | 31.5 µs before a kernel | 0.86× | 0.43× |"
    assert row in text
    assert "E = 8 at 0.86 of the dense model's speed (meets the goal of 0.85)" in text
    assert "MFU 43.0% at d_model 1024, E = 8 (meets the goal of 40%)" in text
    assert "| mixtral d1024 E8, deepgemm |  |  | 3 GB |" in text
    assert "- mixtral d1024 E8, deepgemm: ImportError: no kernel" in text
    assert "misses the goal of 0.85" in of_steps(**speeds | {"ours d1024 E8, auto": 300_000})
    assert "Goals: not measured." in of_steps(**{"ours d512 E8, auto": 1.0})


def test_the_page_counts_tests_and_shows_their_largest_deviations():
    outcomes = {
        "[fp32]": {"outcome": "passed", "loss": 1e-7, "gradient": 2e-6},
        "[bf16]": {"outcome": "failed", "loss": 0.5},
    }
    text = of({"mixtral": {"status": "failed", "reason": "loss", "result": outcomes}}, "suite")
    assert "| mixtral | 1 of 2 | 5.0e-01 | 2.0e-06 |" in text
