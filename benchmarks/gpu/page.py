"""Put the results of the GPU kit into docs/benchmarks.md.

    python -m benchmarks.gpu.page [--results benchmarks/results/gpu] [--page docs/benchmarks.md]

What is between `<!-- gpu PART -->` and `<!-- end -->` is replaced; it is empty for a part without results.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.gpu.cases import PARTS
from benchmarks.render import PAGE
from benchmarks.report import ROOT, Row, plain, quotient, shown, table
from hub.base.errors import InputError
from hub.base.tables import Table
from hub.base.units import format_bytes, format_count

RESULTS = ROOT / "benchmarks" / "results" / "gpu"
PLACE = re.compile(r"(<!-- gpu (\w+) -->\n).*?(<!-- end -->\n)", re.DOTALL)
GOAL_CASE, GOAL_RATIO, GOAL_MFU = "ours d1024 E8, auto", 0.85, 0.40
Results = dict[str, dict[str, Any]]  # by case: its result
LONGEST = 5


def page(folder: Path) -> str:
    """The page with the results in `folder`, or without any. ValueError for a place that no part has."""

    def section(place: re.Match[str]) -> str:
        if place[2] not in PARTS:
            raise InputError(f"{PAGE}: a place for {place[2]!r}, which is none of {', '.join(PARTS)}")
        path = folder / f"{place[2]}.json"
        if not path.exists():
            return place[1] + place[3]
        part = json.loads(path.read_text(encoding="utf-8"))
        return f"{place[1]}\n### {place[2].title()}\n\n{of_part(part)}\n{place[3]}"

    return PLACE.sub(section, PAGE.read_text(encoding="utf-8"))


def of_part(part: dict[str, Any]) -> str:
    """Machine and versions, the table, and why cases failed."""
    m, v, cases = part["machine"], part["versions"], part["cases"]
    days = sorted({case["date"] for case in cases.values()})
    commits = ", ".join(sorted({case["commit"] for case in cases.values()}))
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    libraries = ", ".join(f"{name} {v[name]}" for name in ("torch", "transformers") if name in v)
    gpu = "no GPU" if m["gpu"] == "none" else m["gpu"]
    where = f"{gpu}; {m['cpu']}, {m['cores']} cores, {m['memory']}; {libraries}; commit {commits}; {when}."
    found = {name: case["result"] for name, case in cases.items() if case["status"] == "measured"}
    text = f"{where}\n\n" + (TABLES[part["part"]](found) if found else "")
    for status in ("failed", "skipped"):
        without = [f"- {name}: {case['reason']}" for name, case in cases.items() if case["status"] == status]
        text += f"\n{status.title()}:\n\n" + "\n".join(without) + "\n" if without else ""
    return text


def suite(found: Results) -> str:
    """Outcomes of each test, and its largest deviations from the CPU."""
    rows = []
    for name, result in found.items():
        largest: dict[str, float] = {}
        for measured in result["measured"].values():
            largest = {of: max(value, largest.get(of, 0.0)) for of, value in measured.items()} | {
                of: value for of, value in largest.items() if of not in measured
            }
        counts = ", ".join(f"{count} {outcome}" for outcome, count in result["outcomes"].items())
        deviations = ", ".join(f"{of} {value:.1e}" for of, value in largest.items())
        rows.append({"test": name, "outcome": counts, "largest relative deviation": deviations})
    return Table.of(rows).markdown() + "\n"


def steps(found: Results) -> str:
    """Tokens/s beside our dense model of the same width and the matrix products alone, the goals, and the gaps."""

    def speed(name: str) -> float | None:
        return found[name]["tokens_per_second"] if name in found else None

    rows, gaps = [], []
    for name, result in found.items():
        kind, width = name.split()[:2]
        if kind == "matmul":
            continue
        dense, least = speed(f"ours {width} E1, auto"), speed(f"matmul {width} E1, auto")
        value, mfu = result["tokens_per_second"], result["mfu"]
        notes = [f"MFU {mfu:.1%}"] if mfu else []
        notes += [format_bytes(result["peak_memory_bytes"]), f"idle {result['idle_share']:.1%}"]
        notes += [f"optimizer {result['optimizer_share']:.1%}"]
        peer = ("our dense model", dense) if dense else (None, None)
        ratio = quotient(value, dense, "tokens/s")
        bound = ("matrix products alone", least) if least else (None, None)
        rows.append(Row(name, value, "tokens/s", *peer, ratio, *bound, ", ".join(notes)))
        longest = [f"{plain(gap['microseconds'])} µs before {gap['before']}" for gap in result["gaps"][:LONGEST]]
        gaps.append({"case": name, "longest gaps": "; ".join(longest)})
    return f"{table(rows).markdown()}\n\n{goals(found)}\n\n{Table.of(gaps).markdown()}\n"


def goals(found: Results) -> str:
    """Whether the goals are met."""
    moe, dense = found.get(GOAL_CASE), found.get(GOAL_CASE.replace("E8", "E1"))
    lines = []
    if moe and dense:
        ratio = moe["tokens_per_second"] / dense["tokens_per_second"]
        lines.append(f"E = 8 at {ratio:.2f} of the dense model's speed ({verdict(ratio, GOAL_RATIO)} {GOAL_RATIO})")
    if moe and moe["mfu"]:
        lines.append(f"MFU {moe['mfu']:.1%} at d_model 1024, E = 8 ({verdict(moe['mfu'], GOAL_MFU)} {GOAL_MFU:.0%})")
    return "Goals: " + "; ".join(lines or ["not measured"]) + "."


def verdict(value: float, goal: float) -> str:
    return "meets the goal of" if value >= goal else "misses the goal of"


def heads(found: Results) -> str:
    """A row for each way, beside all logits at once."""
    whole, rows = found.get("all logits", {}).get("seconds"), []
    for name, result in found.items():
        peer = ("all logits", whole) if whole and name != "all logits" else (None, None)
        errors = f"loss {result['loss_error']:.1e}, gradients {result['gradient_error']:.1e} from fp32"
        note = f"{format_bytes(result['peak_memory_bytes'])}; {errors}"
        rows.append(Row(name, result["seconds"], "s", *peer, quotient(result["seconds"], peer[1], "s"), note=note))
    return table(rows).markdown() + "\n"


def data(found: Results) -> str:
    """Tokens per second that the data keep up with."""
    rows = [
        Row(name, result["tokens_per_second"], "tokens/s", note=f"waiting {result['wait_share']:.1%} of the time")
        for name, result in found.items()
    ]
    return table(rows).markdown() + "\n"


def decoding(found: Results) -> str:
    """Tokens/s of all sequences together, beside transformers' fastest at the same batch."""
    rows = []
    for name, result in found.items():
        batch = name.rpartition(", ")[2]
        others = {
            other: of["tokens_per_second"]
            for other, of in found.items()
            if other.endswith(batch) and not other.startswith("ours")
        }
        best = max(others, key=others.__getitem__, default=None)
        peer = (f"fastest of transformers: {best}", others[best]) if best and name.startswith("ours") else (None, None)
        value = result["tokens_per_second"]
        note = f"prompt {shown(result['prompt_seconds'], 's')}, weights {format_bytes(result['weight_bytes'])}"
        rows.append(Row(name, value, "tokens/s", *peer, quotient(value, peer[1], "tokens/s"), note=note))
    return table(rows).markdown() + "\n"


