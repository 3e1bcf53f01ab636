"""Learning rate and parameter groups as the arguments say."""

import pytest
import torch

from hub import RunRecord
from scaling_law import Architecture, LearningRateLaw
from tests.training.run.test_causal_model import EVERY, config_of
from training import ConfigurationError, Run
from training.configuration.arguments import ModelArguments, OptimizerArguments
from training.data.pins import RunData
from training.run import causal_model, devices
from training.run.model import (
    architecture,
    build_model,
    check_rate,
    model_config,
    peak_learning_rate,
)
from training.run.optimizers import build_optimizers


def test_the_peak_rate_is_the_papers_law_unless_given(tiny, tmp_path):
    arch = architecture(ModelArguments(d_model=64, experts=8), vocab_size=1000)
    code, paper = (LearningRateLaw.published(reading).learning_rate(arch) for reading in ("code", "paper"))
    fitted = LearningRateLaw(2.0, -0.5, 0.25, source="least squares on 6 models")
    path = str(fitted.save(tmp_path / "rates.json"))
    for arguments, expected, said in (
        ({}, code, "reading 'code'"),
        ({"learning_rate_law": "paper"}, paper, "reading 'paper'"),
        ({"learning_rate_scale": 0.1}, code / 10, "times 0.1"),
        ({"learning_rate_law": path}, fitted.learning_rate(arch), "exp(2 -0.5 ln N +0.25 ln E), least squares on 6"),
        ({"learning_rate": 0.5}, 0.5, "given"),
    ):
        rate, law = peak_learning_rate(tiny().replaced(optimizer={"learning_rate": None, **arguments}), arch)
        assert rate == pytest.approx(expected, rel=1e-12)
        assert said in law


def test_a_run_far_from_those_of_its_law_needs_a_rate(tiny, tmp_path):
    arguments = tiny(optimizer__learning_rate=None)
    assert check_rate(arguments, Architecture(512, 8)) == []
    assert check_rate(arguments, Architecture(1024, 64)) == [
        "optimizer.learning_rate: E = 64 is outside the fitted 1…32 (×2)"
    ]
    with pytest.raises(ConfigurationError, match=r"learning_rate: too far .*; name another .* give the rate"):
        check_rate(arguments, Architecture(64, 8))
    with pytest.raises(ConfigurationError, match=r"learning_rate: too far"):
        Run(arguments)
    assert check_rate(tiny(optimizer__learning_rate=1e-3), Architecture(64, 8)) == []
    # A run that has begun goes on.
    RunData(peak_learning_rate=0.01).save(tmp_path / "run")
    assert "N 6.52M is outside the fitted 79M…2.72B" in check_rate(arguments, Architecture(64, 8))[0]


def test_a_law_that_knows_no_rate_trains_no_run(tiny):
    arguments = tiny(optimizer__learning_rate=None, optimizer__learning_rate_law="public")
    sequences = 262_144 // arguments.data.sequence_length
    arguments = arguments.replaced(schedule={"tokens": [10**9], "batch_ramp": [f"0:{sequences}"]})
    with pytest.raises(ConfigurationError, match=r"only between .* settle it"):
        check_rate(arguments, Architecture(512, 8))


def test_a_law_with_tokens_and_batch_is_asked_at_the_end_of_the_longest_run(tmp_path, tiny):
    law = LearningRateLaw(2.0, -0.5, 0.25, source="a grid", slope_d=0.1, slope_batch=0.4)
    path = str(law.save(tmp_path / "rates.json"))
    arguments = tiny(
        optimizer__learning_rate=None,
        optimizer__learning_rate_law=path,
        schedule__tokens=[2560, 5120],
        schedule__batch_ramp=["0:2", "2560:4"],
    )
    tokens, batch = arguments.longest_run()
    assert (tokens, batch) == (5120, 4 * arguments.data.sequence_length)
    arch = architecture(arguments.model, vocab_size=300)
    rate, said = peak_learning_rate(arguments, arch)
    assert rate == law.learning_rate(arch, tokens, batch)
    assert said == f"exp(2 -0.5 ln N +0.25 ln E +0.1 ln D +0.4 ln B) at batches of {batch} tokens, a grid"


