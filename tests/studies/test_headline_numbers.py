"""The headline numbers of the pages, from the records by a second way: numpy and the printed formula alone."""

import csv
import json
import re

import numpy as np
import pytest

from scaling_law import JointLaw
from tests.guides import DOCS, ROOT, text_of

LAW = JointLaw.published().coefficients
PREDICTED = (80, 112)  # d_model; no fit has these
CROSSING, EVIDENCE = (
    " ".join(re.sub(r"<!-- =\S* -->", "", text_of(DOCS / "studies" / f"{name}.md")).split())
    for name in ("crossing", "evidence")
)


def loss(n, d, e):
    """Eq. 5 of the paper."""
    offset = 1 / (1 / LAW["e_start"] - 1 / LAW["e_max"])
    x = np.log(1 / (1 / (e - 1 + offset) + 1 / LAW["e_max"]))
    size = LAW["a"] * np.exp(LAW["delta"] * x) * n ** (LAW["alpha"] + LAW["gamma"] * x)
    return size + LAW["b"] * np.exp(LAW["omega"] * x) * d ** (LAW["beta"] + LAW["zeta"] * x) + LAW["c"]


@pytest.fixture(scope="module")
def losses():
    """(d_model, E) → D → seed → loss, at the rates of the table; and the N_act of each d_model."""
    with (DOCS / "studies" / "tables" / "crossing-rates.csv").open() as file:
        used = {(int(row["d_model"]), int(row["experts"])): float(row["used"]) for row in csv.DictReader(file)}
    cells, sizes, branches = {}, {}, {}
    records = [json.loads(line) for line in text_of(ROOT / "studies" / "crossing" / "runs.jsonl").splitlines()]
    for r in records:
        branches[r["parent_run_id"]] = branches.get(r["parent_run_id"], 0) + 1
    for r in sorted(records, key=lambda r: branches[r["parent_run_id"]]):  # trained twice: that of the longer trunk
        model = r["d_model"], r["experts"]
        if model[0] not in PREDICTED and np.isclose(r["schedule"]["peak_learning_rate"], used[model], rtol=1e-3):
            sizes[model[0]] = r["n_active"]
            cells.setdefault(model, {}).setdefault(float(f"{r['tokens']:.2g}"), {})[r["seed"]] = r["eval_loss"]
    return cells, sizes


def crossing(tokens, gaps, weights):
    """Where the nearest decreasing curve (pooled neighbours) crosses zero, on straight lines in ln D."""
    blocks = [[g, w, 1] for g, w in zip(gaps, weights, strict=True)]
    while (k := next((k for k in range(len(blocks) - 1) if blocks[k][0] < blocks[k + 1][0]), None)) is not None:
        (g, w, n), (h, v, m) = blocks[k : k + 2]
        blocks[k : k + 2] = [[(g * w + h * v) / (w + v), w + v, n + m]]
    falling = np.repeat([b[0] for b in blocks], [b[2] for b in blocks])
    if falling[-1] >= 0 or falling[0] < 0:
        return 4 * tokens[-1] if falling[-1] >= 0 else tokens[0] / 4
    return np.exp(np.interp(0, -falling, np.log(tokens)))


def variance(cells, routed):
    """D → variance of a run of this kind, and D → its degrees of freedom."""
    squares, freedom = {}, {}
    for (_, e), by_tokens in cells.items():
        for t, seeds in by_tokens.items():
            if (e > 1) == routed and len(seeds) > 1:
                values = np.array([*seeds.values()])
                squares[t] = squares.get(t, 0) + ((values - values.mean()) ** 2).sum()
                freedom[t] = freedom.get(t, 0) + len(values) - 1
    return {t: squares[t] / freedom[t] for t in squares} | {32e6: squares[16e6] / freedom[16e6]}, freedom


