"""The dry run: true numbers, one real step, nothing left."""

import re
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from hub.base.units import format_bytes, format_flops
from scaling_law import Architecture
from scaling_law.machine import training_memory
from tests.model_classes import CLASSES
from tests.training.ranks import save_configuration
from training import Run
from training.run import dry_run, memory, timing
from training.run.main import main
from training.run.model import architecture
from training.run.timing import arguments_of_steps


@pytest.fixture
def output(monkeypatch, capsys):
    """A function: what `train.py --dry-run` shows."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(arguments, status=0) -> str:
        assert main(["--config", str(save_configuration(arguments)), "--dry-run"]) == status
        assert not Path(arguments.run.output_dir).exists()
        return re.sub(" +", " ", capsys.readouterr().out)

    return run


def test_it_says_what_the_run_will_do(tiny, output):
    arguments = tiny()
    text = output(arguments)
    n_active, n_total = 2 * 64 * 300 + 13 * 64**2, 2 * 64 * 300 + (4 + 9 * 4) * 64**2
    assert f"{n_active:,} active, {n_total:,} total" in text
    trained = 2048 + (1280 - 1024) + (2560 - 2048)
    assert f"FLOPs in all {format_flops(6 * n_active * trained)} ({trained:,} tokens)" in text
    for b in arguments.branches():
        assert f"decays from step {b.decay_step:,} ({b.branch_point_tokens:,} tokens) to step {b.end_step:,}" in text
    assert "0.01 (given)" in text
    assert format_bytes(4 * sum(p.numel() for p in Run(arguments).session.model.parameters())) in text


def test_the_plan_of_a_run_that_does_not_fit_is_shown(tiny, output, monkeypatch):
    too_large = Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."))
    monkeypatch.setattr(timing, "train_step", too_large)
    text = output(tiny(model__capacity_group_tokens=32), status=3)
    for part in ("capacity factor 1, counted over groups of 32 tokens", "Schedule", "Disk"):
        assert part in text


@pytest.mark.parametrize("section", [{"d_model": 64, "experts": 1}, *CLASSES.values()], ids=["ours", *CLASSES])
def test_the_class_and_its_parameters_are_counted(tiny, output, section):
    text = output(tiny(model=section))
    run = Run(tiny(model=section))
    arch, model = run.session.architecture, run.accelerator.unwrap_model(run.session.model)
    assert f"{arch.n_active:,} active, {arch.n_total:,} total" in text
    assert f"ForCausalLM, {sum(p.numel() for p in model.parameters()):,} parameters" in text
    assert "not counted by laws norms" in text
    assert ("routing" in text) == (arch.experts > 1)
    assert re.search(r"loss 5\.[0-9]+ on random ids", text)  # about ln 300
    assert "estimated for the whole run" in text


def test_what_cannot_fit_is_refused_before_the_model_is_built(tiny, output, monkeypatch, capsys):
    arguments = tiny(run__micro_batch_sequences=4, schedule__batch_ramp=["0:8"], model__capacity_group_tokens=32)
    assert "predicted peak" in output(arguments)
    needed = training_memory(Architecture(64, 4, 1, 1, 300), 4, 32, precision="fp32", on_cpu=True).total
    monkeypatch.setattr(dry_run, "make_session", Mock(side_effect=AssertionError("the model was built")))
    monkeypatch.setattr(dry_run, "device_memory", lambda _: needed - 1)
    assert main(["--config", str(save_configuration(arguments)), "--dry-run"]) == 3
    error = " ".join(capsys.readouterr().err.split())
    assert f"run.micro_batch_sequences 4: a step needs about {format_bytes(needed)} on a device" in error
    assert "what would fit: 2, 1; or set run.gradient_checkpointing" in error
    monkeypatch.setattr(dry_run, "device_memory", lambda _: 1000)
    assert main(["--config", str(save_configuration(arguments)), "--dry-run"]) == 3
    assert "and fits: use more devices with FSDP2, or a smaller model" in " ".join(capsys.readouterr().err.split())


def test_gradients_are_summed_once_a_step_where_configuration_and_card_say_that_whole_ones_fit(monkeypatch):
    """Four bytes for each parameter that this GPU shares; whatever batches follow."""
    plugin = SimpleNamespace(reshard_after_forward=True)
    fields = {"num_processes": 8, "parallelism_config": None, "device": torch.device("cuda")}
    shards, replicas = (
        SimpleNamespace(is_fsdp2=is_fsdp2, state=SimpleNamespace(fsdp_plugin=plugin), **fields)
        for is_fsdp2 in (True, False)
    )
    model = {"d_model": 512, "experts": 8, "n_blocks": 8, "n_heads": 8}
    a = arguments_of_steps({"micro_batch_sequences": 1}, model, 64)
    arch = architecture(a.model, 512)
    after_each, once = (memory.predict(a, shards, arch, 1, 2, reduces_once).total for reduces_once in (False, True))
    assert once - after_each == pytest.approx(4 * arch.n_total * 7 / 8, rel=0.05)
    for n_bytes, fits in ((once / 0.8 + 1, True), (once / 0.8 - 1, False)):
        monkeypatch.setattr(memory, "device_memory", lambda _, n_bytes=n_bytes: n_bytes)
        assert memory.reduces_once(a, shards, arch) == fits
        longer = arguments_of_steps({"micro_batch_sequences": 1}, model, 64, passes=512)
        assert memory.reduces_once(longer, shards, arch) == fits
    monkeypatch.setattr(memory, "device_memory", lambda _: 1e15)
    assert not memory.reduces_once(a, replicas, arch)
    # Of these no prediction was validated.
    divided = a.replaced(run={"expert_parallel": 2, "tensor_parallel": 2})
    other = arguments_of_steps({"micro_batch_sequences": 1}, CLASSES["qwen3_moe"], 64)
    assert not memory.reduces_once(divided, shards, arch)
    assert not memory.reduces_once(other, shards, architecture(other.model, 512))
