"""transformers' own common tests, on our classes: `make test-transformers` runs them, in the folder of its sources.

This folder is no package, and no conftest of ours is read: `tests` here are those of transformers. Its source package
has no `tests/generation`; in a checkout of the release's tag that is there, too.
"""

import importlib.util
import sys
import unittest
from types import ModuleType

import pytest
import torch
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_MAPPING_NAMES

from modeling_switch_moe import SwitchMoeConfig, SwitchMoeForCausalLM, SwitchMoeModel


def import_mixin(module_name: str, name: str) -> tuple[type, bool]:
    """Import a mixin and tell that it is there, or put an empty class in its place, which other mixins import."""
    package = module_name.rpartition(".")[0]
    if importlib.util.find_spec(package) is not None:
        return getattr(importlib.import_module(module_name), name), True
    empty = type(name, (), {})
    for missing in (package, module_name):
        sys.modules[missing] = ModuleType(missing)
    setattr(sys.modules[module_name], name, empty)
    return empty, False


import_mixin("tests.exporters.test_export", "ExportTesterMixin")
GenerationTesterMixin, has_generation = import_mixin("tests.generation.test_utils", "GenerationTesterMixin")

from tests.test_modeling_common import ModelTesterMixin, ids_tensor  # noqa: E402
from tests.test_training_mixin import TrainingTesterMixin  # noqa: E402


@pytest.mark.skipif(has_generation, reason="they are run")
def test_generation():
    pytest.skip(
        "transformers' source package has no tests/generation: give a checkout of its tag, TRANSFORMERS=folder"
    )


# By these names the tests know which of our classes has labels and a loss.
MODEL_MAPPING_NAMES["switch_moe"] = SwitchMoeModel.__name__
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES["switch_moe"] = SwitchMoeForCausalLM.__name__


class SwitchMoeModelTester:
    """What the mixins ask of a model: sizes, a configuration and inputs."""

    base_model_class = SwitchMoeModel
    causal_lm_class = SwitchMoeForCausalLM
    is_training = True
    batch_size = 13
    seq_length = 7
    vocab_size = 99
    hidden_size = 32
    num_hidden_layers = 2
    num_attention_heads = 4
    pad_token_id = 0

    def __init__(self, **fields):
        self.fields = fields

    def get_config(self):
        return SwitchMoeConfig(
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            num_hidden_layers=self.num_hidden_layers,
            num_attention_heads=self.num_attention_heads,
            intermediate_size=32,
            max_position_embeddings=512,
            pad_token_id=self.pad_token_id,
            bos_token_id=1,
            eos_token_id=2,
            **self.fields,
        )

    def prepare_config_and_inputs_for_common(self):
        shape = [self.batch_size, self.seq_length]
        inputs = {"input_ids": ids_tensor(shape, self.vocab_size), "attention_mask": torch.ones(shape).tril().long()}
        return self.get_config(), inputs


class CommonTests(ModelTesterMixin, GenerationTesterMixin, TrainingTesterMixin):
    all_model_classes = (SwitchMoeModel, SwitchMoeForCausalLM)
    model_tester = None
    fields: dict[str, object]

    def setUp(self):
        self.model_tester = SwitchMoeModelTester(**self.fields)


class DenseTest(CommonTests, unittest.TestCase):
    fields = {"num_experts": 1}  # noqa: RUF012

    @unittest.skip("a dense model has no experts")
    def test_eager_matches_batched_and_grouped_inference_0_fp16(self):
        pass

    test_eager_matches_batched_and_grouped_inference_1_fp32 = test_eager_matches_batched_and_grouped_inference_0_fp16
    test_eager_matches_batched_and_grouped_inference_2_bf16 = test_eager_matches_batched_and_grouped_inference_0_fp16

    @unittest.skip("a dense model has no router")
    def test_output_router_logits_from_config(self):
        pass


class DroplessTest(CommonTests, unittest.TestCase):
    fields = {"num_experts": 4, "capacity_factor": None}  # noqa: RUF012


class CapacityTest(CommonTests, unittest.TestCase):
    fields = {"num_experts": 4, "capacity_factor": 1.0}  # noqa: RUF012
