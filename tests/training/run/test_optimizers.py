"""Muon for the hidden matrices and AdamW for the rest: every expert by itself, and the loop's promises."""

import re

import pytest
import torch
from accelerate import Accelerator

from hub import RunRecord
from tests.model_classes import CLASSES
from tests.training.run.test_causal_model import EVERY, config_of
from tests.training.run.test_processes import measured, replicated, results
from tests.training.run.test_run import finish, folders
from training import ConfigurationError, Run
from training.configuration.arguments import OptimizerArguments
from training.run.model import build_model
from training.run.optimizers import StackedMuon, build_optimizers, hidden_matrices

CPU = torch.device("cpu")
MUON = OptimizerArguments(name="muon")
REST = re.compile(r"embed|lm_head|norm|bias|router|gate\.weight|sinks")


@pytest.mark.parametrize("kind", [*CLASSES, "gpt_oss", "llama4_text", "mixtral"])
def test_muon_has_the_hidden_matrices_and_adamw_the_rest(kind):
    model = build_model(config_of(EVERY[kind]), seed=0)
    muon, adamw = build_optimizers(model, MUON, CPU)
    held = [p for one in (muon, adamw) for group in one.param_groups for p in group["params"]]
    assert len(held) == len(set(held)) == len(list(model.parameters()))
    names = {parameter: name for name, parameter in model.named_parameters()}
    of_adamw = {names[p] for group in adamw.param_groups for p in group["params"]}
    assert of_adamw == {name for name in names.values() if REST.search(name)}


@pytest.mark.parametrize(("kind", "pairs"), [("qwen3_moe", True), ("llama4_text", False)])
def test_gate_and_up_are_matrices_of_their_own_where_they_lie_above_one_another(kind, pairs):
    model = build_model(config_of(EVERY[kind]), seed=0)
    matrices, gate_ups = hidden_matrices(model)
    names = {parameter: name for name, parameter in model.named_parameters()}
    stacked = {name for name in names.values() if "gate_up_proj" in name}
    assert stacked
    assert {names[p] for p in gate_ups} == (stacked if pairs else set())
    assert stacked <= {names[p] for p in (*matrices, *gate_ups)}


@pytest.mark.parametrize("adjust", ["match_rms_adamw", "original"])
def test_each_expert_is_updated_as_a_matrix_by_itself(adjust):
    """As torch's Muon updates the same matrices apart."""
    draws = torch.Generator().manual_seed(0)
    plain, stack, pair = (torch.randn(*shape, generator=draws) for shape in ((6, 4), (3, 4, 8), (3, 16, 4)))
    together = [torch.nn.Parameter(tensor.clone()) for tensor in (plain, stack, pair)]
    apart = [torch.nn.Parameter(m.clone()) for m in (plain, *stack, *(half for e in pair for half in e.chunk(2)))]
    settings = {"weight_decay": 0.1, "momentum": 0.9, "adjust_lr_fn": adjust}
    one, other = StackedMuon(together[:2], together[2:], **settings), torch.optim.Muon(apart, **settings)
    for _ in range(3):
        gradients = [torch.randn(p.shape, generator=draws) for p in together]
        for parameter, gradient in zip(together, gradients, strict=True):
            parameter.grad = gradient
        whole, stacked, pairs = gradients
        for parameter, gradient in zip(apart, (whole, *stacked, *(h for e in pairs for h in e.chunk(2))), strict=True):
            parameter.grad = gradient.contiguous()
        for optimizer in (one, other):
            for group in optimizer.param_groups:
                group["lr"] = 0.02
            optimizer.step()
    assert torch.equal(together[0], apart[0])
    assert torch.equal(together[1], torch.stack(list(apart[1:4])))
    assert torch.equal(together[2].view(6, 8, 4), torch.stack(list(apart[4:])))


def test_the_rates_and_the_record_say_muon_and_the_name_too(tiny):
    run = Run(tiny(schedule__tokens=[1280], optimizer__name="muon", optimizer__muon_learning_rate=0.02))
    assert run.execute() == 0
    muon, adamw = run.session.optimizers
    assert muon.param_groups[0]["lr"] == pytest.approx(2 * adamw.param_groups[0]["lr"])
    record = RunRecord.load(folders(run.arguments)[0])
    settings = record.optimizer
    assert (settings.name, settings.muon_learning_rate, settings.muon_momentum) == ("muon", 0.02, 0.95)
    assert settings.muon_adjust_lr == "match_rms_adamw"
    assert "-muon-muonlr0.02" in record.run_id


@pytest.mark.slow
def test_two_processes_train_as_one(tiny, tmp_path):
    """Muon's iteration runs in bf16 here, and lengthens the directions that few tokens give."""
    sizes = {"run__micro_batch_sequences": 1, "model__capacity_group_tokens": 32, "schedule__tokens": [1280]}
    rates = {"optimizer__name": "muon", "optimizer__learning_rate": 0.001}
    one, two = (tiny(**sizes, **rates, run__output_dir=str(tmp_path / name)) for name in ("one", "two"))
    finish(one)
    replicated(two)
    found = measured(two)
    for at, (numbers, _) in measured(one).items():
        assert found[at][0][:2] == pytest.approx(numbers[:2], rel=2e-3), at
    (record, whole), (again, parts) = results(one)[1280], results(two)[1280]
    assert again.eval_loss == pytest.approx(record.eval_loss, abs=1e-4)
    for name, weight in whole.items():
        assert torch.linalg.vector_norm(parts[name] - weight) < 2e-3 * torch.linalg.vector_norm(weight), name


def test_sharded_matrices_are_refused(tiny, monkeypatch):
    monkeypatch.setattr(Accelerator, "is_fsdp2", property(lambda _: True))
    with pytest.raises(
        ConfigurationError, match=r"optimizer\.name: muon; FSDP2 shards matrices that Muon needs whole"
    ):
        Run(tiny(optimizer__name="muon")).execute()
