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

FORMAT = "efficiency"
VERSION = 1
FILE = Path(__file__).with_name("efficiency.json")
# Some of `throughput.TERMS`.
TERMS = ("flops", "routed_flops", "activations", "routing")
# All but the last two are logarithms.
PARAMETERS = (*TERMS, "fp8", "fp4", "forced", "growth", "overhead")
# Parameters that a token is multiplied with, below which labs differ the more, the fewer there are.
SMALL = 0.5e9
DRAWS = 200
SEED = 0
# Factor on the variance between labs of all terms together: the rates are of other code than train.py, which may lie
# as far off once more.
OTHER_CODE = 2.0


def rates(
    parameters: Any,
    peak_flops: Any,
    bandwidth: Any,
    fp8: Any = 0.0,
    fp4: Any = 0.0,
    forced: Any = 0.0,
) -> tuple[Any, ...]:
    """Compute the seconds per unit of each of `TERMS` on one GPU.

    Broadcasts over GPUs, or over draws [9, ...] of the parameters.

    `fp8`, `fp4` and `forced` (experts balanced by force, in benchmarks) are 1 where that holds, else 0.
    """
    flops, routed_flops, activations, routing, fp8_gain, fp4_gain, forced_gain, *_ = parameters
    precision = np.exp(fp8_gain * fp8 + fp4_gain * fp4)
    balance = np.exp(forced_gain * forced)
    return (
        np.exp(flops) * precision / peak_flops,
        np.exp(routed_flops) * precision * balance / peak_flops,
        np.exp(activations) / bandwidth,
        np.exp(routing) * balance / bandwidth,
    )


@dataclass(frozen=True)
class Efficiency:
    """The fit: parameters [9] in the order of `PARAMETERS`, their covariance [9, 9], and the spread between labs.

    `spread` [5] are standard deviations of ln seconds between labs: of all terms together, and besides of activations,
    of the work that experts add, of models below `SMALL` by each factor of e, and of whole runs. `runs` and `labs`
    are counts.
    """

    parameters: FloatArray
    covariance: FloatArray
    spread: FloatArray
    runs: int
    labs: int

    def seconds(self, gpu: Gpu, precision: str = "bf16") -> dict[str, float]:
        """Compute the seconds per unit of `TERMS`."""
        seconds = self._rates(self.parameters, gpu, precision)
        return dict(zip(TERMS, map(float, seconds), strict=True))

    def draws(self, gpu: Gpu, precision: str = "bf16") -> FloatArray:
        """Draw `seconds`, [200, terms]: of the parameters, and of a whole run of a lab that is not among these."""
        parameters, (all_terms, activations, routed, _, whole_runs) = self._sample()
        lab = all_terms + whole_runs
        log_factors = np.stack([lab, lab + routed, lab + activations, lab + routed], axis=1)
        return np.stack(self._rates(parameters, gpu, precision), axis=1) * np.exp(log_factors)

    @property
    def small_draws(self) -> FloatArray:
        """Draws [200], with those of `draws`, of the power of `SMALL` / parameters in a smaller model's seconds."""
        return np.asarray(self._sample()[1][3])

    def _sample(self) -> tuple[FloatArray, FloatArray]:
        """Sample the parameters [9, 200], and the deviations of a lab [5, 200]."""
        generator = np.random.default_rng(SEED)
        parameters = generator.multivariate_normal(self.parameters, self.covariance, DRAWS).T
        spread = self.spread * np.array([OTHER_CODE**0.5, 1.0, 1.0, 1.0, 1.0])
        deviations = generator.normal(0.0, spread[:, None], (len(spread), DRAWS))
        return parameters, deviations

    @property
    def growth(self) -> float:
        """Exponent of the number of nodes with which the seconds of a step grow."""
        return float(self.parameters[PARAMETERS.index("growth")])

    @property
    def overhead(self) -> float:
        """Exponent of the number of nodes for restarts, evaluation and other time of a run besides its steps."""
        return float(self.parameters[PARAMETERS.index("overhead")])

    def _rates(self, parameters: FloatArray, gpu: Gpu, precision: str) -> tuple[Any, ...]:
        is_fp8 = float(precision == "fp8")
        is_fp4 = float(precision == "fp4")
        return rates(parameters, gpu.peak_flops, gpu.bandwidth, is_fp8, is_fp4)


@cache
def published_runs() -> Efficiency:
    """Read the fit to public runs that is shipped."""
    data = strict_json.read(FILE, FORMAT, VERSION)
    arrays = {name: np.array(data[name]) for name in ("parameters", "covariance", "spread")}
    return Efficiency(**arrays, runs=data["runs"], labs=data["labs"])


def write(efficiency: Efficiency, path: Path = FILE) -> Path:
    """Write the file that `published_runs` reads."""
    fields = {name: np.asarray(value).round(5).tolist() for name, value in vars(efficiency).items()}
    return strict_json.write(path, FORMAT, VERSION, fields)
