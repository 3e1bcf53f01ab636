"""What the loop promises, for three classes of transformers: dense, top-k, and with shared experts."""

import math

import pandas
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from hub import RunRecord, load_records, open_store, push_run
from hub.record.run_record import OF_A_CLASS
from hub.release.push import push_listing
from scaling_law import describe, load_runs
from tests.model_classes import CLASSES, DENSE, NOISY, TOP_K
from tests.training import ranks
from tests.training.run.test_causal_model import EVERY
from tests.training.run.test_run import finish, folders, lines_of
from training import ConfigurationError, Run, from_dict
from training.configuration.model_classes import SELECTION_BIAS
from training.run.inputs import HeldOutText, check_inputs
from training.run.model import architecture
from training.run.step import add_gradients


@pytest.fixture(scope="module")
def released(tmp_path_factory, corpus, tokenizer_folder, token_caches):
    """Arguments, record and model folder of a finished run of each class."""
    from tests.conftest import tiny

    found = {}
    for kind, section in CLASSES.items():
        build = tiny.__wrapped__(corpus, tokenizer_folder, token_caches, tmp_path_factory.mktemp(kind))
        arguments = build(model=section, schedule__tokens=[1280])
        (record,) = finish(arguments).values()
        found[kind] = arguments, record, folders(arguments)[0]
    return found


@pytest.mark.parametrize("kind", CLASSES)
def test_the_record_and_describe_have_the_open_architecture(released, kind):
    arguments, record, folder = released[kind]
    arch = architecture(arguments.model, 300)
    assert record.model_type == kind
    sizes = ("d_model", "n_blocks", "n_heads", "experts", "n_active", "n_total", "experts_equivalent", "dense_blocks")
    assert {name: getattr(record, name) for name in sizes} == {name: getattr(arch, name) for name in sizes}
    variables = arch.variables()
    for name in OF_A_CLASS & {*variables}:
        assert getattr(record, name) == variables[name], name
    assert record.flops_count == "class"
    assert record.training_flops == pytest.approx(arch.training_flops(1280, 32), rel=2e-3)  # by formula
    assert record.balance_loss_coefficient == (0.001 if kind in ("qwen3_moe", "qwen2_moe") else 0)
    assert RunRecord.load(folder) == record
    described, tensors = describe(folder, tokens=record.tokens, force=True), load_file(folder / "model.safetensors")
    assert described.architecture == arch
    parameters = {name: tensor for name, tensor in tensors.items() if not name.endswith(SELECTION_BIAS)}
    assert described.model.parameters == sum(tensor.numel() for tensor in parameters.values())
    line = lines_of(arguments)[-1]
    if record.experts == 1:
        assert "router_entropy" not in line
    else:
        assert len(line["tokens_per_expert"]) == arch.routed_blocks
        assert sum(line["tokens_per_expert"][0]) == 4 * 32 * arch.experts_per_token
        assert 0 < line["router_entropy"] < math.log(8)
        assert 1 <= record.expert_load_max_over_mean <= 8
        assert (line["balance_loss"] > 0) == (record.balance_loss_coefficient > 0)


LOAD = """
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
for folder in FOLDERS:
    model = AutoModelForCausalLM.from_pretrained(folder, use_safetensors=True).eval()
    AutoTokenizer.from_pretrained(folder)
    ids = torch.load(HELD_OUT)
    with torch.no_grad():
        logits = model(input_ids=ids[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).item()
    print(type(model).__module__.split(".")[0], model.dtype, loss)
"""


def test_a_release_needs_no_code_of_ours(released, tmp_path):
    """Configuration and weights are the class's own, and the loss without our packages is that of the record."""
    for kind, (_, _, folder) in released.items():
        names = {path.name for path in folder.iterdir()}
        assert {"config.json", "model.safetensors", "run.json", "README.md"} <= names
        assert not [name for name in names if name.endswith(".py")]
        card = (folder / "README.md").read_text()
        assert kind in card
        assert "trust_remote_code" not in card
    arguments, _, _ = released["llama"]
    sequences = HeldOutText(arguments, Run(arguments).tokenizer).wait().sequences
    torch.save(torch.from_numpy(sequences), tmp_path / "ids.pt")
    folders_there = [str(folder) for _, _, folder in released.values()]
    code = f"FOLDERS, HELD_OUT = {folders_there!r}, {str(tmp_path / 'ids.pt')!r}\n{LOAD}"
    lines = ranks.print_without_ours(code, tmp_path / "printed.txt")
    for (_, record, _), line in zip(released.values(), lines[-len(released) :], strict=True):
        who, dtype, loss = line.split()
        assert (who, dtype) == ("transformers", "torch.float32")
        assert float(loss) == pytest.approx(record.eval_loss, abs=1e-5)


