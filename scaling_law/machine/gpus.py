"""Data sheets of common accelerators: peak, memory, and the links between them; or any device, by what a user gives.

Vendors' pages were read in transcriptions that name them: `_STAS` is stas00/ml-engineering @ 744d01e,
compute/accelerator/README.md (peaks without sparsity), `_SPECS` winston-zhang-orz/gpu-specs (a copy of
gmasse/gpu-specs) @ 4b0c72d, specs.md. Links within a node are those of stas00/ml-engineering @ 0030e63,
network/README.md ("All-to-all bandwidth"), theoretical and in one direction. Where neither has a device, its source is
the vendor's own page.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from hub.base.errors import InputError, unknown
from hub.base.units import format_bytes, parse_bytes, parse_count

_STAS = "in stas00/ml-engineering, accelerator tables, 744d01e"
_SPECS = "winston-zhang-orz/gpu-specs, specs.md, 4b0c72d"
_WHITEPAPER = "whitepaper: bf16 with fp32 accumulation, without sparsity"
_RACK = "NVIDIA GB%s NVL72: 360 PFLOP/s with sparsity and 576 TB/s for 72 GPUs"

# Bytes/s of links within a node, in one direction.
NVLINK_5 = 900e9
NVLINK_4 = 450e9
NVLINK_3 = 300e9
NVLINK_2 = 150e9
XGMI = 448e9
PCIE_5 = 63e9
PCIE_4 = 31e9
PCIE_3 = 16e9

SHEET = "its data sheet"
_FP16 = f"{SHEET} (its peak is of fp16: it has no bf16)"
_ELSEWHERE = f"{SHEET} (train.py does not run on it)"

# Precisions of matrix units besides bf16: FP8 from Ada, Hopper and CDNA 3 on, FP4 from Blackwell and CDNA 4 on.
NO_FP8 = {"A100", "A800", "A10", "A6000", "3090", "v5p"}
FP4 = {"GB300", "GB200", "B300", "B200", "5090", "MI355X", "MI350X"}


class Gpu(NamedTuple):
    """One GPU: dense bf16 matrix FLOP/s, bytes/s and bytes of its memory, bytes/s to the other GPUs of its `node`.

    `machine`: GPUs of one operating system, if a node spans several (None: the node). `basis`: the source of step
    times, in words.
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

    @property
    def precisions(self) -> tuple[str, ...]:
        if self.basis == _FP16:
            return ("fp16",)
        precisions = ["bf16"]
        # Only the precision of the peak is known of a device that a user describes.
        if "=" not in self.name:
            words = {*self.name.split()}
            if not words & NO_FP8:
                precisions.append("fp8")
            if words & FP4:
                precisions.append("fp4")
        return tuple(precisions)


