"""Mean cross-entropy (nats per token), perplexity and bits per byte of a causal language model on held-out sequences.

All tokens count alike, whichever sequence they are in, as in the held-out loss of a training run. Evaluation mode
drops no tokens in a mixture of experts, so the loss of a sequence does not depend on what shares its batch.
"""

from __future__ import annotations

import importlib.util
import math
from typing import TYPE_CHECKING, Any

import datasets
import evaluate
import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer

from hub.base.errors import InputError
from hub.base.types import Fields

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# Token ids, and how many of their leading targets are context only.
Window = tuple[list[int], int]

_KWARGS_DESCRIPTION = """
Args:
    predictions (list of str, or list of list of int): the held-out texts, or token ids. Of ids, each sequence gives
        one prediction less than it has ids.
    model_id (str): a model on the Hub, or a folder with one.
    revision (str, *optional*): its branch, tag or commit.
    batch_size (int): sequences in one forward pass; the result does not depend on it. Default 16.
    max_length (int, *optional*): most input tokens of a forward pass; default: the model's max_position_embeddings.
        Longer sequences are cut into windows.
    stride (int, *optional*): from one window to the next, 1 to max_length. Tokens that a window shares with the one
        before it are context only. Default: max_length, windows that do not overlap.
    add_start_token (bool, *optional*): predict the first token too, from the tokenizer's bos (else eos) token.
        Default: for texts, as documents follow an end-of-text token in training; not for ids.
    device (str, *optional*): default: a GPU where there is one.
    trust_remote_code (bool): let `transformers` run code that comes with the model. Default False.
Returns:
    loss (float): nats per token, the mean over all predicted tokens.
    perplexity (float): its exponential.
    tokens (int): predicted tokens.
    bits_per_byte (float or None): bits for each byte of UTF-8 text. For ids the text is decoded from the predicted
        ids, special tokens left out; where a sequence begins or ends within a character, its bytes are counted
        roughly. None without a byte.
Examples:
    >>> metric = evaluate.load("training/metrics/held_out_perplexity")
    >>> metric.compute(predictions=["Some text."], model_id="path/to/model")  # doctest: +SKIP
"""

_CITATION = """
@inproceedings{ludziejewski2025joint,
  title = {Joint {MoE} Scaling Laws: Mixture of Experts Can Be Memory Efficient},
  author = {Ludziejewski, Jan and others}, booktitle = {ICML}, year = {2025}
}
"""


