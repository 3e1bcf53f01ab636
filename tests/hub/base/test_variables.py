"""Certificates, proxies and tokens of the environment that no request could use are named before one is sent."""

import pytest

from hub.base.errors import FilesError, InputError
from hub.base.variables import check_network
from hub.store.files import copy_release, release_of, run_folders
from hub.store.folder import LocalStore
from hub.store.transport import Transport


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"SSL_CERT_FILE": "/gone/ca.pem"}, "SSL_CERT_FILE: /gone/ca.pem does not exist"),
        ({"SSL_CERT_FILE": __file__}, "SSL_CERT_FILE: .* holds no certificates"),
        ({"HTTP_PROXY": "http://proxy:port"}, "HTTP_PROXY: 'http://proxy:port'; it must be an address"),
        ({"https_proxy": "ftp://me:secret@proxy:80"}, "https_proxy: 'ftp://.*@proxy:80'; it must be an address"),
        ({"ALL_PROXY": "http://"}, "ALL_PROXY: 'http://'; it must be an address"),
        ({"HF_ENDPOINT": "https://hub\u200b.co"}, r"HF_ENDPOINT: 'https://hub.u200b.co'; it must be"),
        ({"HF_ENDPOINT": "http://hub:port"}, "HF_ENDPOINT: 'http://hub:port'; it must be an address"),
    ],
)
def test_a_variable_that_no_request_could_use_is_named(variables, message):
    with pytest.raises(InputError, match=message):
        check_network("hf_token", variables)


def test_proxies_are_taken_as_the_client_takes_them():
    check_network("", {"HTTPS_PROXY": "proxy:8080", "http_proxy": "http://me:secret@proxy:3128"})


@pytest.mark.parametrize(("token", "place"), [("hf_abc\u200b", "U+200B at place 7"), ("hf_é", "U+00E9 at place 4")])
def test_a_token_with_another_character_is_named_and_not_shown(monkeypatch, token, place):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(InputError) as raised:
        Transport()
    assert str(raised.value) == f"HF_TOKEN holds the character {place}; paste it again"


def test_links_that_have_lost_their_file_are_named(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "tokenizer.json").symlink_to("/purged/tokenizer.json")
    for read in (release_of, lambda folder: copy_release(folder, tmp_path / "copy")):
        with pytest.raises(FilesError, match=r"tokenizer\.json is a link to /purged/tokenizer\.json, which does not"):
            read(run)
    (tmp_path / "other").symlink_to("/purged/run")
    with pytest.raises(FilesError, match="other is a link to /purged/run"):
        run_folders(tmp_path)
    branch = tmp_path / "store" / "models" / "demo" / "main"
    branch.mkdir(parents=True)
    (branch / "model.safetensors").symlink_to("/purged/blob")
    with pytest.raises(FilesError, match=r"store: .*model\.safetensors is a link to /purged/blob"):
        LocalStore(tmp_path / "store").files("model", "demo")


def test_a_store_in_a_path_that_is_no_utf8_is_refused():
    with pytest.raises(InputError, match=r"store: 'hub-.* is not UTF-8"):
        LocalStore("hub-\udcff")
