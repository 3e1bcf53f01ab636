"""Final validation losses of routed language models: a real anchor for the fit of the routed law.

`clark_routing.csv` is from data/curves.csv.gz of github.com/google-deepmind/scaling_laws_for_routing, commit
42da0c392b12 (data CC-BY-4.0, Copyright 2022 DeepMind Technologies Limited; Clark et al. 2022, arXiv 2202.01169): the
last step of the runs with k = 1, every second block routed, seed 42.
"""

from pathlib import Path

from scaling_law import Runs, load_runs

TABLE = Path(__file__).with_name("clark_routing.csv")


def clark_runs(router: str) -> Runs:
    """The router's runs and the dense ones (all on the same number of tokens, which the routed law does not use)."""
    columns = {"n_active": "dense_parameters_millions * 1e6", "tokens": 131e9}
    return load_runs(TABLE, trunks="run", where=f"router in {{{router}, Dense}}", columns=columns)
