"""Final validation losses of routed language models: a real anchor for the fit of the routed law.

`clark_routing.csv` is from data/curves.csv.gz of github.com/google-deepmind/scaling_laws_for_routing, commit
42da0c392b12 (data CC-BY-4.0, Copyright 2022 DeepMind Technologies Limited; Clark et al. 2022, arXiv 2202.01169): the
last step of the runs with k = 1, every second block routed, seed 42.
"""

import csv
from pathlib import Path

import numpy as np

from scaling_law import Runs

COLUMNS = ("dense_parameters_millions", "experts", "validation_loss")


def clark_runs(router: str) -> Runs:
    """The router's runs and the dense ones (all on the same number of tokens, which the routed law does not use)."""
    with Path(__file__).with_name("clark_routing.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    chosen = [row for kind in (router, "Dense") for row in table if row["router"] == kind]
    rows = [[float(row[name]) for name in COLUMNS] for row in chosen]
    millions, experts, loss = np.array(rows).T
    return Runs.from_columns(millions * 1e6, 131e9, experts, loss, trunk="run")
