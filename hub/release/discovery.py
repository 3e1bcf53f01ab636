"""Helping others to find a release on the Hub: a tag on the index, and a collection of a sweep's repositories.

A tag gives the index a name that never moves, for a paper or a fit to cite. Both can be repeated without harm.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from hub.plain.errors import ConflictError, FilesError
from hub.record.names import index_name, repo_name
from hub.record.run_record import RunRecord
from hub.release.licenses import checked_license
from hub.store.base import Store, checked_name
from hub.store.hub import HubStore

MAX_TAG_LENGTH = 64


def check_options(store: Store, *, license: str | None, tag: str, collection: bool) -> None:
    """Refuse, before anything is sent, what a release cannot have.

    Raises:
        FilesError: no such licence; a tag or a collection in a folder, which has neither; or the tag is no name.
    """
    if license is not None:
        checked_license(license)
    if (tag or collection) and not isinstance(store, HubStore):
        raise FilesError(f"--tag and --collection: allowed with a store on the Hub, not with {store.uri}")
    if tag:
        checked_name(tag, "tag", MAX_TAG_LENGTH)


def tag_index(store: HubStore, sweep: str, tag: str, *, commit: str | None = None) -> str:
    """Name a commit of a sweep's index.

    Args:
        store: where the index lies.
        sweep: the sweep's name.
        tag: the name, e.g. "v1".
        commit: which commit; default: the newest one.

    Returns:
        The commit that the tag names.

    Raises:
        ConflictError: the tag exists on another commit; tags are not moved.
    """
    checked_name(tag, "tag", MAX_TAG_LENGTH)
    repo_id = store.repo_id(index_name(sweep))
    api, call = store.transport.api, store.transport.call
    commit = commit or str(call(lambda: api.repo_info(repo_id, repo_type="dataset")).sha)
    try:
        call(lambda: api.create_tag(repo_id, tag=tag, revision=commit, repo_type="dataset"))
    except ConflictError:
        refs = call(lambda: api.list_repo_refs(repo_id, repo_type="dataset"))
        there = next((ref.target_commit for ref in refs.tags if ref.name == tag), None)
        if there != commit:
            raise ConflictError(f"{repo_id} has a tag {tag!r} on commit {there}, not {commit}") from None
    return commit


def collect(store: HubStore, sweep: str, records: Iterable[RunRecord], *, others: Iterable[str] = ()) -> str:
    """Put the sweep's index and model repositories into the organisation's collection "Runs of <sweep>".

    Args:
        store: where the repositories lie.
        sweep: the sweep's name.
        records: the runs; each repository is added once.
        others: names of further model repositories, such as that of the law.

    Returns:
        The address of the collection.

    Raises:
        FilesError: the store is private, and there is a public collection of this title.
    """
    api, call = store.transport.api, store.transport.call
    store.transport.require_token()
    title, namespace = f"Runs of {sweep}", store.organisation
    made = call(lambda: api.create_collection(title, namespace=namespace, private=store.private, exists_ok=True))
    if store.private and not made.private:
        raise FilesError(f"private: the collection {made.title!r} is public; nothing was added to it")
    models = {store.repo_id(name) for name in (*(record.repo or repo_name(record) for record in records), *others)}
    wanted = {store.repo_id(index_name(sweep)): "dataset"} | dict.fromkeys(sorted(models), "model")
    there = {item.item_id for item in made.items}
    for item, kind in wanted.items():
        if item not in there:
            call(partial(api.add_collection_item, made.slug, item_id=item, item_type=kind, exists_ok=True))
    return str(made.url)
