"""`hub pull-published`: a file in the authors' layout on the loopback Hub becomes a model with its record and card."""

# ruff: noqa: F811 (fixtures are imported)
import io
import pickle
import re
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from transformers import AutoModelForCausalLM

from hub import RunRecord, load_index, open_store, push_index, push_run
from hub.release import published as hub_published
from hub.release.published import CONVERTERS, REPOSITORY, STEP_TOKENS
from tests.hub.conftest import command, loopback, online, the_hub  # noqa: F401
from tests.modeling_switch_moe.test_convert import theirs
from training import published

ROOT = Path(__file__).parent.parent.parent
ARGUMENTS = ["48", "4", "3", "15258"]


def checkpoint(**changes) -> bytes:
    buffer = io.BytesIO()
    torch.save({"model": theirs(4), "optimizer": {"state": {}}, "step": 15258, **changes}, buffer)
    return buffer.getvalue()


@pytest.fixture
def server(the_hub, monkeypatch):
    """The authors' repository on the loopback Hub, and the installed entry point."""
    point = EntryPoint("switch_moe", "training.published:convert", CONVERTERS)
    monkeypatch.setattr(hub_published, "entry_points", lambda group: [point] if group == CONVERTERS else [])
    files = {"48/4/3/15258.pt": checkpoint(), "48/4/3/9000.pt": checkpoint(), "48/8/3/15258.pt": checkpoint()}
    the_hub.state.put("model", REPOSITORY, "main", files)
    return the_hub


def test_the_command_writes_a_model_a_record_and_a_card(server, command, tmp_path):
    commit = server.state.repository("model", REPOSITORY).branches["main"]
    code, out, err = command("pull-published", *ARGUMENTS, "--to", tmp_path / "out")
    assert code == 0, err
    assert f"{REPOSITORY}@{commit}" in out
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", use_safetensors=True)
    embedding = theirs(4)["embedding_layer.layers.0.weight"]
    assert torch.equal(model.get_input_embeddings().weight, embedding)

    record = RunRecord.load(tmp_path / "out")
    assert (record.tokens, record.steps, record.status) == (2_000_000_000, 15258, "final")
    assert (record.d_model, record.n_blocks, record.n_heads, record.experts) == (48, 2, 3, 4)
    assert record.n_active == 2 * 48 * 37 + 13 * 2 * 48**2
    assert record.n_total == 2 * 48 * 37 + (4 + 9 * 4) * 2 * 48**2
    unknown = (record.train_loss, record.eval_loss, record.seed, record.hardware, record.tokens_per_second)
    assert unknown == (None,) * 5
    assert record.schedule.warmup_tokens == 1983 * 128 * 512
    assert [stage.sequences for stage in record.schedule.batch_ramp] == [128, 256, 512]
    assert record.schedule.decay_tokens == 400_000_000
    assert record.to_dict()["published_as"]["commit"] == commit
    assert (record.capacity_factor, record.balance_loss_coefficient, record.z_loss_coefficient) == (1.0, 0.01, 0.001)
    assert (record.attention_precision, record.initialization, record.final_norm) == ("compute", "paper", False)
    assert (record.optimizer.weight_decay_on, record.capacity_group_tokens) == ("all", None)
    assert record.tokenizer.id == "openai-community/gpt2"

    text = (tmp_path / "out" / "README.md").read_text()
    assert "48/4/3/15258.pt" in text
    assert commit in text
    assert 'AutoTokenizer.from_pretrained("openai-community/gpt2")' in text
    assert ModelCard(text).data.eval_results is None


def test_a_converted_run_can_be_released_like_any_other(server, command, tmp_path):
    command("pull-published", *ARGUMENTS, "--to", tmp_path / "out")
    store = open_store(tmp_path / "store")
    pushed = push_run(store, tmp_path / "out", RunRecord.load(tmp_path / "out"))
    push_index(store, pushed.sweep, [pushed])
    assert (pushed.repo, pushed.branch) == ("joint-moe-scaling-laws-d48-b2-h3-E4", "tokens002.0B")
    assert load_index(store, pushed.sweep) == [pushed]


def test_steps_that_end_no_run_make_an_intermediate_checkpoint(server, command, tmp_path):
    assert command("pull-published", 48, 4, 3, 9000, "--to", tmp_path / "out")[0] == 0
    record = RunRecord.load(tmp_path / "out")
    assert (record.status, record.schedule.decay_tokens) == ("intermediate", 0)
    assert record.tokens == 512 * (128 * 7629 + 256 * (9000 - 7629))


def test_the_ramp_agrees_with_the_table_of_steps():
    for steps, tokens in STEP_TOKENS.items():
        assert published._RAMP.tokens(steps) == pytest.approx(tokens, rel=3e-4)
    assert published._RAMP.tokens(0) == 0
    assert published._RAMP.tokens(1) == 128 * 512


def test_the_list(server, command):
    code, out, _ = command("published")
    assert code == 0
    assert "48 4 3 15258  2B tokens" in out
    assert "48 4 3 9000  – tokens" in out


def test_errors_are_one_line_and_leave_nothing(server, command, tmp_path, monkeypatch):
    server.state.put("model", REPOSITORY, "main", {"64/4/1/7629.pt": b"no tensors", "64/8/1/7629.pt": checkpoint()})
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("")
    for words, reason in (
        (["48", "8", "3", "15258", "--to", tmp_path / "out"], "holds a model of width, experts and heads (48, 4, 3)"),
        (["64", "4", "1", "7629", "--to", tmp_path / "out"], "cannot be read as a checkpoint"),
        (["48", "4", "3", "1", "--to", tmp_path / "out"], "there are 48/4/3/9000.pt, 48/4/3/15258.pt"),
        ([*ARGUMENTS, "--to", tmp_path / "full"], "not an empty folder; nothing was fetched"),
    ):
        code, _, err = command("pull-published", *words)
        assert code == 2
        assert err.startswith("error: ")
        assert reason in err
        assert "Traceback" not in err
    monkeypatch.setattr(hub_published, "entry_points", lambda group: [])
    before = len(server.requests)
    code, _, err = command("pull-published", *ARGUMENTS, "--to", tmp_path / "out")
    assert "no installed package converts these checkpoints" in err
    assert len(server.requests) == before
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "cache") == ["full"]


def test_nothing_in_a_file_is_executed(server, command, tmp_path):
    class Evil:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    server.state.put("model", REPOSITORY, "main", {"48/4/3/15258.pt": pickle.dumps({"model": Evil()})})
    assert command("pull-published", *ARGUMENTS, "--to", tmp_path / "out")[0] == 2
    server.state.put("model", REPOSITORY, "main", {"48/4/3/15258.pt": checkpoint(logger=Evil())})
    assert command("pull-published", *ARGUMENTS, "--to", tmp_path / "out")[0] == 2
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "out").exists()


def test_the_declared_entry_point_is_there():
    text = (ROOT / "pyproject.toml").read_text()
    (value,) = re.findall(rf'entry-points\."{CONVERTERS}"\]\nswitch_moe = "([\w.]+:\w+)"', text)
    module, _, name = value.partition(":")
    assert getattr(import_module(module), name) is published.convert
