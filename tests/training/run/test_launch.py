"""How runs are started: Accelerate's configuration files, and the processes of a run."""

from pathlib import Path

import pytest
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import DistributedType
from accelerate.utils.launch import prepare_multi_gpu_env

import training
from hub import RunRecord
from modeling_switch_moe import SwitchMoeForCausalLM
from modeling_switch_moe import modeling_switch_moe as modeling
from training.configuration.arguments import ConfigurationError
from training.sweep import run as sweep_run
from training.sweep.file import Sweep
from training.sweep.run import Attempt, lock_of, run_sweep, state

FOLDER = Path(training.__file__).parent / "configs" / "accelerate"
FILES = sorted(FOLDER.glob("*.yaml"))


def test_there_is_a_file_for_each_kind_of_machine():
    names = ["cpu_two_processes", "multi_node_fsdp2", "one_node_ddp", "one_node_fsdp2", "single_gpu"]
    assert [path.stem for path in FILES] == names


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_accelerate_reads_the_file(path, monkeypatch):
    config = load_config_from_file(str(path))  # unknown keys raise
    assert config.mixed_precision == "no"
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    flags = ["--main_process_ip", "127.0.0.1", "--main_process_port", "29501", "--machine_rank", "1"]
    arguments = launch_command_parser().parse_args(["--config_file", str(path), *flags, "train.py"])
    arguments, _, _ = _validate_launch_command(arguments)
    assert arguments.num_processes == config.num_processes
    assert arguments.mixed_precision == "no"
    assert arguments.multi_gpu == (config.distributed_type == DistributedType.MULTI_GPU)
    assert arguments.use_fsdp == ("fsdp" in path.stem)
    if not arguments.use_fsdp:
        return
    environment = prepare_multi_gpu_env(arguments)
    expected = {
        **{"FSDP_VERSION": "2", "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP", "ACCELERATE_USE_FSDP": "true"},
        **{"FSDP_RESHARD_AFTER_FORWARD": "true", "FSDP_STATE_DICT_TYPE": "SHARDED_STATE_DICT"},
        "ACCELERATE_MIXED_PRECISION": "no",
    }
    assert expected.items() <= environment.items()
    assert environment["FSDP_TRANSFORMER_CLS_TO_WRAP"] in SwitchMoeForCausalLM._no_split_modules
    assert hasattr(modeling, environment["FSDP_TRANSFORMER_CLS_TO_WRAP"])


def test_processes_of_a_run_get_gpus_of_their_own(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4")
    places = sweep_run.environments(3, processes=2)
    assert [place["CUDA_VISIBLE_DEVICES"] for place in places] == ["0,1", "2,3", "0,1"]
    for how in ({"processes": 8}, {"accelerate_config": FOLDER / "one_node_ddp.yaml"}):
        with pytest.raises(ConfigurationError, match="--processes-per-run: 8; it must be at most 5"):
            sweep_run.environments(1, **how)


def test_a_file_that_accelerate_cannot_read_is_refused(tmp_path):
    (tmp_path / "bad.yaml").write_text("distributed_type: MULTI_GPU\nnonsense: 1\n")
    for name in ("bad.yaml", "missing.yaml"):
        with pytest.raises(ConfigurationError, match=f"--accelerate-config: .*{name}"):
            sweep_run.environments(1, accelerate_config=tmp_path / name)


def test_several_processes_are_never_started_with_the_flag_that_starts_one():
    command = sweep_run.launch_command(on_cpu=True, processes=2)
    assert "--cpu" not in command
    assert "--multi_gpu" in command


def sweep_of(arguments, tmp_path) -> Sweep:
    return Sweep.from_dict({"base": arguments.to_dict()}, tmp_path / "sweep")


@pytest.mark.slow
@pytest.mark.parametrize("how", [{"processes_per_run": 2}, {"accelerate_config": FOLDER / "cpu_two_processes.yaml"}])
def test_a_run_has_the_processes_that_were_asked_for(tiny, tmp_path, how):
    sweep = sweep_of(tiny(run__micro_batch_sequences=1, schedule__tokens=[1280]), tmp_path)
    outcome = run_sweep(sweep, 1, **how)
    assert outcome.finished == ["d64-E4-seed0"], (sweep.runs[0].folder / "output.log").read_text()
    assert RunRecord.load(sweep.runs[0].finished()[0]).hardware.startswith("2 x ")


def test_processes_that_cannot_share_a_batch_are_refused_before_anything_is_started(tiny, tmp_path):
    sweep = sweep_of(tiny(), tmp_path)
    with pytest.raises(ConfigurationError, match="micro-batches that 2 processes cannot share"):
        run_sweep(sweep, 1, processes_per_run=2)
    assert not sweep.runs[0].folder.exists()


def test_a_failed_run_is_tried_again_as_often_as_asked(tiny, tmp_path):
    sweep = sweep_of(tiny(data__tokenizer=str(tmp_path / "missing")), tmp_path)
    outcome = run_sweep(sweep, 1, retries=1)
    (status, log) = outcome.failed["d64-E4-seed0"]
    assert status == 1
    assert log.read_text().count("error: data.tokenizer: ") == 2
    assert Attempt.load(sweep.runs[0].folder) == Attempt(1, stopped=False)
    assert state(sweep.runs[0]) == "failed"


def test_a_run_that_another_sweep_works_on_is_left_alone(tiny, tmp_path):
    sweep = sweep_of(tiny(), tmp_path)
    sweep.runs[0].folder.mkdir(parents=True)
    with lock_of(sweep.runs[0]):
        outcome = run_sweep(sweep, 1)
    assert outcome.elsewhere == ["d64-E4-seed0"]
    assert not (sweep.runs[0].folder / "output.log").exists()
