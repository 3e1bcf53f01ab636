"""Questions whose whole answers are on record, as Python, the shell and the API give them.

`python -m tests.scaling_law.golden` records them again and lists the keys that changed.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

import scaling_law
from scaling_law.commands.cli import app
from scaling_law.explorer.programs import plain, tools
from scaling_law.law.shelf import choose_law
from tests.answers import is_same
from tests.scaling_law.configs import QWEN3_MOE, SWITCH

ANSWERS = Path(__file__).with_name("answers.json")
EIGHT_H100 = {"gpu": "h100", "gpus": 8}
SPECIFIED_GPU = "peak=148T,memory=96GB"
FOUR_BITS = {"bytes_per_parameter": 0.5, "bytes_per_kv": 1.0, "kv_heads_ratio": 0.25}
FINE_GRAINED = {"granularity": 8, "law": "krajewski", "force": True}
SMALL_RUNS = {"widths": [256, 512, 1024], "warmup_tokens": 130000000}

# The words that are asked, then the keywords of the question. A law that is not named is the published one.
QUESTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "loss": ("loss", {"n_active": 1.1e9, "tokens": 2e10, "experts": 8}),
    "loss far away": ("loss", {"n_active": 1.1e12, "tokens": 2e13, "experts": 8}),
    "loss of chinchilla": ("loss", {"n_active": 1e9, "tokens": 2e10, "law": "chinchilla"}),
    "loss of repeated data": ("loss", {"n_active": 1e9, "tokens": 2e11, "experts": 4, "unique_tokens": 2e10}),
    "optimal": ("optimal", {"flops": "1e22"}),
    "optimal memory": ("optimal", {"flops": "1e22", "memory": "80GB"}),
    "optimal cache": ("optimal", {"flops": "1e22", "memory": "80GB", "kv_tokens": "16k", "integral": True}),
    "optimal inference": ("optimal", {"flops": "5e22", "max_parameters": "7B", "inference_tokens": "100B"}),
    "optimal small": ("optimal", {"flops": "1e19", "experts": [1, 2, 4], "vocab_size": 32000}),
    "optimal forced": ("optimal", {"flops": "1e27", "force": True}),
    "optimal repeated": ("optimal", {"flops": "1e22", "unique_tokens": "50B"}),
    "optimal hours": ("optimal", {"hours": 72, "price": 2.5, **EIGHT_H100}),
    "optimal money": ("optimal", {"money": 10000, "price": 2.5, "memory": "80GB", **EIGHT_H100}),
    "optimal throughput": ("optimal", {"hours": "3w", "memory": "80GB", "experts": [1, 8, 64], **EIGHT_H100}),
    "optimal mfu": ("optimal", {"hours": 24, "mfu": 0.4, "gpu": SPECIFIED_GPU, "gpus": 4, "experts": [1, 8]}),
    "optimal accuracy": ("optimal", {"flops": "1e21", "accuracy": "arc_easy,hellaswag"}),
    "optimal serving": ("optimal", {"hours": 72, "price": 2.5, "decode_batch": 32, "kv_tokens": "64k", **EIGHT_H100}),
    "optimal serving flops": ("optimal", {"flops": "1e21", "decode_batch": 32, "kv_tokens": "64k", **EIGHT_H100}),
    "optimal batch": ("optimal", {"hours": 72, "batch": "2M", "sequence_length": "4k", "gpu": "h100", "gpus": 8}),
    "optimal quantised": ("optimal", {"flops": "1e22", "memory": "40GB", "kv_tokens": "32k", **FOUR_BITS}),
    "optimal fine-grained": ("optimal", {"flops": "1e20", **FINE_GRAINED}),
    "optimal of chinchilla": ("optimal", {"flops": "1e21", "law": "chinchilla"}),
    "optimal like": ("optimal", {"flops": "1e22", "like": "qwen3-30b-a3b"}),
    "optimal printed": ("optimal", {"flops": "1e21", "law": "printed", "learning_rate_law": "code"}),
    "plan": ("plan", {"flops": "1e20", "memory": "24GB", "kv_tokens": "16k"}),
    "plan branches": ("plan", {"flops": "1e21", "experts": [8], "branches": 4}),
    "plan hours": ("plan", {"hours": 72, "max_parameters": "10B", **EIGHT_H100}),
    "plan forced": ("plan", {"flops": "1e24", "experts": [8], "learning_rate": 1e-4, "force": True}),
    "plan fine-grained": ("plan", {"flops": "1e20", "experts": [8], **FINE_GRAINED}),
    "plan ramp": ("plan", {"flops": "1e21", "batch": "0:128,0.5B:256", "sequence_length": "2k"}),
    "plan like": ("plan", {"flops": "1e22", "like": "deepseek-v3"}),
    "plan repeated": ("plan", {"flops": "1e21", "unique_tokens": "5B"}),
    "reach": ("reach", {"loss": 2.2, "memory": "24GB", "kv_tokens": "16k"}),
    "reach memory": ("reach", {"loss": 2.3, "flops": "1e22"}),
    "reach hours": ("reach", {"loss": 2.4, "price": 2.5, **EIGHT_H100}),
    "reach nothing": ("reach", {"loss": 1.0, "force": True}),
    "speedup": ("speedup", {"flops": "1e21", "experts": [8]}),
    "speedup hours": ("speedup", {"flops": "1e22", "experts": [32], "baseline": 4.0, **EIGHT_H100}),
    "break-even": ("speedup", {"n_active": [1e8, 1e9], "experts": [2, 8]}),
    "next runs": ("next-runs", {"flops": "1e20", "ask": "optimum:1e22,8", "max_runs": 4, **SMALL_RUNS}),
    "next runs advantage": ("next-runs", {"flops": "1e20", "ask": "advantage:1e21,8,1", **SMALL_RUNS}),
    "scale-out": ("scale-out", {"model": "qwen3_moe.json", "gpus": [64, 256], "tokens": "1T", "price": 2.5}),
    "scale-out width": ("scale-out", {"model": "2304", "gpus": [8, 64, 512], "experts": 32}),
    "scale-out mfu": ("scale-out", {"model": "1024", "gpus": [4], "gpu": SPECIFIED_GPU, "batch": 524288, "mfu": 0.35}),
    "describe": ("describe", {"model": "qwen3_moe.json", "context": "4k", "kv_tokens": "64k"}),
    "describe and predict": ("describe", {"model": "switch.json", "tokens": "20B"}),
    "learning rate": ("learning-rate", {"d_model": 1024, "tokens": 2e10, "experts": 8}),
    "the shelf": ("compare", {}),
}  # fmt: skip

POSITIONAL = "model"


def ask_shell(name: str, folder: Path) -> dict[str, Any]:
    """Ask the shell, which reads files from `folder`, and return its JSON with its exit status."""
    command, question = QUESTIONS[name]
    words = [command]
    for field, value in question.items():
        words += _words(field, value, folder)
    result = CliRunner().invoke(app, [*words, "--json"], env={"COLUMNS": "160", "NO_COLOR": "1"})
    assert result.stdout, result.output
    return {"exit_status": result.exit_code, **json.loads(result.stdout)}


def _words(field: str, value: Any, folder: Path) -> list[str]:
    if field == POSITIONAL:
        return [str(folder / value) if value.endswith(".json") else value]
    flag = "--warmup" if field == "warmup_tokens" else f"--{field.replace('_', '-')}"
    if value is True:
        return [flag]
    if isinstance(value, list):
        return [flag, ",".join(f"{number:g}" for number in value)]
    return [flag, str(value)]


def ask_api(name: str) -> dict[str, Any] | None:
    """Ask the tool of this name, or return None where there is none or it does not take a field of the question."""
    command, question = QUESTIONS[name]
    law = question.get("law", "published")
    by_name = {tool.__name__: tool for tool in tools({law: choose_law(law)})}
    if command not in by_name or POSITIONAL in question:
        return None
    if not {*question} <= {*inspect.signature(by_name[command]).parameters}:
        return None
    texts = {field: _text(value) for field, value in question.items()}
    return by_name[command](**texts)


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def ask_python(name: str, folder: Path) -> dict[str, Any] | None:
    """Ask in Python, and return the answer's `to_dict`; None where Python answers with bare numbers."""
    command, question = QUESTIONS[name]
    keywords = {field: value for field, value in question.items() if field != "law"}
    ask = PYTHON.get(command)
    if ask is None:
        return None
    law = choose_law(question.get("law", "published"))
    return plain(ask(law, keywords, folder).to_dict())


