"""The shell: answers as tables and JSON, examples in every help, exit codes."""

import json
import re

import pytest
import yaml
from pydantic_core import to_json

from scaling_law import Architecture, JointLaw, LearningRateLaw, Throughput, compare, scale_out
from scaling_law.commands.cli import PLACES
from scaling_law.size.family import Family
from tests.conftest import sweep
from tests.scaling_law.configs import QWEN3_MOE

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


LAW, GPUS = JointLaw.published(), {"gpu": "h100", "gpus": 8}
QWEN3 = Family.read("qwen3-30b-a3b")
ANSWERS = {  # what is typed → the same in Python
    "optimal --flops 1e22 --memory 80GB --kv-tokens 16k": lambda: LAW.optimal(1e22, memory=80e9, kv_tokens=16_384),
    "optimal --flops 1e22 --integral --experts 1-3": lambda: LAW.optimal(1e22, [1, 2, 3], integral=True),
    "optimal --hours 72 --gpu h100 --gpus 8 --price 2.5 --experts 1,8": (
        lambda: LAW.optimal(hours=72, **GPUS, price=2.5, experts=[1, 8])
    ),
    "optimal --hours 72 --gpu h100 --gpus 8 --mfu 0.3": (
        lambda: LAW.optimal(hours=72, gpus=8, throughput=Throughput.assumed("h100", mfu=0.3))
    ),
    "reach --loss 2.0 --memory 24GB": lambda: LAW.reach(2.0, memory="24GB"),
    "reach --loss 2.15 --flops 1e22 --experts 8": lambda: LAW.reach(2.15, 8, flops=1e22),
    "reach --loss 2.6 --gpu h100 --gpus 8 --experts 1": lambda: LAW.reach(2.6, [1], **GPUS),
    "reach --loss 2.5 --hours 72 --gpu h100 --gpus 8 --experts 8": lambda: LAW.reach(2.5, 8, hours=72, **GPUS),
    "plan --hours 72 --gpu h100 --gpus 8 --experts 8": lambda: LAW.plan(hours=72, experts=8, **GPUS),
    "plan --flops 3e22 --gpu h100 --gpus 8 --experts 32": lambda: LAW.plan(3e22, 32, **GPUS),
    "speedup --flops 1e21 --gpu h100 --gpus 8": lambda: LAW.speedup(8, flops=1e21, **GPUS),
    "speedup --flops 1e22 --experts 32 --baseline 4": lambda: LAW.speedup(32, 4, flops=1e22),
    "speedup --flops 1e22 --experts 8 --match memory": lambda: LAW.speedup(8, flops=1e22, match="memory"),
    "speedup --n-active 1e8,1e9 --experts 2-8": lambda: LAW.speedup([2, 4, 8], n_active=[1e8, 1e9]),
    "optimal --hours 3d --gpu h100 --gpus 8 --experts 8": lambda: LAW.optimal(hours="72h", experts=[8], **GPUS),
    "scale-out 2304 --gpus 8,64": lambda: scale_out(Architecture(2304, 8), (8, 64)),
    "scale-out 1024 --like qwen3-30b-a3b --experts 64 --gpus 8": lambda: scale_out(QWEN3.architecture(1024, 8), [8]),
    "scale-out 1000 --like qwen3-30b-a3b": lambda: scale_out(QWEN3.architecture(1024, 16)),
    "compare --flops 1e21 --laws chinchilla,abnar": lambda: compare(1e21, laws=["chinchilla", "abnar"]),
}


# Asked twice, it takes seconds; --loss, --hours and --gpu are each read by a shorter question.
LONG = "reach --loss 2.5 --hours 72 --gpu h100 --gpus 8 --experts 8"


@pytest.mark.parametrize("words", sweep(ANSWERS, [words for words in ANSWERS if words != LONG]))
def test_the_shell_answers_what_python_does(shell, words):
    answer = json.loads(to_json(ANSWERS[words]().to_dict(), inf_nan_mode="null"))
    typed = json.loads(shell(*words.split(), "--json").stdout)
    assert {name: typed[name] for name in answer} == answer


def test_scale_out_reads_a_model(shell, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_MOE))
    words = ("scale-out", tmp_path, "--gpus", "64", "--tokens", "1T", "--price", 2, "--batch", "2M")
    typed = json.loads(shell(*words, "--json").stdout)
    answer = scale_out(tmp_path, [64], tokens=1e12, price=2, batch="2M")
    assert typed == json.loads(to_json(answer.to_dict(), inf_nan_mode="null"))
    assert typed["rows"][0]["money"] == pytest.approx(2 * 64 * typed["rows"][0]["hours"])
    text = shell(*words).stdout
    assert "1T tokens: " in text
    assert "hours" in text


def test_optimal_by_another_law_of_learning_rates(shell, tmp_path):
    words = ("optimal", "--flops", "1e21", "--experts", 8, "--json", "--learning-rate-law")
    file = LearningRateLaw.published("paper").save(tmp_path / "rates.json")
    rates = [json.loads(shell(*words, law).output)["best"]["learning_rate"] for law in ("code", "paper", file)]
    assert rates[0] != rates[1] == rates[2]


