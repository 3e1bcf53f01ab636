"""The held-out loss and its standard error."""

import numpy as np
import pytest
import torch

from modeling_switch_moe import SwitchMoeForCausalLM
from tests.conftest import write_dataset
from tests.training.token_caches import prepare
from training import TextSource, from_dict
from training.run.evaluation import HeldOut, HeldOutLoss, evaluate
from training.run.model import model_config

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model():
    arguments = from_dict({"run": {"output_dir": "unused"}, "model": {"d_model": 64, "experts": 4}})
    torch.manual_seed(0)
    return SwitchMoeForCausalLM(model_config(arguments, 300, 0)).eval()


def test_the_error_is_that_of_a_mean_over_documents():
    """Against the spread of the means of many samples of documents, whose tokens share a part of their loss."""
    rng = np.random.default_rng(0)

    def sample(documents=200):
        lengths = rng.integers(10, 300, documents)
        level = rng.normal(3.0, 0.5, documents)
        nats = np.array([rng.normal(mean, 1.0, n).sum() for mean, n in zip(level, lengths, strict=True)])
        return HeldOutLoss.of(nats, lengths.astype(float))

    samples = [sample() for _ in range(400)]
    spread = np.std([one.loss for one in samples])
    assert np.mean([one.standard_error for one in samples]) == pytest.approx(spread, rel=0.1)
    # Tokens taken as independent have a third of it.
    assert np.sqrt((1.0 + 0.25) / (200 * 155)) < 0.3 * spread
    assert HeldOutLoss.of(np.array([6.0]), np.array([2.0])) == HeldOutLoss(3.0, None)


def test_targets_know_their_documents(tokenizer, tmp_path):
    write_dataset(tmp_path / "text", {"train": [f"the model {'expert ' * n}" for n in (3, 40, 5, 60, 7, 90)]})
    cache = prepare(TextSource(str(tmp_path / "text")), tokenizer, tmp_path)
    assert HeldOut.from_cache(cache, 16, 1000).n_documents == 6
    whole = HeldOut.from_cache(cache, len(cache) - 1, 1)
    (row,) = whole.documents
    ends = np.flatnonzero(whole.sequences[0, 1:] == tokenizer.eos_token_id)
    assert np.flatnonzero(np.diff(row)).tolist() == ends[:-1].tolist()


def test_the_error_of_equal_documents_is_the_usual_one(model):
    sequences = np.random.default_rng(0).integers(0, 300, (6, 17))
    documents = np.repeat(np.arange(6)[:, None], 16, axis=1)
    measured = evaluate(model, HeldOut(sequences, documents), 4, CPU)
    losses = [evaluate(model, HeldOut(sequences[i : i + 1], documents[:1]), 4, CPU).loss for i in range(6)]
    assert measured.loss == pytest.approx(np.mean(losses), rel=1e-6)
    assert measured.standard_error == pytest.approx(np.std(losses, ddof=1) / np.sqrt(6), rel=1e-4)