def test_a_run_keeps_the_peak_rate_of_its_first_start(tiny, tmp_path, caplog):
    """The law's file is edited, or longer runs are added: the trunk goes on as it began, and the record says so."""
    arch = architecture(tiny().model, vocab_size=300)
    arguments = tiny(optimizer__learning_rate=0.01)
    assert peak_learning_rate(arguments, arch) == (0.01, "given")
    RunData(peak_learning_rate=0.01 * (1 + 1e-12)).save(tmp_path / "run")  # of another processor
    assert peak_learning_rate(arguments, arch) == (0.01 * (1 + 1e-12), "given")
    assert not caplog.text
    RunData(peak_learning_rate=0.02).save(tmp_path / "run")
    assert peak_learning_rate(arguments, arch) == (0.02, "as at the first start; now 0.01 by given")
    assert "peak learning rate: 0.02, as at the first start; the law now gives 0.01" in caplog.text
    law = LearningRateLaw(2.0, -0.5, 0.25, source="a long law " * 50)
    path = str(law.save(tmp_path / "rates.json"))
    by_law = tiny(optimizer__learning_rate=None, optimizer__learning_rate_law=path)
    assert len(peak_learning_rate(by_law, arch)[1]) == 300  # a record has no longer line


@pytest.mark.parametrize("decay_all", [True, False])
@pytest.mark.parametrize("kind", ["ours", "qwen3_moe", "deepseek_v3", "gpt_oss", "llama4_text"])
def test_groups_hold_every_parameter_once_and_routers_are_exempt_from_selective_decay(tiny, kind, decay_all):
    config = model_config(tiny(), 300, 0) if kind == "ours" else config_of(EVERY[kind])
    model = build_model(config, seed=0)
    (adamw,) = build_optimizers(model, OptimizerArguments(decay_all=decay_all), torch.device("cpu"))
    held = [parameter for group in adamw.param_groups for parameter in group["params"]]
    assert len(held) == len(set(map(id, held))) == len(list(model.parameters()))
    exempt = {id(p) for group in adamw.param_groups if group["weight_decay"] == 0 for p in group["params"]}
    names = {name for name, parameter in model.named_parameters() if id(parameter) in exempt}
    routers = {name for name, _ in model.named_parameters() if name.endswith(("gate.weight", "router.weight"))}
    assert len(routers) == len(causal_model.routers(model)) > 0
    vectors = {name for name, parameter in model.named_parameters() if parameter.ndim < 2}
    assert names == (set() if decay_all else vectors | routers)


def test_final_norm_and_initialization_reach_the_model(tiny):
    chosen = model_config(tiny(model__final_norm=True, model__initialization="normal"), 300, 0)
    assert (chosen.final_norm, chosen.initialization) == (True, "normal")
    assert any(name.startswith("model.norm.") for name, _ in build_model(chosen, seed=0).named_parameters())


def test_the_utilisation_is_of_all_matrix_products(tiny, monkeypatch):
    """Weights of 4 d² (attention), 9 d² (one expert), d E (router), d V (head), and 2 d per position."""
    arguments = tiny(schedule__tokens=[1280])
    arch = architecture(arguments.model, vocab_size=300)
    flops = 6 * (13 * 64**2 + 64 * 4 + 64 * 300 + 2 * 64 * 32)
    monkeypatch.setattr(devices, "peak_flops", lambda device: 1e12)
    run = Run(arguments)
    assert run.execute() == 0
    (model,) = run.folder.glob("*/model")
    record = RunRecord.load(model)
    assert record.mfu == pytest.approx(flops * record.tokens_per_second / 1e12)
    assert (record.training_flops, record.flops_count) == (6 * arch.n_active * 1280, "formula")  # the paper's
