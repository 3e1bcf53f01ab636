"""Results of earlier commits, to set new ones beside: files of the kit, moved to `benchmarks/results/gpu/baselines`.

    git mv benchmarks/results/gpu/steps-GPU.json benchmarks/results/gpu/baselines/steps-GPU-COMMIT.json

makes results a baseline. The kit measures cases again whose results are of other code.
"""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.gpu.code import Part, name_of_code, split_by_code
from benchmarks.gpu.kit import Results
from benchmarks.report import ROOT, gpus
from hub.base.tables import Table

FOLDER = ROOT / "benchmarks" / "results" / "gpu" / "baselines"
# The fall in tokens per second that is said.
FALL = 0.05


def load(part: str, folder: Path = FOLDER) -> list[Part]:
    """Read the baselines of a part, the newest last."""
    baselines = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob(f"{part}-*.json"))]
    return sorted(baselines, key=lambda baseline: stamp_of(baseline)[::-1])


def stamp_of(part: Part) -> tuple[str, str]:
    """Return the commit and the date of the results, those of the last case."""
    case = max(part["cases"].values(), key=lambda case: case["date"])
    return name_of_code(case), case["date"]


def compare(results: Results, folder: Path = FOLDER) -> list[str]:
    """Say which cases are slower than in the newest baseline of this machine's GPU, by more than `FALL`."""
    baselines = [part for part in load(results.part, folder) if part["machine"]["gpu"] == gpus()]
    if not baselines:
        return []
    newest = baselines[-1]
    ratios = {}
    for name, case in results.cases.items():
        case_before = newest["cases"].get(name, {"options": None, "result": {}})
        speed = case["result"].get("tokens_per_second")
        speed_before = case_before["result"].get("tokens_per_second")
        if case["options"] == case_before["options"] and speed and speed_before:
            ratios[name] = speed / speed_before
    slower = {name: ratio for name, ratio in ratios.items() if ratio < 1 - FALL}
    commit, date = stamp_of(newest)
    counts = f"{len(slower)} of {len(ratios)} cases"
    return [
        f"{results.part}: {counts} fell by more than {FALL:.0%} against {commit} ({date})",
        *(f"  {name}: {1 - ratio:.1%} fewer tokens/s" for name, ratio in slower.items()),
    ]


def table(part: str, results: list[Part], folder: Path = FOLDER) -> str:
    """Show thousands of tokens per second and MFU of each model, for each GPU a column a commit, the newest last.

    A cell is the faster of the compiled and the eager steps.
    """
    columns_of_gpus: dict[str, dict[str, dict[str, str]]] = {}

    def add_column(results: Part, title: str) -> None:
        columns_of_gpus.setdefault(results["machine"]["gpu"], {})[title] = fastest(results)

    for baseline in load(part, folder):
        commit, date = stamp_of(baseline)
        add_column(baseline, f"before (commit {commit}, {date})")
    for new_results in results:
        for of_code in split_by_code(new_results):
            commit, date = stamp_of(of_code)
            add_column(of_code, f"{commit}, {date}")
    text = ""
    for gpu, columns in columns_of_gpus.items():
        text += f"\n{gpu}, thousands of tokens/s (MFU):\n\n{_table_of_columns(columns).markdown()}\n"
    return text


def _table_of_columns(columns: dict[str, dict[str, str]]) -> Table:
    """Make a table with a row for each model."""
    names = dict.fromkeys(name for speeds in columns.values() for name in speeds)
    rows = []
    for name in names:
        rows.append({"steps": name, **{title: speeds.get(name, "") for title, speeds in columns.items()}})
    return Table.of(rows)


def fastest(part: Part) -> dict[str, str]:
    """Return model → the best speed and MFU of its cases."""
    speeds: dict[str, tuple[float, float | None]] = {}
    for name, case in part["cases"].items():
        speed = case["result"].get("tokens_per_second")
        if speed is not None:
            model = name.replace(", compile True", "")
            speeds[model] = max(speeds.get(model, (0.0, None)), (speed, case["result"].get("mfu")))
    texts = {}
    for model, (speed, mfu) in speeds.items():
        mfu_text = f" ({mfu:.1%})" if mfu else ""
        texts[model] = f"{speed / 1e3:.0f}{mfu_text}"
    return texts
