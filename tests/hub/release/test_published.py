"""The authors' checkpoints, from a loopback Hub that holds a small file in their layout."""

import io

import pytest
import torch

from hub import PublishedRun, list_published, pull_published
from hub.plain.errors import IntegrityError, NotFoundError
from hub.release.published import REPOSITORY
from tests.hub.loopback import Fault

RUN = PublishedRun(d_model=64, experts=4, n_heads=1, steps=15258)


def _checkpoint():
    buffer = io.BytesIO()
    torch.save({"model": {"head.weight": torch.arange(6.0).reshape(2, 3)}, "step": 15258}, buffer)
    return buffer.getvalue()


def _convert(file, destination):
    content = torch.load(file.path, weights_only=True)
    destination.mkdir()
    (destination / "seen.txt").write_text(f"{file.run.tokens} {content['model']['head.weight'].sum().item()}")


@pytest.fixture
def published(loopback):
    files = {
        RUN.path: _checkpoint(),
        "512/1/8/7629.pt": b"x",
        "512/8/8/7629.pt": b"y",
        "README.md": b"---\na: 1\n---\n",
    }
    loopback.state.put(
        "model", REPOSITORY, "main", {**files, "notes/1/2/3.pt": b"", "../../9.pt": b"", "1/2/3/0x1.pt": b""}
    )
    return loopback


def test_a_checkpoint_is_fetched_at_one_commit_and_converted(published, tmp_path):
    head = published.state.repository("model", REPOSITORY).branches["main"]
    commit = pull_published(RUN, tmp_path / "out", _convert, endpoint=published.endpoint)
    assert commit == head
    assert (tmp_path / "out" / "seen.txt").read_text() == "2000000000 15.0"
    resolved = [request.path for request in published.requests if "/resolve/" in request.path]
    assert resolved
    assert all(f"/resolve/{head}/" in path for path in resolved)
    published.state.put("model", REPOSITORY, "main", {RUN.path: b"replaced"})
    assert pull_published(RUN, tmp_path / "old", _convert, endpoint=published.endpoint, revision=head) == head


def test_the_runs_that_there_are(published, tmp_path):
    assert list_published(endpoint=published.endpoint) == [
        RUN,
        PublishedRun(512, 1, 8, 7629),
        PublishedRun(512, 8, 8, 7629),
    ]
    for run, hint in (
        (PublishedRun(512, 8, 8, 1), "there are 512/8/8/7629.pt"),
        (PublishedRun(512, 2, 8, 1), "there are 512/1, 512/8"),
        (PublishedRun(99, 1, 1, 1), "there are 64, 512"),
    ):
        with pytest.raises(NotFoundError, match=hint):
            pull_published(run, tmp_path / "out", _convert, endpoint=published.endpoint)
    assert not (tmp_path / "out").exists()


def test_a_damaged_download_is_not_converted(published, tmp_path):
    entry = published.state.repository("model", REPOSITORY).resolve("main").tree[RUN.path]
    content = published.state.content(entry)
    published.state.large[entry.lfs] = content[:-1] + bytes([content[-1] ^ 1])
    with pytest.raises(IntegrityError, match="was received with sha256"):
        pull_published(RUN, tmp_path / "out", _convert, endpoint=published.endpoint)


def test_faults_on_the_way_are_survived(published, tmp_path):
    published.faults.append(Fault(lambda request: request.api == "info", "status", 503))
    published.faults.append(Fault(lambda request: "/resolve/" in request.path, "drop"))
    published.faults.append(Fault(lambda request: request.origin == "storage", "cut"))
    pull_published(RUN, tmp_path / "out", _convert, endpoint=published.endpoint)
    assert [fault.times for fault in published.faults] == [0, 0, 0]
    assert (tmp_path / "out" / "seen.txt").read_text() == "2000000000 15.0"
