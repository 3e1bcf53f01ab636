"""The tools around transformers: torch.compile, torch.export, Trainer, pipelines, PEFT, quantisation."""

import pytest
import tokenizers
import torch
import transformers  # its names are imported where they are used: Trainer takes a second

from modeling_switch_moe import SwitchMoeForCausalLM
from tests.modeling_switch_moe.conftest import step


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()


@pytest.mark.parametrize("experts", [1, 4])
def test_compiled_evaluation_has_no_graph_breaks(make_model, tokens, experts):
    model = make_model(num_experts=experts).eval()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        expected, actual = model(tokens, labels=tokens), compiled(tokens, labels=tokens)
    torch.testing.assert_close(actual.logits, expected.logits, rtol=0, atol=1e-5)
    torch.testing.assert_close(actual.loss, expected.loss)
    assert torch.equal(actual.routing.tokens_per_expert, expected.routing.tokens_per_expert)


@pytest.mark.parametrize(
    ("changes", "output_logits"),
    [
        ({}, False),
        ({"capacity_group_tokens": 9, "num_hidden_layers": 1}, False),
        ({"capacity_group_tokens": 7, "capacity_factor": None, "num_hidden_layers": 1}, True),
        ({"num_experts": 1}, False),
    ],
)
def test_compiled_training_step_has_no_graph_breaks(make_model, tokens, changes, output_logits):
    model = make_model(**changes).train()
    options = {"labels": tokens, "use_cache": False, "output_logits": output_logits}
    expected, gradients = step(model, tokens, **options)
    model.compile(fullgraph=True, backend="aot_eager")
    actual, found = step(model, tokens, **options)
    torch.testing.assert_close(actual.loss, expected.loss)
    assert torch.equal(actual.routing.dropped_tokens, expected.routing.dropped_tokens)
    torch.testing.assert_close(found, gradients, rtol=0, atol=1e-6)


@pytest.mark.parametrize("strict", [True, False])
def test_export_with_free_batch_and_length(make_model, tokens, strict):
    model = make_model(capacity_group_tokens=48).eval()  # of training: it sets no bound on what is exported
    shapes = {"input_ids": {0: torch.export.Dim("batch", max=64), 1: torch.export.Dim("length", min=2, max=64)}}
    with torch.no_grad():
        program = torch.export.export(
            model, (tokens,), {"use_cache": False}, dynamic_shapes=shapes | {"use_cache": None}, strict=strict
        )
        other = torch.randint(0, 61, (5, 20))
        actual = program.module()(other, use_cache=False).logits
    torch.testing.assert_close(actual, model(other).logits, rtol=0, atol=1e-5)


def test_the_trainer_trains_and_accumulation_does_not_multiply_the_router_losses(make_model, tmp_path):
    """z-loss is a mean over tokens: four micro-batches must report and train like one batch."""
    rows = torch.randint(0, 61, (32, 12), generator=torch.Generator().manual_seed(3)).tolist()
    data = [{"input_ids": row, "labels": row} for row in rows]
    histories = []
    for batch, accumulation in ((8, 1), (2, 4)):
        arguments = transformers.TrainingArguments(
            str(tmp_path / str(batch)),
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=accumulation,
            max_steps=4,
            logging_steps=1,
            learning_rate=1e-2,
            lr_scheduler_type="constant",
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        )
        model = make_model(capacity_factor=None, router_aux_loss_coef=0.0, router_z_loss_coef=0.5)
        trainer = transformers.Trainer(model, arguments, train_dataset=data, eval_dataset=data)
        before = trainer.evaluate()["eval_loss"]
        trainer.train()
        assert trainer.evaluate()["eval_loss"] < before - 0.01
        histories.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert len(histories[0]) == 4
    assert histories[1] == pytest.approx(histories[0], abs=2e-4)


def test_text_generation_pipeline(make_model):
    words = {word: number for number, word in enumerate(["<end>", *map(str, range(60))])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<end>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<end>", eos_token="<end>")
    generate = transformers.pipeline("text-generation", model=make_model().eval(), tokenizer=fast, device="cpu")
    results = generate(["1 2 3", "4"], max_new_tokens=5, do_sample=False, batch_size=2)
    assert results[1] == generate("4", max_new_tokens=5, do_sample=False)
    assert results[0][0]["generated_text"].startswith("1 2 3")


def test_lora_on_attention_and_experts(make_model, tokens):
    peft = pytest.importorskip("peft")
    settings = peft.LoraConfig(
        r=4, target_modules=["q_proj", "v_proj"], target_parameters=["experts.gate_up_proj", "experts.down_proj"]
    )
    model = peft.get_peft_model(make_model(), settings).train()
    step(model, tokens, labels=tokens)
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad == ("lora" in name)
        if "lora_B" in name:
            assert parameter.grad.abs().max() > 0
            torch.nn.init.normal_(parameter, std=0.1)
    expected = model.eval()(tokens).logits
    torch.testing.assert_close(model.merge_and_unload()(tokens).logits, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("bits", [4, 8])
def test_quantised_loading_leaves_the_router_alone(make_model, tokens, tmp_path, bits):
    bitsandbytes = pytest.importorskip("bitsandbytes")
    model = make_model(hidden_size=64, num_experts=4).eval()
    model.save_pretrained(tmp_path)
    settings = transformers.BitsAndBytesConfig(load_in_4bit=bits == 4, load_in_8bit=bits == 8)
    loaded = SwitchMoeForCausalLM.from_pretrained(tmp_path, quantization_config=settings, device_map="cpu")
    for layer, original in zip(loaded.model.layers, model.model.layers, strict=True):
        assert torch.equal(layer.mlp.router.weight, original.mlp.router.weight)
        assert layer.mlp.router.weight.dtype == torch.float32
        assert isinstance(layer.self_attn.q_proj, (bitsandbytes.nn.Linear4bit, bitsandbytes.nn.Linear8bitLt))
    logits, expected = loaded(tokens).logits.float(), model(tokens).logits
    assert torch.cosine_similarity(logits.flatten(), expected.flatten(), dim=0) > 0.9
