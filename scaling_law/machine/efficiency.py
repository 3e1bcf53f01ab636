"""Step times on a GPU that nobody has timed: its data sheet, and rates fitted to public training runs.

    seconds = (n / node)^growth Σ_k a_k work_k / rate_k

for n GPUs. FLOPs, and once more those of models with experts, go by the peak (FP8 and FP4 shorten them); activations
and what is sent to experts by the bandwidth of the memory. `studies/hours` fits the rates to runs that it lists.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from hub.base import strict_json
from scaling_law.machine.gpus import Gpu
from scaling_law.size.arrays import FloatArray

FORMAT, VERSION, FILE = "efficiency", 1, Path(__file__).with_name("efficiency.json")
# Some of `throughput.TERMS`.
TERMS = ("flops", "routed_flops", "activations", "routing")
PARAMETERS = (*TERMS, "fp8", "fp4", "forced", "growth", "overhead")  # all but the last two as logarithms
SMALL = 0.5e9  # parameters that a token is multiplied with; labs differ the more, the fewer there are
DRAWS, SEED = 200, 0
# Times the variance between labs of all terms together: the rates are of other code than train.py, which may lie as
# far off once more.
OTHER_CODE = 2.0


def rates(
    parameters: Any, peak_flops: Any, bandwidth: Any, fp8: Any = 0.0, fp4: Any = 0.0, forced: Any = 0.0
) -> tuple[Any, ...]:
    """Seconds per unit of each of `TERMS` on one GPU; broadcasts over GPUs, or over draws [9, ...] of the parameters.

    `fp8`, `fp4` and `forced` (experts balanced by force, in benchmarks) are 1 where that holds, else 0.
    """
    flops, routed_flops, activations, routing, of_fp8, of_fp4, of_force, *_ = parameters
    faster = np.exp(of_fp8 * fp8 + of_fp4 * fp4)
    balanced = np.exp(of_force * forced)
    return (
        np.exp(flops) * faster / peak_flops,
        np.exp(routed_flops) * faster * balanced / peak_flops,
        np.exp(activations) / bandwidth,
        np.exp(routing) * balanced / bandwidth,
    )


@dataclass(frozen=True)
class Efficiency:
    """The fit: parameters [9] in the order of `PARAMETERS`, their covariance [9, 9], and what it leaves between labs.

    `spread` [5] are standard deviations of ln seconds between labs: of all terms together, and besides of activations,
    of what experts add, of models below `SMALL` by each factor of e, and of whole runs. `runs` and `labs`: how many.
    """

    parameters: FloatArray
    covariance: FloatArray
    spread: FloatArray
    runs: int
    labs: int

    def seconds(self, gpu: Gpu, precision: str = "bf16") -> dict[str, float]:
        """Seconds per unit of `TERMS`."""
        return dict(zip(TERMS, map(float, self._rates(self.parameters, gpu, precision)), strict=True))

    def draws(self, gpu: Gpu, precision: str = "bf16") -> FloatArray:
        """Draws of `seconds`, [200, terms]: of the parameters, and of a whole run of a lab that is not among these."""
        drawn, (every, activations, routed, _, whole) = self._drawn
        every = every + whole
        of_lab = np.exp(np.stack([every, every + routed, every + activations, every + routed], axis=1))
        return np.stack(self._rates(drawn, gpu, precision), axis=1) * of_lab

    @property
    def small_draws(self) -> FloatArray:
        """Draws [200], with those of `draws`, of the power of `SMALL` / parameters in a smaller model's seconds."""
        return np.asarray(self._drawn[1][3])

    @property
    def _drawn(self) -> tuple[FloatArray, FloatArray]:
        """Draws of the parameters [9, 200], and of what a lab differs by [5, 200]."""
        random, wider = np.random.default_rng(SEED), np.array([OTHER_CODE**0.5, 1.0, 1.0, 1.0, 1.0])
        drawn = random.multivariate_normal(self.parameters, self.covariance, DRAWS).T
        return drawn, random.normal(0.0, (self.spread * wider)[:, None], (len(wider), DRAWS))

    @property
    def growth(self) -> float:
        """Exponent of the number of nodes with which the seconds of a step grow."""
        return float(self.parameters[PARAMETERS.index("growth")])

    @property
    def overhead(self) -> float:
        """Exponent of the number of nodes for restarts, evaluation and other time of a run besides its steps."""
        return float(self.parameters[PARAMETERS.index("overhead")])

    def _rates(self, parameters: FloatArray, gpu: Gpu, precision: str) -> tuple[Any, ...]:
        return rates(parameters, gpu.peak_flops, gpu.bandwidth, float(precision == "fp8"), float(precision == "fp4"))


@cache
def published_runs() -> Efficiency:
    """The fit to public runs that is shipped."""
    data = strict_json.read(FILE, FORMAT, VERSION)
    arrays = {name: np.array(data[name]) for name in ("parameters", "covariance", "spread")}
    return Efficiency(**arrays, runs=data["runs"], labs=data["labs"])


def write(efficiency: Efficiency, path: Path = FILE) -> Path:
    """Write the file that `published_runs` reads."""
    plain = {name: np.asarray(value).round(5).tolist() for name, value in vars(efficiency).items()}
    return strict_json.write(path, FORMAT, VERSION, plain)
