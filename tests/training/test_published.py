"""`python -m training.published`: a file in the authors' layout on the loopback Hub becomes a released model."""

# ruff: noqa: F811 (fixtures are imported)
import io

import pytest
import torch
from huggingface_hub import ModelCard
from transformers import AutoModelForCausalLM

from hub import RunRecord, load_index, open_store, push_index, push_run
from tests.hub.conftest import loopback, online, the_hub  # noqa: F401
from tests.hub.loopback import Fault
from tests.modeling_switch_moe.test_convert import theirs
from training import published
from training.published import REPOSITORY

ARGUMENTS = ["48", "4", "3", "15258"]
PATH = "48/4/3/15258.pt"


def checkpoint(**changes) -> bytes:
    buffer = io.BytesIO()
    torch.save({"model": theirs(4), "optimizer": {"state": {}}, "step": 15258, **changes}, buffer)
    return buffer.getvalue()


@pytest.fixture
def server(the_hub):
    """The authors' repository on the loopback Hub."""
    others = dict.fromkeys(("README.md", "notes/1/2/3.pt", "../../9.pt", "1/2/3/0x1.pt"), b"")
    files = {PATH: checkpoint(), "48/4/3/9000.pt": checkpoint(), "48/8/3/15258.pt": checkpoint(), **others}
    the_hub.state.put("model", REPOSITORY, "main", files)
    return the_hub


@pytest.fixture
def command(capsys):
    """Runs the command; gives its exit status, standard output and standard error."""

    def run(*words):
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            published.app(list(map(str, words)), prog_name="published")
        shown = capsys.readouterr()
        return int(stopped.value.code or 0), shown.out, shown.err

    return run


def test_the_command_writes_a_model_a_record_and_a_card(server, command, tmp_path):
    commit = server.state.repository("model", REPOSITORY).branches["main"]
    code, out, err = command("pull", *ARGUMENTS, "--to", tmp_path / "out")
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
    assert record.schedule.decay_tokens == 400_000_000
    assert record.to_dict()["published_as"]["commit"] == commit
    assert (record.capacity_factor, record.balance_loss_coefficient, record.z_loss_coefficient) == (1.0, 0.01, 0.001)
    assert (record.attention_precision, record.initialization, record.final_norm) == ("compute", "paper", False)
    assert (record.optimizer.weight_decay_on, record.capacity_group_tokens) == ("all", None)
    assert record.tokenizer.id == "openai-community/gpt2"

    text = (tmp_path / "out" / "README.md").read_text()
    for part in (PATH, commit, 'AutoTokenizer.from_pretrained("openai-community/gpt2")'):
        assert part in text
    assert ModelCard(text).data.eval_results is None

    store = open_store(tmp_path / "store")
    pushed = push_run(store, tmp_path / "out", record)  # released like any other
    push_index(store, pushed.sweep, [pushed])
    assert (pushed.repo, pushed.branch) == ("joint-moe-scaling-laws-d48-b2-h3-E4", "tokens002.0B")
    assert load_index(store, pushed.sweep) == [pushed]


def test_steps_that_end_no_run_make_an_intermediate_checkpoint(server, command, tmp_path):
    assert command("pull", 48, 4, 3, 9000, "--to", tmp_path / "out")[0] == 0
    record = RunRecord.load(tmp_path / "out")
    assert (record.status, record.schedule.decay_tokens) == ("intermediate", 0)
    assert record.tokens == 512 * (128 * 7629 + 256 * (9000 - 7629))


def test_the_list(server, command):
    lines = ["48 4 3 9000  – tokens", "48 4 3 15258  2B tokens", "48 8 3 15258  2B tokens"]
    assert command("list")[:2] == (0, "\n".join(lines) + "\n")


def test_errors_are_one_line_and_leave_nothing(server, command, tmp_path):
    server.state.put("model", REPOSITORY, "main", {"64/4/1/7629.pt": b"no tensors", "64/8/1/7629.pt": checkpoint()})
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("")
    of_48 = ["48/4/3/9000.pt", "48/4/3/15258.pt", "48/8/3/15258.pt"]
    of_64 = ["64/4/1/7629.pt", "64/8/1/7629.pt"]
    for words, reason in (
        (["48", "8", "3", "15258", "--to", tmp_path / "out"], "holds a model of width, experts and heads (48, 4, 3)"),
        (["64", "4", "1", "7629", "--to", tmp_path / "out"], "cannot be read as a checkpoint"),
        (["48", "4", "3", "1", "--to", tmp_path / "out"], "available: 48/4/3/9000.pt, 48/4/3/15258.pt"),
        (["48", "2", "3", "1", "--to", tmp_path / "out"], f"available: {', '.join(of_48)}\n"),
        (["99", "1", "1", "1", "--to", tmp_path / "out"], f"available: {', '.join([*of_48, *of_64])}\n"),
        ([*ARGUMENTS, "--to", tmp_path / "out", "--repository", "org/none"], "not found"),
        ([*ARGUMENTS, "--to", tmp_path / "full"], "not an empty folder; nothing was fetched"),
    ):
        code, _, err = command("pull", *words)
        assert code == 2
        assert err.startswith("error: ")
        assert reason in err
        assert "Traceback" not in err
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "cache") == ["full"]


def test_a_checkpoint_is_fetched_at_one_commit_in_spite_of_faults(server, command, tmp_path):
    head = server.state.repository("model", REPOSITORY).branches["main"]
    server.state.put("model", REPOSITORY, "main", {PATH: b"replaced"})
    server.faults.append(Fault(lambda request: request.api == "revision", "status", 503))
    server.faults.append(Fault(lambda request: "/resolve/" in request.path, "drop"))
    server.faults.append(Fault(lambda request: request.origin == "storage", "cut"))
    assert command("pull", *ARGUMENTS, "--to", tmp_path / "out", "--revision", head)[0] == 0
    assert [fault.times for fault in server.faults] == [0, 0, 0]
    resolved = [request.path for request in server.requests if "/resolve/" in request.path]
    assert [path for path in resolved if f"/resolve/{head}/" in path] == resolved != []
