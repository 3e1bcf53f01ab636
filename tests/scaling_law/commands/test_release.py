"""A sweep released with its law: predictions on the runs' cards, the law's repository, the law in the index's card."""

# ruff: noqa: F811 (fixtures are imported)
import json
import shutil
from functools import cache

import numpy as np
import pytest
from huggingface_hub import DatasetCard, ModelCard

from hub import RunRecord, load_index, open_store
from hub.base.markdown import license_of
from scaling_law import JointLaw, load_runs
from scaling_law.commands.release import FIGURE, law_of, law_section, release_law
from tests.hub.conftest import hub_store, loopback, online  # noqa: F401
from tests.hub.loopback import Fault
from tests.hub.samples import make_record, record_fields, write_safetensors
from tests.scaling_law.synthetic import sweep_rows

pytestmark = pytest.mark.usefixtures("shared_searches")


@cache
def sweep_records() -> tuple[RunRecord, ...]:
    """48 runs, two of each size, whose losses lie 0.01 nats to both sides of a law."""
    recipe = {"schedule": record_fields()["schedule"], "epochs": None}
    rows = sweep_rows(seeds=(0, 1), tokens_of=(500_000, 4_000_000))
    return tuple(make_record(**row | recipe) for row in rows)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The folder of the sweep, written once."""
    folder = tmp_path_factory.mktemp("sweep") / "runs"
    for number, record in enumerate(sweep_records()):
        model = folder / record.run_id / "model"
        model.mkdir(parents=True)
        write_safetensors(model / "model.safetensors", [float(number)])
        (model / "config.json").write_text("{}")
        record.save(model)
    return folder


@pytest.fixture
def runs(written, tmp_path):
    """A copy of the folder, from which a test may remove runs."""
    return shutil.copytree(written, tmp_path / "runs")


@pytest.fixture
def release(shell):
    return lambda *words: shell("release", *words)


@pytest.fixture
def published(tmp_path):
    """A folder with the published law."""
    JointLaw.published().save_pretrained(tmp_path / "law")
    return tmp_path / "law"


def keep(count, runs):
    for folder in sorted(runs.iterdir())[count:]:
        shutil.rmtree(folder)


def test_a_sweep_and_its_law(release, runs, tmp_path):
    result = release(runs, tmp_path / "store")
    assert result.exit_code == 0, result.output
    store = open_store(tmp_path / "store")
    rows = load_index(store, "demo")
    assert len(rows) == 48
    law = JointLaw.from_pretrained(tmp_path / "store" / "models" / "demo-law" / "main")
    loaded = load_runs(tmp_path / "store" / "datasets" / "demo-runs" / "main")
    rmse = float(np.sqrt(np.mean((law.loss(loaded.n_active, loaded.tokens, loaded.experts) - loaded.loss) ** 2)))
    assert rmse == pytest.approx(0.01, rel=0.1)
    assert f"law demo-law, RMSE {rmse:.4f} nats" in result.output

    card = store.read("dataset", "demo-runs", "README.md").decode()
    assert DatasetCard(card).data.to_dict()["configs"]
    assert f"Fitted to 48 of these runs: root mean square error {rmse:.4f} nats per token" in card
    assert f"]({FIGURE})" in card
    assert 'JointLaw.from_pretrained("models/demo-law/main")' in card
    assert card.index("## The law") < card.index("## The runs")
    assert store.read("dataset", "demo-runs", FIGURE).startswith(b"\x89PNG")
    assert ModelCard(store.read("model", "demo-law", "README.md").decode()).data.license is None

    row = rows[20]
    predicted = float(law.loss(row.n_active, row.tokens, row.experts))
    of_run = store.read("model", row.repo, "README.md", row.branch).decode()
    assert f"predicts for this run: {predicted:.4f}." in of_run

    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "store").rglob("*.*") if path.name != ".lock"}
    assert release(runs, tmp_path / "store").exit_code == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_too_few_runs_are_released_without_a_law(release, runs, tmp_path, caplog):
    keep(1, runs)
    result = release(runs, tmp_path / "store")
    assert result.exit_code == 0, result.output
    assert "released without a law" in caplog.text
    store = open_store(tmp_path / "store")
    assert len(load_index(store, "demo")) == 1
    assert "demo-law" not in store.repos("model")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("nothing", "store"), "there is no folder"),
        (("runs", "ftp://x"), "allowed are a folder"),
        (("runs", "store", "--law", "none"), "no folder or Hub repo"),
        (("runs", "store", "--license", "apache2"), "license 'apache2'"),
        (("runs", "store", "--tag", "v1"), "allowed with a store on the Hub"),
        (("runs", "store", "--collection"), "allowed with a store on the Hub"),
        (("two", "store"), "holds runs of several sweeps, demo, other"),
    ],
)
def test_what_cannot_be_released_is_one_line_and_writes_nothing(release, runs, tmp_path, monkeypatch, words, reason):
    monkeypatch.chdir(tmp_path)
    keep(2, runs)
    for sweep in ("demo", "other"):
        make_record(sweep=sweep).save(tmp_path / "two" / sweep / "model")
    result = release(*words)
    assert result.exit_code == 2
    assert reason in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "store").exists()


def test_a_malicious_status_of_a_law_is_no_markup():
    published = JointLaw.published()
    evil = "<script>x</script> <!-- /law --> | ](javascript:x)"
    law = published.replace(conditions=type(published.conditions)(provenance=evil, status=evil))
    found = law_of(sweep_records(), law)
    text = law_section(found, "org/demo-law")
    assert "<" not in text
    assert "](javascript" not in text.replace("\\]", "")


def test_runs_of_several_recipes_have_a_law_by_the_users_word(caplog):
    mixed = [record.model_copy(update={"sequence_length": 512 + i % 2}) for i, record in enumerate(sweep_records())]
    assert law_of(mixed) is None
    assert "differ in sequence_length (512, 513)" in caplog.text
    found = law_of(mixed, mix=("sequence_length",))
    assert found.rmse == pytest.approx(0.01, rel=0.1)
    assert "mixing runs that differ in sequence_length" in found.law.conditions.provenance


def test_the_law_needs_an_index(tmp_path):
    with pytest.raises(LookupError, match="has no index"):
        release_law(open_store(tmp_path / "store"), "demo", law_of(sweep_records()))


def test_one_command_releases_runs_a_given_law_tag_and_collection(release, runs, published, loopback, monkeypatch):
    monkeypatch.setattr("hub.open_store", lambda uri, private: hub_store(loopback, private=private))
    options = ("--license", "cc-by-4.0", "--tag", "v1", "--collection", "--workers", "4")
    keep(3, runs)
    result = release(runs, "hf://org", "--law", published, *options)
    assert result.exit_code == 0, result.output
    index = loopback.state.repository("dataset", "org/demo-runs")
    assert index.tags == {"v1": index.branches["main"]}
    tagged = index.commits[index.tags["v1"]].tree
    assert "Fitted elsewhere; compared with 3 runs" in loopback.state.content(tagged["README.md"]).decode()
    law = loopback.state.repository("model", "org/demo-law").resolve("main").tree["scaling_law.json"]
    assert json.loads(loopback.state.content(law))["coefficients"] == JointLaw.published().coefficients
    (collection,) = loopback.state.collections.values()
    models = {repo for kind, repo in loopback.state.repositories if kind == "model"}
    assert {item["id"] for item in collection["items"]} == {"org/demo-runs", *models}
    trees = [repo.resolve("main").tree for repo in loopback.state.repositories.values()]
    cards = [loopback.state.content(tree["README.md"]).decode() for tree in trees]
    assert {license_of(card) for card in cards} == {"cc-by-4.0"}
    before = {key: set(repo.commits) for key, repo in loopback.state.repositories.items()}
    assert release(runs, "hf://org", "--law", published, *options).exit_code == 0
    assert {key: set(repo.commits) for key, repo in loopback.state.repositories.items()} == before


def test_a_law_that_cannot_be_published_leaves_an_incomplete_release(release, runs, published, loopback, monkeypatch):
    monkeypatch.setattr("hub.open_store", lambda uri, private: hub_store(loopback, private=private))
    keep(1, runs)
    denied = Fault(lambda request: request.api == "commit" and "demo-law" in request.path, "status", 403, times=10**9)
    loopback.faults.append(denied)
    assert release(runs, "hf://org", "--law", published).exit_code == 4
    assert len(load_index(hub_store(loopback), "demo")) == 1
