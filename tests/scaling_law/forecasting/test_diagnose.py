"""`diagnose`: slow runs are told from normal ones, and nothing is said where there are no public runs."""

import json

import numpy as np
import pytest

from scaling_law import Architecture, diagnose
from scaling_law.forecasting.diagnose import public_runs
from scaling_law.machine import GPUS, ModelWork
from tests.scaling_law.forecasting.test_live import LAW
from tests.scaling_law.forecasting.test_running import BATCH, lines_of, write_csv

pytestmark = pytest.mark.light
DENSE = Architecture(4096, 1, 32, 32, 128256, n_kv_heads=8, d_ff=14336, gated=True)
EXPERTS = "qwen3-30b-a3b"
H100S = {"gpu": "h100", "gpus": 64}


def normal_speed(model, **options):
    """Tokens per second at which the speed is what public runs lead to expect."""
    slow = diagnose(model, tokens_per_second=1.0, **options)
    return slow.expected_mfu / slow.mfu


@pytest.mark.parametrize("model", [DENSE, EXPERTS])
def test_the_expected_speed_is_normal_and_half_of_it_is_low(model):
    speed = normal_speed(model, **H100S)
    normal = diagnose(model, tokens_per_second=speed, **H100S)
    assert normal.decision == "normal"
    assert normal.trusted
    assert normal.mfu == pytest.approx(normal.expected_mfu)
    assert normal.expected_low < normal.expected_mfu < normal.expected_high
    assert not normal.causes
    low = diagnose(model, tokens_per_second=0.4 * speed, **H100S)
    assert low.decision == "low"
    assert low.slower < 0.08
    assert low.mfu == pytest.approx(0.4 * normal.mfu)
    assert low.causes
    assert not low.trusted


def test_the_mfu_is_all_products_over_the_peak_of_all_gpus():
    answer = diagnose(DENSE, tokens_per_second=5e4, gpu="h100", gpus=8, sequence_length=8192)
    work = ModelWork.of(DENSE)
    flops = 6 * (work.weights + 8192 * work.attention)
    assert answer.mfu == pytest.approx(flops * 5e4 / 8 / GPUS["H100"].peak_flops)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"gpu": "4090"}, "no public run was timed on NVIDIA GeForce RTX 4090"),
        ({"gpu": "peak=148T,memory=96GB"}, "no public run was timed on peak=148T"),
        ({"model": Architecture(256, 8)}, "public runs of this type have"),
    ],
)
def test_without_public_runs_like_it_nothing_is_said(options, reason):
    answer = diagnose(**{"model": DENSE, "tokens_per_second": 100.0, "gpu": "h100", **options})
    assert answer.decision == "cannot say"
    assert answer.reason.startswith(reason)
    assert answer.verdict.startswith("cannot say: ")
    assert answer.slower is None


def test_the_configuration_shows_usual_causes_first():
    odd = Architecture(4096, 1, 32, 32, 50257, n_kv_heads=8, d_ff=14336, gated=True)
    layout = {"layout": "tp=16,pp=4", "batch": 65536.0}
    causes = diagnose(odd, tokens_per_second=2e4, **H100S, **layout).causes
    assert [cause.split()[0:2] for cause in causes[:4]] == [
        ["a", "vocabulary"],
        ["TP", "16"],
        ["4", "stages"],
        ["1,024", "tokens"],
    ]
    assert not any("expert" in cause for cause in causes)
    assert any("expert" in cause for cause in diagnose(EXPERTS, tokens_per_second=1e5, **H100S).causes)


def test_a_loss_stands_beside_those_of_a_law_and_of_peers(tmp_path):
    lines, _ = lines_of(share=1.0)
    peer = write_csv(tmp_path / "peer.csv", lines)
    at = 100 * BATCH
    options = {"tokens_per_second": 4e5, **H100S, "loss": 3.0, "tokens": at}
    answer = diagnose(DENSE, law=LAW, peers=[str(peer)], **options)
    assert answer.law_loss == pytest.approx(float(LAW.loss(DENSE.n_active, at)))
    assert answer.peers_loss == pytest.approx(lines[99]["loss"])
    assert "off the law's" in answer.verdict
    assert "off that of its peers" in answer.verdict


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens_per_second": 1e9}, "tokens_per_second=1000000000.0 is .* times the peak of 64 × NVIDIA H100"),
        ({"layout": "tp=8,xp=2"}, "layout='tp=8,xp=2' must be degrees of dp"),
        ({"layout": "tp=0"}, "layout='tp=0' must be degrees of dp"),
        ({"layout": "tp=8,pp=16"}, "layout='tp=8,pp=16' does not divide 64 GPUs"),
        ({"loss": 3.0}, r"loss=3.0 needs tokens=\.\.\., and law="),
        ({"gpus": 0}, "gpus=0"),
        ({"gpu": "h1000"}, "gpu="),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        diagnose(DENSE, **{"tokens_per_second": 4e5, **H100S, **options})


def test_the_public_runs_are_shipped_with_their_sources():
    runs = public_runs()
    assert len(runs) > 150
    assert all(run.source and 0 < run.mfu < 1.5 and 0.1 < run.relative_speed < 3 for run in runs)
    assert 0.9 < np.median([run.relative_speed for run in runs]) < 1.1


def test_the_answer_is_plain_json_with_the_nearest_runs():
    answer = json.loads(json.dumps(diagnose(EXPERTS, tokens_per_second=1e6, **H100S).to_dict()))
    assert answer["decision"] == "normal"
    assert len(answer["rows"]) == 5
    assert all("Qwen3-30B-A3B" in row["name"] for row in answer["rows"])