# By words in a driver's name of the GPU; the first that fits is taken.
GPUS: dict[str, Gpu] = {
    "GB300": Gpu("NVIDIA GB300", 2.5e15, 8.0e12, 279e9, _RACK % 300, NVLINK_5, 72, 4),
    "GB200": Gpu("NVIDIA GB200", 2.5e15, 8.0e12, 186e9, _RACK % 200, NVLINK_5, 72, 4),
    "B300": Gpu("NVIDIA B300", 2.25e15, 8.0e12, 288e9, f"NVIDIA DGX B300 datasheet, {_STAS}", NVLINK_5),
    "B200": Gpu("NVIDIA B200", 2.25e15, 8.0e12, 180e9, f"NVIDIA DGX B200 datasheet, {_STAS}", NVLINK_5),
    "H200": Gpu("NVIDIA H200 SXM", 989e12, 4.8e12, 141e9, f"nvidia.com/en-us/data-center/h200, {_STAS}", NVLINK_4),
    "GH200": Gpu("NVIDIA GH200", 989e12, 4.0e12, 96e9, f"96 GB HBM3, {_STAS}", NVLINK_4, 4),
    "H20": Gpu("NVIDIA H20", 148e12, 4.0e12, 96e9, "NVIDIA H20 datasheet, 96 GB HBM3", NVLINK_4),
    "H800": Gpu("NVIDIA H800 SXM", 989e12, 3.35e12, 80e9, "an H100 with NVLink of 400 GB/s in both directions", 200e9),
    "H100 PCIe": Gpu("NVIDIA H100 PCIe", 756e12, 2.0e12, 80e9, f"nvidia.com/en-us/data-center/h100, {_STAS}", PCIE_5),
    "H100": Gpu("NVIDIA H100 SXM", 989e12, 3.35e12, 80e9, f"nvidia.com/en-us/data-center/h100, {_STAS}", NVLINK_4),
    "A100 PCIe": Gpu(
        "NVIDIA A100 PCIe 80GB",
        peak_flops=312e12,
        bandwidth=1.935e12,
        memory_bytes=80e9,
        source=f"nvidia.com/en-us/data-center/a100, {_STAS}",
        link=PCIE_4,
    ),
    "A100 40GB": Gpu("NVIDIA A100 SXM 40GB", 312e12, 1.555e12, 40e9, "NVIDIA A100 40GB datasheet", NVLINK_3),
    "A100": Gpu(
        "NVIDIA A100 SXM 80GB",
        peak_flops=312e12,
        bandwidth=2.039e12,
        memory_bytes=80e9,
        source=f"nvidia.com/en-us/data-center/a100, {_STAS}",
        link=NVLINK_3,
    ),
    "A800": Gpu(
        "NVIDIA A800 SXM 80GB",
        peak_flops=312e12,
        bandwidth=2.039e12,
        memory_bytes=80e9,
        source="an A100 with NVLink of 400 GB/s in both directions",
        link=200e9,
    ),
    "V100 PCIe": Gpu("NVIDIA V100 PCIe 32GB", 112e12, 0.9e12, 32e9, "NVIDIA V100 datasheet", PCIE_3, basis=_FP16),
    "V100 16GB": Gpu("NVIDIA V100 SXM 16GB", 125e12, 0.9e12, 16e9, "NVIDIA V100 datasheet", NVLINK_2, basis=_FP16),
    "V100": Gpu("NVIDIA V100 SXM 32GB", 125e12, 0.9e12, 32e9, "NVIDIA V100 datasheet", NVLINK_2, basis=_FP16),
    "L40S": Gpu("NVIDIA L40S", 362e12, 0.864e12, 48e9, f"nvidia.com/en-us/data-center/l40s, {_STAS}", PCIE_4),
    "A10": Gpu("NVIDIA A10", 125e12, 0.6e12, 24e9, _SPECS, PCIE_4),
    "L4": Gpu("NVIDIA L4", 121e12, 0.3e12, 24e9, _SPECS, PCIE_4),
    "RTX 4090": Gpu(
        "NVIDIA GeForce RTX 4090",
        peak_flops=165.2e12,
        bandwidth=1.008e12,
        memory_bytes=24e9,
        source=f"{_SPECS}; peak: nanochat/common.py, 92d63d4",
        link=PCIE_4,
    ),
    "RTX 5090": Gpu("NVIDIA GeForce RTX 5090", 209.5e12, 1.792e12, 32e9, f"RTX Blackwell {_WHITEPAPER}", PCIE_5),
    "RTX 3090": Gpu("NVIDIA GeForce RTX 3090", 71e12, 0.936e12, 24e9, f"Ampere GA102 {_WHITEPAPER}", PCIE_4),
    "RTX A6000": Gpu("NVIDIA RTX A6000", 154.8e12, 0.768e12, 48e9, f"Ampere GA102 {_WHITEPAPER}", PCIE_4),
    "MI355X": Gpu("AMD Instinct MI355X", 2.5e15, 8.0e12, 288e9, f"amd.com; link of the MI325X, {_STAS}", XGMI),
    "MI350X": Gpu("AMD Instinct MI350X", 2.3e15, 8.0e12, 288e9, "amd.com, Instinct MI350X; link of the MI325X", XGMI),
    "MI325X": Gpu("AMD Instinct MI325X", 1.3e15, 6.0e12, 256e9, f"amd.com, Instinct MI325X, {_STAS}", XGMI),
    "MI300X": Gpu("AMD Instinct MI300X", 1.3e15, 5.3e12, 192e9, f"amd.com, Instinct MI300X, {_STAS}", XGMI),
    "TPU v5p": Gpu(
        "Google TPU v5p",
        peak_flops=459e12,
        bandwidth=2.765e12,
        memory_bytes=95e9,
        source="docs.cloud.google.com/tpu/docs/v5p-training: 95 GB of HBM2e",
        link=600e9,
        node=8960,
        machine=4,
        basis=_ELSEWHERE,
    ),
    "Trainium2": Gpu(
        "AWS Trainium2",
        peak_flops=667e12,
        bandwidth=2.9e12,
        memory_bytes=96 * 1024**3,
        source="awsdocs-neuron, Trainium2 architecture; NeuronLink of 1.28 TB/s",
        link=640e9,
        node=16,
        basis=_ELSEWHERE,
    ),
}
# Fields of any other device, as "peak=148T,memory=96GB", and the function that reads each.
DESCRIBED: dict[str, Callable[[str, str], float]] = {
    "peak": parse_count,
    "memory": parse_bytes,
    "bandwidth": parse_bytes,
    "link": parse_bytes,
    "node": parse_count,
}
EXAMPLE = "peak=148T,memory=96GB"
# A lower peak, FLOP/s, lacks its unit.
LEAST_PEAK = 1e11


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


def _read_description(text: str) -> Gpu:
    """Read a device from a text such as "peak=148T,memory=96GB,link=450GB,node=8", which is also its name."""
    values: dict[str, str] = {}
    for assignment in text.split(","):
        key, _, value = assignment.partition("=")
        values[key.strip().lower()] = value.strip()
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
