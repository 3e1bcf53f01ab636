"""Presets: the paper's numbers, each listed configuration by its name, and what wins over what."""

import json

import pytest
import yaml
from typer.testing import CliRunner

from modeling_switch_moe import SwitchMoeConfig
from scaling_law.size.recipe import ROWS, published_design
from training import presets as presets_command
from training.configuration import presets
from training.configuration.arguments import ConfigurationError
from training.configuration.reading import from_dict, parse_command_line
from training.run.step import architecture, build_optimizer, model_config, peak_learning_rate

OUT = {"run": {"output_dir": "out"}}


def paper(**sections):
    return from_dict({"preset": "paper", **OUT, **sections})


def test_the_model_of_the_paper():
    """Architecture and initialisation of the runs, whichever default of the model's configuration may change."""
    config = model_config(paper(), 50257, 50256)
    expected = {
        "norm_type": "layer_norm",
        "norm_eps": 1e-5,
        "final_norm": False,
        "tie_word_embeddings": False,
        "initialization": "paper",
        "initializer_scale": 0.1,
        "attention_dropout": 0.0,
        "attention_precision": "float32",
        "router_aux_loss_coef": 0.01,
        "router_z_loss_coef": 0.001,
        "capacity_factor": 1.0,
        "max_position_embeddings": 512,
    }
    assert {name: getattr(config, name) for name in expected} == expected
    assert config.rope_parameters["rope_theta"] == 10000
    assert config.intermediate_size in (None, 3 * 512)


def test_every_listed_configuration_has_a_name():
    listing = presets.listing()
    assert len(listing) == 51
    assert {listed.architecture for listed in listing.values()} == {row.architecture for row in ROWS}
    assert sum(len(listed.tokens) for listed in listing.values()) == len(published_design().tokens) == 270
    for name, listed in listing.items():
        arguments = from_dict({"preset": name, **OUT})
        assert architecture(arguments.model, 50257) == listed.architecture
        assert f"paper/{arguments.model.name}" == name
        assert tuple(arguments.schedule.tokens) == listed.tokens


@pytest.mark.parametrize(
    ("name", "shape", "tokens"),
    [
        ("paper/d512-E32", (512, 32, 8, 8), [5 * 10**8, 10**9, 2 * 10**9]),
        ("paper/d1408-b21-h11-E8", (1408, 8, 21, 11), [5 * 10**8, *(k * 10**9 for k in (1, 2, 4, 8, 16))]),
        ("paper/d2304-E1", (2304, 1, 36, 36), [98 * 10**7, *(k * 10**8 for k in (14, 20, 28, 55, 92))]),
    ],
)
def test_listed_configurations_are_those_of_the_paper(name, shape, tokens):
    arguments = from_dict({"preset": name, **OUT})
    arch = architecture(arguments.model, 50257)
    assert (arch.d_model, arch.experts, arch.n_blocks, arch.n_heads) == shape
    assert arguments.schedule.tokens == tokens


def test_peak_learning_rates_are_those_of_the_authors_code():
    """AdamW's peak for d = 512, 1024 and 1664 at E = 1, as computed from their code; E enters by its fourth root."""
    for width, expected in [(512, 1.70e-3), (1024, 5.43e-4), (1664, 2.00e-4)]:
        arguments = from_dict({"preset": f"paper/d{width}-E1", **OUT})
        rate, _ = peak_learning_rate(arguments.optimizer, architecture(arguments.model, 50257))
        assert rate == pytest.approx(expected, rel=3e-3)
    text = from_dict({"preset": ["paper/d512-E1", "learning-rate-text"], **OUT})
    rate, _ = peak_learning_rate(text.optimizer, architecture(text.model, 50257))
    assert rate == pytest.approx(4.18e-3, rel=3e-3)


def test_selective_decay_exempts_norms_and_routers(tiny):
    import torch

    from training.run.step import build_model

    arguments = tiny()
    model = build_model(model_config(arguments, 300, 0), 0)
    chosen = from_dict({"preset": "selective-decay", **OUT}).optimizer
    decayed, exempt = build_optimizer(model, chosen, torch.device("cpu")).param_groups
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert (decayed["weight_decay"], exempt["weight_decay"]) == (0.1, 0.0)
    assert all("norm" in names[id(p)] or "router" in names[id(p)] for p in exempt["params"])
    assert not any("norm" in names[id(p)] or "router" in names[id(p)] for p in decayed["params"])


def test_the_precision_of_attention_reaches_the_model():
    chosen = from_dict({"preset": "attention-bf16", **OUT})
    assert model_config(chosen, 50257, 50256).attention_precision == "compute"
    assert SwitchMoeConfig().attention_precision == "float32"


def test_presets_lose_to_yaml_and_yaml_to_flags(tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text("preset: paper/d512-E8\nrun: {output_dir: out}\nmodel: {experts: 4}\nschedule: {tokens: [1B]}\n")
    from_file = parse_command_line(["--config", str(config)])
    assert (from_file.model.d_model, from_file.model.experts, from_file.schedule.tokens) == (512, 4, [10**9])
    flags = ["--preset", "paper/d1024-E8", "selective-decay", "--schedule.tokens", "4B"]
    arguments = parse_command_line(["--config", str(config), *flags])
    assert (arguments.model.d_model, arguments.model.experts) == (1024, 4)
    assert arguments.schedule.tokens == [4 * 10**9]
    assert not arguments.optimizer.decay_all


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("paper/d1024-E64", "did you mean .*paper/d1024-E8"),
        ("paper/d1408-E8", "did you mean .*paper/d1408-b21-h11-E8"),
        ("papr", "did you mean paper"),
        (7, "no preset is named 7.*python -m training.presets"),
    ],
)
def test_an_unknown_preset_is_refused_with_the_nearest(name, message):
    with pytest.raises(ConfigurationError, match=message):
        from_dict({"preset": name, **OUT})


def test_the_list_and_a_whole_configuration_are_printed():
    runner = CliRunner()
    shown = runner.invoke(presets_command.app, [])
    assert shown.exit_code == 0
    assert "paper/d1408-b21-h11-E8" in shown.output
    rows = json.loads(runner.invoke(presets_command.app, ["--json"]).output)
    assert len(rows) == 51
    assert (
        next(row for row in rows if row["preset"] == "paper/d1024-E32")["n_active"]
        == 2 * 1024 * 50257 + 13 * 16 * 1024**2
    )
    whole = yaml.safe_load(runner.invoke(presets_command.app, ["show", "paper/d512-E8"]).output)
    given = from_dict({"preset": "paper/d512-E8", "run": {"output_dir": "runs/NAME"}})
    assert whole == given.with_capacity_group().to_dict()
    paper = yaml.safe_load(runner.invoke(presets_command.app, ["show", "paper"]).output)
    assert paper["model"]["capacity_group_tokens"] == 16_384
    assert runner.invoke(presets_command.app, ["show", "nothing"]).exit_code == 2
