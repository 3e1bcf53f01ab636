"""Which commits a run and a sweep are pinned to, whatever happens upstream; the Hub is played by a function."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from hub import IntegrityError, UnavailableError
from training import ConfigurationError, Sweep
from training.data import pins
from training.data.pins import Pin, RunData, pinned, pinned_with_sweep
from training.sweep.run import write_configuration

NAME = "org/text"


class Upstream:
    """A Hub on which a commit comes with every `push`."""

    def __init__(self):
        self.number, self.asked, self.offline = 0, 0, False

    def push(self):
        self.number += 1

    @property
    def commit(self):
        return f"{self.number:040x}"

    def __call__(self, kind, name, asked):
        self.asked += 1
        if self.offline:
            raise UnavailableError("no network")
        return self.commit if asked in (None, "main") else f"{asked:0>40}"


@pytest.fixture
def upstream(monkeypatch):
    hub = Upstream()
    monkeypatch.setattr(pins, "_ask", hub)
    return hub


@pytest.fixture
def on_the_hub(tiny, tmp_path):
    """A function: arguments of a run on a dataset of the Hub, with a cache of its own."""
    return lambda **changes: tiny(data__dataset=NAME, data__cache_dir=str(tmp_path / "cache"), **changes)


def started(folder: Path, arguments) -> None:
    """Leave what a run leaves that starts now."""
    now, its_pins = pinned(arguments, folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "data.json").write_text(
        json.dumps({"dataset": {"id": NAME, "revision": now.data.revision}, "pins": [vars(pin) for pin in its_pins]})
    )


def test_a_run_keeps_its_commit(upstream, on_the_hub, tmp_path):
    folder = tmp_path / "run"
    started(folder, on_the_hub())
    first = upstream.commit
    upstream.push()
    for asked in (None, first):
        assert pinned(on_the_hub(data__revision=asked), folder)[1] == [Pin("dataset", NAME, None, first)]
    with pytest.raises(ConfigurationError, match=rf"data.revision: 'main', but the run in .*run is pinned to {first}"):
        pinned(on_the_hub(data__revision="main"), folder)
    assert pinned(on_the_hub(), tmp_path)[0].data.revision == upstream.commit != first  # another run


def test_without_a_network_the_commit_is_the_one_that_the_caches_were_made_at(upstream, on_the_hub, tmp_path, caplog):
    upstream.offline = True
    with pytest.raises(ConfigurationError, match=r"^data.revision: None, but the Hub .* of 'org/text'"):
        pinned(on_the_hub(), tmp_path)
    assert not (tmp_path / "cache").exists()
    pinned(on_the_hub(data__revision="b" * 40), tmp_path)  # no need to ask, and remembered
    assert pinned(on_the_hub(), tmp_path)[0].data.revision == "b" * 40
    upstream.offline = False
    pinned(on_the_hub(), tmp_path)
    upstream.offline = True
    assert pinned(on_the_hub(), tmp_path)[0].data.revision == upstream.commit
    assert f"using the last known commit of {NAME}, {upstream.commit}" in caplog.text


def test_the_members_of_a_sweep_are_pinned_together_even_when_all_start_at_once(upstream, on_the_hub, tmp_path):
    grid = {"run.seed": list(range(17))}
    sweep = Sweep.from_dict({"base": on_the_hub().to_dict(), "grid": grid}, tmp_path / "runs")

    def start(number):
        upstream.push()
        path = write_configuration(sweep.runs[number])
        return yaml.safe_load(path.read_text())["data"]["revision"]

    with ThreadPoolExecutor(8) as threads:
        found = set(threads.map(start, range(16)))
    assert len(found) == 1
    assert upstream.asked == 1
    (pin,) = json.loads((tmp_path / "runs" / "pins.json").read_text())
    assert pin == {"kind": "dataset", "id": NAME, "revision": None, "commit": found.pop()}
    assert start(16) == pin["commit"]


def test_a_member_of_a_sweep_keeps_its_own_commit_and_may_ask_for_another(upstream, on_the_hub, tmp_path):
    started(tmp_path / "runs" / "first", on_the_hub())
    before = upstream.commit
    upstream.push()
    assert pinned_with_sweep(on_the_hub(), tmp_path / "runs" / "first").data.revision == before
    assert pinned_with_sweep(on_the_hub(), tmp_path / "runs" / "second").data.revision == before
    other = on_the_hub(data__revision="c" * 40)
    assert pinned_with_sweep(other, tmp_path / "runs" / "third").data.revision == "c" * 40


@pytest.mark.parametrize("content", ["", "[]", "3", "null", '{"pins": 3}', '{"pins": [3]}', '{"pins": [{"kind": 1}]}'])
def test_a_damaged_file_of_a_run_is_named(tmp_path, content):
    (tmp_path / "data.json").write_text(content)
    with pytest.raises(IntegrityError, match=r"data\.json is damaged: "):
        RunData.of(tmp_path)


def test_what_a_run_keeps_is_read_back(tmp_path):
    data = RunData({"id": "a"}, {"id": "b"}, [Pin("dataset", "org/text", None, "0" * 40)])
    data.save(tmp_path)
    assert RunData.of(tmp_path) == data
    assert RunData.of(tmp_path / "new") == RunData()
