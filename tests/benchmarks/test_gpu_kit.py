"""The GPU kit: cases that fail, die or do not end, going on, and its page; `make gpu-smoke` tries what it measures."""

import json
import re
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks.gpu import baselines, code, kit, measure, page, real_run
from benchmarks.gpu.cases import (
    CASE_SECONDS,
    FIRST_SECONDS,
    FIRST_TESTS,
    PARTS,
    SMOKE,
    VARIANTS,
    Case,
    cases,
    first,
    headline_steps,
    new_steps,
    peer_steps,
    vary,
)
from benchmarks.gpu.measure import dearest, group_of, group_seconds, idle
from benchmarks.report import ROOT, machine, versions
from scaling_law import Architecture, Throughput
from scaling_law.machine.memory import training_memory
from scaling_law.machine.throughput import Measurement
from tests.benchmarks.behaviour import behave
from tests.training import ranks
from training.run.model import architecture
from training.run.timing import LEARNING_RATE

EVERY_STEP = [case for smoke in (False, True) for case in cases("steps", smoke) if case.options["model"] != "matmul"]


@pytest.fixture(scope="module")
def processes():
    started = kit.processes(preload=ranks.__name__)  # one server for all tests of a process
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


@pytest.fixture
def other_code(monkeypatch):
    """The kit as it runs after a change of its files, or with another torch."""

    def change(**changed):
        now = {**code.code_now(), **changed}
        monkeypatch.setattr(kit, "code_now", lambda: now)
        monkeypatch.setattr(kit, "stamp_of_code", lambda: {"date": "2026-11-30", "commit": None, **now})
        monkeypatch.setattr(code, "hash_of_files", lambda: now["code"])

    return change


@pytest.mark.parametrize("changed", [{"code": "fedcba9876"}, {"versions": {"torch": "9.9"}}], ids=["files", "torch"])
def test_a_result_of_other_code_is_measured_again_after_those_that_have_none(run, tmp_path, other_code, changed):
    old, new = ROWS["fine"], Case("new", {"do": "skip"})
    run(old)
    other_code(**changed)
    assert run(old, new)[0] == (0, 0)
    assert calls(tmp_path) == ["fine", "skip", "fine"]
    run(old, new)
    assert calls(tmp_path) == ["fine", "skip", "fine"]


def test_a_result_of_other_code_stays_until_the_new_one_is_whole(run, tmp_path, other_code):
    """Of a call that is cut, too."""
    before = run(Case("a", {"do": "fine", "value": 7}))[1]
    other_code(code="fedcba9876")
    results = kit.Results.open(tmp_path / "results", "steps")
    results.keep(Case("a", {"do": "fine", "value": 7}), {"status": "unfinished", "result": {"value": 8}})
    assert stored(tmp_path) == before
    assert not results.has(Case("a", {"do": "fine", "value": 7}))


def test_results_of_earlier_kits_load_and_are_of_other_code(run, tmp_path):
    """They had versions once a file, and no hash."""
    old, new = (Case(f"ours d1024 E{experts}, auto", {"do": "fine"}) for experts in (1, 8))
    run(old)
    path = kit.Results.open(tmp_path / "results", "steps").path
    part = json.loads(path.read_text())
    for name in ("code", "versions"):
        del part["cases"][old.name][name]
    part["cases"][old.name]["commit"] = "bfc1c38b62+"
    part["versions"] = {"torch": "2.11.0", "transformers": "5.17.0"}
    path.write_text(json.dumps(part))
    text = page.sections("steps", path.parent)
    assert "### Steps, with other code than today's\n" in text
    assert "torch 2.11.0, transformers 5.17.0; commit bfc1c38b62 with uncommitted changes;" in text
    run(new)
    text = page.sections("steps", path.parent)
    assert text.index("### Steps\n") < text.index("### Steps, with other code than today's\n")
    assert "torch 2.11.0, transformers 5.17.0;" in text  # though another torch wrote the file since


