"""Presets: the paper's numbers, and each listed configuration by its name."""

import json

import yaml
from typer.testing import CliRunner

from scaling_law import published_design
from scaling_law.size import ROWS
from training import from_dict
from training import presets as presets_command
from training.configuration.reading import listing
from training.run.model import architecture, model_config

OUT = {"run": {"output_dir": "out"}}


def test_the_model_of_the_paper():
    """Architecture and initialisation of the runs, whichever default of the model's configuration may change."""
    config = model_config(from_dict({"preset": "paper", "model": {"experts": 8}, **OUT}), 50257, 50256)
    expected = {
        "norm_type": "layer_norm",
        "norm_eps": 1e-5,
        "final_norm": False,
        "tie_word_embeddings": False,
        "initialization": "paper",
        "initializer_scale": 0.1,
        "attention_dropout": 0.0,
        "attention_precision": "compute",
        "router_aux_loss_coef": 0.01,
        "router_z_loss_coef": 0.001,
        "capacity_factor": 1.0,
        "max_position_embeddings": 512,
    }
    assert {name: getattr(config, name) for name in expected} == expected
    assert config.rope_parameters["rope_theta"] == 10000
    assert config.intermediate_size in (None, 3 * 512)
    single = model_config(from_dict({"preset": "attention-fp32", **OUT}), 50257, 50256)
    assert single.attention_precision == "float32"
    assert from_dict({"preset": "learning-rate-text", **OUT}).optimizer.learning_rate_law == "paper"


def test_every_listed_configuration_has_a_name():
    presets = listing()
    assert len(presets) == 51
    assert {listed.architecture for listed in presets.values()} == {row.architecture for row in ROWS}
    assert sum(len(listed.tokens) for listed in presets.values()) == len(published_design().tokens) == 270
    for name, listed in presets.items():
        arguments = from_dict({"preset": name, **OUT})
        assert architecture(arguments.model, 50257) == listed.architecture
        assert f"paper/{arguments.model.name}" == name
        assert tuple(arguments.schedule.tokens) == listed.tokens


def test_the_list_and_a_whole_configuration_are_printed():
    def shown(*words, exit_code=0):
        result = CliRunner().invoke(presets_command.app, words)
        assert result.exit_code == exit_code
        return result.output

    assert "paper/d1408-b21-h11-E8" in shown()
    n_active = {row["preset"]: row["n_active"] for row in json.loads(shown("--json"))}
    assert len(n_active) == 51
    assert n_active["paper/d1024-E32"] == 2 * 1024 * 50257 + 13 * 16 * 1024**2
    given = from_dict({"preset": "paper/d512-E8", "run": {"output_dir": "runs/NAME"}})
    assert yaml.safe_load(shown("show", "paper/d512-E8")) == given.with_capacity_group().to_dict()
    assert yaml.safe_load(shown("show", "paper"))["model"]["capacity_group_tokens"] == 16_384
    shown("show", "nothing", exit_code=2)