def test_the_crossings(losses):
    cells, sizes = losses
    (dense, of_dense), (routed, of_routed) = (variance(cells, kind) for kind in (False, True))
    scatter = f"{dense[1e6] ** 0.5:.4f} | {of_dense[1e6]} | {routed[1e6] ** 0.5:.4f} | {of_routed[1e6]}"
    assert f"| 1M | {scatter} |" in CROSSING
    measured, said, gaps, published = {}, {}, [], []
    searched = np.geomspace(1e5, 1e9, 20_000)
    for (d, e), by_tokens in cells.items():
        if e > 1:
            tokens = sorted({*by_tokens} & {*cells[d, 1]})
            one, two = ([np.array([*cells[d, k][t].values()]) for t in tokens] for k in (e, 1))
            mean = [a.mean() - b.mean() for a, b in zip(one, two, strict=True)]
            spread = [routed[t] / len(a) + dense[t] / len(b) for t, a, b in zip(tokens, one, two, strict=True)]
            measured[d, e] = crossing(tokens, mean, 1 / np.array(spread))
            ahead = loss(sizes[d], searched, e) < loss(sizes[d], searched, 1)
            said[d, e] = searched[ahead.argmax()]
            gaps += mean
            published += [loss(sizes[d], t, e) - loss(sizes[d], t, 1) for t in tokens]
    late = {k: np.exp(np.mean([np.log(said[m] / measured[m]) for m in measured if m[1] == k])) for k in (2, 4, 8, 16)}
    assert f"/ measured is {late[8]:.2g} (" in CROSSING
    assert f"it is {late[8] * 46_086_265 / 10_093_780:.2g} (" in CROSSING
    assert all(re.search(rf"\| {e} \|[^|]+\|[^|]+\|[^|]+\| {late[e]:.2g} \(", CROSSING) for e in late)
    trend = [np.exp(np.mean([np.log(x[d, 2] / x[d, 8]) for d in sizes])) for x in (measured, said)]
    assert re.search(rf"is {trend[0]:.2g} \([^)]+\) measured and {trend[1]:.2f} predicted", CROSSING)
    off = np.sqrt(np.mean((np.array(gaps) - published) ** 2))
    assert f"{off:.2f} nats (RMSE, {len(gaps)} cells)" in CROSSING
    assert f"are {np.sqrt(np.mean(np.square(gaps))):.2f} (RMS)" in CROSSING
    assert f"predicts {loss(sizes[32], 1e6, 1):.1f} nats" in CROSSING


def points(source):
    data = json.loads(text_of(ROOT / "studies" / "evidence" / f"{source}.json"))["tables"]
    return {name: {column: np.array(values, float) for column, values in t.items()} for name, t in data.items()}


def test_the_evidence():
    errors = {"n_active": [], "n_active_non_embedding": []}
    for table in points("clark").values():
        twin = {n: i for i, (n, e) in enumerate(zip(table["n_active"], table["experts"], strict=True)) if e == 1}
        moe = np.flatnonzero((table["experts"] > 1) & np.isin(table["n_active"], [*twin]))
        pair = np.array([twin[n] for n in table["n_active"][moe]])
        for count, off in errors.items():
            law = loss(table[count], table["tokens"], table["experts"])
            off.append(np.sqrt(np.mean((law[moe] - law[pair] - table["loss"][moe] + table["loss"][pair]) ** 2)))
    texts = [f"{min(off):.3f} to {max(off):.3f}" for off in errors.values()]
    assert "to {} nats (RMSE) with the paper's count of N, and to {} without".format(*texts) in EVIDENCE
    step, marin = points("step_law"), points("marin")["isoflop"]
    large = marin["budget"] >= 0.99e20
    budgets = [{name: values[mask] for name, values in marin.items()} for mask in (~large, large)]
    for fitted, held in ((step["dense"], step["moe"]), budgets):
        off = [loss(t["n_active_non_embedding"], t["tokens"], t["experts"]) - t["loss"] for t in (fitted, held)]
        assert f"{np.sqrt(np.mean((off[1] - off[0].mean()) ** 2)):.3f} (0.0" in EVIDENCE
