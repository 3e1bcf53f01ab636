"""The shell: answers as tables and JSON, examples in every help, exit codes."""

import json
import re
from pathlib import Path

import pytest

from scaling_law import LearningRateLaw, Throughput
from scaling_law.commands.cli import PLACES

COMMANDS = [name for commands in PLACES.values() for name in commands]


def test_the_first_screen_lists_all_commands_by_what_they_are_for(shell):
    lines = shell("--help").output.splitlines()
    panels = [match[1] for line in lines if (match := re.match(r"╭─ (.+?) ─", line))]
    assert panels == ["Options", *PLACES]
    first = [line.split()[1] for line in lines if line.startswith("│ ") and line[2] not in " -"]
    assert first == COMMANDS


@pytest.mark.parametrize("command", ["optimal", "plan", "fit"])
def test_rare_options_stand_below_the_others(shell, command):
    first, advanced = shell(command, "--help").output.split("─ Advanced ─")
    options = [re.findall(r"^│ [ *]*--", part, re.MULTILINE) for part in (first, advanced)]
    assert len(options[0]) <= 17
    assert len(options[1]) >= 8


def test_loss(shell, published):
    words = ("loss", "--n-active", "1.1B", "--tokens", "20B")
    rows = json.loads(shell(*words, "--experts", "1,4", "--json").output)["rows"]
    assert [row["loss"] for row in rows] == published.loss(1.1e9, 2e10, [1, 4]).tolist()
    assert "2.5648" in shell(*words).output


def test_optimal(shell):
    words = ("optimal", "--flops", "1e22", "--memory", "80GB", "--kv-tokens", "16k")
    data = json.loads(shell(*words, "--json").output)
    assert data["best"]["experts"] == 16
    assert data["limits"]["kv_tokens"] == 16384
    assert data["best"]["memory_bytes"] == pytest.approx(80e9)
    assert data["comparison"]["tied"] == [16, 8, 32]
    text = shell(*words).output
    assert "best" in text
    assert "E = 8, 16 and 32 cannot be told apart" in text
    integral = json.loads(shell(*words, "--integral", "--experts", "1-3", "--json").output)
    assert [row["architecture"]["experts"] for row in integral["rows"]] == [1, 2, 3]


def test_optimal_by_another_law_of_learning_rates(shell, tmp_path):
    words = ("optimal", "--flops", "1e21", "--experts", 8, "--json", "--learning-rate-law")
    file = LearningRateLaw.published("paper").save(tmp_path / "rates.json")
    rates = [json.loads(shell(*words, law).output)["best"]["learning_rate"] for law in ("code", "paper", file)]
    assert rates[0] != rates[1] == rates[2]


def test_reach(shell):
    rows = json.loads(shell("reach", "--loss", "2.0", "--memory", "24GB", "--json").output)["rows"]
    assert [row["trusted"] for row in rows[:3]] == [True, True, False]
    assert rows[-1]["flops"] is None
    words = ("reach", "--loss", "2.15", "--flops", "1e22", "--experts", 8)
    data = json.loads(shell(*words, "--json").output)
    assert data["rows"][0]["n_active"] == pytest.approx(2.54e9, rel=1e-2)
    assert any("D/N 259" in warning for warning in data["warnings"])
    output = shell(*words).output
    assert all(text in output for text in ("27.5 GB", "2.54B", "657B"))


