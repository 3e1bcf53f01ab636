"""Records and small checkpoints that the tests of `hub` share."""

import json
import ssl
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from hub import HubStore, LocalStore, open_store, push_runs
from hub.release.push import push_listing
from tests.hub.loopback import TOKEN, LoopbackHub
from tests.hub.samples import make_record, write_safetensors


@pytest.fixture
def record():
    return make_record()


@pytest.fixture
def checkpoint(tmp_path):
    """Makes a folder as training leaves it: what may be released, and what must stay behind."""

    def make(name="checkpoint", weight=1.0):
        folder = tmp_path / name
        folder.mkdir()
        write_safetensors(folder / "model.safetensors", [weight] * 16)
        (folder / "config.json").write_text('{"model_type": "switch_moe", "hidden_size": 64}')
        (folder / "tokenizer.json").write_text('{"version": "1.0"}')
        (folder / "modeling_switch_moe.py").write_text("# remote code\n")
        (folder / "training_args.bin").write_bytes(b"pickled")
        (folder / "optimizer.pt").write_bytes(b"pickled")
        (folder / "checkpoints").mkdir()
        return folder

    return make


@pytest.fixture
def runs_of(checkpoint):
    """Makes folder and record of so many runs of one repository, each with weights of its own."""

    def make(count, start=0):
        numbers = range(start, start + count)
        return [(checkpoint(f"c{n}", weight=float(n)), make_record(run_id=f"run{n}", seed=n)) for n in numbers]

    return make


@pytest.fixture
def online(monkeypatch, tmp_path):
    """Lets huggingface_hub make requests in this test, without Xet and with a cache of its own."""
    from huggingface_hub import close_session, constants, set_client_factory
    from huggingface_hub.utils import _http

    from hub.store import transport

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    # Nothing here is encrypted, and each client would read the certificates of all authorities.
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setattr(ssl, "create_default_context", lambda **_: ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    # Faults are answered at once: what is waited for is tested by itself.
    monkeypatch.setattr(transport, "_sleep", lambda seconds: time.sleep(min(seconds, 0.02)))
    monkeypatch.setattr(_http, "time", SimpleNamespace(sleep=lambda seconds: None, time=time.time))
    set_client_factory(_http.default_client_factory)
    yield
    close_session()
    set_client_factory(_http.default_client_factory)


@pytest.fixture
def loopback(online):
    """A Hub of our own on this machine."""
    with LoopbackHub() as server:
        yield server
    assert server.crashes == []


def hub_store(server, **changes):
    """A store on the loopback Hub."""
    return HubStore("org", **{"endpoint": server.endpoint, "token": TOKEN, "timeout": 10.0, **changes})


def another_view(store):
    """The same store as another process sees it: without what this one knows of it."""
    return hub_store(SimpleNamespace(endpoint=store.transport.api.endpoint)) if isinstance(store, HubStore) else store


def changed_by_hand(store, place, name, content=None):
    """Another process's view of the store, after a person replaced or removed a file of a kind, repository, branch."""
    kind, repo, branch = place
    if isinstance(store, LocalStore):
        path = store.folder(kind, repo, branch) / name
        path.unlink() if content is None else path.write_bytes(content)
    else:
        where = {"repo_id": store.repo_id(repo), "repo_type": kind, "revision": branch}
        if content is None:
            store.transport.api.delete_file(name, **where)
        else:
            store.transport.api.upload_file(path_or_fileobj=content, path_in_repo=name, **where)
    return another_view(store)


def release(store, runs, workers=1):
    """Push runs, each a folder and a record, with their index and the cards of their repositories."""
    pushed = push_runs(store, runs, workers=workers)
    push_listing(store, "demo", pushed)
    return pushed


def sharded(folder):
    """A checkpoint's folder, with its weights as a shard with an index."""
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    index = {"weight_map": {"weight": "model-00001-of-00001.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def hub_cache():
    """The cache that huggingface_hub uses in this test."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


@pytest.fixture(params=["local", "hub"])
def store(request, tmp_path):
    """An empty store of each kind."""
    if request.param == "local":
        return open_store(tmp_path / "releases")
    return hub_store(request.getfixturevalue("loopback"))


@pytest.fixture
def command(monkeypatch, capsys):
    """Runs `python -m hub`; gives its exit status, standard output and standard error."""
    from hub.__main__ import main

    def run(*words):
        monkeypatch.setattr("sys.argv", ["hub", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main()
        shown = capsys.readouterr()
        return int(stopped.value.code or 0), shown.out, shown.err

    return run


@pytest.fixture
def the_hub(loopback, monkeypatch):
    """The loopback Hub as the one that commands talk to, with a token that may write."""
    from huggingface_hub import constants

    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, loopback.endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "ENDPOINT", loopback.endpoint)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    return loopback
