"""A corpus of real English that is already on the machine: the documentation of what is installed.

Docstrings and manuals of the standard library and of every installed distribution, as a dataset with the columns and
types of FineWeb-Edu (Penedo et al. 2024) in the splits train and validation, for runs without a network. Losses on it
cannot be compared with losses on FineWeb-Edu.

List files -> extract and filter lines (in parallel) -> remove repeated lines -> documents -> split by the hash of the
document's id -> parquet.

    python -m training.corpus FOLDER [--max-bytes N]
"""

from training.corpus.builder import MANIFEST, CorpusReport, build

__all__ = ["MANIFEST", "CorpusReport", "build"]
