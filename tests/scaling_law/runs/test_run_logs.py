"""Folders of logs: event files of TensorBoard, written by torch, and the states of transformers' Trainer."""

import json
import sys

import pytest

from scaling_law import load_runs
from scaling_law.runs.table import RunsError
from scaling_law.size.model_configs import read_model

CONFIG = {"model_type": "llama", "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 4}
CONFIG |= {"num_key_value_heads": 4, "vocab_size": 1000, "tie_word_embeddings": False}


def trained(folder, width, steps, most=30):
    """A run of Trainer with a checkpoint at each of the steps."""
    for last in steps:
        checkpoint = folder / f"checkpoint-{last}"
        checkpoint.mkdir(parents=True)
        history = [{"loss": 4 - 0.01 * step, "learning_rate": 1e-3, "step": step} for step in range(1, last + 1)]
        history += [{"eval_loss": 3.8, "step": last // 2}, {"eval_loss": 3.9, "step": last}]
        state = {"global_step": last, "max_steps": most, "num_input_tokens_seen": last * 1e6, "log_history": history}
        (checkpoint / "trainer_state.json").write_text(json.dumps(state))
        (checkpoint / "config.json").write_text(json.dumps(CONFIG | {"hidden_size": width}))


@pytest.mark.parametrize(
    ("options", "losses"),
    [({}, [3.9, 3.9]), ({"final": "minimum"}, [3.8, 3.8]), ({"loss": "loss", "final": "smoothed"}, [3.705, 3.705])],
)
def test_states_of_trainer(tmp_path, options, losses):
    trained(tmp_path / "runs" / "small", 256, (10, 30))
    trained(tmp_path / "runs" / "large", 512, (9, 30))
    trained(tmp_path / "runs" / "stopped", 512, (9,))
    runs = load_runs(tmp_path / "runs", **options)
    assert (runs.run_id, runs.skipped) == (("large", "small"), ("1 run: status is running (1: stopped)",))
    assert runs.loss == pytest.approx(losses)
    assert runs.tokens.tolist() == [3e7] * 2
    sizes = [read_model(CONFIG | {"hidden_size": width}).architecture.n_active for width in (512, 256)]
    assert (runs.n_active.tolist(), runs.experts.tolist()) == (sizes, [1, 1])
    single = load_runs(tmp_path / "runs" / "small" / "checkpoint-30" / "trainer_state.json", **options)
    assert (single.run_id, single.loss.tolist()) == (("small",), pytest.approx(losses[1:]))


def test_a_state_of_a_model_that_is_not_known_says_what_it_has(tmp_path):
    trained(tmp_path / "a", 256, (30,))
    (tmp_path / "a" / "checkpoint-30" / "config.json").write_text(json.dumps({"model_type": "odd", "width": 8}))
    with pytest.raises(
        RunsError, match=r"missing column n_active .*there are: .*eval_loss \(3\.9\).*config\.width \(8\)"
    ):
        load_runs(tmp_path)
    columns = {"n_active": "`config.width` * 1e6", "experts": 1}
    assert load_runs(tmp_path, columns=columns).n_active.tolist() == [8e6]
    (tmp_path / "a" / "checkpoint-30" / "trainer_state.json").write_text("[]")
    with pytest.raises(
        RunsError, match=r"trainer_state\.json: no state of transformers' Trainer: it has no log_history"
    ):
        load_runs(tmp_path)


@pytest.fixture
def events(tmp_path):
    """Two runs as torch writes them, one with its hyperparameters in a folder below."""
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    for i, name in enumerate(("a", "b")):
        with SummaryWriter(str(tmp_path / "tb" / name)) as writer:
            for step in range(40):
                loss = 2.5 if step == 37 else 4.0 - step / 39
                writer.add_scalar("train/loss", loss, step)
                writer.add_scalar("tokens", 2e6 * (step + 1), step)
            settings = {"n_active": 1e6 * (i + 1), "experts": 4, "optimizer": "adamw"}
            writer.add_hparams(settings, {}, run_name="." if i else None)
    return tmp_path / "tb"


@pytest.mark.parametrize(("final", "loss"), [(None, 3.0), ("minimum", 2.5), ("smoothed", (3.0 + 4 - 38 / 39) / 2)])
def test_event_files_of_tensorboard(events, final, loss):
    runs = load_runs(str(events), final=final, where="optimizer = adamw")
    assert runs.run_id == ("a", "b")
    assert runs.n_active.tolist() == [1e6, 2e6]
    assert (runs.tokens.tolist(), runs.experts.tolist()) == ([8e7] * 2, [4, 4])
    assert runs.loss == pytest.approx([loss] * 2, rel=1e-6)
    assert load_runs(events / "b", final=final).loss == pytest.approx([loss], rel=1e-6)
    assert runs.read_as.startswith("train/loss ")


def test_folders_of_the_parts_of_a_run_are_no_runs(tmp_path):
    """Keras writes train and validation apart, and torch's add_scalars each of its curves."""
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    for run in ("a", "b"):
        for part, loss in (("train", 3.0), ("validation", 3.5)):
            with SummaryWriter(str(tmp_path / "keras" / run / part)) as writer:
                writer.add_scalar("epoch_loss", loss, 10)
    columns = {"n_active": 1e8, "tokens": "step * 2e8", "experts": 1}
    runs = load_runs(
        tmp_path / "keras", loss="validation/epoch_loss", columns=columns, trunks="run", on_invalid="skip"
    )
    assert (runs.run_id, runs.loss.tolist(), runs["train/epoch_loss"].tolist()) == (("a",), [3.5], [3.0])
    assert len(runs.skipped) == 1  # b has the same sizes and loss
    with SummaryWriter(str(tmp_path / "torch" / "a")) as writer:
        writer.add_scalars("loss", {"train": 3.0, "eval": 3.5}, 10)
        writer.add_scalar("lr", 0.1, 10)
    with pytest.raises(RunsError, match=r"other losses \(loss_eval/loss, loss_train/loss\)"):
        load_runs(tmp_path / "torch", columns=columns)
    assert load_runs(tmp_path / "torch", loss="loss_eval/loss", columns=columns).run_id == ("a",)


def test_without_tensorboard_one_line_says_what_to_type(events, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.backend.event_processing.event_accumulator", None)
    with pytest.raises(RunsError, match=r": event files of TensorBoard.*: pip install tensorboard$"):
        load_runs(events)
