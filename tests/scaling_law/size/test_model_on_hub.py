"""A model's config.json on the Hub (on loopback): the only file that is read, at any revision."""

# ruff: noqa: F811 (fixtures are imported)
import json

import pytest

import hub
from scaling_law.size.model_configs import read_model
from tests.hub.conftest import loopback, online, the_hub  # noqa: F401
from tests.hub.loopback import TOKEN
from tests.scaling_law.configs import MIXTRAL


def publish(name: str, config: dict) -> str:
    """The commit."""
    store = hub.HubStore("org", token=TOKEN)
    files = {"config.json": json.dumps(config).encode()}
    return hub.publish_files(store, name, files, message="a model").commit


def test_nothing_but_the_configuration_is_read(the_hub):
    first = publish("my-model", MIXTRAL)
    publish("my-model", MIXTRAL | {"num_hidden_layers": 16})
    before = len(the_hub.requests)
    assert read_model("org/my-model").architecture.blocks == 16
    read = {request.path.rpartition("/")[2] for request in the_hub.requests[before:] if not request.api}
    assert read == {"config.json"}
    assert read_model(f"org/my-model@{first}").architecture.blocks == 32
    assert read_model("org/my-model", revision=first).name == "org/my-model"


def test_a_model_that_is_not_there_is_said(the_hub):
    with pytest.raises(FileNotFoundError, match="org/nothing: no folder or Hub repo with a config"):
        read_model("org/nothing")
