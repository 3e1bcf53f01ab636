"""Data sheets of common GPUs, and the part of their peak that training reaches (MFU).

Both are assumptions until a machine is measured (`python -m training.throughput`). Vendors' pages were read in
transcriptions that name them: `_STAS` is stas00/ml-engineering @ 744d01e, compute/accelerator/README.md (peaks without
sparsity), `_SPECS` winston-zhang-orz/gpu-specs (a copy of gmasse/gpu-specs) @ 4b0c72d, specs.md.
"""

from __future__ import annotations

from typing import NamedTuple

from hub.base.errors import InputError, unknown

_STAS = "in stas00/ml-engineering, accelerator tables, 744d01e"
_SPECS = "in winston-zhang-orz/gpu-specs, specs.md, 4b0c72d"


class Gpu(NamedTuple):
    """One GPU: dense bf16 matrix FLOP/s, bytes/s and bytes of its memory; `source` is where the numbers are from."""

    name: str
    peak_flops: float
    bandwidth: float
    memory_bytes: float
    source: str


# By what a driver's name of the GPU contains; of two that fit, the one listed first.
GPUS: dict[str, Gpu] = {
    "B300": Gpu("NVIDIA B300", 2.25e15, 8.0e12, 288e9, f"NVIDIA DGX B300 datasheet, {_STAS}"),
    "B200": Gpu("NVIDIA B200", 2.25e15, 8.0e12, 180e9, f"NVIDIA DGX B200 datasheet, {_STAS}"),
    "H200": Gpu("NVIDIA H200 SXM", 989e12, 4.8e12, 141e9, f"nvidia.com/en-us/data-center/h200, {_STAS}"),
    "H100 PCIe": Gpu("NVIDIA H100 PCIe", 756e12, 2.0e12, 80e9, f"nvidia.com/en-us/data-center/h100, {_STAS}"),
    "H100": Gpu("NVIDIA H100 SXM", 989e12, 3.35e12, 80e9, f"nvidia.com/en-us/data-center/h100, {_STAS}"),
    "A100 PCIe": Gpu("NVIDIA A100 PCIe 80GB", 312e12, 1.935e12, 80e9, f"nvidia.com/en-us/data-center/a100, {_STAS}"),
    "A100": Gpu("NVIDIA A100 SXM 80GB", 312e12, 2.039e12, 80e9, f"nvidia.com/en-us/data-center/a100, {_STAS}"),
    "L40S": Gpu("NVIDIA L40S", 362e12, 0.864e12, 48e9, f"nvidia.com/en-us/data-center/l40s, {_STAS}"),
    "A10": Gpu("NVIDIA A10", 125e12, 0.6e12, 24e9, _SPECS.removeprefix("in ")),
    "L4": Gpu("NVIDIA L4", 121e12, 0.3e12, 24e9, _SPECS.removeprefix("in ")),
    "RTX 4090": Gpu(
        "NVIDIA GeForce RTX 4090", 165.2e12, 1.008e12, 24e9, f"{_SPECS[3:]}; peak: nanochat/common.py, 92d63d4"
    ),
    "MI355X": Gpu("AMD Instinct MI355X", 2.5e15, 8.0e12, 288e9, f"amd.com, Instinct MI355X, {_STAS}"),
    "MI325X": Gpu("AMD Instinct MI325X", 1.3e15, 6.0e12, 256e9, f"amd.com, Instinct MI325X, {_STAS}"),
    "MI300X": Gpu("AMD Instinct MI300X", 1.3e15, 5.3e12, 192e9, f"amd.com, Instinct MI300X, {_STAS}"),
}


def find_gpu(device: str) -> Gpu | None:
    """The GPU that a driver's name contains ("NVIDIA H100 80GB HBM3"), or that a user calls "h100"; else None."""
    words = f" {device.upper().replace('-', ' ').replace('_', ' ')} "
    for key, gpu in GPUS.items():
        if all(f" {word} " in words for word in key.upper().split()):
            return gpu
    return None


def named_gpu(name: str) -> Gpu:
    """The GPU that a user names. ValueError for an unlisted one."""
    gpu = find_gpu(name)
    if gpu is None:
        names = [key.lower().replace(" ", "-") for key in GPUS]
        raise InputError(f"{unknown('gpu=', name, names)}, or a throughput file measured on it")
    return gpu


class MeasuredMfu(NamedTuple):
    """The MFU that one code base reached with a dense model and with an MoE of the same width, on the same hardware.

    Each counts FLOPs its own way (attention's scores among them), and so these are good to a few per cent of a peak.
    """

    dense: float
    moe: float
    what: str
    source: str


_MARIN = "marin experiments/grug/fast_track/README.md, 032ccc1"
_MARIN_MOE = "top-8 of 384 experts and 2 shared, 8 H100"
MEASURED_MFU: tuple[MeasuredMfu, ...] = (
    MeasuredMfu(0.166, 0.082, f"d_model 512, {_MARIN_MOE}", _MARIN),
    MeasuredMfu(0.202, 0.103, f"d_model 768, {_MARIN_MOE}", _MARIN),
    MeasuredMfu(0.267, 0.139, f"d_model 1024, {_MARIN_MOE}", _MARIN),
    MeasuredMfu(0.288, 0.156, f"d_model 1280, {_MARIN_MOE}", _MARIN),
    MeasuredMfu(0.46, 0.35, "18 blocks, top-2 of 8 experts and 1 shared", "nanochat dev/LOG.md, 92d63d4"),
)
TYPICAL_MFU = sorted(MEASURED_MFU)[len(MEASURED_MFU) // 2]
