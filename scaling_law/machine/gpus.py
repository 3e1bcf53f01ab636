"""Data sheets of common accelerators: peak, memory, and the links between them; or any device, by what a user gives.

`gpus.json` has a row for each. Vendors' pages were read in transcriptions that name them: stas00/ml-engineering @
744d01e, compute/accelerator/README.md (peaks without sparsity), and winston-zhang-orz/gpu-specs (a copy of
gmasse/gpu-specs) @ 4b0c72d, specs.md. Links within a node are those of stas00/ml-engineering @ 0030e63,
network/README.md ("All-to-all bandwidth"), theoretical and in one direction. Where neither has a device, its source is
the vendor's own page.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from hub.base.errors import InputError, unknown
from hub.base.units import format_bytes, parse_bytes, parse_count

# Bytes/s between GPUs of a node by PCIe 5, in one direction.
PCIE_5 = 63e9
SHEET = "its data sheet"


class Gpu(NamedTuple):
    """One GPU: dense bf16 matrix FLOP/s, bytes/s and bytes of its memory, bytes/s to the other GPUs of its `node`.

    `machine`: GPUs of one operating system, if a node spans several (None: the node). `basis`: the source of step
    times, in words. `precisions` of matrix units: FP8 from Ada, Hopper and CDNA 3 on, FP4 from Blackwell and CDNA 4
    on; that of the peak alone is known of a device that a user describes.
    """

    name: str
    peak_flops: float
    bandwidth: float
    memory_bytes: float
    source: str
    link: float
    node: int = 8
    machine: int | None = None
    basis: str = SHEET
    precisions: tuple[str, ...] = ("bf16",)


# The data sheets, by words in a driver's name of the GPU; the first that fits is taken.
_ROWS = json.loads(Path(__file__).with_name("gpus.json").read_text(encoding="utf-8"))
GPUS = {sheet.pop("words"): Gpu(precisions=tuple(sheet.pop("precisions")), **sheet) for sheet in _ROWS}
# Fields of any other device, as "peak=148T,memory=96GB", and the function that reads each.
DESCRIBED: dict[str, Callable[[str, str], float]] = {
    "peak": parse_count,
    "memory": parse_bytes,
    "bandwidth": parse_bytes,
    "link": parse_bytes,
    "node": parse_count,
}
EXAMPLE = "peak=148T,memory=96GB"
# Share of a GPU's memory that vLLM takes by default (`gpu_memory_utilization`), and GPUs such as 2xh100.
SERVING_SHARE = 0.9
_CARDS = re.compile(r"(?:(\d+)\s*[x×]\s*)?(.*[a-zA-Z].*)")
# A lower peak, FLOP/s, lacks its unit.
LEAST_PEAK = 1e11


@lru_cache(maxsize=64)
def find_gpu(device: str) -> Gpu | None:
    """Find the GPU that a driver's name contains ("NVIDIA H100 80GB HBM3") or that a user calls "h100"; else None.

    A description, "peak=148T,memory=96GB", is a GPU, too. ValueError for one that cannot be read.
    """
    if "=" in device:
        return _read_description(device)
    words = f" {device.upper().replace('-', ' ').replace('_', ' ')} "
    for key, gpu in GPUS.items():
        if all(f" {word} " in words for word in key.upper().split()):
            return gpu
    return None


def named_gpu(name: str) -> Gpu:
    """Find the GPU that a user names, "rtx-4090", "rtx4090" or "4090", or describes. ValueError for an unlisted one.

    The message suggests no other GPU: names that differ in one digit are of devices that differ in speed by ten times.
    """
    name = str(name)
    without_spaces = {key.upper().replace(" ", "").removeprefix("RTX"): gpu for key, gpu in GPUS.items()}
    plain_name = re.sub(r"[\s_-]", "", name.upper()).removeprefix("RTX")
    gpu = find_gpu(name) or without_spaces.get(plain_name)
    if gpu is None:
        names = [key.lower().replace(" ", "-") for key in GPUS]
        advice = f'any other by its peak and memory, "{EXAMPLE}", or a throughput file measured on it'
        raise InputError(f"{unknown('gpu=', name, names, suggests=False)}; {advice}")
    return gpu


class CardMemory(float):
    """Bytes that GPUs have for a model that they serve; `cards` names them."""

    cards: str

    @classmethod
    def of(cls, gpu: Gpu, count: int = 1) -> CardMemory:
        """Return the share of their memory that vLLM takes."""
        memory = cls(SERVING_SHARE * count * gpu.memory_bytes)
        memory.cards = f"{count} × {gpu.name}"
        return memory


def parse_memory(text: str | float, field: str = "memory") -> float:
    """Read a memory size as `parse_bytes` does, or the GPUs that serve a model: "rtx4090", "2xh100" (`CardMemory`)."""
    try:
        return parse_bytes(text, field)
    except InputError:
        memory = _find_cards(text)
        if memory is None:
            raise
        return memory


def _find_cards(text: str | float) -> CardMemory | None:
    """Find the memory of the GPUs that a text names; None where it names none."""
    cards = _CARDS.fullmatch(text.strip()) if isinstance(text, str) else None
    if cards is None:
        return None
    with suppress(InputError):
        return CardMemory.of(named_gpu(cards[2]), int(cards[1] or 1))
    return None


def describe_memory(memory: float) -> str:
    """Write bytes, and of which GPUs they are the share that serves."""
    text = format_bytes(memory)
    return f"{text} ({SERVING_SHARE:g} of {memory.cards})" if isinstance(memory, CardMemory) else text


def read_pairs(text: str) -> dict[str, str]:
    """Read values by their names in lower case, as in "tp=8,pp=4"."""
    values: dict[str, str] = {}
    for assignment in text.split(","):
        key, _, value = assignment.partition("=")
        values[key.strip().lower()] = value.strip()
    return values


def _read_description(text: str) -> Gpu:
    """Read a device from a text such as "peak=148T,memory=96GB,link=450GB,node=8", which is also its name."""
    values = read_pairs(text)
    for key in values:
        if key not in DESCRIBED:
            names = ", ".join(DESCRIBED)
            raise InputError(f"gpu={text!r}: {key!r} is unknown; there are {names}, as in {EXAMPLE!r}")
    for key in ("peak", "memory"):
        if key not in values:
            raise InputError(f"gpu={text!r}: {key} is missing; write it as in {EXAMPLE!r}")
    numbers = {key: _read_number(text, key, value) for key, value in values.items()}
    for key, number in numbers.items():
        if not number > 0:
            raise InputError(f"gpu={text!r}: {key} must be positive")
    peak = numbers["peak"]
    node = numbers.get("node", 8.0)
    if peak < LEAST_PEAK:
        raise InputError(f"gpu={text!r}: a peak of {peak:g} FLOP/s is too low: did you mean peak={peak:g}T?")
    if not node.is_integer():
        raise InputError(f"gpu={text!r}: node must be a whole number of GPUs")
    assumptions = []
    if "bandwidth" not in numbers:
        h100 = GPUS["H100"]
        numbers["bandwidth"] = peak * h100.bandwidth / h100.peak_flops
        bandwidth = format_bytes(numbers["bandwidth"])
        assumptions.append(f"{bandwidth}/s of memory (as many FLOPs per byte as an H100)")
    if "link" not in numbers:
        numbers["link"] = PCIE_5
        assumptions.append(f"{format_bytes(PCIE_5)}/s between GPUs of a node (PCIe 5)")
    basis = "the peak and links that are given"
    if assumptions:
        basis = f"the peak that is given; assumed: {', '.join(assumptions)}"
    return Gpu(
        name=",".join(f"{key}={values[key]}" for key in DESCRIBED if key in values),
        peak_flops=peak,
        bandwidth=numbers["bandwidth"],
        memory_bytes=numbers["memory"],
        source="given",
        link=numbers["link"],
        node=int(node),
        basis=basis,
    )


def _read_number(text: str, key: str, value: str) -> float:
    """Read one number of a described device, without the unit of a rate."""
    try:
        return DESCRIBED[key](re.sub(r"(?i)(flops?)?(/s)?$", "", value), key)
    except ValueError as error:
        raise InputError(f"gpu={text!r}: {key} {str(error).partition('=')[2]}") from None
