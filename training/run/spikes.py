"""Loss spikes: a step whose loss stands far above those just before it.

Far is measured robustly: more than `_FACTOR` standard deviations above the median of the last `_WINDOW` finite steps,
the standard deviation being estimated by the median absolute deviation. So earlier spikes do not hide later ones, and
the fall of the loss at the start of training, which only moves downward, is none.
"""

from __future__ import annotations

from statistics import median

from training.run.checkpoint import Progress

_WINDOW = 128  # steps
_LEAST = 16  # steps to compare with before anything is called a spike
_FACTOR = 6.0
_MAD_TO_DEVIATION = 1.4826  # for normally distributed values
_LEAST_DEVIATION = 0.002  # of the median: where all losses are nearly the same, a small rise is no spike


def add(progress: Progress, loss: float) -> bool:
    """Whether this loss (nats) is a spike against the steps before it; it is then counted, and always remembered."""
    spike = is_spike(progress.recent_losses, loss)
    if spike:
        progress.spikes.append(progress.step)
    progress.recent_losses = [*progress.recent_losses, loss][-_WINDOW:]
    return spike


def is_spike(before: list[float], loss: float) -> bool:
    """Whether `loss` stands far above the losses of the steps before."""
    if len(before) < _LEAST:
        return False
    middle = median(before)
    deviation = _MAD_TO_DEVIATION * median(abs(value - middle) for value in before)
    return loss > middle + _FACTOR * max(deviation, _LEAST_DEVIATION * middle)
