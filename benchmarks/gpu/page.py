"""The tables of the GPU kit's results, for `benchmarks.render`: a row for each case, a column for each measure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu import baselines
from benchmarks.gpu.code import is_of_today, name_of_code, split_by_code
from benchmarks.report import format_number, format_value, quotient
from hub.base.tables import Table
from hub.base.units import format_bytes, format_count

DENSE = "ours d1024 E1, auto, compile True"
# Case → the least MFU that it is to have on an H100.
MFU_GOALS = {
    DENSE: 0.45,
    "qwen3_moe d1024 E8, grouped_mm, compile True": 0.34,
    "ours d2048 E1, auto, compile True": 0.53,
    "ours d512 E1, auto, compile True": 0.29,
}
# Case → the least share of the dense model's speed.
SPEED_GOALS = {DENSE.replace("E1", "E8"): 0.84, DENSE.replace("E1", "E32"): 0.62}
# The most seconds until the fourth step.
SECONDS_GOAL = 60.0
# Case → its result.
Results = dict[str, dict[str, Any]]
# The name of a row, what was measured, and how many times as good it is as others.
Row = tuple[str, dict[str, Any], dict[str, str]]


def format_gap(gaps: list[dict[str, Any]]) -> str:
    """Format the longest gap between kernels."""
    return f"{format_number(gaps[0]['microseconds'])} µs before {gaps[0]['before']}"


_TIME = partial(format_value, unit="s")
_SHARE = "{:.1%}".format
_ERROR = "{:.1e}".format
CHECKPOINT_WAYS = (
    "copy",
    "thread",
    "load",
    "verify",
    "torch.save",
    "torch.load",
    "safetensors.save",
    "safetensors.load",
    "the disk alone",
    "reading the bytes",
    "memcpy",
)
# Field of a result → the head of its column and its format.
COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "passed": ("passed", str),
    "loss": ("loss is off by", _ERROR),
    "gradient": ("gradient is off by", _ERROR),
    "n_active": ("N_act", format_count),
    "tokens": ("tokens", format_count),
    "eval_loss": ("held-out loss", "{:.4f}".format),
    "tokens_per_second": ("tokens/s", format_number),
    "bare_tokens_per_second": ("bare step, tokens/s", format_number),
    "share_of_bare": ("share of it", _SHARE),
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
    "kernels": ("kernels", format_number),
    "first_loss": ("first loss", "{:.6f}".format),
    "gaps": ("longest gap", format_gap),
    "loss_error": ("loss from fp32", _ERROR),
    "gradient_error": ("gradients from fp32", _ERROR),
    "bytes": ("state", format_bytes),
    **{way: (way, _TIME) for way in CHECKPOINT_WAYS},
}


def sections(part: str, folder: Path) -> str:
    """Show what a part measured, by GPU and code, and of steps what earlier commits did."""
    files = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob(f"{part}-*.json"))]
    text = ""
    for results in files:
        for of_code in split_by_code(results):
            old = "" if is_of_today(of_code) else ", with other code than today's"
            text += f"\n### {part.title()}{old}\n\n{section(of_code)}\n"
    if part == "steps":
        table = baselines.table(part, files)
        if table:
            text += f"\n### Steps by commit\n{table}\n"
    return text


def section(part: dict[str, Any]) -> str:
    """Format machine and versions, the table, and why cases failed."""
    cases = part["cases"]
    text = _head(part)
    if "note" in part:
        text += f"\n{part['note']}\n"
    results = {name: case["result"] for name, case in cases.items() if case["result"]}
    rows = [row for name in results for row in rows_of(part["part"], name, results)]
    if rows:
        text += f"\n{_table(rows).markdown()}\n"
    if part["part"] == "steps" and results:
        text += f"{kernel_groups(results)}\n{goals(results)}\n"
    for status in ("failed", "skipped", "unfinished"):
        lines = [
            f"- {name}: {case.get('reason', 'the call ended')}"
            for name, case in cases.items()
            if case["status"] == status
        ]
        if lines:
            text += f"\n{status.title()}:\n\n" + "\n".join(lines) + "\n"
    return text


def _head(part: dict[str, Any]) -> str:
    """Format where and when a part was measured."""
    machine = part["machine"]
    versions = part["versions"]
    cases = part["cases"].values()
    days = sorted({case["date"] for case in cases})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    gpu = "no GPU" if machine["gpu"] == "none" else machine["gpu"]
    processors = ", ".join(sorted({case["cpu"] for case in cases}))
    hardware = f"{processors}, {machine['cores']} cores, {machine['memory']}"
    libraries = [f"{name} {versions[name]}" for name in ("torch", "transformers") if name in versions]
    commits = ", ".join(sorted({name_of_code(case) for case in cases}))
    return f"{gpu}; {hardware}; {', '.join(libraries)}; commit {commits}; {when}.\n"


def _table(rows: list[Row]) -> Table:
    """Make a table with a column for each field that a row has."""
    fields = [field for field in COLUMNS if any(text_of(field, values.get(field)) for _, values, _ in rows)]
    cells = []
    for name, values, ratios in rows:
        texts = {COLUMNS[field][0]: text_of(field, values.get(field)) for field in fields}
        cells.append({"case": name, **texts, **ratios})
    return Table.of(cells)


def kernel_groups(results: Results) -> str:
    """Show the milliseconds of a step by group of kernels; nothing where no result has them."""
    rows = []
    for name, result in results.items():
        groups = result.get("group_seconds", {})
        if groups:
            milliseconds = {group: f"{1e3 * seconds:.1f}" for group, seconds in groups.items()}
            rows.append({"ms of a step": name, **milliseconds})
    return f"\n{Table.of(rows).markdown()}\n" if rows else ""


def text_of(field: str, value: Any) -> str:
    """Format a value as its column shows it; nothing for what was not measured."""
    if value in (None, []):
        return ""
    _, form = COLUMNS[field]
    return form(value)


def rows_of(part: str, name: str, results: Results) -> Iterator[Row]:
    """Yield the rows of a case; a training run has a row a record."""
    result = results[name]
    if part == "suite":
        yield name, tests(result), {}
    elif "records" in result:
        for record in result["records"]:
            yield name, record, {}
    else:
        field, unit = ("tokens_per_second", "tokens/s") if "tokens_per_second" in result else ("seconds", "s")
        ratios = {}
        for title, peer in peers(part, name, results).items():
            peer_value = results.get(peer, {}).get(field)
            ratios[title] = format_value(quotient(result.get(field), peer_value, unit), "×")
        yield name, result, ratios


def tests(result: dict[str, Any]) -> dict[str, Any]:
    """Count the tests of a case that passed, and find the largest of their deviations."""
    outcomes = [test["outcome"] for test in result.values()]
    values: dict[str, Any] = {"passed": f"{outcomes.count('passed')} of {len(outcomes)}"}
    for name in ("loss", "gradient"):
        errors = [test[name] for test in result.values() if name in test]
        if errors:
            values[name] = max(errors)
    return values


def peers(part: str, name: str, results: Results) -> dict[str, str]:
    """Return heads of columns → the case beside which they show this one."""
    if part == "steps":
        base, _, variant = name.partition("; ")
        _, width, experts = name.partition(",")[0].split()
        compiled = ", compile True" if "compile True" in name else ""
        trainers = [peer for peer in results if f" {width} {experts}, " in peer and "loop Trainer" in peer]
        return {
            "× base": base if variant else "",
            "× dense": f"ours {width} E1, auto{compiled}",
            "× Trainer": _fastest(trainers, results),
            "× matrix products": f"matmul {width} E1, auto",
        }
    if part == "decoding":
        batch = name.rpartition(", ")[2]
        classes = [peer for peer in results if peer.endswith(f", {batch}") and not peer.startswith("ours")]
        return {"× transformers' fastest": _fastest(classes, results)}
    return {"× all logits": "all logits"} if part == "heads" else {}


def _fastest(names: list[str], results: Results) -> str:
    """Return the case of most tokens per second; "" of none."""
    return max(names, key=lambda name: results[name].get("tokens_per_second", 0.0), default="")


def goals(results: Results) -> str:
    """Say whether the goals are met."""
    dense_speed = results.get(DENSE, {}).get("tokens_per_second")
    lines = []
    for name, goal in MFU_GOALS.items():
        mfu = results.get(name, {}).get("mfu")
        if mfu is not None:
            lines.append(f"{name}: MFU {mfu:.1%} ({met(mfu >= goal)} {goal:.0%})")
    for name, goal in SPEED_GOALS.items():
        ratio = quotient(results.get(name, {}).get("tokens_per_second"), dense_speed, "tokens/s")
        if ratio is not None:
            lines.append(f"{name}: {ratio:.2f} of the dense model's speed ({met(ratio >= goal)} {goal:.2f})")
    for name in (*MFU_GOALS, *SPEED_GOALS):
        seconds = results.get(name, {}).get("seconds_to_fourth_step", 0.0)
        if seconds > SECONDS_GOAL:
            lines.append(f"{name}: fourth step after {seconds:.0f} s ({met(False)} {SECONDS_GOAL:.0f} s)")
    return "Goals: " + "; ".join(lines or ["not measured"]) + "."


def met(is_met: bool) -> str:
    """Say in words whether a goal is met."""
    return "meets the goal of" if is_met else "misses the goal of"