def _speedup(law: Any, question: dict[str, Any], folder: Path) -> Any:
    others = {field: value for field, value in question.items() if field not in ("experts", "baseline")}
    if "n_active" not in question:
        others["baseline"] = question.get("baseline", 1.0)
    return law.speedup(question["experts"], **others)


def _read(question: dict[str, Any], folder: Path) -> dict[str, Any]:
    model = question["model"]
    return question | {"model": str(folder / model)}


def _scale_out(law: Any, question: dict[str, Any], folder: Path) -> Any:
    options = {name: value for name, value in question.items() if name not in ("model", "experts")}
    if question["model"].endswith(".json"):
        return scaling_law.scale_out(folder / question["model"], **options)
    architecture = scaling_law.Architecture(int(question["model"]), question.get("experts", 8))
    return scaling_law.scale_out(architecture, **options)


def _describe(law: Any, question: dict[str, Any], folder: Path) -> Any:
    options = {name: value for name, value in question.items() if name not in ("model", "tokens")}
    return scaling_law.describe(folder / question["model"], question.get("tokens"), law=law, **options)


PYTHON: dict[str, Callable[[Any, dict[str, Any], Path], Any]] = {
    "optimal": lambda law, question, folder: law.optimal(**question),
    "plan": lambda law, question, folder: law.plan(**question),
    "reach": lambda law, question, folder: law.reach(**question),
    "speedup": _speedup,
    "scale-out": _scale_out,
    "describe": _describe,
    "compare": lambda law, question, folder: scaling_law.laws(),
}


