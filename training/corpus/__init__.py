"""A corpus of real English that is already on the machine: the documentation of what is installed.

Docstrings of the standard library and of every installed distribution, documentation given as string arguments
(`add_newdoc`, `add_docstr`, decorators, help texts), Python's `pydoc_data` topics, and packaged READMEs. Sources are
parsed with `ast` and never imported or executed. The result is a data set with the columns and types of FineWeb-Edu
(Penedo et al. 2024), in the splits train and validation, for runs without a network; losses on it cannot be compared
with losses on FineWeb-Edu.

One file of a distribution gives one document (several when it is long), its docstrings in source order.
The way: list files -> extract and clean (in parallel) -> remove repetition over everything -> documents -> split by
the hash of the document's id -> parquet. Files are taken in the order of the hash of their name, so nothing depends on
the file system or on the number of workers, and a build of `max_bytes` need not read more than it uses.

    python -m training.corpus FOLDER [--max-bytes N]
"""

from training.corpus.builder import build, recount_tokens
from training.corpus.report import MANIFEST, CorpusReport

__all__ = ["MANIFEST", "CorpusReport", "build", "recount_tokens"]
