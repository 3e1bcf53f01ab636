"""Run records and releases: what a training run was, where its checkpoint lies, and how to fetch both.

    from hub import RunRecord, open_store, push_run, push_index, load_index

    store = open_store("releases")                     # a folder; "hf://some-org" is the Hub
    pushed = push_run(store, "checkpoint", record)     # one atomic publication, checked afterwards
    push_index(store, record.sweep, [pushed])
    records = load_index(store, record.sweep)

The package imports none of the project's other packages, and no name is imported before it is used: `hub.record` needs
pydantic only, and huggingface_hub is imported when a Hub is talked to. The names stand in `__init__.pyi`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
