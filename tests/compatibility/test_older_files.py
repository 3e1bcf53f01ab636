"""Files written by earlier versions load, and mean what they meant.

`0.1.0.tar.xz` holds what one small sweep left behind when version 0.1.0 wrote it: corpus and tokenizer, token cache, a
run that trained 1,280 tokens (configuration, trunk checkpoint, model, record), a release of it in a folder store, a
fitted law with eight bootstrap draws, and sweep files. `expected.json` says what that version computed from them;
`model` is what it left after 2,560 tokens. `0.1.0-6b50b4c4.tar.xz` is from the end of November 2026, by
`write_archive.py`, and its run goes on. A new format gets an archive of its own beside these.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM

import modeling_switch_moe  # noqa: F401 (registers the Auto classes)
from hub import load_index, load_records, open_store
from scaling_law import Architecture, JointLaw, load_runs
from training import ConfigurationError, Sweep, from_dict
from training.run.inputs import check_inputs
from training.run.main import main

ARCHIVE = Path(__file__).with_name("0.1.0.tar.xz")
NOVEMBER = Path(__file__).with_name("0.1.0-6b50b4c4.tar.xz")


@pytest.fixture
def expected(tmp_path, monkeypatch):
    """The archive's content in the current folder; returns what the older version computed from it."""
    shutil.unpack_archive(ARCHIVE, tmp_path)
    monkeypatch.chdir(tmp_path)
    return json.loads(Path("expected.json").read_text())


@pytest.fixture
def november(tmp_path, monkeypatch):
    """The content of the archive of November in the current folder; returns what that version computed from it."""
    shutil.unpack_archive(NOVEMBER, tmp_path)
    monkeypatch.chdir(tmp_path)
    return json.loads(Path("expected.json").read_text())


def test_a_run_goes_on_from_its_configuration_cache_and_checkpoint(november):
    configuration = yaml.safe_load(Path("run.yaml").read_text())
    configuration["schedule"]["tokens"] = [1280, 2560]
    Path("longer.yaml").write_text(yaml.safe_dump(configuration))
    shards = {file: file.stat().st_mtime_ns for file in Path("cache").rglob("tokens-*.bin")}
    assert main(["--config", "longer.yaml"]) == 0
    assert {file: file.stat().st_mtime_ns for file in shards} == shards
    (earlier,) = load_records(Path("store/datasets/old-runs/main/runs.jsonl"))
    for tokens, expected in november["runs"].items():
        (record,) = load_records(next(Path("run").glob(f"tokens00{int(tokens) / 1000:g}K-seed0/model/run.json")))
        assert record.run_id == expected["run_id"]
        assert record.weights_sha256.keys() == expected["weights_sha256"].keys()
        for name in ("eval_loss", "train_loss"):
            assert getattr(record, name) == pytest.approx(expected[name], abs=1e-4)
    assert earlier.eval_loss == november["runs"]["1280"]["eval_loss"]
    model = AutoModelForCausalLM.from_pretrained("model").eval()
    with torch.no_grad():
        logits = model(torch.arange(24).reshape(2, 12) * 11 % 280).logits[:, -1, :4]
    torch.testing.assert_close(logits, torch.tensor(november["logits"]), atol=1e-5, rtol=0)
    runs = {
        run.name: [run.architecture.n_active, list(run.arguments.schedule.tokens)]
        for run in Sweep.load("sweep.yaml").runs
    }
    assert runs == november["sweep"]


def test_an_unfinished_run_of_a_development_version_is_refused_field_by_field(expected):
    values = yaml.safe_load(Path("run/config.yaml").read_text())
    values["schedule"]["tokens"] = [1280, 2560]
    with pytest.raises(ConfigurationError, match=r"data\.first_window: 1024, but run/config\.yaml has None"):
        check_inputs(from_dict(values))


def test_a_model_gives_the_same_logits(expected):
    model = AutoModelForCausalLM.from_pretrained("model").eval()
    with torch.no_grad():
        logits = model(torch.arange(24).reshape(2, 12) * 11 % 280).logits[:, -1, :4]
    torch.testing.assert_close(logits, torch.tensor(expected["logits"]), atol=1e-5, rtol=0)


def test_the_code_released_with_a_model_gives_the_same_logits(expected):
    """In a process of its own: the package, where it is imported, is used in place of the model's own code."""
    code = """if True:
        import json, sys, torch
        sys.modules["modeling_switch_moe"] = None
        from transformers import AutoModelForCausalLM
        model = AutoModelForCausalLM.from_pretrained("model", trust_remote_code=True).eval()
        with torch.no_grad():
            logits = model(torch.arange(24).reshape(2, 12) * 11 % 280).logits[:, -1, :4]
        print(json.dumps(logits.tolist()))
    """
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    logits = json.loads(shown.splitlines()[-1])
    assert np.array(logits) == pytest.approx(np.array(expected["logits"]), abs=1e-5)


def test_records_and_an_index_load(expected):
    folder = Path("store/datasets/old-runs/main")
    (indexed,) = load_index(open_store("store"), "old")
    assert indexed.eval_loss == expected["runs"]["1280"]["eval_loss"]
    for table in ("runs.jsonl", "runs.parquet"):
        assert load_records(folder / table) == [indexed]
        runs = load_runs(folder / table)
        assert (runs.tokens.tolist(), runs.experts.tolist()) == ([1280], [4])
        assert runs.loss.tolist() == [indexed.eval_loss]
    assert Architecture(16, n_blocks=1, n_heads=2, experts=4, vocab_size=280).n_active == indexed.n_active


def test_a_law_with_its_draws_loads(expected):
    law = JointLaw.from_pretrained("law")
    at = expected["law"]["at"]
    assert float(law.loss(*at)) == pytest.approx(expected["law"]["loss"], rel=1e-12)
    # Earlier versions had draws of the coefficients alone.
    coefficients_alone = law.replace(conditions=None)
    np.testing.assert_allclose(coefficients_alone.loss_draws(*at), expected["law"]["draws"], rtol=1e-12)
    assert law.conditions is not None
    assert law.conditions.n_runs


@pytest.mark.parametrize("name", ["grid", "paper", "rates"])
def test_a_sweep_file_means_the_same_runs(expected, name):
    sweep = Sweep.load(Path("sweeps") / f"{name}.yaml")
    found = {
        run.name: {
            "tokens": list(run.arguments.schedule.tokens),
            "d_model": run.arguments.model.d_model,
            "experts": run.arguments.model.experts,
            "seed": run.arguments.run.seed,
            "n_blocks": run.architecture.n_blocks,
            "peak": run.arguments.optimizer.learning_rate,
            "scale": run.arguments.optimizer.learning_rate_scale,
            "batch_ramp": list(run.arguments.schedule.batch_ramp),
        }
        for run in sweep.runs
    }
    assert found == expected["sweeps"][name]
