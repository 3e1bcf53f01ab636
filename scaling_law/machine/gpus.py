"""Data sheets of common GPUs: peak, memory, and the links between them.

Vendors' pages were read in transcriptions that name them: `_STAS` is stas00/ml-engineering @ 744d01e,
compute/accelerator/README.md (peaks without sparsity), `_SPECS` winston-zhang-orz/gpu-specs (a copy of
gmasse/gpu-specs) @ 4b0c72d, specs.md. Links within a node are those of stas00/ml-engineering @ 0030e63,
network/README.md ("All-to-all bandwidth"), theoretical and in one direction.
"""

from __future__ import annotations

from typing import NamedTuple

from hub.base.errors import InputError, unknown

_STAS = "in stas00/ml-engineering, accelerator tables, 744d01e"
_SPECS = "in winston-zhang-orz/gpu-specs, specs.md, 4b0c72d"


NVLINK_5, NVLINK_4, NVLINK_3, XGMI, PCIE_5, PCIE_4 = 900e9, 450e9, 300e9, 448e9, 63e9, 31e9
_RACK = "NVIDIA GB%s NVL72: 360 PFLOP/s with sparsity and 576 TB/s for 72 GPUs"


# What matrix units compute in besides bf16: FP8 from Ada, Hopper and CDNA 3 on, FP4 from Blackwell and CDNA 4 on.
NO_FP8, FP4 = {"A100", "A10"}, {"GB300", "GB200", "B300", "B200", "MI355X"}


class Gpu(NamedTuple):
    """One GPU: dense bf16 matrix FLOP/s, bytes/s and bytes of its memory, bytes/s to the other GPUs of its `node`."""

    name: str
    peak_flops: float
    bandwidth: float
    memory_bytes: float
    source: str
    link: float
    node: int = 8

    @property
    def precisions(self) -> tuple[str, ...]:
        words = {*self.name.split()}
        return ("bf16", *([] if words & NO_FP8 else ["fp8"]), *(["fp4"] if words & FP4 else []))


# By what a driver's name of the GPU contains; of two that fit, the one listed first.
GPUS: dict[str, Gpu] = {
    "GB300": Gpu("NVIDIA GB300", 2.5e15, 8.0e12, 279e9, _RACK % 300, NVLINK_5, 72),
    "GB200": Gpu("NVIDIA GB200", 2.5e15, 8.0e12, 186e9, _RACK % 200, NVLINK_5, 72),
    "B300": Gpu("NVIDIA B300", 2.25e15, 8.0e12, 288e9, f"NVIDIA DGX B300 datasheet, {_STAS}", NVLINK_5),
    "B200": Gpu("NVIDIA B200", 2.25e15, 8.0e12, 180e9, f"NVIDIA DGX B200 datasheet, {_STAS}", NVLINK_5),
    "H200": Gpu("NVIDIA H200 SXM", 989e12, 4.8e12, 141e9, f"nvidia.com/en-us/data-center/h200, {_STAS}", NVLINK_4),
    "GH200": Gpu("NVIDIA GH200", 989e12, 4.0e12, 96e9, f"96 GB HBM3, {_STAS}", NVLINK_4, 4),
    "H800": Gpu("NVIDIA H800 SXM", 989e12, 3.35e12, 80e9, "an H100 with NVLink of 400 GB/s in both directions", 200e9),
    "H100 PCIe": Gpu("NVIDIA H100 PCIe", 756e12, 2.0e12, 80e9, f"nvidia.com/en-us/data-center/h100, {_STAS}", PCIE_5),
    "H100": Gpu("NVIDIA H100 SXM", 989e12, 3.35e12, 80e9, f"nvidia.com/en-us/data-center/h100, {_STAS}", NVLINK_4),
    "A100 PCIe": Gpu(
        "NVIDIA A100 PCIe 80GB", 312e12, 1.935e12, 80e9, f"nvidia.com/en-us/data-center/a100, {_STAS}", PCIE_4
    ),
    "A100 40GB": Gpu("NVIDIA A100 SXM 40GB", 312e12, 1.555e12, 40e9, "NVIDIA A100 40GB datasheet", NVLINK_3),
    "A100": Gpu(
        "NVIDIA A100 SXM 80GB", 312e12, 2.039e12, 80e9, f"nvidia.com/en-us/data-center/a100, {_STAS}", NVLINK_3
    ),
    "L40S": Gpu("NVIDIA L40S", 362e12, 0.864e12, 48e9, f"nvidia.com/en-us/data-center/l40s, {_STAS}", PCIE_4),
    "A10": Gpu("NVIDIA A10", 125e12, 0.6e12, 24e9, _SPECS.removeprefix("in "), PCIE_4),
    "L4": Gpu("NVIDIA L4", 121e12, 0.3e12, 24e9, _SPECS.removeprefix("in "), PCIE_4),
    "RTX 4090": Gpu(
        *("NVIDIA GeForce RTX 4090", 165.2e12, 1.008e12, 24e9),
        *(f"{_SPECS[3:]}; peak: nanochat/common.py, 92d63d4", PCIE_4),
    ),
    "MI355X": Gpu("AMD Instinct MI355X", 2.5e15, 8.0e12, 288e9, f"amd.com; link of the MI325X, {_STAS}", XGMI),
    "MI325X": Gpu("AMD Instinct MI325X", 1.3e15, 6.0e12, 256e9, f"amd.com, Instinct MI325X, {_STAS}", XGMI),
    "MI300X": Gpu("AMD Instinct MI300X", 1.3e15, 5.3e12, 192e9, f"amd.com, Instinct MI300X, {_STAS}", XGMI),
}


def find_gpu(device: str) -> Gpu | None:
    """The GPU that a driver's name contains ("NVIDIA H100 80GB HBM3"), or that a user calls "h100"; else None."""
    words = f" {device.upper().replace('-', ' ').replace('_', ' ')} "
    for key, gpu in GPUS.items():
        if all(f" {word} " in words for word in key.upper().split()):
            return gpu
    return None


def named_gpu(name: str) -> Gpu:
    """The GPU that a user names: "rtx-4090" or "rtx4090". ValueError for an unlisted one."""
    gpu = find_gpu(name := str(name)) or {key.upper().replace(" ", ""): gpu for key, gpu in GPUS.items()}.get(
        name.upper()
    )
    if gpu is None:
        names = [key.lower().replace(" ", "-") for key in GPUS]
        raise InputError(f"{unknown('gpu=', name, names)}, or a throughput file measured on it")
    return gpu
