"""Bad input from Python: calls and the words of their errors, which name field, value and what is allowed.

What the shell says of it: tests/scaling_law/commands/test_wrong_inputs.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from scaling_law import Architecture, JointLaw, Throughput, describe, published, scale_out
from scaling_law.figures import drawing, isoflop
from scaling_law.machine import decode_seconds, training_memory
from scaling_law.planning import candidate_grid, predicted_loss
from scaling_law.size import LatentAttention
from scaling_law.size.ladder import PaperLadder
from tests.scaling_law.configs import MIXTRAL

LAW, MODEL = JointLaw.published(), Architecture(512, 8)
MEASURED = Throughput("a GPU", "bf16", {"flops": 1e-14}, devices=8)
MLA = LatentAttention(kv_rank=64, rope_dim=64, nope_dim=128, value_dim=128)
HOURS: dict[str, Any] = {"hours": 72, "gpus": 8, "gpu": "h100"}
LOSS = predicted_loss(1e9, 2e10, 8)


def of(function: Callable[..., Any], *arguments: Any) -> Callable[..., Callable[[], Any]]:
    """Make calls of a function by their keywords."""
    return lambda **keywords: lambda: function(*arguments, **keywords)


optimal, hours, plan = of(LAW.optimal, 1e20), of(LAW.optimal), of(LAW.plan)
speedup_of, model, memory = of(LAW.speedup, 8), of(Architecture, 1024), of(training_memory, MODEL)
assumed, step = of(Throughput.assumed), of(MEASURED.step_seconds, MODEL)


def split(**shape: float) -> Callable[[], Any]:
    """Make a call for a model of the paper whose experts are split."""
    return lambda: PaperLadder(**shape).architecture(256, 8)


REFUSED = [
    (optimal(experts=[0]), "experts=0 must be at least 1 and finite"),
    (optimal(experts=[]), "experts=[] must be one number or a list of them"),
    (optimal(experts=[1.5], integral=True), "experts=[1.5]: integral=True needs whole numbers"),
    (optimal(experts=[1, None, "x"]), "experts="),
    (optimal(max_parameters=0), "max_parameters=0 must be positive and finite, or None"),
    (optimal(max_parameters=True), "max_parameters=True must be a number or text such as '1B', or None"),
    (optimal(kv_tokens=-1), "kv_tokens=-1 must be finite and not negative"),
    (optimal(memory=[80e9]), "memory=[80000000000.0] must be a number or text such as '1B', or None"),
    (optimal(decode_batch=8), "decode_batch=8 needs a gpu that serves"),
    (optimal(inference_tokens=1e14), "inference_tokens=1e+14 alone cost at least"),
    (hours(flops=np.array([1e20, 1e21])), "flops=[1e+20, 1e+21]: optimal takes one budget"),
    (hours(flops=1e21, gpus=8), 'gpu=None must be given, such as "h100"'),
    (hours(**HOURS | {"hours": -1}), "hours=-1 must be positive"),
    (hours(**HOURS | {"hours": 1e-4, "mfu": 0.4}), "hours=0.0001 are too few: every compute optimum on 8"),
    (optimal(accuracy=3), "accuracy=3 must be text or a list of names"),
    (hours(money=100, gpus=8, gpu="h100"), "money=100 needs a price, per GPU-hour"),
    (hours(**HOURS, price=0), "price=0 must be positive"),
    (hours(hours=72, gpus=1, gpu="l4", experts=[1e6], force=True), "needs 767 GB on each GPU"),
    (hours(**HOURS, inference_tokens=1e9), "give a budget of flops, not of hours"),
    (hours(**HOURS, decode_batch=0), "decode_batch=0 must be positive"),
    (optimal(vocab_size=1.5), "vocab_size=1.5 must be a whole number"),
    (optimal(learning_rate_law="coed"), "learning-rate law 'coed' is unknown: did you mean 'code'"),
    (of(LAW.compute_optimal, [])(), "flops=[] must be one number or a list of them"),
    (plan(flops=1e20, sequence_length=0), "sequence_length=0 must be a whole number from 1 to"),
    (plan(flops=1e20, gpus=8), 'gpu=None must be given, such as "h100"'),
    (plan(**HOURS | {"gpu": None, "throughput": MEASURED}, mfu=0.3), "has measured step times; give one of the two"),
    (of(LAW.reach, -1)(), "loss=-1 must be positive"),
    (of(LAW.reach, 2.6)(gpus=8, gpu="h100", inference_tokens=1e9), "inference_tokens=1e+09 cost FLOPs"),
    (of(LAW.reach, 2.5)(flops=1e20, memory=1e9), "memory=... is what this question solves for: leave it out"),
    (of(LAW.reach, 2.5)(max_memory=1e9), "keyword of a question 'max_memory' is unknown: did you mean 'memory'"),
    (speedup_of(), "flops=None, tokens=None: give one of them"),
    (speedup_of(flops=1e21, tokens=1e9), "flops=1e+21, tokens=1000000000.0: give one of them"),
    (speedup_of(tokens=1e9), "goes with an Architecture: E = 8 alone has no size; give flops"),
    (speedup_of(baseline="x", flops=1e21), "baseline='x' must be a number or an Architecture"),
    (speedup_of(flops=1e29), "beyond the limit of ×1,000"),
    (speedup_of(flops=1e21, memory="1GB"), "memory=1000000000.0 does not go with a speed-up"),
    (of(LAW.speedup, MODEL)(tokens=0), "tokens=0 must be positive"),
    (of(LAW.speedup, 0.5)(flops=1e21), "experts=0.5 must be at least 1"),
    (of(published("chinchilla").speedup, 1, 8)(flops=1e21), "experts=8: this Chinchilla law holds for E = 1 only"),
    (of(LAW.speedup, [1, 8])(n_active=1e9), "experts=[1.0, 8.0] must be above 1"),
    (speedup_of(n_active=1e9, between=(1e9, 1e8)), "between=(1000000000.0, 100000000.0) must be two increasing"),
    (speedup_of(flops=1e21, match="memory", vocab_size=-1), "vocab_size=-1 must be a whole number of at least 1"),
    (speedup_of(flops=1e21, match="price"), "match='price' is unknown; there are flops, hours, memory, served"),
    (speedup_of(flops=1e21, match="hours"), "match='hours' takes step times: give gpus"),
    (speedup_of(flops=1e21, n_active=1e9), "flops=1e+21 does not go with n_active"),
    (speedup_of(match="memory", n_active=1e9), "match='memory' does not go with n_active"),
    (of(LAW.speedup, 8, MODEL)(flops=1e21, match="memory"), "match='memory' sets the size of the baseline"),
    (of(published("chinchilla").speedup, 8)(n_active=1e9), "depends on experts; the chinchilla law does not"),
    (of(LAW.next_runs, lambda law: 1.0, 1e20)(noise=0.002), "too few draws: 1000 have an answer"),
    (of(LAW.next_runs, LOSS, 1e19)(noise=0), "noise=0 must be positive and finite"),
    (of(LAW.next_runs, LOSS, 1e19)(max_runs=1.5), "max_runs=1.5 must be a whole number"),
    (of(LAW.next_runs, LOSS, 1e19)(warmup_tokens=-1), "warmup_tokens=-1 must be finite and not negative"),
    (of(candidate_grid, 0)(), "max_run_flops=0 must be positive"),
    (of(describe, MIXTRAL)(tokens=-1), "tokens=-1 must be positive"),
    (of(describe, MIXTRAL)(tokens="many"), "tokens='many' is not a quantity"),
    (of(describe, MIXTRAL)(context=0), "context=0"),
    (of(scale_out, MODEL, ())(), "gpus=[] must be one number or several"),
    (of(scale_out, MODEL, (8,))(gpu="h900"), "gpu='h900' is unknown"),
    (
        of(scale_out, MODEL, (6,))(batch="0:512"),
        "gpus=6 cannot share batches of 512 sequences equally: each must be a",
    ),
    (of(isoflop, LAW, (1e20, 1e21))(axes=drawing.new_figure()[1]), "axes: 1 given, 2 are needed"),
    (memory(micro_batch_sequences=0, sequence_length=512), "micro_batch_sequences=0 must be at least 1"),
    (memory(micro_batch_sequences=1, sequence_length=512, tp=0), "tp=0 must be at least 1"),
    (memory(micro_batch_sequences=1, sequence_length=float("nan")), "sequence_length=nan must be at least 1"),
    (of(decode_seconds, MODEL, "h100")(batch=0), "batch=0 must be positive"),
    (
        memory(micro_batch_sequences=1, sequence_length=512, sharding="zero3"),
        "sharding='zero3', precision='bf16'; allowed: none, ddp, fsdp2, zero1; bf16, fp32",
    ),
    (assumed(gpu="h900"), "gpu='h900' is unknown; there are gb300"),
    (assumed(mfu=1.2), "mfu=1.2 must be above 0 and at most 1"),
    (assumed(mfu="0.4"), "mfu='0.4' must be above 0 and at most 1, or two such numbers"),
    (assumed(mfu=(0.2, 0.4)), "mfu=(0.2, 0.4) must be no higher with experts than without"),
    (assumed(gpu=3), "gpu='3' is unknown"),
    (assumed(gpu="h100", precision="fp16"), "precision='fp16': NVIDIA H100 SXM computes in bf16, fp8"),
    (assumed(gpu="a100-40gb", precision="fp8", mfu=0.4), "precision='fp8': NVIDIA A100 SXM 40GB computes in bf16"),
    (assumed(gpu="h200", precision="fp4"), "precision='fp4': NVIDIA H200 SXM computes in bf16, fp8"),
    (step(tokens_per_step=0), "tokens_per_step=0.0 must be positive"),
    (of(MEASURED.step_seconds_draws, MODEL, 512)(), "has no draws"),
    (split(granularity=7), "granularity=7 must be a whole number that divides 3 d_model, 768"),
    (split(granularity=1.5), "granularity=1.5 must be a whole number"),
    (split(granularity=8, shared_ratio=0.3), "shared_ratio=0.3 of granularity=8 experts must be a whole number of"),
    (split(granularity=1, shared_ratio=0.5), "shared_ratio=0.5 of granularity=1 experts"),
    (model(experts=4, experts_per_token=5), "experts_per_token=5 must be at most experts=4"),
    (model(experts=4, dense_blocks=16), "dense_blocks=16 must be below n_blocks=16"),
    (model(n_kv_heads=5), "n_heads=16 is not divisible by n_kv_heads=5"),
    (model(d_expert=0), "d_expert=0 must be a whole number of at least 1"),
    (model(shared_experts=-1), "shared_experts=-1 must be a whole number of at least 0"),
    (model(d_ff=0), "d_ff=0 must be a whole number of at least 1"),
    (model(experts=8, d_ff=4096), "d_ff=4096 with dense_blocks=0 must be 3072, or left out"),
    (model(d_expert=2816, d_ff=4096), "d_ff=4096 with dense_blocks=0 must be 2816, or left out"),
    (model(d_shared=512), "d_shared=512 with shared_experts=0 must be 3072, or left out"),
    (model(n_kv_heads=4, latent_attention=MLA), "n_kv_heads=4 with latent_attention must be 16, or left out"),
    (model(head_dim=64, latent_attention=MLA), "head_dim=64 with latent_attention must be 192, or left out"),
    (model(latent_attention={"kv_rank": 0, "rope_dim": 1, "nope_dim": 1, "value_dim": 1}), "kv_rank=0 must be"),
    (of(Architecture, 100)(), "d_model=100 is not a multiple of 64: n_blocks=None must be given"),
    (of(Architecture, 0)(), "d_model=0 must be a whole number of at least 1"),
    (of(Architecture, 192)(n_heads=5), "d_model=192 is not divisible by n_heads=5"),
    (model(experts=0), "experts=0 must be a whole number of at least 1"),
    (model(experts=1.5), "experts=1.5 must be a whole number"),
    (model(n_blocks=True), "n_blocks=True must be a whole number"),
    (model(vocab_size=-1), "vocab_size=-1 must be a whole number of at least 1"),
]


@pytest.mark.parametrize(("call", "words"), REFUSED, ids=[words[:40] for _, words in REFUSED])
def test_bad_input_is_refused_in_words(call, words):
    with pytest.raises((ValueError, TypeError), match=re.escape(words)) as error:
        call()
    assert "np." not in str(error.value)
    assert "\n" not in str(error.value)
