"""The metric module for `evaluate`: equal to the training's own evaluation, and to a slow one, one token at a time."""

import functools
import json
import math

import evaluate as hf_evaluate
import pytest
import torch

from modeling_switch_moe import SwitchMoeForCausalLM
from training import load_tokenizer, metrics
from training.run.evaluation import HeldOut, evaluate
from training.run.inputs import HeldOutText
from training.run.model import build_model, model_config

TEXTS = ["the model trains the router.", "a law of scale — for experts", "x", "data budget memory loss law data scale"]


@pytest.fixture(scope="module")
def metric():
    return hf_evaluate.load(metrics.path())


@pytest.fixture
def model_folder(tiny, tmp_path):
    """A model with four experts, of untrained weights that are large enough to prefer some tokens."""
    arguments = tiny()
    tokenizer = load_tokenizer(arguments.data.tokenizer)
    model = build_model(model_config(arguments, len(tokenizer), tokenizer.eos_token_id), 0)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def compute(metric, model_folder):
    return functools.partial(metric.compute, model_id=str(model_folder), device="cpu")


def test_it_equals_the_evaluation_of_a_training_run(compute, model_folder, tiny):
    arguments = tiny()
    tokenizer = load_tokenizer(arguments.data.tokenizer)
    sequences: HeldOut = HeldOutText(arguments, tokenizer).wait()
    expected = evaluate(SwitchMoeForCausalLM.from_pretrained(model_folder), sequences, 3, torch.device("cpu")).loss
    result = compute(predictions=sequences.sequences.tolist(), batch_size=5)
    assert result["loss"] == pytest.approx(expected, abs=1e-6)
    assert result["tokens"] == sequences.documents.size
    assert result["perplexity"] == pytest.approx(math.exp(expected), rel=1e-6)


@pytest.fixture
def nats_of(model_folder):
    """A function: the loss of each target of a sequence, from one forward pass."""
    model = SwitchMoeForCausalLM.from_pretrained(model_folder).eval()

    @torch.no_grad()
    def nats(ids):
        logits = model(input_ids=torch.tensor([ids[:-1]])).logits[0].log_softmax(-1)
        return [-logits[i, token].item() for i, token in enumerate(ids[1:])]

    return nats


def test_texts_are_predicted_from_their_first_token_on(compute, model_folder, nats_of):
    tokenizer = load_tokenizer(str(model_folder))
    losses = [nats_of([tokenizer.bos_token_id, *tokenizer(text)["input_ids"]]) for text in TEXTS]
    nats, tokens = sum(map(sum, losses)), sum(map(len, losses))
    result = compute(predictions=TEXTS)
    assert result["tokens"] == tokens
    assert result["loss"] == pytest.approx(nats / tokens, abs=1e-6)
    assert result["bits_per_byte"] == pytest.approx(nats / math.log(2) / sum(len(t.encode()) for t in TEXTS), rel=1e-6)


@pytest.mark.parametrize("side", ["left", "right"])
def test_batches_and_the_side_of_padding_change_nothing(compute, model_folder, side):
    expected = compute(predictions=TEXTS, batch_size=2)["loss"]
    settings = model_folder / "tokenizer_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "padding_side": side}))
    for batch_size in (1, 3, 16):
        result = compute(predictions=TEXTS, batch_size=batch_size)
        assert result["loss"] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("stride", [1, 3, 8])
def test_windows_count_every_token_once(compute, nats_of, stride):
    """A sequence longer than max_length, against a forward pass for each of its windows."""
    ids, expected = torch.arange(30).tolist(), {}
    for start in range(0, 29, stride):
        for i, nats in enumerate(nats_of(ids[start : start + 9])):
            expected.setdefault(start + i, nats)  # the first window to predict a token counts
    result = compute(predictions=[ids], max_length=8, stride=stride)
    assert result["tokens"] == 29 == len(expected)
    assert result["loss"] == pytest.approx(sum(expected.values()) / 29, abs=1e-6)


def test_ids_give_the_bits_of_the_bytes_they_stand_for(compute, model_folder):
    tokenizer = load_tokenizer(str(model_folder))
    ids = [tokenizer.eos_token_id, *tokenizer(TEXTS[1])["input_ids"], tokenizer.eos_token_id]
    result = compute(predictions=[ids])
    nats = result["loss"] * result["tokens"]
    assert result["bits_per_byte"] == pytest.approx(nats / math.log(2) / len(TEXTS[1].encode()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 0}, "batch_size: 0"),
        ({"max_length": 0}, "max_length: 0; it must be an integer of at least 1"),
        ({"max_length": 4, "stride": 5}, "stride: 5; it must be an integer from 1 to max_length"),
        ({"predictions": [[1, 300]]}, r"predictions\[0\]: 300 is not a token; ids go from 0 to 299"),
        ({"predictions": [[1]]}, "no token is predicted"),
        ({"predictions": []}, "predictions: none; it must hold at least one text"),
        ({"predictions": ["abc", None]}, r"predictions\[1\]: None; all must be texts"),
    ],
)
def test_bad_input_is_refused(compute, change, message):
    with pytest.raises(ValueError, match=message):
        compute(**{"predictions": [[1, 2, 3]], **change})
    with pytest.raises(ValueError, match="no metric module is called 'loss'; available: held_out_perplexity"):
        metrics.path("loss")
