"""The tools around transformers: torch.compile, torch.export, ONNX, Trainer, pipelines, PEFT, quantisation."""

import pytest
import tokenizers
import torch
import transformers  # its names are imported where they are used: Trainer takes a second

from modeling_switch_moe import SwitchMoeForCausalLM, SwitchMoeForSequenceClassification
from tests.modeling_switch_moe.conftest import step


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()


@pytest.mark.parametrize("experts", [pytest.param(1, marks=pytest.mark.slow), 4])
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
        pytest.param({}, False, marks=pytest.mark.slow),
        ({"capacity_group_tokens": 9, "num_hidden_layers": 1}, False),
        ({"capacity_group_tokens": 7, "capacity_factor": None, "num_hidden_layers": 1}, True),
        pytest.param({"num_experts": 1}, False, marks=pytest.mark.slow),
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


@pytest.mark.parametrize("strict", [pytest.param(True, marks=pytest.mark.slow), False])
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


LENGTHS = {
    "input_ids": {0: torch.export.Dim("batch", max=64), 1: torch.export.Dim("length", max=64)},
    "use_cache": None,
}


def test_an_export_to_onnx_takes_experts_that_it_can_translate(make_model, tokens, monkeypatch):
    monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)
    model = make_model().eval()
    with torch.no_grad():
        program = torch.export.export(model, (tokens,), {"use_cache": False}, dynamic_shapes=LENGTHS)
        other = torch.randint(0, 61, (5, 20))
        actual = program.module()(other, use_cache=False).logits
    assert "grouped_mm" not in str(program.graph)
    monkeypatch.undo()
    torch.testing.assert_close(actual, model(other).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("experts", [1, 4])
def test_onnx_runtime_computes_the_same(make_model, tokens, tmp_path, experts):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = make_model(num_experts=experts).eval()
    with torch.no_grad():
        program = torch.onnx.export(
            model, (tokens,), kwargs={"use_cache": False}, dynamic_shapes=LENGTHS, dynamo=True, verbose=False
        )
    program.save(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    for shape in ((3, 12), (5, 20), (1, 1)):
        ids = torch.randint(0, 61, shape)
        logits, *_ = session.run(None, {session.get_inputs()[0].name: ids.numpy()})
        torch.testing.assert_close(torch.from_numpy(logits), model(ids).logits, rtol=0, atol=1e-5)


class Wrapper(torch.nn.Module):
    """A module in the place of another, of which it has nothing but the call."""

    def __init__(self, module):
        super().__init__()
        self.wrapped = module

    def forward(self, *args, **kwargs):
        return self.wrapped(*args, **kwargs)


@pytest.mark.parametrize("experts", [1, 4])
@pytest.mark.parametrize("kind", [SwitchMoeForCausalLM, SwitchMoeForSequenceClassification])
@pytest.mark.parametrize("training", [True, False])
def test_the_forward_pass_reads_nothing_of_its_modules(make_config, tokens, experts, kind, training):
    """PEFT, quantisation and parallelism wrap any of them."""
    config = make_config(num_experts=experts, pad_token_id=0, final_norm=True)
    labels = tokens if kind is SwitchMoeForCausalLM else torch.tensor([0, 1, 0])
    options = {"labels": labels} if kind is not SwitchMoeForCausalLM else {"labels": labels, "output_logits": False}
    torch.manual_seed(0)
    model = kind(config).train(training)
    expected, gradients = step(model, tokens, **options)
    children = [(parent, *child) for parent in model.modules() for child in parent.named_children()]
    for parent, name, child in children:
        if not isinstance(child, torch.nn.ModuleList):
            setattr(parent, name, Wrapper(child))
    output, found = step(model, tokens, **options)
    torch.testing.assert_close(output.loss, expected.loss)
    for (name, gradient), other in zip(gradients.items(), found.values(), strict=True):
        torch.testing.assert_close(other, gradient, rtol=0, atol=1e-6, msg=name)
    if kind is SwitchMoeForCausalLM:
        with pytest.raises(ValueError, match="input_ids holds 61"):
            model(tokens + 61 - tokens.max())


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


def adapters(peft):
    """PEFT's ways to change embedding, head, router, experts and whole modules."""
    target = peft.LoraConfig
    names = ["q_proj"]
    return {
        "rows": target(target_modules=names, trainable_token_indices=[1, 2]),
        "embedding and head": target(target_modules=["embed_tokens", "lm_head"]),
        "router": target(target_modules=names, target_parameters=["router.weight"]),
        "DoRA": target(target_modules=["q_proj", "embed_tokens"], use_dora=True),
        "modules": target(target_modules=names, modules_to_save=["embed_tokens", "lm_head", "router"]),
        "rows alone": peft.TrainableTokensConfig(token_indices=[3, 4], target_modules=["embed_tokens"]),
    }


@pytest.mark.parametrize("name", ["rows", "embedding and head", "router", "DoRA", "modules", "rows alone"])
def test_adapters_train_and_merge(make_model, tokens, name):
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(make_model(), adapters(peft)[name]).train()
    for output_logits in (False, True):
        step(model, tokens, labels=tokens, output_logits=output_logits)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        assert all(parameter.grad.isfinite().all() for parameter in trained)
    torch.optim.SGD(trained, lr=0.1).step()
    expected = model.eval()(tokens).logits
    model.merge_adapter()
    torch.testing.assert_close(model(tokens).logits, expected, rtol=0, atol=1e-4)
    model.unmerge_adapter()
    torch.testing.assert_close(model.merge_and_unload()(tokens).logits, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", ["PromptTuningConfig", "PrefixTuningConfig"])
def test_virtual_tokens_are_trained(make_model, tokens, kind):
    peft = pytest.importorskip("peft")
    settings = getattr(peft, kind)(task_type="CAUSAL_LM", num_virtual_tokens=3)
    model = peft.get_peft_model(make_model(), settings).train()
    model(input_ids=tokens, labels=tokens).loss.backward()
    (parameter,) = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert parameter.grad.abs().max() > 0


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
        # Stacked experts are no linear layers: they stay as they are.
        assert type(layer.mlp.experts.gate_up_proj) is torch.nn.Parameter
        assert layer.mlp.experts.gate_up_proj.shape == original.mlp.experts.gate_up_proj.shape
    logits, expected = loaded(tokens).logits.float(), model(tokens).logits
    assert torch.cosine_similarity(logits.flatten(), expected.flatten(), dim=0) > 0.9
