"""The forecast in a real run of TRL, whose package comes from the environment of `make test-clients`."""

import json
import os
import sys
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from training import FinalLossCallback

pytestmark = pytest.mark.clients
WORDS = ["<eos>", *(f"w{i}" for i in range(31))]


@pytest.fixture
def trainer(tmp_path, monkeypatch):
    """A function: TRL's SFTTrainer of a tiny model on sentences that can be learnt, with the callback."""
    root = Path(__file__).parents[2] / os.environ.get("CLIENTS", ".venv-clients")
    (packages,) = root.glob("lib/python*/site-packages")
    monkeypatch.setattr(sys, "path", [*sys.path, str(packages)])  # last: only TRL comes from there
    from trl import SFTConfig, SFTTrainer

    vocabulary = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<eos>"))
    vocabulary.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=vocabulary, eos_token="<eos>", pad_token="<eos>")
    texts = [" ".join(WORDS[1 + (start + i) % 31] for i in range(24)) for start in range(64)]

    def build(name, seed, law=None, **changes):
        torch.manual_seed(seed)
        model = GPT2LMHeadModel(GPT2Config(vocab_size=len(WORDS), n_positions=32, n_embd=16, n_layer=1, n_head=2))
        settings = {"learning_rate": 3e-3, "logging_steps": 2, "per_device_train_batch_size": 4, "disable_tqdm": True}
        places = {"output_dir": str(tmp_path / name), "report_to": [], "use_cpu": True, "save_strategy": "no"}
        config = SFTConfig(max_steps=60, seed=seed, bf16=False, max_length=32, **settings | places | changes)
        data, callback = Dataset.from_dict({"text": texts}), FinalLossCallback(tmp_path / "curves", law)
        built = SFTTrainer(
            model=model, args=config, train_dataset=data, processing_class=tokenizer, callbacks=[callback]
        )
        return built, callback

    return build


def test_a_run_of_trl_ends_where_its_callback_said(trainer, tmp_path):
    for seed in range(4):
        trainer(f"run{seed}", seed)[0].train()
    run, callback = trainer("new", 9)
    run.train()
    told = [entry for entry in run.state.log_history if "forecast_loss" in entry]
    final = json.loads((tmp_path / "curves" / "new.json").read_text())["final"]
    half = next(entry for entry in told if entry["step"] >= 30)
    assert told[0]["step"] >= 6
    assert half["forecast_low"] < final < half["forecast_high"]
    assert abs(half["forecast_loss"] - final) < 0.3 * abs(half["loss"] - final)
    assert callback.estimate.loss == told[-1]["forecast_loss"]
    assert not callback.off_track


def test_a_law_is_asked_about_the_tokens_that_trl_counts(trainer, tmp_path):
    run, callback = trainer("law", 1, law="published", include_num_input_tokens_seen="non_padding")
    run.train()
    kept = json.loads((tmp_path / "curves" / "law.json").read_text())
    logged = [entry["num_tokens"] for entry in run.state.log_history if "num_tokens" in entry]
    assert (kept["tokens"], kept["unit"]) == (logged, "tokens")
    assert callback.estimate.basis == "law"
