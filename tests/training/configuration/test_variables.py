"""Variables that libraries could not read are one line that names them; so are paths that are no UTF-8."""

import subprocess
import sys

import pytest

from hub.base.errors import InputError
from tests.guides import ROOT
from training import ConfigurationError, Sweep
from training.configuration.reading import from_dict, parse_command_line
from training.configuration.variables import check_variables

GROUP = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node7", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"ACCELERATE_USE_FSDP": "maybe"}, "ACCELERATE_USE_FSDP: 'maybe'; it must be true or false"),
        ({"ACCELERATE_USE_CPU": ""}, "ACCELERATE_USE_CPU: ''; it must be true or false"),
        ({"ACCELERATE_LOG_LEVEL": "nonsense"}, "ACCELERATE_LOG_LEVEL: 'nonsense'; it must be one of debug, info"),
        ({"RANK": "first"}, "RANK: 'first'; it must be a whole number from 0 on"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE: '0'; it must be a whole number from 1 on"),
        ({"MASTER_PORT": "99999"}, "MASTER_PORT: '99999'; it must be"),
        ({**GROUP, "RANK": "2"}, "RANK: 2; it must be less than WORLD_SIZE, which is 2"),
        (
            {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"},
            "MASTER_ADDR, MASTER_PORT: not set, but RANK, LOCAL_RANK",
        ),
        ({"RANK": "1"}, "LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT: not set, but RANK; set all"),
        ({"HF_ENDPOINT": "huggingface.co"}, "HF_ENDPOINT: 'huggingface.co'; it must be an address"),
    ],
)
def test_a_value_that_cannot_be_read_is_named(variables, message):
    with pytest.raises(InputError) as raised:
        check_variables(variables)
    assert str(raised.value).startswith(message)


def test_what_launchers_set_is_taken():
    for variables in ({}, {"RANK": "0"}, GROUP, {"ACCELERATE_USE_FSDP": "true", "ACCELERATE_LOG_LEVEL": "INFO"}):
        check_variables(variables)


def test_a_library_that_could_not_be_imported_is_not(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCELERATE_LOG_LEVEL", "nonsense")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for words in (["train.py"], ["-m", "training.run"], ["-m", "training.sweep", "run", "sweep.yaml"]):
        process = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)
        assert process.returncode == 2
        assert process.stderr.startswith("error: ACCELERATE_LOG_LEVEL: 'nonsense'; it must be one of debug")
        assert len(process.stderr.splitlines()) == 1


def test_a_path_that_is_no_utf8_is_refused_at_the_start(tmp_path):
    with pytest.raises(ConfigurationError, match=r"run\.output_dir: 'e-\\udcff'; it must be UTF-8; rename it"):
        parse_command_line(["--run.output_dir", "e-\udcff"])
    values = {"run": {"output_dir": "out"}, "data": {"dataset": "d-\udcff", "tokenizer": "t-\udcff"}}
    with pytest.raises(ConfigurationError, match=r"(?s)data\.dataset: 'd-.*data\.tokenizer: 't-"):
        from_dict(values)
    with pytest.raises(InputError, match=r"sweep file: .* is not UTF-8"):
        Sweep.load(str(tmp_path / "sw-\udcff.yaml"))
