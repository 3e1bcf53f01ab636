"""Families in the loop: from `plan --like` to a trained model, its record, a law of such records, and back.

The families are small configurations of classes with experts, whose vocabulary is bytes.
"""

import itertools
import json
import math
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from transformers import AutoConfig
from typer.testing import CliRunner

from hub import RunRecord, load_index, open_store, run_folders
from scaling_law import Architecture, JointLaw, load_runs
from scaling_law.commands.cli import app
from scaling_law.formulas.conditions import Conditions, FittedRange
from scaling_law.size.family import BALANCED_BY_BIAS, DENSE_TWINS, Family
from tests.conftest import free_port, sweep
from tests.guides import ROOT
from training import from_dict
from training.configuration.model_classes import ModelClassArguments
from training.data.text import TextSource
from training.data.tokenizer import train_tokenizer
from training.demo import corpus as documentation
from training.run.main import main

VOCABULARY = 257
SHAPE = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": VOCABULARY,
    "tie_word_embeddings": False,
}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 64, "intermediate_size": 192}
ALL_EXPERTS = {"num_experts_per_tok": 2, "intermediate_size": 64}
SHARED = {"n_routed_experts": 8, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}
LATENT = {"q_lora_rank": 32, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16}
WITH_LATENTS = {name: value for name, value in SHAPE.items() if name != "head_dim"} | {"num_key_value_heads": 4}
# Model types → config.json of a small model with eight experts.
TOYS = {
    "qwen3_moe": SHAPE | EXPERTS | {"num_experts": 8, "norm_topk_prob": True},
    "olmoe": SHAPE | ALL_EXPERTS | {"num_experts": 8, "num_key_value_heads": 4, "norm_topk_prob": False},
    "deepseek_v3": WITH_LATENTS | EXPERTS | SHARED | LATENT | {"routed_scaling_factor": 2.5},
    "mixtral": SHAPE | ALL_EXPERTS | {"num_local_experts": 8},
    "gpt_oss": SHAPE | ALL_EXPERTS | {"num_local_experts": 8, "sliding_window": 16},
    "qwen2_moe": SHAPE | EXPERTS | {"num_experts": 8, "shared_expert_intermediate_size": 128},
    "glm4_moe": SHAPE | EXPERTS | SHARED | {"use_qk_norm": True},
    "granitemoe": SHAPE | ALL_EXPERTS | {"num_local_experts": 8},
}
TOYS = {kind: {"model_type": kind, **config} for kind, config in TOYS.items()}
LOOPS = ("olmoe", "qwen3_moe", "deepseek_v3")

# A law of losses per byte whose optimal models are small, so that two budgets plan two widths.
FIRST_LAW = JointLaw.published().replace(
    **{"a": 24.0, "alpha": -0.4, "b": 5.0, "beta": -0.4, "c": 0.2},
    conditions=Conditions(
        "made for this test",
        vocab_size=VOCABULARY,
        ranges=tuple(FittedRange(e, 9, (1e5, 1e6), (1e3, 1e6), (1e-3, 1.0), (1e9, 1e12)) for e in (None, 1.0, 16.0)),
    ),
)
BUDGETS = ("1e10", "1.5e11")
# Fields of a run record that an architecture has, too.
COUNTS = ("d_model", "n_blocks", "n_heads", "n_kv_heads", "experts", "experts_per_token", "d_expert")
COUNTS += ("shared_experts", "dense_blocks", "experts_equivalent", "granularity", "vocab_size", "n_active", "n_total")


