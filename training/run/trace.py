"""A profiler's trace of a few steps, for chrome://tracing or perfetto: one file for every process."""

from __future__ import annotations

from pathlib import Path

import torch


class StepProfiler:
    """Traces the steps `first` to `last - 1`; call it before every step, and `close` at the end.

    Args:
        folder: gets `trace-<rank>.json.gz`.
    """

    def __init__(self, folder: Path, rank: int, first: int, last: int):
        self.path = folder / f"trace-{rank}.json.gz"
        self.first, self.last = first, last
        self._profile = None

    def __call__(self, step: int) -> None:
        if step == self.first and self._profile is None:
            self._profile = torch.profiler.profile(record_shapes=True, profile_memory=True)
            self._profile.start()
        elif step >= self.last:
            self.close()

    def close(self) -> None:
        """Write the trace, if one was begun."""
        if self._profile is not None:
            profile, self._profile = self._profile, None
            profile.stop()
            self.path.parent.mkdir(parents=True, exist_ok=True)
            profile.export_chrome_trace(str(self.path))
