"""What decides a model beside its configuration: each variable and switch is refused, harmless, or in the record."""

import ast
import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_multi_gpu_env

from hub import RunRecord
from tests.conftest import free_port
from tests.hub.samples import make_record
from training import ConfigurationError
from training.configuration.arguments import RunArguments
from training.data.pins import RunData
from training.run import main
from training.run.devices import _check_equal_environments, make_accelerator
from training.run.environment import answer_to, check_environment, count_launched, describe_environment
from training.run.progress import Progress
from training.run.results import environment_of_starts, installed_versions

CONFIGURATIONS = Path(__file__).parents[3] / "training/configs/accelerate"
READERS = {"get", "getenv", "parse_flag_from_env", "parse_choice_from_env", "get_int_from_env", "pop", "setdefault"}
ENVIRONMENTS = {"environ", "current_env", "env"}
# Parts that no training runs: their own tests, and what asks for and prints a configuration.
LEFT_OUT = re.compile(
    r"(accelerate/(test_utils|commands)|transformers/(testing_utils|cli|commands|trainer|training_args|generation)"
    r"|transformers/integrations/integration_utils|transformers/models/rag)"
)
# Trackers, clouds and checks of the machine, of transformers.
OF_NO_TRAINING = {
    *("CI", "DATABRICKS_RUNTIME_VERSION", "ECS_CONTAINER_METADATA_URI", "TRAINING_JOB_ARN", "TRUST_REMOTE_CODE"),
    *("SM_FRAMEWORK_MODULE", "SM_FRAMEWORK_PARAMS", "SM_HP_MP_PARAMETERS", "SM_NUM_CPUS", "SM_NUM_GPUS"),
    *("SAGEMAKER_JOB_NAME", "VSCODE_PID"),
}
# `*` is a name that helpers are given; with a prefix, of Accelerate's launcher: its flags of fp8, which are refused.
ONLY_HANDED_ON = {"*", "ACCELERATE_*", "PYTHONPATH", "systemdrive"}


def variables_read_by(package: str) -> dict[str, str]:
    """Names of the variables that a package reads or hands on -> where; a `*` stands for what is only known later."""
    folder = Path(find_spec(package).origin).parent
    names: dict[str, str] = {}
    for path in sorted(folder.rglob("*.py")):
        if LEFT_OUT.search(path.as_posix()):
            continue
        text = path.read_text(encoding="utf-8")
        if not re.search(r"environ|getenv|_env\b", text):
            continue
        for scope in scopes_of(ast.parse(text)):
            prefixes = constants_of(scope)
            for node in scope:
                for key in keys_of(node):
                    for name in texts_of(key, prefixes):
                        names.setdefault(name, f"{path.relative_to(folder)}:{node.lineno}")
    return names


