"""What the run trains on, and its peak speed, for the model FLOPs utilisation (MFU)."""

from __future__ import annotations

import os
import platform
import resource
import sys
from pathlib import Path

import torch

# Dense bf16 matrix FLOP/s of one device, from the makers' data sheets (without sparsity).
PEAK_BF16_FLOPS = {
    "B200": 2.25e15,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "RTX 4090": 165e12,
    "A10": 125e12,
    "L4": 121e12,
    "V100": 125e12,
}


def describe(device: torch.device, world_size: int) -> str:
    """Such as `8 x NVIDIA H100 80GB HBM3` or `1 x AMD EPYC (2 threads)`."""
    if device.type == "cuda":
        return f"{world_size} x {torch.cuda.get_device_name(device)}"
    return f"{world_size} x {_cpu_name()} ({torch.get_num_threads()} threads)"


def peak_flops(device: torch.device) -> float | None:
    """Peak dense bf16 FLOP/s of one device; None where no data sheet is known here (a CPU, say)."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for key, peak in PEAK_BF16_FLOPS.items() if key in name), None)


def peak_memory(device: torch.device) -> int:
    """Bytes: the most that tensors held on this device so far; on CPU, the most that this process held."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def total_memory(device: torch.device) -> int:
    """Bytes of memory of this device; on CPU, of the machine."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