def test_classes_are_pushed_and_listed_beside_each_other(released, tmp_path):
    """Each in a repository of its own; both tables of the index have what laws ask about."""
    store = open_store(tmp_path / "hub")
    pushed = [push_run(store, folder, record) for _, record, folder in released.values()]
    push_listing(store, "tiny", pushed)
    index = tmp_path / "hub" / "datasets" / "tiny-runs" / "main"
    for name in ("runs.jsonl", "runs.parquet"):
        listed = {record.model_type: record for record in load_records(index / name)}
        assert {record.model_type: record for record in pushed} == listed
    table = pandas.read_parquet(index / "runs.parquet").set_index("model_type")["granularity"]
    assert table.to_dict() == {record.model_type: record.granularity for record in pushed}
    places = {path.name for path in (tmp_path / "hub" / "models").iterdir()}
    assert places == {f"tiny-{arguments.model.name}" for arguments, _, _ in released.values()}
    assert "qwen3_moe Mixture-of-Experts models" in store.read("model", pushed[1].repo, "README.md").decode()


def test_a_law_reads_such_runs(released, tiny, tmp_path):
    """Beside ours: E is that of laws, and every run has what open laws ask about."""
    ours = tiny(schedule__tokens=[1280], run__output_dir=str(tmp_path / "ours"))
    records = [record for _, record, _ in released.values()] + [*finish(ours).values()]
    runs = load_runs(records)
    archs = [architecture(arguments.model, 300) for arguments, _, _ in released.values()]
    archs.append(architecture(ours.model, 300))
    for name in ("experts", "granularity", "density", "sparsity", "shared_ratio", "routed_experts", "active_experts"):
        assert runs[name].tolist() == pytest.approx([arch.variables()[name] for arch in archs]), name
    assert load_runs(records, where="model_type = qwen3_moe").run_id == (records[1].run_id,)


def test_another_configuration_in_the_folder_is_refused(released):
    arguments, _, _ = released["qwen3_moe"]
    check_inputs(arguments)
    values = arguments.to_dict()
    for section, message in (
        (TOP_K | {"num_experts_per_tok": 4}, r"model.num_experts_per_tok: 4, but .* has 2"),
        (DENSE, "model.type: 'llama', but .* has 'qwen3_moe'"),
        (
            {name: value for name, value in TOP_K.items() if name != "moe_intermediate_size"},
            "moe_intermediate_size: None",
        ),
        ({"d_model": 64}, "model.type: None, but"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            check_inputs(from_dict(values | {"model": section}))


def test_masks_are_of_the_seed_and_the_sequences_alone(tiny):
    """Each forward pass of a step draws from a state of its own, which another process would have, too."""

    def states(step, **changes):
        found = []
        session = Run(tiny(model=NOISY, schedule__batch_ramp=["0:4"], **changes)).session
        session.model.register_forward_pre_hook(lambda *_: found.append(bytes(torch.get_rng_state().numpy())))
        add_gradients(session, step)
        return found

    first, later, other = states(0), states(3), states(0, run__seed=1)
    assert len({*first, *later, *other}) == 6
    torch.manual_seed(5)
    assert states(3) == later


def test_tied_embeddings_are_released_once_and_load(tiny):
    arguments = tiny(model=DENSE | {"tie_word_embeddings": True}, schedule__tokens=[1280])
    (record,), (folder,) = finish(arguments).values(), folders(arguments)
    assert record.n_total == architecture(arguments.model, 300).n_total
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert torch.equal(model.lm_head.weight, load_file(folder / "model.safetensors")["model.embed_tokens.weight"])


def test_parameters_that_no_loss_moves_are_named_and_stay(tiny, caplog):
    """DeepSeek's indexer picks positions by top-k: without a gradient it would have no state in a checkpoint."""
    section = {name: value for name, value in EVERY["deepseek_v32"].items() if name != "vocab_size"}
    arguments = tiny(model=section, schedule__tokens=[1280])
    drawn = {name: p.clone() for name, p in Run(arguments).session.model.named_parameters() if "indexer" in name}
    (record,) = finish(arguments).values()
    (line,) = {line for line in caplog.messages if line.startswith("no loss moves these parameters of deepseek_v32")}
    assert "model.layers.*.self_attn.indexer.wk.weight" in line
    assert record.status == "final"
    weights = load_file(folders(arguments)[0] / "model.safetensors")
    assert len(drawn) > 0
    assert all(torch.equal(weights[name], tensor) for name, tensor in drawn.items())