def checkpoints(found: Results) -> str:
    """Seconds of each way to save and load, and those of the least work."""
    names = ["copy", "thread", "load", "verify", "torch.save", "torch.load", "safetensors.save", "safetensors.load"]
    rows = [
        {"state": f"{name}, {format_bytes(result['bytes'])}"}
        | {way: shown(result["seconds"][way], "s") for way in (*names, "disk", "read", "memcpy")}
        for name, result in found.items()
    ]
    return Table.of(rows).markdown() + "\n"


def sweep(found: Results) -> str:
    """A row for each record."""
    rows = [
        {
            "trunk": name,
            "n_active": format_count(record["n_active"]),
            "tokens": format_count(record["tokens"]),
            "held-out loss": f"{record['eval_loss']:.4f}" if record["eval_loss"] is not None else record["status"],
            "tokens/s": f"{record['tokens_per_second']:,.0f}",
            "MFU": f"{record['mfu']:.1%}" if record["mfu"] else "",
            "memory": format_bytes(record["peak_memory_bytes"]),
        }
        for name, result in found.items()
        for record in result["records"]
    ]
    return Table.of(rows).markdown() + "\n"


TABLES: dict[str, Callable[[Results], str]] = {
    "suite": suite,
    "steps": steps,
    "heads": heads,
    "data": data,
    "decoding": decoding,
    "checkpoints": checkpoints,
    "registered": sweep,
    "sweep": sweep,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args()
    options.page.parent.mkdir(parents=True, exist_ok=True)
    options.page.write_text(page(options.results), encoding="utf-8")
    print(f"wrote {options.page}")


if __name__ == "__main__":
    main()
