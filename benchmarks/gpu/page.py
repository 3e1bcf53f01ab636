"""The tables of the GPU kit's results, for `benchmarks.render`: a row for each case, a column for what it measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu import baselines
from benchmarks.report import plain, quotient, shown
from hub.base.tables import Table
from hub.base.units import format_bytes, format_count

DENSE = "ours d1024 E1, auto, compile True"
# Case → the least MFU that it is to have on an H100; and the least share of the dense model's speed.
MFU_GOALS = {DENSE: 0.45, "qwen3_moe d1024 E8, grouped_mm, compile True": 0.34}
MFU_GOALS |= {"ours d2048 E1, auto, compile True": 0.53, "ours d512 E1, auto, compile True": 0.29}
SPEED_GOALS = {DENSE.replace("E1", "E8"): 0.84, DENSE.replace("E1", "E32"): 0.62}
SECONDS_GOAL = 60.0  # at most, until the fourth step
Results = dict[str, dict[str, Any]]  # by case: its result
_TIME, _SHARE, _ERROR = partial(shown, unit="s"), "{:.1%}".format, "{:.1e}".format
WAYS = ("copy", "thread", "load", "verify", "torch.save", "torch.load", "safetensors.save", "safetensors.load")
COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {  # field of a result → the head of its column and its format
    "passed": ("passed", str),
    "loss": ("loss is off by", _ERROR),
    "gradient": ("gradient is off by", _ERROR),
    "n_active": ("N_act", format_count),
    "tokens": ("tokens", format_count),
    "eval_loss": ("held-out loss", "{:.4f}".format),
    "tokens_per_second": ("tokens/s", plain),
    "seconds": ("time", _TIME),
    "prompt_seconds": ("prompt", _TIME),
    "mfu": ("MFU", _SHARE),
    "peak_memory_bytes": ("memory", format_bytes),
    "weight_bytes": ("weights", format_bytes),
    "wait_share": ("waiting", _SHARE),
    "optimizer_share": ("optimizer", _SHARE),
    "compile_seconds": ("compiling", _TIME),
    "seconds_to_fourth_step": ("fourth step after", _TIME),
    "host_share": ("without a kernel", _SHARE),
    "kernels": ("kernels", plain),
    "first_loss": ("first loss", "{:.6f}".format),
    "gaps": ("longest gap", lambda gaps: f"{plain(gaps[0]['microseconds'])} µs before {gaps[0]['before']}"),
    "loss_error": ("loss from fp32", _ERROR),
    "gradient_error": ("gradients from fp32", _ERROR),
    "bytes": ("state", format_bytes),
    **{way: (way, _TIME) for way in (*WAYS, "the disk alone", "reading the bytes", "memcpy")},
}


def sections(part: str, folder: Path) -> str:
    """Show what a part measured, by GPU, and of steps what earlier commits did."""
    files = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob(f"{part}-*.json"))]
    text = "".join(f"\n### {part.title()}\n\n{section(results)}\n" for results in files)
    if part == "steps" and (table := baselines.table(part, files)):
        text += f"\n### Steps by commit\n{table}\n"
    return text


def section(part: dict[str, Any]) -> str:
    """Machine and versions, the table, and why cases failed."""
    m, v, cases = part["machine"], part["versions"], part["cases"]
    days = sorted({case["date"] for case in cases.values()})
    cpus, commits = (", ".join(sorted({case[name] for case in cases.values()})) for name in ("cpu", "commit"))
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    libraries = ", ".join(f"{name} {v[name]}" for name in ("torch", "transformers") if name in v)
    gpu = "no GPU" if m["gpu"] == "none" else m["gpu"]
    text = f"{gpu}; {cpus}, {m['cores']} cores, {m['memory']}; {libraries}; commit {commits}; {when}.\n"
    text += f"\n{part['note']}\n" if "note" in part else ""
    found = {name: case["result"] for name, case in cases.items() if case["result"]}
    if rows := [row for name in found for row in rows_of(part["part"], name, found)]:
        used = [field for field in COLUMNS if any(text_of(field, row.get(field)) for _, row, _ in rows)]
        texts = [{COLUMNS[field][0]: text_of(field, row.get(field)) for field in used} for _, row, _ in rows]
        table = [{"case": name} | cells | ratios for (name, _, ratios), cells in zip(rows, texts, strict=True)]
        text += f"\n{Table.of(table).markdown()}\n"
    if part["part"] == "steps" and found:
        text += f"\n{goals(found)}\n"
    for status in ("failed", "skipped", "unfinished"):
        reasons = {
            name: case.get("reason", "the call ended") for name, case in cases.items() if case["status"] == status
        }
        without = [f"- {name}: {reason}" for name, reason in reasons.items()]
        text += f"\n{status.title()}:\n\n" + "\n".join(without) + "\n" if without else ""
    return text


def text_of(field: str, value: Any) -> str:
    """A value as its column shows it; nothing for what was not measured."""
    return "" if value in (None, []) else COLUMNS[field][1](value)


def rows_of(part: str, name: str, found: Results) -> Iterator[tuple[str, dict[str, Any], dict[str, str]]]:
    """(name, what was measured, how many times as good as others) of a case; a training run has a row a record."""
    result = found[name]
    if part == "suite":
        yield name, tests(result), {}
    elif "records" in result:
        yield from ((name, record, {}) for record in result["records"])
    else:
        field, unit = ("tokens_per_second", "tokens/s") if "tokens_per_second" in result else ("seconds", "s")
        others = {title: found.get(other, {}).get(field) for title, other in peers(part, name, found).items()}
        yield name, result, {title: shown(quotient(result.get(field), v, unit), "×") for title, v in others.items()}


def tests(result: dict[str, Any]) -> dict[str, Any]:
    """How many tests of a case passed, and the largest of their deviations."""
    outcomes = [test["outcome"] for test in result.values()]
    errors = {of: [test[of] for test in result.values() if of in test] for of in ("loss", "gradient")}
    passed = f"{outcomes.count('passed')} of {len(outcomes)}"
    return {"passed": passed} | {of: max(values) for of, values in errors.items() if values}


def peers(part: str, name: str, found: Results) -> dict[str, str]:
    """Heads of columns → the case beside which they show this one."""
    if part == "steps":
        _, width, experts = name.partition(",")[0].split()
        compiled = ", compile True" if "compile True" in name else ""
        trainers = [other for other in found if f" {width} {experts}, " in other and "loop Trainer" in other]
        speeds = {other: found[other].get("tokens_per_second", 0.0) for other in trainers}
        return {
            "× dense": f"ours {width} E1, auto{compiled}",
            "× Trainer": max(speeds, key=speeds.__getitem__, default=""),
            "× matrix products": f"matmul {width} E1, auto",
        }
    if part == "decoding":
        batch = name.rpartition(", ")[2]
        speeds = {n: r.get("tokens_per_second", 0.0) for n, r in found.items() if n.endswith(f", {batch}")}
        theirs = {other: speed for other, speed in speeds.items() if not other.startswith("ours")}
        return {"× transformers' fastest": max(theirs, key=theirs.__getitem__, default="")}
    return {"× all logits": "all logits"} if part == "heads" else {}


def goals(found: Results) -> str:
    """Say whether the goals are met."""
    dense = found.get(DENSE, {}).get("tokens_per_second")
    lines = []
    for name, goal in MFU_GOALS.items():
        if (mfu := found.get(name, {}).get("mfu")) is not None:
            lines.append(f"{name}: MFU {mfu:.1%} ({met(mfu >= goal)} {goal:.0%})")
    for name, goal in SPEED_GOALS.items():
        ratio = quotient(found.get(name, {}).get("tokens_per_second"), dense, "tokens/s")
        if ratio is not None:
            lines.append(f"{name}: {ratio:.2f} of the dense model's speed ({met(ratio >= goal)} {goal:.2f})")
    for name in (*MFU_GOALS, *SPEED_GOALS):
        seconds = found.get(name, {}).get("seconds_to_fourth_step", 0.0)
        if seconds > SECONDS_GOAL:
            lines.append(f"{name}: fourth step after {seconds:.0f} s ({met(False)} {SECONDS_GOAL:.0f} s)")
    return "Goals: " + "; ".join(lines or ["not measured"]) + "."


def met(is_met: bool) -> str:
    """Say it in words."""
    return "meets the goal of" if is_met else "misses the goal of"
