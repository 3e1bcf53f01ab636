"""The dry run: true numbers, one real step, nothing left."""

import io
import re
from pathlib import Path

import pytest
import torch
from rich.console import Console

from hub.plain.units import format_bytes, format_flops
from training.configuration.schedule import total_tokens
from training.run import dry_run as plan
from training.run.dry_run import OutOfMemory, dry_run
from training.run.main import Run, main


def output(arguments) -> str:
    console = Console(file=io.StringIO(), width=200)
    assert dry_run(arguments, console) == 0
    return console.file.getvalue()


def test_the_dry_run_says_what_the_run_will_do_and_leaves_nothing(tiny):
    arguments = tiny()
    text = output(arguments)
    n_active, n_total = 2 * 64 * 300 + 13 * 64**2, 2 * 64 * 300 + (4 + 9 * 4) * 64**2
    assert f"{n_active:,} active, {n_total:,} total" in text
    trained = 2048 + (1280 - 1024) + (2560 - 2048)
    assert f"({trained:,} tokens)" in text
    assert f"FLOPs in all {format_flops(6 * n_active * trained)}" in re.sub(" +", " ", text)
    branches = [arguments.schedule_at(1.0).branch(tokens) for tokens in (1280, 2560)]
    assert total_tokens(branches) == trained
    for b in branches:
        assert f"decays from step {b.decay_step:,} ({b.branch_point_tokens:,} tokens) to step {b.end_step:,}" in text
    assert "0.01 (given)" in text
    assert re.search(r"loss\s+5\.[0-9]+ on random ids", text)  # about ln 300
    parameters = sum(p.numel() for p in Run(arguments).session.model.parameters())
    assert format_bytes(4 * parameters) in text
    assert not Path(arguments.run.output_dir).exists()


def test_the_plan_is_there_before_a_step_is_computed(tiny, monkeypatch):
    console = Console(file=io.StringIO(), width=200)

    def too_large(*_, **__):
        assert "FLOPs in all" in console.file.getvalue()
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(plan, "train_step", too_large)
    with pytest.raises(OutOfMemory):
        dry_run(tiny(model__capacity_group_tokens=32), console)
    for part in ("capacity factor 1, counted over groups of 32 tokens", "Schedule", "Disk"):
        assert part in console.file.getvalue()


def test_the_flag(tiny, tmp_path, capsys):
    config = tmp_path / "config.yaml"
    tiny().save(config)
    assert main(["--config", str(config), "--dry-run"]) == 0
    assert "estimated for the whole run" in capsys.readouterr().out
    assert not (tmp_path / "run").exists()


def test_a_dense_model(tiny):
    text = output(tiny(model__experts=1))
    assert "estimated for the whole run" in text
    assert "routing" not in text