def scopes_of(tree: ast.AST) -> list[list[ast.AST]]:
    """The nodes of each function, and those outside of functions."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    scopes = [list(ast.walk(function)) for function in functions]
    inside = {id(node) for scope in scopes for node in scope}
    return [*scopes, [node for node in ast.walk(tree) if id(node) not in inside]]


def constants_of(scope: list[ast.AST]) -> dict[str, set[str]]:
    """Texts that are assigned to names in a scope, such as `prefix = "FSDP_"`."""
    constants: dict[str, set[str]] = {}
    for node in scope:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    constants.setdefault(target.id, set()).add(node.value.value)
    return constants


def keys_of(node: ast.AST) -> Iterator[ast.expr]:
    """The expressions by which a node reads the environment, or sets that of processes."""
    if isinstance(node, ast.Subscript) and last_name(node.value) in ENVIRONMENTS:
        yield node.slice
    if isinstance(node, ast.Compare) and last_name(node.comparators[0]) in ENVIRONMENTS:
        yield node.left
    if not isinstance(node, ast.Call) or not node.args or last_name(node.func) not in READERS:
        return
    is_method = isinstance(node.func, ast.Attribute) and node.func.attr in {"get", "pop", "setdefault"}
    if is_method and last_name(node.func.value) not in ENVIRONMENTS:
        return
    first = node.args[0]
    yield from first.elts if isinstance(first, ast.List) else [first]


def last_name(node: ast.AST) -> str:
    return getattr(node, "attr", getattr(node, "id", ""))


def texts_of(node: ast.expr, prefixes: dict[str, set[str]]) -> set[str]:
    """What an expression may be: a text, a name or the sum of both; `*` for what is only known when it runs."""
    if isinstance(node, ast.Constant):
        return {str(node.value)}
    if isinstance(node, ast.Name):
        return prefixes.get(node.id, {"*"})
    if isinstance(node, ast.BinOp):
        return {left + right for left in texts_of(node.left, prefixes) for right in texts_of(node.right, prefixes)}
    if isinstance(node, ast.JoinedStr):
        texts = {""}
        for part in node.values:
            value = part.value if isinstance(part, ast.FormattedValue) else part
            texts = {text + more for text in texts for more in texts_of(value, prefixes)}
        return texts
    return {"*"}


@pytest.fixture(scope="module")
def of_accelerate() -> dict[str, str]:
    return variables_read_by("accelerate")


def test_every_variable_that_accelerate_reads_has_an_answer(of_accelerate):
    """A new version of Accelerate that reads another one fails here: refuse it, or say why it changes no number."""
    assert len(of_accelerate) > 140
    for name in ("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "ACCELERATE_DYNAMO_BACKEND", "FSDP_VERSION", "RANK"):
        assert name in of_accelerate
    assert "ACCELERATE_FP8_PAD_INNER_DIM" in of_accelerate  # a sum with a prefix
    answers = {name: answer_to(name) for name in of_accelerate.keys() - ONLY_HANDED_ON}
    assert not {name: of_accelerate[name] for name, answer in answers.items() if answer not in ("refused", "harmless")}


def test_every_variable_that_transformers_reads_has_an_answer():
    names = variables_read_by("transformers")
    assert len(names) > 25
    assert "USE_HUB_KERNELS" in names
    unknown = [name for name in names.keys() - OF_NO_TRAINING - ONLY_HANDED_ON if answer_to(name) is None]
    assert not {name: names[name] for name in unknown}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4", "4; it must be 1: schedule.batch_ramp and run.micro_batch"),
        ("ACCELERATE_GRADIENT_CLIPPING", "0.5", "0.5; it must be false or unset: set optimizer.gradient_clip"),
        ("ACCELERATE_MIXED_PRECISION", "fp16", "fp16; it must be no or bf16: run.precision decides"),
        ("ACCELERATE_MIXED_PRECISION", "FP8", "fp8; it must be no or bf16: run.precision decides"),
        ("ACCELERATE_FP8_BACKEND", "AO", "ao; it must be false or unset: set run.precision"),
        ("ACCELERATE_FP8_FORMAT", "E4M3", "e4m3; it must be"),
        ("ACCELERATE_DYNAMO_BACKEND", "INDUCTOR", "inductor; it must be false or unset: run.compile decides"),
        ("ACCELERATE_USE_DEEPSPEED", "true", "true; it must be false or unset: shard with FSDP2"),
        ("ACCELERATE_USE_MEGATRON_LM", "true", "true; it must be false or unset: shard with FSDP2"),
        ("ACCELERATE_USE_SAGEMAKER", "true", "true; it must be false or unset: start train.py on each machine"),
        ("FSDP_OFFLOAD_PARAMS", "true", "true; it must be false or unset: train.py keeps weights"),
        ("FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD", "true", "true; it must be false or unset: set run.gradient_check"),
        ("FSDP_IGNORED_MODULES", "norm", "norm; it must be false or unset: train.py shards every parameter"),
        ("ACCELERATE_TORCH_DEVICE", "meta", "meta; it must be a device of torch"),
        ("ACCELERATE_TORCH_DEVICE", "gpu", "gpu; it must be a device of torch"),
    ],
)
def test_settings_that_are_not_carried_out_are_refused_by_name(monkeypatch, name, value, message):
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=f"^{name}: {message}") as refusal:
        make_accelerator(RunArguments())
    assert "\n" not in str(refusal.value)


def test_the_launchers_defaults_are_accepted():
    """What `accelerate launch` sets without flags."""
    off = {"ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_DYNAMO_BACKEND": "NO", "ACCELERATE_USE_CPU": "False"}
    fsdp = {"FSDP_OFFLOAD_PARAMS": "false", "FSDP_ACTIVATION_CHECKPOINTING": "false"}
    check_environment(RunArguments(), off | fsdp | {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "1"})


def launched(*words: str) -> dict[str, str]:
    """What `accelerate launch` sets for its processes, of these flags."""
    arguments, _, _ = _validate_launch_command(launch_command_parser().parse_args([*words, "train.py"]))
    environment = prepare_multi_gpu_env(arguments)
    return {name: value for name, value in environment.items() if os.environ.get(name) != value}


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ("--mixed_precision fp16", "ACCELERATE_MIXED_PRECISION"),
        ("--dynamo_backend inductor", "ACCELERATE_DYNAMO_BACKEND"),
        ("--use_megatron_lm", "ACCELERATE_USE_MEGATRON_LM"),
        ("--use_fsdp --fsdp_version 2 --fsdp_offload_params true", "FSDP_OFFLOAD_PARAMS"),
        ("--use_fsdp --fsdp_version 2 --fsdp_activation_checkpointing true", "FSDP_ACTIVATION_CHECKPOINTING"),
    ],
)
def test_flags_of_the_launcher_are_refused(flags, name):
    with pytest.raises(ConfigurationError, match=f"^{name}: "):
        check_environment(RunArguments(), launched("--num_processes", "2", "--num_machines", "1", *flags.split()))


@pytest.mark.parametrize("file", sorted(CONFIGURATIONS.glob("*.yaml")), ids=lambda file: file.stem)
def test_our_files_for_the_launcher_set_nothing_that_is_refused_or_recorded(file):
    several = ["--machine_rank", "0", "--main_process_ip", "127.0.0.1", "--main_process_port", str(free_port())]
    environment = launched("--config_file", str(file), *several)
    assert "ACCELERATE_MIXED_PRECISION" in environment
    for precision in ("fp32", "bf16"):
        check_environment(RunArguments(precision=precision), environment)
    assert describe_environment(environment) == {}


def test_a_precision_of_the_launcher_does_not_contradict_the_configuration():
    variables = {"ACCELERATE_MIXED_PRECISION": "bf16"}
    check_environment(RunArguments(precision="bf16"), variables)
    with pytest.raises(ConfigurationError, match=r"^ACCELERATE_MIXED_PRECISION: bf16; it must be no: "):
        check_environment(RunArguments(precision="fp32"), variables)


def test_train_py_says_it_in_one_line(tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4")
    tiny().save(tmp_path / "run.yaml")
    assert main.main(["--config", str(tmp_path / "run.yaml")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ACCELERATE_GRADIENT_ACCUMULATION_STEPS: 4; it must be 1")


@pytest.mark.parametrize(
    ("change", "restore", "message"),
    [
        (
            lambda: torch.set_default_dtype(torch.float64),
            lambda: torch.set_default_dtype(torch.float32),
            "default_dtype",
        ),
        (lambda: torch.set_default_device("meta"), lambda: torch.set_default_device(None), "default_device"),
        (lambda: torch.set_grad_enabled(False), lambda: torch.set_grad_enabled(True), "is_grad_enabled"),
    ],
)
def test_a_process_that_would_train_another_model_is_refused(change, restore, message):
    change()
    try:
        with pytest.raises(ConfigurationError, match=f"^torch.*{message}.*; it must be .*: torch.set"):
            check_environment(RunArguments(), {})
    finally:
        restore()


def test_an_outer_autocast_is_refused():
    """Under it a run in fp32 would multiply in bf16."""
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ConfigurationError, match=r"autocast_enabled.*cpu"):
        check_environment(RunArguments(), {})


@pytest.mark.parametrize(
    ("variables", "count"),
    [
        ({}, 1),
        ({"WORLD_SIZE": "4"}, 4),
        ({"WORLD_SIZE": "1", "OMPI_COMM_WORLD_SIZE": "2"}, 1),
        ({"OMPI_COMM_WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1"}, 2),
        ({"PMI_SIZE": "2"}, "mpirun: 2 processes were started, and each would train alone"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE: 'two'; it must be a whole number"),
    ],
)
def test_processes_are_counted_as_launchers_say(monkeypatch, variables, count):
    for name in ("WORLD_SIZE", "MASTER_ADDR", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if isinstance(count, int):
        assert count_launched() == count
        return
    with pytest.raises(ConfigurationError, match=f"^{count}"):
        count_launched()


def test_what_may_change_numbers_is_described():
    variables = {
        **{"NVIDIA_TF32_OVERRIDE": "1", "ONEDNN_DEFAULT_FPMATH_MODE": "BF16", "TORCHINDUCTOR_CACHE_DIR": "/a/b"},
        **{"ACCELERATE_OF_A_LATER_VERSION": "x", "TORCH_SOMETHING": "/home/me/file", "PATH": "/bin", "HOME": "/root"},
        **{"OMP_NUM_THREADS": "2", "ACCELERATE_MIXED_PRECISION": "bf16", "TORCHELASTIC_RUN_ID": "1"},
    }
    assert describe_environment(variables) == {
        "ACCELERATE_OF_A_LATER_VERSION": "x",
        "NVIDIA_TF32_OVERRIDE": "1",
        "ONEDNN_DEFAULT_FPMATH_MODE": "BF16",
        "TORCH_SOMETHING": "not shown",
    }


def test_switches_of_torch_are_described_unless_they_are_as_in_a_fresh_process():
    assert describe_environment({}) == {}
    torch.set_float32_matmul_precision("high")
    try:
        described = describe_environment({})
    finally:
        torch.set_float32_matmul_precision("highest")
    assert described["torch.get_float32_matmul_precision"] == "high"
    assert described["torch.backends.cuda.matmul.fp32_precision"] == "tf32"
    assert describe_environment({}) == {}


def test_the_record_has_the_environment(tiny, tmp_path, monkeypatch, caplog):
    # Tests themselves may run on other kernels.
    for name in describe_environment():
        monkeypatch.delenv(name)
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    tiny(schedule__tokens=[256], schedule__warmup_tokens=64, schedule__batch_ramp=["0:2"]).save(tmp_path / "run.yaml")
    assert main.main(["--config", str(tmp_path / "run.yaml")]) == 0
    (folder,) = (tmp_path / "run").glob("tokens*/model")
    record = RunRecord.load(folder)
    assert record.environment == {"NVIDIA_TF32_OVERRIDE": "1"}
    assert "the run record has it: NVIDIA_TF32_OVERRIDE=1" in caplog.text
    assert record.versions == installed_versions()
    assert RunData.of(tmp_path / "run").peak_learning_rate == record.schedule.peak_learning_rate == 0.01
    assert record.versions["python"] == sys.version.split()[0]


def test_an_environment_of_one_process_alone_is_refused(monkeypatch):
    together = SimpleNamespace(num_processes=3)
    monkeypatch.setattr("accelerate.utils.gather_object", lambda own: [{}, {}, {}])
    _check_equal_environments(together)
    monkeypatch.setattr("accelerate.utils.gather_object", lambda own: [{}, {}, {"NVIDIA_TF32_OVERRIDE": "1"}])
    with pytest.raises(ConfigurationError, match=r"^NVIDIA_TF32_OVERRIDE: unset in process 0, 1 in process 2; "):
        _check_equal_environments(together)


def test_the_environments_of_all_starts_are_recorded():
    progress = Progress()
    for variables in ({"NVIDIA_TF32_OVERRIDE": "1"}, {}, {"NVIDIA_TF32_OVERRIDE": "0"}, {"NVIDIA_TF32_OVERRIDE": "1"}):
        progress.add_environment(describe_environment(variables))
        progress = Progress(**json.loads(json.dumps(asdict(progress))))  # as a checkpoint does
    assert environment_of_starts(progress) == {"NVIDIA_TF32_OVERRIDE": "1, 0"}


def test_whatever_is_set_is_a_record():
    variables = {f"TORCH_{number}": "x" * 290 for number in range(99)}
    odd = {
        "TORCH_\n": "1",
        "TORCH_\udcff": "1",
        "TORCH_A": "\udcff",
        "TORCH_B": "a\nb",
        "TORCH_C": "",
        "MKL_D": "z" * 999,
    }
    odd |= {"TORCH_TOKEN": "hf_" + "a" * 34, "TORCH_MAIL": "someone@example.org"}
    progress = Progress()
    progress.add_environment(describe_environment(odd))
    assert set(progress.environment) == {"MKL_D", "TORCH_A", "TORCH_B", "TORCH_C", "TORCH_MAIL", "TORCH_TOKEN"}
    assert {tuple(values) for values in progress.environment.values()} == {("not shown",)}
    for value in ("1", "2"):
        progress.add_environment(describe_environment({name: text + value for name, text in variables.items()}))
    record = make_record(environment=environment_of_starts(progress))
    assert len(record.environment) == 64


def test_a_record_without_environment_lacks_the_field():
    assert "environment" not in make_record().to_dict()
