"""Step times on a GPU that nobody has timed: its data sheet, and rates of an engine.

    seconds = (n / node)^growth Σ_k a_k work_k / rate_k

for n GPUs. FLOPs, and once more those of models with experts, go by the peak (FP8 and FP4 shorten them); activations
and what is sent to experts by the bandwidth of the memory. The rates of "megatron" are fitted to public training runs;
those of "train.py" to its own steps on an H100 and to torchtitan's, PyTorch's FSDP2 on many GPUs, with four more
terms: weights and updates by the bandwidth, passes through blocks and steps by the host. `studies/hours` has the runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from hub.base import strict_json
from scaling_law.machine.gpus import Gpu
from scaling_law.size.arrays import FloatArray
from scaling_law.size.draws import draw_normal

FORMAT = "efficiency"
VERSION = 2
FILE = Path(__file__).with_name("efficiency.json")
# Engines that have rates; "megatron" stands for those of public runs.
Engine = Literal["train.py", "megatron"]
TRAIN_PY: Final = "train.py"
MEGATRON: Final = "megatron"
# Some of `throughput.TERMS`.
TERMS = ("flops", "routed_flops", "activations", "routing")
# Terms of an engine that was timed by itself, besides.
OWN_TERMS = ("weights", "update", "blocks", "steps")
# Logarithms of what takes longer under FSDP2: all of a step and, for blocks that are not compiled, what memory bounds
# and passes through blocks. `train.py` compiles them by now: interim rates, until such steps have been timed.
SHARDED = ("sharded", "eager", "eager_blocks")
# All but the last two are logarithms. An engine with terms of its own has these and `SHARDED` besides.
PARAMETERS = (*TERMS, "fp8", "fp4", "balanced", "growth", "overhead")
# Parameters that a token is multiplied with, below which labs differ the more, the fewer there are.
SMALL = 0.5e9
# The ends of a 95 % interval are then sure to half a percent, where 200 draws had 5: two digits of hours.
DRAWS = 4096


def rates(
    parameters: Any,
    peak_flops: Any,
    bandwidth: Any,
    fp8: Any = 0.0,
    fp4: Any = 0.0,
    balanced: Any = 0.0,
) -> tuple[Any, ...]:
    """Compute the seconds per unit of each of `TERMS` on one GPU.

    Broadcasts over GPUs, or over draws [9, ...] of the parameters.

    `fp8`, `fp4` and `balanced` are 1 where that holds, else 0: experts are balanced by force, as in benchmarks, or by
    the training of a whole run, and not in short tests of a router.
    """
    flops, routed_flops, activations, routing, fp8_gain, fp4_gain, balanced_gain, *_ = parameters
    precision = np.exp(fp8_gain * fp8 + fp4_gain * fp4)
    balance = np.exp(balanced_gain * balanced)
    return (
        np.exp(flops) * precision / peak_flops,
        np.exp(routed_flops) * precision * balance / peak_flops,
        np.exp(activations) / bandwidth,
        np.exp(routing) * balance / bandwidth,
    )


@dataclass(frozen=True)
class Efficiency:
    """The fit: parameters in the order of `PARAMETERS`, their covariance, and the spread between labs.

    Those of an engine with rates of its own go on with `OWN_TERMS` and `SHARDED`. `spread` [5] are standard
    deviations of ln seconds between labs: of all terms together, and besides of activations, of the work that experts
    add, of models below `SMALL` by each factor of e, and of whole runs. `runs` and `labs` are counts.
    """

    parameters: FloatArray
    covariance: FloatArray
    spread: FloatArray
    runs: int
    labs: int

    @property
    def has_own_terms(self) -> bool:
        return len(self.parameters) > len(PARAMETERS)

    @property
    def terms(self) -> tuple[str, ...]:
        """The work that takes time, of `throughput.TERMS`."""
        return (*TERMS, *OWN_TERMS) if self.has_own_terms else TERMS

    @property
    def sharded(self) -> dict[str, float]:
        """The factor on the seconds of each of `terms` under FSDP2; empty where no rate says."""
        if not self.has_own_terms:
            return {}
        return dict(zip(self.terms, map(float, self._sharded(self.parameters)), strict=True))

    @property
    def sharded_draws(self) -> FloatArray | None:
        """Draws of these factors, [DRAWS, terms], with those of `draws`."""
        if not self.has_own_terms:
            return None
        return np.stack(self._sharded(self._sample[0]), axis=1)

    def _sharded(self, parameters: FloatArray) -> tuple[Any, ...]:
        """Compute the factors by the parameters, numbers or draws.

        They are of each of `terms`, in this order.
        """
        sharded, memory, blocks = np.exp(parameters[-len(SHARDED) :])
        bound_by_memory = sharded * memory
        return (sharded, sharded, bound_by_memory, bound_by_memory, sharded, sharded, sharded * blocks, sharded)

    def seconds(self, gpu: Gpu, precision: str = "bf16") -> dict[str, float]:
        """Compute the seconds per unit of `terms`."""
        seconds = self._rates(self.parameters, gpu, precision)
        return dict(zip(self.terms, map(float, seconds), strict=True))

    def step_seconds(self, work: Mapping[str, Any], gpu: Gpu, gpus: int, precision: str = "bf16") -> float:
        """Compute the seconds of a step in which each of `gpus` GPUs does this `work`, by terms."""
        on_one_node = sum(rate * float(work[term]) for term, rate in self.seconds(gpu, precision).items())
        return on_one_node * max(gpus / gpu.node, 1.0) ** self.growth

    def draws(self, gpu: Gpu, precision: str = "bf16") -> FloatArray:
        """Draw `seconds`, [DRAWS, terms]: of the parameters, and of a whole run of a lab that is not among these."""
        parameters, (lab, activations, routed, _) = self._sample
        log_factors = [lab, lab + routed, lab + activations, lab + routed]
        log_factors += [lab] * (len(self.terms) - len(TERMS))
        rates_of_draws = np.stack(self._rates(parameters, gpu, precision), axis=1)
        return rates_of_draws * np.exp(np.stack(log_factors, axis=1))

    @property
    def small_draws(self) -> FloatArray:
        """Draws [DRAWS], with those of `draws`, of the power of `SMALL` / parameters in a smaller model's seconds."""
        return np.asarray(self._sample[1][3])

    @cached_property
    def _sample(self) -> tuple[FloatArray, FloatArray]:
        """Draws of the parameters [k, DRAWS], and of a lab's deviations [4, DRAWS], the first with its run's."""
        all_terms, *others, whole_runs = self.spread
        deviations = [np.hypot(all_terms, whole_runs), *others]
        count = len(deviations)
        mean = np.concatenate([np.zeros(count), self.parameters])
        covariance = np.zeros((len(mean), len(mean)))
        covariance[:count, :count] = np.diag(np.square(deviations))
        covariance[count:, count:] = self.covariance
        draws = draw_normal(mean, covariance, DRAWS).T
        return draws[count:], draws[:count]

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
        units = rates(parameters, gpu.peak_flops, gpu.bandwidth, is_fp8, is_fp4, balanced=1.0)
        if not self.has_own_terms:
            return units
        weights, update, blocks, steps, *_ = np.exp(parameters[len(PARAMETERS) :])
        return (*units, weights / gpu.bandwidth, update / gpu.bandwidth, blocks, steps)


@cache
def rates_of_engine(engine: str) -> Efficiency:
    """Read the fit of an engine that is shipped: "train.py" or "megatron"."""
    values = strict_json.read(FILE, FORMAT, VERSION)["engines"][engine]
    arrays = {name: np.array(values[name]) for name in ("parameters", "covariance", "spread")}
    return Efficiency(**arrays, runs=values["runs"], labs=values["labs"])


def published_runs() -> Efficiency:
    """Read the fit to public runs that is shipped, mostly of engines like Megatron."""
    return rates_of_engine(MEGATRON)


def write(engines: Mapping[str, Efficiency], path: Path = FILE) -> Path:
    """Write the file that `rates_of_engine` reads."""
    values = {}
    for engine, efficiency in engines.items():
        arrays = {field.name: np.asarray(getattr(efficiency, field.name)) for field in fields(efficiency)}
        values[engine] = {name: array.round(5).tolist() for name, array in arrays.items()}
    return strict_json.write(path, FORMAT, VERSION, {"engines": values})