def test_the_code_of_a_result_is_files_on_the_path_of_a_step(tmp_path, monkeypatch):
    for name in (
        "training/run/step.py",
        "modeling_switch_moe/a/b.py",
        "benchmarks/gpu/measure.py",
        "training/run/a.txt",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    monkeypatch.setattr(code, "ROOT", tmp_path)
    hash_of_files = code.hash_of_files.__wrapped__
    hashes = [hash_of_files()]
    for name, is_on_path in {
        "training/run/step.py": True,
        "modeling_switch_moe/a/b.py": True,
        "benchmarks/gpu/measure.py": True,
        "training/run/new.py": True,
        "training/run/a.txt": False,
        "benchmarks/gpu/page.py": False,
        "training/sweep.py": False,
    }.items():
        (tmp_path / name).write_text("other")
        hashes.append(hash_of_files())
        assert (hashes[-1] != hashes[-2]) == is_on_path, name
    (tmp_path / "training/run/new.py").rename(tmp_path / "training/run/newer.py")
    assert hash_of_files() != hashes[-1]
    assert all((ROOT / path).exists() for path in code.PATHS)


@pytest.mark.parametrize("is_changed", [False, True])
def test_a_commit_is_named_only_where_the_files_are_its(monkeypatch, is_changed):
    monkeypatch.setattr(code, "has_changes", lambda: is_changed)
    monkeypatch.setattr(code, "stamp", lambda: {"date": "2026-11-30", "commit": "abc+"})  # other files differ
    stamp = code.stamp_of_code.__wrapped__()
    assert stamp == {"date": "2026-11-30", **code.code_now(), "commit": None if is_changed else "abc"}
    assert code.name_of_code(stamp) == (f"none, files {stamp['code']}" if is_changed else "abc")


def test_a_case_runs_in_its_environment(monkeypatch):
    case = vary(Case("a", {"do": "fine"}), "DDP")
    assert (case.name, case.options) == ("a; DDP", {"do": "fine", "environment": VARIANTS["DDP"]})
    values, sent = [], []
    monkeypatch.setattr(kit.os, "environ", {"RANK": "1", "HOME": "here"})
    sender = SimpleNamespace(send=sent.append)
    kit._measure_in_child(lambda *_: values.append(dict(kit.os.environ)), case.options, Path(), sender)
    assert values == [{"HOME": "here", **VARIANTS["DDP"]}]
    assert sent == [({"status": "measured"}, {})]


def test_what_does_not_end_is_a_failure_and_what_the_clock_cuts_is_left(run, tmp_path):
    (failed, left), found = run(Case("slow", {"do": "sleep"}), ROWS["fine"], case_seconds=5)
    assert (failed, left) == (1, 0)
    assert (found["slow"]["reason"], found["slow"]["result"]) == ("took longer than 5 s", {"before": 1})
    assert found["fine"]["status"] == "measured"

    started = time.monotonic()
    (failed, left), found = run(Case("other", {"do": "sleep"}, seconds=0.5), limit=2)
    assert time.monotonic() - started < 50
    assert (failed, left) == (0, 1)
    assert (found["other"]["status"], found["other"]["result"]) == ("unfinished", {"before": 1})
    assert of(found, "heads").endswith("Unfinished:\n\n- other: the call ended\n")
    fine = Case("other", {"do": "sleep"} | {"do": "fine"})
    assert run(fine)[1]["other"]["status"] == "measured"  # it is begun anew


def test_a_case_is_not_started_without_time_for_it_and_a_shorter_one_is(run, tmp_path):
    long, short = Case("long", {"do": "fine"}, seconds=50), Case("short", {"do": "skip"}, seconds=1)
    assert run(long, short, limit=30)[0] == (0, 1)
    assert calls(tmp_path) == ["skip"]
    assert run(long, short)[0] == (0, 0)
    assert calls(tmp_path) == ["skip", "fine"]


def test_each_number_is_written_down_as_it_comes(run, tmp_path):
    """Whoever kills the call loses none of them."""
    status = []

    def kept(results, case, found):
        keep(results, case, found)
        status.append((found["status"], found["result"].copy()))

    keep = kit.Results.keep
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kit.Results, "keep", kept)
        run(ROWS["fine"])
    assert status == [
        ("unfinished", {"before": 1}),
        ("unfinished", {"before": 1, "value": None}),
        ("measured", {"before": 1, "value": None}),
    ]
    unfinished = kit.Results("steps", tmp_path / "steps.json", {})
    keep(unfinished, ROWS["fine"], {"status": "unfinished", "result": {}})
    assert not unfinished.has(ROWS["fine"])