@pytest.fixture(scope="module")
def byte_tokenizer(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bytes")
    train_tokenizer(TextSource(str(corpus)).documents(), VOCABULARY, folder, progress=False)
    return folder


@pytest.fixture(scope="module")
def english(byte_tokenizer, token_caches, tmp_path_factory):
    """The section `data` for a text whose losses follow a power law: that of the demo."""
    folder = tmp_path_factory.mktemp("english") / "documentation"
    documentation.build(folder, max_bytes=500_000)
    return {"dataset": str(folder), "validation_split": "validation", **_tokens(byte_tokenizer, token_caches)}


@pytest.fixture
def text(corpus, byte_tokenizer, token_caches):
    """The section `data` for a few made-up sentences."""
    return {"dataset": str(corpus), "validation_split": "validation", **_tokens(byte_tokenizer, token_caches)}


def _tokens(tokenizer, caches):
    return {"tokenizer": str(tokenizer), "cache_dir": str(caches)}


def plan_two_steps(kind):
    """Plan two steps of a small model on one GPU."""
    family = Family.read(TOYS[kind])
    n_active = family.architecture(64, family.expansion(8)).n_active
    run = {"batch": "0:4", "sequence_length": 64, "gpu": "h100", "gpus": 1, "learning_rate": 0.01}
    return FIRST_LAW.plan(2.5 * 6 * n_active * 4 * 64, [8], like=TOYS[kind], **run)


def assert_same_counts(record, architecture):
    """Every count of a record is that of the architecture."""
    assert {name: getattr(record, name) for name in COUNTS} == {name: getattr(architecture, name) for name in COUNTS}


@pytest.mark.parametrize("kind", sweep(TOYS, fast=["qwen3_moe", "deepseek_v3"]))
def test_a_planned_model_trains(kind, text, tmp_path):
    plan = plan_two_steps(kind)
    sections = plan.configuration("two-steps")
    assert sections["model"]["type"] == kind
    assert ("balance" in sections["model"]) == (kind in BALANCED_BY_BIAS)
    sections["run"].update(output_dir=str(tmp_path / "run"), precision="fp32", eval_sequences=8, progress=False)
    sections["data"].update(text)
    arguments = from_dict(sections)
    arguments.save(tmp_path / "run.yaml")
    assert main(["--config", str(tmp_path / "run.yaml")]) == 0
    (record,) = map(RunRecord.load, run_folders(tmp_path / "run"))
    assert (record.status, record.steps, record.tokens) == ("final", 2, plan.tokens)
    assert math.isfinite(record.train_loss)
    assert math.isfinite(record.eval_loss)
    assert record.model_type == kind
    assert_same_counts(record, plan.architecture)
    assert record.training_flops == pytest.approx(plan.architecture.training_flops(record.tokens, 64), rel=2e-3)


@pytest.mark.parametrize("kind", sweep(TOYS, fast=["qwen3_moe"]))
def test_accelerate_launches_a_planned_model(kind, byte_tokenizer, tmp_path):
    """The printed line as a shell runs it, in the folder of train.py, on a CPU."""
    plan = plan_two_steps(kind)
    (tmp_path / "run.yaml").write_text(plan.to_yaml())
    line = f"{plan.launch(str(tmp_path / 'run.yaml'))} --dry-run --data.tokenizer {byte_tokenizer}"
    line = line.replace("accelerate launch", f"accelerate launch --main_process_port {free_port()}")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    settings = {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "COLUMNS": "200", "PYTHONPATH": str(ROOT)}
    settings |= {"PATH": path, "HF_HOME": str(tmp_path / "home")}
    done = subprocess.run(["bash", "-c", line], cwd=ROOT, env=os.environ | settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    output = re.sub(" +", " ", done.stdout)
    a = plan.architecture
    assert f"{a.n_active:,} active, {a.n_total:,} total" in output
    assert f"d_model {a.d_model}, {a.blocks} blocks, {a.heads} heads" in output
    assert f"vocabulary {VOCABULARY}" in output
    assert not (ROOT / plan.configuration()["run"]["output_dir"]).exists()


def shell(line):
    """Run a line of `scaling-law` as typed, and return what it prints."""
    program, *words = shlex.split(line)
    assert program == "scaling-law"
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    return done.output


def train(config, text, *flags):
    """Run `train.py` with this configuration on the text."""
    words = ["--config", config, "--run.precision", "fp32", "--run.eval_sequences", "16", "--run.progress", "false"]
    for name, value in text.items():
        words += [f"--data.{name}", value]
    assert main([*words, *flags]) == 0


def train_planned(kind, flops, experts, data):
    """Plan in the shell, look at the run, train it and release it into a folder; the architecture that was planned."""
    like = f"--like {kind}.json --law first-law --flops {flops} --experts {experts} --learning-rate 0.01"
    gpu = "--gpu h100 --gpus 1 --batch 0:8 --sequence-length 64"
    line = f"scaling-law plan {like} {gpu} --branches 3 --sweep toy"
    config = f"{flops}-{experts}.yaml"
    shell(f"{line} -o {config}")
    plan = json.loads(shell(f"{line} --json"))
    sections = yaml.safe_load(Path(config).read_text())
    assert sections["model"] == plan["configuration"]["model"]
    output = Path(sections["run"]["output_dir"])
    train(config, data, "--dry-run")
    assert not output.exists()
    train(config, data, "--push-to-hub", "releases")
    architecture = Architecture(**plan["architecture"])
    assert (architecture.n_active, architecture.n_total) == (plan["n_active"], plan["n_total"])
    records = [*map(RunRecord.load, run_folders(output))]
    assert sorted(record.tokens for record in records) == plan["branches"]
    for record in records:
        assert_same_counts(record, architecture)
    return architecture


@pytest.mark.slow
@pytest.mark.parametrize("kind", LOOPS)
def test_the_loop_closes(kind, english, tmp_path, monkeypatch):
    """From a config.json to runs of two widths and several numbers of experts, to a law of these, and its answer.

    Where a class has the blocks of the family without experts, dense models are among the runs.
    """
    monkeypatch.chdir(tmp_path)
    Path(f"{kind}.json").write_text(json.dumps(TOYS[kind]))
    FIRST_LAW.save_pretrained("first-law")
    family = Family.read(f"{kind}.json")
    numbers = [1, 8, 16] if family.has_dense_twin else [8, 16]
    planned = {}
    for flops in BUDGETS:
        for experts in numbers:
            architecture = train_planned(kind, flops, experts, english)
            planned[architecture.d_model, experts] = architecture
    assert {*planned} == {*itertools.product((64, 128), numbers)}

    index = "releases/datasets/toy-runs/main"
    records = load_index(open_store("releases"), "toy")
    assert len(records) == 3 * len(planned)
    for record in records:
        assert record.model_type == (kind if record.experts > 1 else DENSE_TWINS[kind])
        assert_same_counts(record, planned[record.d_model, record.experts])
    runs = load_runs(index)
    for size in ("n_active", "n_total"):
        assert {*runs[size].tolist()} == {getattr(architecture, size) for architecture in planned.values()}
    assert {*runs.experts.tolist()} == {architecture.experts_equivalent for architecture in planned.values()}

    shell(f"scaling-law fit {index} --prior published -o mine")
    experts = ",".join(map(str, numbers))
    line = f"scaling-law optimal --law mine --like {kind}.json --flops {BUDGETS[-1]} --experts {experts}"
    assert f"like {kind}.json" in shell(line)
    best = json.loads(shell(f"{line} --json"))["best"]
    rung = family.architecture(best["d_model"], best["experts"])
    assert planned.get((rung.d_model, rung.experts), rung) == rung
    assert Architecture(**best["architecture"]) == rung
    counts = best["n_active"], best["n_total"], best["experts"]
    assert counts == (rung.n_active, rung.n_total, rung.experts_equivalent)


@pytest.mark.parametrize("kind", sweep(TOYS, fast=["qwen3_moe", "mixtral"]))
def test_a_config_that_its_class_has_saved_is_the_same_family(kind):
    """Such a file has every field of the class, some under other names, and the base of RoPE in `rope_parameters`."""
    saved = AutoConfig.for_model(**TOYS[kind], rope_theta=54321.0).to_dict()
    family = Family.read(json.loads(json.dumps(saved)))
    for experts in [1] * family.has_dense_twin + [8]:
        e = float(family.expansion(experts))
        planned = family.architecture(128, e)
        assert planned == Family.read(TOYS[kind]).architecture(128, e)
        section = ModelClassArguments(**family.model_section(128, e))
        assert section.model(VOCABULARY).architecture == planned
        assert section.config(VOCABULARY).rope_parameters["rope_theta"] == 54321.0