def write_models(folder: Path) -> None:
    """Write the configurations that questions name."""
    (folder / "qwen3_moe.json").write_text(json.dumps(QWEN3_MOE))
    (folder / "switch.json").write_text(json.dumps(SWITCH))


def ask_all(name: str, folder: Path) -> dict[str, Any]:
    """Ask in every way that takes the question, and return the leaves of the answers by their path.

    A path begins with the ways that agree on its value: `python shell api /rows/0/loss`.
    """
    answers = {"python": ask_python(name, folder), "shell": ask_shell(name, folder), "api": ask_api(name)}
    values_by_path: dict[str, list[tuple[list[str], Any]]] = {}
    for way, answer in answers.items():
        leaves: dict[str, Any] = {}
        if answer is not None:
            flatten(answer, "", leaves, str(folder))
        for path, value in leaves.items():
            values = values_by_path.setdefault(path, [])
            agreeing = [ways for ways, other in values if _is_equal(other, value)]
            if agreeing:
                agreeing[0].append(way)
            else:
                values.append(([way], value))
    return {f"{' '.join(ways)} {path}": value for path, values in values_by_path.items() for ways, value in values}


def _is_equal(first: Any, second: Any) -> bool:
    """Whether two ways gave one value, whose last digits they may compute otherwise."""
    if isinstance(first, float) and isinstance(second, (int, float)):
        return math.isclose(first, second, rel_tol=1e-9)
    return json.dumps(first) == json.dumps(second)


def flatten(value: Any, path: str, flat: dict[str, Any], folder: str) -> None:
    """Put the leaves of a JSON value into `flat` by their path; a path of `folder` is written relative to it."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            flatten(item, f"{path}/{key}", flat, folder)
    elif isinstance(value, list) and value:
        for i, item in enumerate(value):
            flatten(item, f"{path}/{i}", flat, folder)
    elif isinstance(value, str):
        flat[path] = value.replace(folder, "FOLDER")
    else:
        flat[path] = value


def differences(recorded: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """List the leaves of each way that are new, that are gone, or that another processor would not give."""
    before, after = _by_way(recorded), _by_way(now)
    lines = [f"{key} is gone" for key in before.keys() - after.keys()]
    lines += [f"{key} is new: {after[key]!r}" for key in after.keys() - before.keys()]
    for key in before.keys() & after.keys():
        if not is_same(before[key], after[key], key):
            lines.append(f"{key}: {before[key]!r} → {after[key]!r}")
    return sorted(lines)


def _by_way(leaves: dict[str, Any]) -> dict[str, Any]:
    """Spell out the ways that agree: which do may hang on a last digit."""
    values = {}
    for key, value in leaves.items():
        ways, path = key.split(" /", 1)
        for way in ways.split():
            values[f"{way} /{path}"] = value
    return values