def test_a_result_is_one_line(run, capsys):
    outcome = {"tokens_per_second": 301_234.5, "mfu": 0.3093, "seconds_to_fourth_step": 8.13, "host_share": 0.0548}
    line = "; 301,234 tokens/s; MFU 30.9%; 8.1 s until the fourth step; 5% of a step without a kernel"
    assert kit.summary({"result": outcome}) == line
    assert kit.summary({"result": {"mfu": None}, "reason": "no room"}) == "; no room"
    run(ROWS["fine"])
    assert re.search(r"^steps: fine \.\.\.\n  measured in \d+ s$", capsys.readouterr().out, re.MULTILINE)


def test_results_of_another_gpu_are_in_another_file(tmp_path, monkeypatch):
    for gpu in ("1 x NVIDIA H100 80GB HBM3", "1 x NVIDIA H200"):
        monkeypatch.setattr(kit, "gpus", lambda gpu=gpu: gpu)
        results = kit.Results.open(tmp_path, "steps")
        assert not results.has(EVERY_STEP[0])
        results.keep(EVERY_STEP[0], {"status": "measured", "result": {"tokens_per_second": 1.0, "idle_share": None}})
    names = ["steps-1-x-nvidia-h100-80gb-hbm3.json", "steps-1-x-nvidia-h200.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert page.sections("steps", tmp_path).count("### Steps\n") == 2


def test_the_first_cases_answer_each_question():
    groups = first()
    assert [part for part, _ in groups] == [
        *("steps", "run", "steps", "suite", "steps"),
        *("suite", "data", "heads", "suite"),
    ]
    names = [case.name for case in (*new_steps(), *headline_steps())]
    assert [case.name for case in groups[2][1]] == names
    headline = [case.options for case in groups[2][1]][len(new_steps()) :]
    assert [(o["model"], o["width"], o["experts"], o["micro_batch"], o["passes"]) for o in headline] == [
        *(("ours", 1024, experts, 32, 4) for experts in (1, 8, 32)),
        ("qwen3_moe", 1024, 8, 32, 4),
        *(("ours", 512, experts, 32, 4) for experts in (1, 8)),
        *(("ours", 2048, 1, 32, 4), ("ours", 1024, 1, 64, 2)),
    ]
    assert all(o["compile"] and o["attention"] == "compute" and o["precision"] == "bf16" for o in headline)
    assert [case.name for case in groups[3][1]] == ["captured passes", *FIRST_TESTS]
    assert [(case.options["blocks"], case.options["experts"]) for case in groups[0][1]] == [(16, 1), (16, 8)]
    tokens = {(o["micro_batch"], o["length"]) for o in (case.options for case in new_steps())}
    assert tokens == {(32, 512), (4, 4096)}
    assert {case.name.partition("; ")[2] for case in new_steps()} == {"", "FSDP2", "DDP"}
    steps = [case.options for part, listed in groups if part == "steps" for case in listed]
    for o in headline[:-1]:  # each eager, too
        assert o | {"compile": False} in steps
    peers = {(o["model"], o["compile"], o["loop"]) for o in steps if "loop" in o}
    assert peers == {(m, c, w) for m in ("mixtral", "qwen3_moe") for c in (False, True) for w in ("plain", "Trainer")}
    assert {o["optimizer"] for o in steps} == {"adamw", "muon"}
    assert {o["top_k"] for o in steps} == {1, 2, 4, 8}


def test_what_the_first_minutes_are_for_fits_into_them():
    (_, presets), (_, runs), (_, headline), (_, tests), (_, others) = first()[:5]
    last = [case.name for case in others].index("qwen3_moe d1024 E8, grouped_mm, compile True, loop Trainer")
    assert {case.name for case in peer_steps()} - {case.name for case in others[: last + 1]} == {
        "mixtral d1024 E8, grouped_mm, compile True, loop Trainer"
    }
    news = (*presets, *runs, *headline)
    assert sum(case.seconds for case in news) <= 2 * FIRST_SECONDS / 3
    assert sum(case.seconds for case in (*news, *tests, *others[: last + 1])) <= FIRST_SECONDS


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
    names = ["mixtral d1024 E8, grouped_mm", *(n for n in listed if re.search("d1024.*_mm, top k", n))]
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
    with pytest.raises(ValueError, match="part 'other'; it must be one of steps, run, suite"):
        cases("other")


@pytest.mark.parametrize("model", ["ours", "mixtral", "qwen3_moe"])
def test_models_are_drawn_on_the_device_with_heads_that_need_no_logits(model, monkeypatch):
    """Billions of weights take minutes on a CPU; the meta device stands in for a GPU."""
    options = next(case.options for case in cases("steps", smoke=True) if case.options["model"] == model)
    monkeypatch.setattr(measure, "DEVICE", torch.device("meta"))
    monkeypatch.setattr("accelerate.Accelerator.prepare", lambda self, *parts: parts)
    # A training refuses the meta device.
    monkeypatch.setattr("training.run.devices.check_environment", lambda run: None)
    session = measure.session_of(options)
    assert {parameter.device.type for parameter in session.model.parameters()} == {"meta"}
    assert type(session.model.get_output_embeddings()).__name__ == "SwitchMoeHead"


def test_every_test_of_the_suite_is_run():
    files = (ROOT / "tests" / "gpu").glob("test_*.py")
    tests = re.findall(r"^def (test_\w+)", "\n".join(file.read_text() for file in files), re.MULTILINE)
    assert len(tests) == len({*tests})
    assert {name.partition("[")[0] for case in cases("suite") for name in case.options["tests"]} == {*tests}


def test_a_case_of_the_suite_whose_tests_are_all_skipped_says_why(tmp_path):
    """Layouts of several GPUs, of which there is one at most; the module of the test is found by its name."""
    kept = {}
    test = "test_several_gpus_train_what_one_trains[hsdp]"
    with pytest.raises(kit.Skipped, match="it needs 4 GPUs; there are"):
        measure.suite({"tests": [test]}, tmp_path, lambda **more: kept.update(more))
    assert kept == {test: {"outcome": "skipped"}}
    assert measure.file_of("test_a_result_is_overwritten_by_the_next").name == "test_captured_passes.py"


def test_idle_time_lies_between_intervals():
    ran = [(0, 10, "a"), (2, 4, "inside"), (15, 20, "b"), (20, 21, "c"), (41, 50, "d")]
    assert idle(ran, longest=1) == {
        "busy_seconds": pytest.approx(25e-6),
        "gaps": [{"microseconds": 20, "after": "c", "before": "d"}],
    }
    assert idle(ran)["gaps"][1] == {"microseconds": 5, "after": "a", "before": "b"}
    assert idle([]) == {"busy_seconds": 0.0, "gaps": []}


KERNELS = {
    "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT": "products",
    "void cutlass::Kernel2<cutlass_80_tensorop_s16816gemm_bf16_256x128_32x6_nt_align8>": "products",
    "triton_poi_fused__grouped_mm__to_copy_transpose_13": "other",
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_4x1x1": "attention",
    "fmha_cutlassF_f32_aligned_64x64_rf_sm80": "attention",
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float, false>": "norms",
    "triton_per_fused__to_copy__unsafe_view_add_native_layer_norm_native_layer_norm_backward_view_5": "norms",
    "triton_per_fused__to_copy_add_mean_mul_pow_rsqrt_0": "norms",
    "triton_red_fused__to_copy_add_arange_eq_exp_gather_log_lt_mul_ne_prepare_softmax_online_0": "softmax",
    "triton_poi_fused__to_copy_transpose_view_3": "casts",
    "triton_poi_fused__to_copy_t_1": "casts",
    "void at::native::vectorized_elementwise_kernel<8, at::native::bfloat16_copy_kernel_cuda(": "casts",
    "Memcpy HtoD (Pinned -> Device)": "casts",
    "void at_cuda_detail::cub::detail::radix_sort::DeviceRadixSortOnesweepKernel<": "routing",
    "triton_poi_fused_index_put_new_zeros_unsqueeze_view_1": "routing",
    "void at::native::multi_tensor_apply_kernel<at::native::FusedOptimizerTensorListMetadata<4>": "optimizer",
    "triton_poi_fused_cat_mul_silu_silu_backward_split_2": "other",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>": "other",
}


def test_a_kernels_name_tells_its_group():
    """Names of kernels that an H100 ran in our steps."""
    assert {name: group_of(name) for name in KERNELS} == KERNELS


def test_the_dearest_kernels_are_sums_over_calls_and_groups_add_up():
    ran = [(0, 3_000, "nvjet_a"), (3_000, 4_000, "Memcpy"), (5_000, 7_500, "nvjet_b"), (8_000, 11_000, "Memcpy")]
    assert dearest(ran, number=2) == [
        {"group": "casts", "kernel": "Memcpy", "calls": 2, "milliseconds": 4.0},
        {"group": "products", "kernel": "nvjet_a", "calls": 1, "milliseconds": 3.0},
    ]
    seconds = group_seconds(ran, idle_seconds=0.0015)
    assert {name: value for name, value in seconds.items() if value} == pytest.approx(
        {"products": 0.0055, "casts": 0.004, "idle": 0.0015}
    )
    assert sum(seconds.values()) == pytest.approx(0.011)


def test_a_run_skips_a_step_and_keeps_its_weights(monkeypatch):
    """Time counts from the end of the third step, by the tokens of each."""
    weights = torch.nn.Linear(2, 1)
    before = [parameter.clone() for parameter in weights.parameters()]
    session = SimpleNamespace(
        model=weights,
        schedule=SimpleNamespace(ramp=SimpleNamespace(sequences=lambda step: 2 if step < 10 else 4)),
        data=SimpleNamespace(sequence_length=8),
    )
    now, losses = [50.0], []

    def step(session, number, rate):
        now[0] += 1 if number < 3 else 2
        losses.append(float(session.model(torch.ones(2)).detach()))
        return number

    monkeypatch.setattr(real_run.time, "perf_counter", lambda: now[0])
    clock = real_run.RunClock(step)
    assert [clock(session, number, 1e-3) for number in range(24)] == [*range(24)]
    assert [number for number, loss in enumerate(losses) if loss != loss] == [real_run.SKIPPED]
    assert all(map(torch.equal, before, weights.parameters()))
    assert clock.tokens_per_second() == (7 * 16 + 14 * 32) / (21 * 2)


def test_a_run_without_one_of_its_events_is_a_failure(tmp_path):
    (tmp_path / "trunk").mkdir()
    lines = [{"step": 10, "tokens": 40, "batch_sequences": 4}, {"step": 11, "tokens": 44, "eval_loss": 1.0}]
    (tmp_path / "trunk" / "log.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(RuntimeError, match="too few branches, skipped_steps, batches, checkpoints: "):
        real_run.events_of(tmp_path)


def test_a_clock_times_steps_after_the_first_and_traces_the_last(monkeypatch):
    """The median of four steps, after three of ten seconds; the loop's own time between two steps counts."""
    now, kept = [100.0], {}
    monkeypatch.setattr(measure.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(measure, "stop_trace", lambda trace: [(0, 250_000, "a"), (500_000, 750_000, "b")])
    monkeypatch.setattr(measure, "start_trace", lambda: None)
    monkeypatch.setattr(measure.devices, "peak_flops", lambda device: 1e12)
    options = next(case.options for case in cases("steps", smoke=True) if case.name == "ours d512 E8, auto")
    clock = measure.StepClock(options | {"rounds": 4}, lambda **more: kept.update(more))
    for seconds, wanted in zip([10] * 3 + [1, 1, 9, 1] + [1] * 2, [True] * 8 + [False], strict=True):
        now[0] += seconds
        assert clock.tick(5.5) is wanted
    tokens = 4 * 32 * 2
    assert (kept["first_loss"], kept["seconds_to_fourth_step"], kept["seconds"]) == (5.5, 30, 1)
    assert (kept["tokens_per_second"], kept["micro_batches"], kept["kernels"]) == (tokens, 2, 2)
    assert (kept["kernel_seconds"], kept["host_seconds"], kept["host_share"]) == (0.5, 0.5, 0.5)
    assert kept["group_seconds"] == {**dict.fromkeys(kept["group_seconds"], 0.0), "other": 0.5, "idle": 0.5}
    measured = kept["measurement"] | {"architecture": Architecture(**kept["measurement"]["architecture"])}
    expected = Measurement(Architecture(64, 8, 1, 1, 257), 32, tokens, tokens // 2, 1, None)
    assert Measurement(**measured) == expected
    with pytest.raises(RuntimeError, match="step 10 diverged: loss nan"):
        clock.tick(float("nan"))


def of(found: dict, part: str) -> str:
    """The section of a part with these cases."""
    dated = {name: {"cpu": "EPYC", "date": "2026-11-22", "commit": "abc"} | case for name, case in found.items()}
    return page.section({"part": part, "machine": machine(), "versions": versions(), "cases": dated})


def of_steps(**speeds: float) -> str:
    """Steps with these speeds, and a case that failed on its way."""
    gaps = [{"microseconds": 31.5, "after": "a", "before": "a kernel"}]
    result = {"peak_memory_bytes": 2e9, "host_share": 0.02, "optimizer_share": 0.031, "gaps": gaps}
    found = {
        name: {"status": "measured", "result": result | {"tokens_per_second": speed, "mfu": speed / 1e6}}
        for name, speed in speeds.items()
    }
    failed = {"status": "failed", "reason": "ImportError: no kernel", "result": {"peak_memory_bytes": 3e9}}
    return of(found | {"mixtral d1024 E8, deepgemm": failed}, "steps")


def test_the_page_shows_steps_beside_dense_and_bound_and_the_goals():
    dense, moe = "ours d1024 E1, auto, compile True", "ours d1024 E8, auto, compile True"
    speeds = {"matmul d1024 E1, auto": 1e6, dense: 500_000, moe: 430_000}
    speeds |= {"mixtral d1024 E8, grouped_mm, loop Trainer": 100_000}
    text = of_steps(**speeds)
    row = f"| {moe} | 430,000 | 43.0% | 2 GB | 3.1% | 2.0% | 31.5 µs before a kernel | 0.86× | 4.3× | 0.43× |"
    assert row in text
    assert f"{moe}: 0.86 of the dense model's speed (meets the goal of 0.84)" in text
    assert f"{dense}: MFU 50.0% (meets the goal of 45%)" in text
    assert "| mixtral d1024 E8, deepgemm |  |  | 3 GB |" in text
    assert "- mixtral d1024 E8, deepgemm: ImportError: no kernel" in text
    assert re.search(r"; FSDP2 \|.*\| 0.95× \|", of_steps(**{dense: 500_000, f"{dense}; FSDP2": 475_000}))
    assert "misses the goal of 0.84" in of_steps(**speeds | {moe: 300_000})
    assert "misses the goal of 45%" in of_steps(**speeds | {dense: 300_000})
    assert "Goals: not measured." in of_steps(**{"ours d512 E8, auto": 1.0})
    assert {*page.MFU_GOALS, *page.SPEED_GOALS} <= {case.name for case in headline_steps()}


H100 = "1 x NVIDIA H100 80GB HBM3"


def baseline(folder: Path, commit: str, date: str, gpu: str = H100, **speeds: float) -> None:
    """Write the file of a baseline."""
    listed = {
        name: {
            "options": {},
            "result": {"tokens_per_second": speed, "mfu": speed / 1e6},
            "date": date,
            "commit": commit,
        }
        for name, speed in speeds.items()
    }
    part = {"part": "steps", "machine": {"gpu": gpu}, "cases": listed}
    (folder / f"steps-{gpu[4:]}-{commit}.json").write_text(json.dumps(part))


def test_what_fell_is_said_against_the_newest_baseline_of_the_same_gpu(tmp_path, monkeypatch):
    monkeypatch.setattr(baselines, "gpus", lambda: H100)
    cases_now = {
        name: {"options": {"changed": True} if name == "d" else {}, "result": {"tokens_per_second": speed}}
        for name, speed in {"a": 949.0, "b": 951.0, "c": 2000.0, "d": 1.0, "new": 1.0}.items()
    } | {"failed": {"options": {}, "result": {}}}
    results = kit.Results("steps", tmp_path / "none.json", cases_now)
    assert baselines.compare(results, tmp_path) == []
    baseline(tmp_path, "bbb", "2026-11-26", a=1000, b=1000, c=1000, d=1000, failed=1000)
    baseline(tmp_path, "ccc", "2026-11-25", a=1, b=9999)
    baseline(tmp_path, "ddd", "2026-11-27", gpu="1 x NVIDIA H200", a=9999)
    assert baselines.compare(results, tmp_path) == [
        "steps: 1 of 3 cases fell by more than 5% against bbb (2026-11-26)",
        "  a: 5.1% fewer tokens/s",
    ]


def test_a_column_for_each_committed_baseline_of_a_gpu(tmp_path):
    baseline(tmp_path, "bbb", "2026-11-26", **{"dense": 100_000, "dense, compile True": 300_000, "moe": 50_000})
    baseline(tmp_path, "ccc", "2026-11-25", dense=90_000)
    baseline(tmp_path, "ddd", "2026-11-27", gpu="1 x NVIDIA H200", dense=400_000)
    text = baselines.table("steps", [], tmp_path)
    assert "| steps | before (commit ccc, 2026-11-25) | before (commit bbb, 2026-11-26) |" in text
    assert "| dense | 90 (9.0%) | 300 (30.0%) |" in text
    assert "| moe |  | 50 (5.0%) |" in text
    assert "1 x NVIDIA H200, thousands of tokens/s (MFU):" in text
    assert baselines.table("heads", [], tmp_path) == ""


def test_committed_baselines_are_on_the_page():
    """The state before compiled blocks: as measured, whatever the cases are today."""
    (before,) = [part for part in baselines.load("steps") if baselines.stamp_of(part)[0] == "bfc1c38b62"]
    assert len(before["cases"]) == 17
    assert baselines.fastest(before)["ours d1024 E1, auto"] == "144 (14.7%)"
    text = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert "before (commit bfc1c38b62, 2026-11-26)" in text
    names = {case.name: case.options for case in cases("steps")}
    same = [name for name, case in before["cases"].items() if names.get(name) == case["options"]]
    assert len(same) == 17  # so each is compared


def test_hours_shows_what_was_measured_beside_what_is_assumed():
    """The table of docs/hours.md: thousands of tokens per second, by the rates that ship and as measured."""
    folder = ROOT / "benchmarks" / "results" / "gpu"
    results = json.loads((folder / "steps-1-x-nvidia-h100-80gb-hbm3.json").read_text(encoding="utf-8"))
    text = (ROOT / "docs" / "hours.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (dense|E = \d+), d_model (\d+) \| (\d+) \(.*\) \| (\d+) \|$", text, re.MULTILINE)
    assert len(rows) == 6
    assumed = Throughput.assumed("h100")
    for experts, width, rate, measured in rows:
        name = f"ours d{width} E{experts.removeprefix('E = ').replace('dense', '1')}, auto"
        result = results["cases"][f"{name}, compile True"]["result"]
        m = Measurement(
            **result["measurement"] | {"architecture": Architecture(**result["measurement"]["architecture"])}
        )
        seconds = assumed.step_seconds(
            m.architecture, m.tokens_per_step, micro_batch_tokens=m.micro_batch_tokens, sequence_length=512
        )
        speed = m.tokens_per_step / m.step_seconds
        assert result["tokens_per_second"] == pytest.approx(speed, abs=0.5)
        assert rate == f"{m.tokens_per_step / seconds / 1e3:.0f}"
        assert measured == f"{speed / 1e3:.0f}"


def test_the_page_counts_tests_and_shows_their_largest_deviations():
    outcomes = {
        "[fp32]": {"outcome": "passed", "loss": 1e-7, "gradient": 2e-6},
        "[bf16]": {"outcome": "failed", "loss": 0.5},
    }
    text = of({"mixtral": {"status": "failed", "reason": "loss", "result": outcomes}}, "suite")
    assert "| mixtral | 1 of 2 | 5.0e-01 | 2.0e-06 |" in text
