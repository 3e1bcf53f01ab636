"""A law on the Hub (on loopback): pushed with card and figures in one commit, and read back to the last bit."""

# ruff: noqa: F811 (fixtures are imported)
import pytest
from huggingface_hub import ModelCard

from hub import HubError, read_file
from hub.store.transport import Transport
from scaling_law import JointLaw, fit
from tests.hub.conftest import loopback, online  # noqa: F401
from tests.hub.loopback import TOKEN
from tests.scaling_law.synthetic import synthetic_runs


@pytest.fixture
def server(loopback, monkeypatch):
    """The loopback Hub in the place of the one that stores talk to when no endpoint is named."""

    def transport(endpoint, token, **options):
        return Transport(endpoint or loopback.endpoint, token, **options)

    monkeypatch.setattr("hub.store.hub.Transport", transport)
    return loopback


def test_a_law_survives_the_hub_with_its_draws_and_conditions(server, tmp_path):
    fitted = fit(synthetic_runs()).bootstrap(5).law
    before = len(server.requests)
    commit = fitted.push_to_hub("org/my-law", token=TOKEN)
    again = JointLaw.from_pretrained("org/my-law")
    assert again.coefficients == fitted.coefficients
    assert (again.draws == fitted.draws).all()
    assert again.conditions == fitted.conditions
    assert JointLaw.from_pretrained("org/my-law", revision=commit).coefficients == fitted.coefficients
    assert server.api_calls(before).count("commit") == 1


def test_the_card_is_valid_and_shows_how_to_load(server):
    JointLaw.published().push_to_hub("org/published", token=TOKEN, license="cc-by-4.0")
    files = server.state.repository("model", "org/published").resolve("main").tree
    assert {"README.md", "scaling_law.json", "isoflop.png", "memory_optimal.png"} <= set(files)
    card = ModelCard(read_file("org/published", "README.md").decode())
    assert card.data.license == "cc-by-4.0"
    assert 'JointLaw.from_pretrained("org/published")' in card.text
    assert "2.083023417040488" in card.text  # E_start at full precision


def test_what_is_not_there_or_has_no_owner_is_said(server):
    with pytest.raises(FileNotFoundError, match="org/nothing"):
        JointLaw.from_pretrained("org/nothing")
    with pytest.raises(ValueError, match="owner/name"):
        JointLaw.published().push_to_hub("my-law")
    with pytest.raises(HubError):
        JointLaw.published().push_to_hub("org/my-law", token="hf_" + "x" * 34)
