"""A class for every architecture: built on the meta device, its parameters are those that laws count."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from scaling_law import Architecture
from scaling_law.size.ladder import PaperLadder
from scaling_law.size.model_configs import read_model
from scaling_law.size.model_sections import model_section
from training import from_dict

ARCHITECTURES = {
    "switch_moe": Architecture(128, 8),
    "switch_moe, dense": PaperLadder(8).architecture(128, 1),
    "qwen3_moe": PaperLadder(8, vocab_size=512).architecture(128, 8),
    "qwen3_moe, halves": PaperLadder(2).architecture(192, 4),
    "qwen2_moe": PaperLadder(8, 1 / 8, 512).architecture(128, 8),
    "qwen2_moe, wide": PaperLadder(8, 1 / 4, 512).architecture(128, 8),
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_class_has_exactly_the_parameters_of_the_architecture(name):
    a = ARCHITECTURES[name]
    arguments = from_dict({"model": model_section(a), "run": {"output_dir": "out"}})
    section = arguments.to_dict()["model"]
    assert section.get("type", "switch_moe") == name.partition(",")[0]
    if name.startswith("switch_moe"):
        from training.run.model import model_config

        config = model_config(arguments, a.vocab_size, 0)
    else:
        config = arguments.model.config(a.vocab_size, 64, 0)
    read = read_model(config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert read.parameters == sum(p.numel() for p in model.parameters())
    for count in ("n_active", "n_total", "n_active_non_embedding", "n_total_non_embedding", "experts_equivalent"):
        assert getattr(read.architecture, count) == getattr(a, count), count
    ours, theirs = a.variables(), read.architecture.variables()
    assert {n: theirs[n] for n in ("granularity", "density", "shared_ratio")} == pytest.approx(
        {n: ours[n] for n in ("granularity", "density", "shared_ratio")}
    )


@pytest.mark.parametrize(("experts", "granularity", "shared"), [(8, 8, 0.0), (8, 8, 0.125), (4, 2, 0.5), (1, 8, 0.0)])
def test_a_split_model_has_the_variables_that_laws_were_asked_with(experts, granularity, shared):
    split, whole = PaperLadder(granularity, shared).architecture(256, experts), Architecture(256, experts)
    assert (split.n_active, split.n_total) == (whole.n_active, whole.n_total)
    if experts == 1:
        assert split == whole
        return
    asked, found = PaperLadder(granularity, shared).variables(256, experts), split.variables()
    for name in ("experts", "n_active", "n_total", "density", "granularity", "shared_ratio", "experts_per_token"):
        assert found[name] == pytest.approx(float(asked[name])), name
