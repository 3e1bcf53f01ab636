"""Results of earlier commits, to set new ones beside: files of the kit, moved to `benchmarks/results/gpu/baselines`.

    git mv benchmarks/results/gpu/steps-GPU.json benchmarks/results/gpu/baselines/steps-GPU-COMMIT.json

makes results a baseline; the next call of the kit then measures all of their cases again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.gpu.kit import Results
from benchmarks.report import ROOT, gpus
from hub.base.tables import Table

FOLDER = ROOT / "benchmarks" / "results" / "gpu" / "baselines"
FALL = 0.05  # of tokens per second, that is said
Part = dict[str, Any]  # a file of results


def load(part: str, folder: Path = FOLDER) -> list[Part]:
    """Read the baselines of a part, the newest last."""
    parts = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob(f"{part}-*.json"))]
    return sorted(parts, key=lambda part: stamp_of(part)[::-1])


def stamp_of(part: Part) -> tuple[str, str]:
    """The commit and the date of the results, those of the last case."""
    case = max(part["cases"].values(), key=lambda case: case["date"])
    return case["commit"], case["date"]


def compare(results: Results, folder: Path = FOLDER) -> list[str]:
    """Say which cases are slower than in the newest baseline of this machine's GPU, by more than `FALL`."""
    before = [part for part in load(results.part, folder) if part["machine"]["gpu"] == gpus()]
    if not before:
        return []
    commit, date = stamp_of(before[-1])
    ratios = {}
    for name, case in results.cases.items():
        other = before[-1]["cases"].get(name, {"options": None, "result": {}})
        speeds = [each["result"].get("tokens_per_second") for each in (case, other)]
        if case["options"] == other["options"] and all(speeds):
            ratios[name] = speeds[0] / speeds[1]
    fallen = {name: ratio for name, ratio in ratios.items() if ratio < 1 - FALL}
    lines = [f"  {name}: {1 - ratio:.1%} fewer tokens/s" for name, ratio in fallen.items()]
    return [
        f"{results.part}: {len(fallen)} of {len(ratios)} cases fell by more than {FALL:.0%} against {commit} ({date})",
        *lines,
    ]


def table(part: str, results: list[Part], folder: Path = FOLDER) -> str:
    """Show thousands of tokens per second and MFU of each model, for each GPU a column a commit, the newest last.

    A cell is the faster of the compiled and the eager steps.
    """
    text = ""
    every = [(part, "before (commit {}, {})") for part in load(part, folder)]
    every += [(part, "{}, {}") for part in results]
    for gpu in dict.fromkeys(part["machine"]["gpu"] for part, _ in every):
        columns = {
            title.format(*stamp_of(part)): fastest(part) for part, title in every if part["machine"]["gpu"] == gpu
        }
        names = dict.fromkeys(name for speeds in columns.values() for name in speeds)
        rows = [{"steps": name} | {title: speeds.get(name, "") for title, speeds in columns.items()} for name in names]
        text += f"\n{gpu}, thousands of tokens/s (MFU):\n\n{Table.of(rows).markdown()}\n"
    return text


def fastest(part: Part) -> dict[str, str]:
    """Model → the best speed and MFU of its cases."""
    speeds: dict[str, tuple[float, float | None]] = {}
    for name, case in part["cases"].items():
        speed = case["result"].get("tokens_per_second")
        if speed is not None:
            shape = name.replace(", compile True", "")
            speeds[shape] = max(speeds.get(shape, (0.0, None)), (speed, case["result"].get("mfu")))
    return {name: f"{speed / 1e3:.0f}" + (f" ({mfu:.1%})" if mfu else "") for name, (speed, mfu) in speeds.items()}