def test_a_plan_without_a_rate_writes_nothing(shell, tmp_path):
    """1e12 FLOPs buy a model 300 times smaller than any that the law of rates saw; its rate would be 0.13."""
    file = tmp_path / "run.yaml"
    words = ("plan", "--flops", "1e12", "--vocab-size", 256, "--force", "-o", file)
    refused = shell(*words, "--json")
    assert (refused.exit_code, file.exists()) == (1, False)
    assert "--learning-rate is needed: without one there is no YAML for train.py" in refused.stderr
    data = json.loads(refused.stdout)
    assert (data["learning_rate"], data["configuration"], data["written"]) == (None, None, [])
    assert any(warning.startswith("no learning rate: too far outside") for warning in data["warnings"])
    assert shell(*words, "--learning-rate", 0.005).exit_code == 0
    assert "learning_rate: 0.005" in file.read_text()
    text = shell("optimal", "--flops", "1e12", "--vocab-size", 256, "--force")
    assert "peak LR:" not in text.output
    rows = json.loads(shell("optimal", "--flops", "1e12", "--vocab-size", 256, "--force", "--json").stdout)["rows"]
    assert {row["learning_rate"] for row in rows} == {None}


def test_plan(shell, tmp_path, monkeypatch):
    file = tmp_path / "new" / "run.yaml"
    words = ("plan", "--flops", "1e20", "--experts", "8", "--branches", 2, "-o", file)
    data = json.loads(shell(*words, "--json").output)
    assert data["architecture"]["experts"] == 8
    assert data["written"] == [str(file)]
    assert data["configuration"] == yaml.safe_load(file.read_text())
    assert file.read_text().startswith("# ")
    file.write_text("mine")
    for more in ((), ("--force",), ("--json",)):  # --force is about the range guard
        refused = shell(*words, *more)
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert f"{file}: the file exists; --overwrite replaces it" in refused.stderr
        assert file.read_text() == "mine"
    assert f"wrote {file}\naccelerate launch train.py" in shell(*words, "--overwrite").stdout
    on_gpus = (*words, "--gpu", "h100", "--gpus", 64, "--overwrite")
    line = json.loads(shell(*on_gpus, "--json").output)["launch"]
    assert line.startswith("accelerate launch --config_file training/configs/accelerate/multi_node_")
    assert line.endswith(f" train.py --config {file}")
    each = "on every machine, with RANK 0, 1, … and ADDRESS that of the first:"
    assert f"wrote {file}\n{each}\n{line}\n" in shell(*on_gpus).stdout
    assert "model:" in (before := file.read_text())

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hub.base.atomic.os.fsync", full)
    result = shell("plan", "--flops", "1e21", "-o", file, "--overwrite")
    assert (result.exit_code, result.stdout) == (3, "")  # the machine failed
    assert "the disk is full" in result.stderr
    assert file.read_text() == before


@pytest.mark.parametrize("integral", [False, True])
def test_a_width_that_optimal_prints_goes_into_every_other_command(shell, integral):
    words = ("optimal", "--flops", "1e21", "--memory", "24GB", "--experts", "8", *["--integral"] * integral)
    row = json.loads(shell(*words, "--json").output)["best"]
    lines = shell(*words, "--verbose").output.splitlines()
    printed = next(line.split("│")[2].strip() for line in lines if "│" in line)
    assert printed == f"{row['d_model']:.0f}"
    for width in (printed, row["d_model"]):  # as the table and as JSON has it
        run = ("--law", "public:ludziejewski", "--tokens", row["tokens"])
        rate = json.loads(shell("learning-rate", "--d-model", width, "--experts", "8", *run, "--json").output)
        assert (rate["batch_tokens"], rate["batch_source"]) == (row["learning_rate_batch"], "step_law")
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


@pytest.mark.parametrize(("flops", "source"), [("1e19", "paper"), ("1e22", "step_law")])
def test_a_rate_without_a_batch_is_that_of_optimal(shell, flops, source):
    row = JointLaw.published().optimal(flops, 8, integral=True).best
    words = ("learning-rate", "--d-model", row.architecture.d_model, "--experts", 8, "--tokens", row.tokens)
    answer = json.loads(shell(*words, "--json").output)
    assert (answer["batch_tokens"], answer["batch_source"]) == (row.learning_rate_batch, source)
    assert answer["learning_rate"] == pytest.approx(row.learning_rate, rel=1e-12)
    law = LearningRateLaw.named("public:ludziejewski")
    assert law.learning_rate(row.architecture, row.tokens) == pytest.approx(row.learning_rate, rel=1e-12)


def test_help_says_what_a_default_means(shell):
    for command in ("optimal", "plan", "reach", "next-runs"):
        text = " ".join(shell(command, "--help").output.replace("│", " ").split())
        assert "--kv-tokens CONTEXT Tokens in the KV cache: 16k is 16,384. [default: no cache]" in text
        assert "[default: 0.0]" not in text.partition("--inference-tokens")[2][:200]


def test_a_law_that_rises_for_some_experts_answers_for_the_others(shell, published, tmp_path):
    """As the fit of a tiny sweep may come out: the exponent of N is positive for E = 1 and 2, or that of D for all."""
    published.replace(alpha=0.12, gamma=-0.09).save_pretrained(tmp_path / "some")
    words = ("--flops", "1e21", "--vocab-size", 1000, "--force")
    assert "left out: E = 1, E = 2" in shell("optimal", "--law", tmp_path / "some", *words).stdout.replace("\n", " ")
    result = shell("optimal", "--law", tmp_path / "some", *words, "--verbose")
    assert result.exit_code == 0
    assert "E = 2 is left out: the loss does not fall with N_act (exponent +0.0" in result.stdout
    data = json.loads(shell("optimal", "--law", tmp_path / "some", *words, "--json").stdout)
    assert [row["experts"] for row in data["rows"]] == [4, 8, 16, 32]
    assert set(data["experts_without_optimum"]) == {"1", "2"}
    published.replace(beta=0.3).save_pretrained(tmp_path / "none")
    result = shell("optimal", "--law", tmp_path / "none", *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "no compute optimum for any of these experts" in result.stderr