@evaluate.utils.file_utils.add_start_docstrings(__doc__, _KWARGS_DESCRIPTION)
class HeldOutPerplexity(evaluate.Measurement):
    def _info(self) -> Any:
        texts = datasets.Value("string")
        ids = datasets.Sequence(datasets.Value("int64"))
        return evaluate.MeasurementInfo(
            module_type="measurement",
            description=__doc__,
            citation=_CITATION,
            inputs_description=_KWARGS_DESCRIPTION,
            features=[datasets.Features({"predictions": feature}) for feature in (texts, ids)],
            reference_urls=["https://arxiv.org/abs/2502.05172"],
        )

    def compute(self, *, predictions: Any = None, **options: Any) -> Any:
        """Measure; an empty list of predictions would fail before `_compute`."""
        if predictions is not None:
            _check_predictions(predictions)
        return super().compute(predictions=predictions, **options)

    def _compute(
        self,
        predictions: Any,
        model_id: str,
        revision: str | None = None,
        batch_size: int = 16,
        max_length: int | None = None,
        stride: int | None = None,
        add_start_token: bool | None = None,
        device: str | None = None,
        trust_remote_code: bool = False,
    ) -> Fields:
        _check("batch_size", batch_size)
        _check_predictions(predictions)
        # It registers the model type where it is installed.
        if importlib.util.find_spec("modeling_switch_moe"):
            importlib.import_module("modeling_switch_moe")
        source: Fields = {"revision": revision, "trust_remote_code": trust_remote_code}
        tokenizer = AutoTokenizer.from_pretrained(model_id, **source)
        model = AutoModelForCausalLM.from_pretrained(model_id, dtype=torch.float32, use_safetensors=True, **source)
        model = model.eval().to(device or ("cuda" if torch.cuda.is_available() else "cpu"))

        are_texts = isinstance(predictions[0], str)
        sequences = _token_ids(predictions, tokenizer, are_texts if add_start_token is None else add_start_token)
        length = max_length
        if length is None:
            length = getattr(model.config, "max_position_embeddings", None) or max(map(len, sequences))
        windows = _windows(sequences, length, length if stride is None else stride)
        tokens = sum(len(ids) - 1 - context for ids, context in windows)
        if not tokens:
            raise InputError("predictions: no token is predicted; sequences need two tokens, or a start token")
        nats = _sum_losses(model, windows, batch_size)
        texts = predictions
        if not are_texts:
            predicted = [ids if add_start_token else ids[1:] for ids in predictions]
            texts = tokenizer.batch_decode(predicted, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        n_bytes = sum(len(text.encode()) for text in texts)
        loss = nats / tokens
        return {
            "loss": loss,
            "perplexity": math.exp(loss) if loss < 700 else math.inf,
            "tokens": tokens,
            "bits_per_byte": nats / math.log(2) / n_bytes if n_bytes else None,
        }


def _token_ids(predictions: Any, tokenizer: PreTrainedTokenizerBase, add_start_token: bool) -> list[list[int]]:
    """Tokenise texts, or check token ids, and begin each with the start token if it is to be added."""
    if isinstance(predictions[0], str):
        # Names of special tokens are text, as in training.
        options: Fields = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}
        sequences = tokenizer(list(predictions), **options)["input_ids"]
    else:
        sequences = [list(ids) for ids in predictions]
        largest = max(tokenizer.get_vocab().values())
        for i, ids in enumerate(sequences):
            wrong = [token for token in ids if not 0 <= token <= largest]
            if wrong:
                raise InputError(f"predictions[{i}]: {wrong[0]} is not a token; ids go from 0 to {largest}")
    if not add_start_token:
        return sequences
    start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    if start is None:
        raise InputError("add_start_token: the tokenizer has neither a bos nor an eos token; pass False")
    return [[start, *ids] for ids in sequences]


def _check(name: str, value: Any, most: float = math.inf) -> None:
    """Raise InputError unless a value is an integer from 1 to `most`."""
    if not isinstance(value, int) or not 1 <= value <= most:
        limits = "of at least 1" if most == math.inf else f"from 1 to max_length ({most})"
        raise InputError(f"{name}: {value!r}; it must be an integer {limits}")


def _check_predictions(predictions: Any) -> None:
    """Raise InputError for no prediction, and for the first that is neither a text nor a list of ids as the others."""
    if not len(predictions):
        raise InputError("predictions: none; it must hold at least one text or list of token ids")
    are_texts = isinstance(predictions[0], str)
    for i, prediction in enumerate(predictions):
        if prediction is None or isinstance(prediction, str) != are_texts:
            raise InputError(f"predictions[{i}]: {prediction!r}; all must be texts, or all lists of token ids")


def _windows(sequences: list[list[int]], length: int, stride: int) -> list[Window]:
    """Cut sequences into windows, so that each target of each sequence counts exactly once."""
    _check("max_length", length)
    _check("stride", stride, most=length)
    windows: list[Window] = []
    for ids in sequences:
        n_targets = len(ids) - 1
        n_counted = 0
        start = 0
        while n_counted < n_targets:
            end = min(start + length, n_targets)
            windows.append((ids[start : end + 1], n_counted - start))
            n_counted = end
            start += stride
    return windows


@torch.no_grad()
def _sum_losses(model: PreTrainedModel, windows: list[Window], batch_size: int) -> float:
    """Sum the nats over the windows. Padding goes to the right, where a causal model cannot see it."""
    nats = 0.0
    # Windows of like length need little padding.
    windows = sorted(windows, key=lambda window: len(window[0]))
    for first in range(0, len(windows), batch_size):
        batch = windows[first : first + batch_size]
        inputs = [torch.tensor(ids[:-1]) for ids, _ in batch]
        labels = [torch.tensor([-100] * context + ids[context + 1 :]) for ids, context in batch]
        logits = model(input_ids=pad_sequence(inputs, batch_first=True).to(model.device), use_cache=False).logits
        targets = pad_sequence(labels, batch_first=True, padding_value=-100).to(model.device)
        losses = cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=-100, reduction="none")
        nats += losses.double().sum().item()
    return nats