def test_plan(shell, tmp_path, monkeypatch):
    file = tmp_path / "new" / "run.yaml"
    words = ("plan", "--flops", "1e20", "--experts", "8", "--branches", 2, "-o", file)
    data = json.loads(shell(*words, "--json").output)
    assert data["architecture"]["experts"] == 8
    assert data["written"] == [str(file)]
    assert file.read_text().startswith("# ")
    file.write_text("mine")
    for more in ((), ("--force",), ("--json",)):  # --force is about the range guard
        refused = shell(*words, *more)
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert f"{file}: the file exists; --overwrite replaces it" in refused.stderr
        assert file.read_text() == "mine"
    assert f"wrote {file}\naccelerate launch train.py" in shell(*words, "--overwrite").stdout
    assert "model:" in file.read_text()

    def full(self, *_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    result = shell(*words, "--overwrite")
    assert (result.exit_code, result.stdout) == (3, "")  # the machine gave out
    assert "No space left" in result.stderr


def test_figures_of_a_file_or_of_a_folder(shell, tmp_path):
    file, words = tmp_path / "memory.svg", ("--flops", "1e21")
    assert "a folder for --suffix png" in shell("figures", file, *words, "--suffix", "png").stderr
    assert not file.exists()
    for to in ((file,), (tmp_path / "out", "--suffix", "svg")):
        (path,) = json.loads(shell("figures", *to, *words, "--json").output)["written"]
        assert "<svg" in Path(path).read_text()[:1000]


@pytest.mark.parametrize("integral", [False, True])
def test_a_width_that_optimal_prints_goes_into_every_other_command(shell, integral):
    words = ("optimal", "--flops", "1e21", "--memory", "24GB", "--experts", "8", *["--integral"] * integral)
    row = json.loads(shell(*words, "--json").output)["best"]
    printed = next(line.split("│")[2].strip() for line in shell(*words).output.splitlines() if "│" in line)
    assert printed == f"{row['d_model']:.0f}"
    for width in (printed, row["d_model"]):  # as the table and as JSON has it
        run = ("--law", "public:ludziejewski", "--tokens", row["tokens"], "--batch-tokens", 512 * 512)
        rate = json.loads(shell("learning-rate", "--d-model", width, "--experts", "8", *run, "--json").output)
        assert rate["learning_rate"] == pytest.approx(row["learning_rate"], rel=1e-3)
        assert rate["learning_rate_interval"] == pytest.approx(row["learning_rate_interval"], rel=1e-3)
        assert rate["n_total"] == pytest.approx(row["n_total"], rel=1e-3)
        scaled = shell("scale-out", width, "--gpus", "8")
        assert scaled.exit_code == 0
        nearest = 64 * round(row["d_model"] / 64)
        assert f"d_model {nearest}," in scaled.stdout
        assert (f"is not a multiple of 64: using {nearest}" in scaled.stderr) == (not integral)
        runs = ("next-runs", "--flops", "1e21", "--ask", "loss:1e9,2e10,8", "--max-runs", "1", "--widths", width)
        assert shell(*runs, "--warmup", "130M").exit_code == 0


def test_help_says_what_a_default_means(shell):
    for command in ("optimal", "plan", "reach", "next-runs"):
        text = " ".join(shell(command, "--help").output.replace("│", " ").split())
        assert "--kv-tokens TOKENS Tokens in the KV cache: 16k is 16,384. [default: (no cache)]" in text
        assert "[default: 0.0]" not in text.partition("--inference-tokens")[2][:200]


def test_a_law_that_rises_for_some_experts_answers_for_the_others(shell, published, tmp_path):
    """As the fit of a tiny sweep may come out: the exponent of N is positive for E = 1 and 2, or that of D for all."""
    published.replace(alpha=0.12, gamma=-0.09).save_pretrained(tmp_path / "some")
    words = ("--flops", "1e21", "--vocab-size", 1000, "--force")
    result = shell("optimal", "--law", tmp_path / "some", *words)
    assert result.exit_code == 0
    assert "E = 2 is left out: the loss does not fall with N_act (exponent +0.0" in result.stdout
    data = json.loads(shell("optimal", "--law", tmp_path / "some", *words, "--json").stdout)
    assert [row["experts"] for row in data["rows"]] == [4, 8, 16, 32]
    assert set(data["experts_without_optimum"]) == {"1", "2"}
    published.replace(beta=0.3).save_pretrained(tmp_path / "none")
    result = shell("optimal", "--law", tmp_path / "none", *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "no compute optimum for any of these experts" in result.stderr


def test_speedup(shell):
    found = json.loads(shell("speedup", "--flops", "1e21", "--experts", "8", "--json").stdout)
    assert found["factor"] == pytest.approx(1.8348, abs=1e-4)
    assert [row["size"] for row in found["rows"]] == ["best size", "same N_act"]
    assert "Asymptote of E = 1: 1.364" in shell("speedup", "--flops", "1e21").stdout


def test_break_even(shell):
    rows = json.loads(shell("speedup", "--n-active", "1e8,1e9", "--experts", 8, "--json").stdout)["rows"]
    assert [row["tokens"] for row in rows] == pytest.approx([3.70e8, 9.47e8], rel=0.01)
    assert "947M" in shell("speedup", "--n-active", "1e9", "--experts", 8).stdout


def test_hours(shell, published, tmp_path):
    words = ("--gpu", "h100", "--gpus", 8)
    data = json.loads(shell("optimal", "--hours", 72, *words, "--price", 2.5, "--experts", "1,8", "--json").stdout)
    assert data["budget"]["money"] == pytest.approx(1440)
    assert data["best"]["experts"] == 1
    assert data["equal_flops"]["best"]["experts"] == 8
    assert data["reordered"] in data["warnings"]
    table = published.optimal(hours=72, gpus=8, throughput=Throughput.assumed("h100", mfu=0.3), experts=[8])
    given = json.loads(shell("optimal", "--hours", 72, *words, "--mfu", 0.3, "--experts", 8, "--json").stdout)
    assert given["best"]["loss"] == table.best.loss
    row = json.loads(shell("reach", "--loss", data["best"]["loss"], *words, "--experts", 1, "--json").stdout)["rows"][
        0
    ]
    assert row["hours"] == pytest.approx(72)
    least = json.loads(shell("reach", "--loss", 2.5, "--hours", 72, *words, "--experts", 1, "--json").stdout)
    assert least["rows"][0]["memory_bytes"] < 1e9
    made = json.loads(shell("plan", "--hours", 72, *words, "--experts", 8, "--json").stdout)
    assert made["time"]["hours"] == pytest.approx(72, rel=1e-3)
    sped = json.loads(shell("speedup", "--flops", "1e21", *words, "--json").stdout)
    assert sped["rows"][0]["time"] < 1 < sped["rows"][0]["compute"]
    limited = json.loads(shell("plan", "--flops", 3e22, *words, "--experts", 32, "--json").stdout)
    assert "takes more memory than 8 × NVIDIA H100 SXM have" in limited["warnings"][0]


def test_scale_out(shell):
    made = json.loads(shell("scale-out", 2304, "--gpus", "8,64", "--json").stdout)
    assert [(row["gpus"], row["limited_by"]) for row in made["rows"]] == [(8, "compute"), (64, "compute")]
    assert made["rows"][1]["expert_parallel_bytes"] < 0.1 * made["rows"][1]["all_gather_bytes"]
