"""When the device had nothing to do, from a profiler's trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

LONGEST_NAME = 80


class Interval(NamedTuple):
    """What ran from `start` to `end`, in microseconds."""

    start: float
    end: float
    name: str


def idle(intervals: Iterable[Interval], longest: int = 5) -> dict[str, Any]:
    """Share of the time in which none of the intervals ran, and the longest such gaps with what ran around them."""
    ordered = sorted(intervals)
    if not ordered:
        return {"idle_share": None, "gaps": []}
    gaps, last = [], ordered[0]
    for one in ordered[1:]:
        if one.start > last.end:
            gaps.append({"microseconds": round(one.start - last.end, 1), "after": last.name, "before": one.name})
        last = max(last, one, key=lambda interval: interval.end)
    whole, idle_time = last.end - ordered[0].start, sum(gap["microseconds"] for gap in gaps)
    gaps.sort(key=lambda gap: -gap["microseconds"])
    return {"idle_share": round(idle_time / whole, 4) if whole else 0.0, "gaps": gaps[:longest]}


def host_gaps(work: Callable[[], object], device: torch.device) -> dict[str, Any]:
    """`idle` while `work` ran: between kernels and copies of a GPU, or on a CPU between operators."""
    on_gpu = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities) as trace:
        work()
        if on_gpu:
            torch.cuda.synchronize(device)
    wanted = DeviceType.CUDA if on_gpu else DeviceType.CPU
    events = [event for event in trace.events() if event.device_type == wanted and not event.is_user_annotation]
    return idle(
        Interval(event.time_range.start, event.time_range.end, event.name[:LONGEST_NAME])
        for event in events
        if on_gpu or event.cpu_parent is None
    )
