"""A law on the Hub (on loopback): pushed with card and figures in one commit, and read back to the last bit."""

# ruff: noqa: F811 (fixtures are imported)
import pytest
from huggingface_hub import ModelCard

from hub import HubError, read_file
from scaling_law import JointLaw, law_files
from tests.hub.conftest import loopback, online, the_hub  # noqa: F401
from tests.hub.loopback import TOKEN

pytestmark = pytest.mark.usefixtures("shared_searches")


@pytest.fixture
def _nothing_is_drawn(monkeypatch):
    """Leave out the figures, which take a second each; `test_the_card_is_valid_and_shows_how_to_load` draws them."""
    monkeypatch.setattr(law_files, "law_pictures", lambda law: {})


@pytest.mark.usefixtures("_nothing_is_drawn")
def test_a_law_survives_the_hub_with_its_draws_and_conditions(the_hub, paper_fit):
    fitted = paper_fit.bootstrap(5).law
    before = len(the_hub.requests)
    commit = fitted.push_to_hub("org/my-law", token=TOKEN)
    again = JointLaw.from_pretrained("org/my-law")
    assert again.coefficients == fitted.coefficients
    assert (again.draws == fitted.draws).all()
    assert again.conditions == fitted.conditions
    assert JointLaw.from_pretrained("org/my-law", revision=commit).coefficients == fitted.coefficients
    assert the_hub.api_calls(before).count("commit") == 1


def test_the_card_is_valid_and_shows_how_to_load(the_hub):
    JointLaw.published().push_to_hub("org/published", token=TOKEN, license="cc-by-4.0")
    files = the_hub.state.repository("model", "org/published").resolve("main").tree
    assert {"README.md", "scaling_law.json", "isoflop.png", "memory_optimal.png"} <= set(files)
    card = ModelCard(read_file("org/published", "README.md").decode())
    assert card.data.license == "cc-by-4.0"
    assert 'JointLaw.from_pretrained("org/published")' in card.text
    assert "2.083023417040488" in card.text  # E_start at full precision


@pytest.mark.usefixtures("_nothing_is_drawn")
def test_what_is_not_there_or_has_no_owner_is_said(the_hub):
    with pytest.raises(FileNotFoundError, match="org/nothing"):
        JointLaw.from_pretrained("org/nothing")
    with pytest.raises(ValueError, match="owner/name"):
        JointLaw.published().push_to_hub("my-law")
    with pytest.raises(HubError):
        JointLaw.published().push_to_hub("org/my-law", token="hf_" + "x" * 34)
