"""A tokenizer named on the Hub whose files in the cache are damaged: refused offline, fetched again online."""

# ruff: noqa: F811 (fixtures are imported)
import pytest
import transformers.utils.hub
from huggingface_hub import constants

from hub import IntegrityError
from tests.hub.conftest import hub_cache, loopback, online, the_hub  # noqa: F401
from training import ConfigurationError, load_tokenizer
from training.data.tokenizer import description


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_damaged_tokenizer_is_not_loaded(the_hub, tokenizer_folder, monkeypatch, name):
    # Made once in a process, for the Hub of that time.
    monkeypatch.setattr(transformers.utils.hub, "_hf_api", None)
    files = {path.name: path.read_bytes() for path in tokenizer_folder.iterdir() if path.name != "trained.json"}
    the_hub.state.put("model", "org/tokenizer", "main", files)
    expected = description(load_tokenizer("org/tokenizer"))
    (file,) = hub_cache().glob(f"*/snapshots/*/{name}")
    content, blob = file.read_bytes(), file.resolve()
    damaged = content.replace(b'"', b'"x', 1), content[: len(content) // 2], content.replace(b"e", b"d", 1)
    for revision, changed in zip((None, "main", file.parent.name), damaged, strict=True):
        blob.write_bytes(changed)
        with monkeypatch.context() as patched:
            patched.setattr(constants, "HF_HUB_OFFLINE", True)
            with pytest.raises(IntegrityError, match=f"{name} of org/tokenizer is damaged .* delete {blob}"):
                load_tokenizer("org/tokenizer", revision)
        assert description(load_tokenizer("org/tokenizer", revision)) == expected
        assert file.read_bytes() == content
    with pytest.raises(ConfigurationError):
        load_tokenizer("no such folder")


def test_without_a_network_one_line_says_what_is_missing(online, monkeypatch, caplog):
    """The library by itself asks twelve times within a minute, and warns of each."""
    nobody = "http://127.0.0.1:9"
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, nobody)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "ENDPOINT", nobody)
    monkeypatch.setattr(transformers.utils.hub, "_hf_api", None)
    reason = r"is not in the Hub's cache, and the Hub cannot be reached: .*refused \(HF_HUB_OFFLINE=1 asks nobody\)"
    with pytest.raises(ConfigurationError, match=f"data.tokenizer: 'org/tokenizer' {reason}"):
        load_tokenizer("org/tokenizer")
    assert caplog.records == []
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigurationError, match="is not in the Hub's cache, and HF_HUB_OFFLINE=1 asks nobody for it"):
        load_tokenizer("org/tokenizer")
