"""Readers of public tables, on rows of our own in the form in which each is published."""

import gzip
import json
import re

import numpy as np
import pandas
import pytest

from scaling_law import load_runs
from scaling_law.runs import best_of
from scaling_law.runs.readers import READERS
from scaling_law.runs.table import RunsError
from tests.guides import DOCS, text_of


def write(path, header, *rows):
    content = "\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n"
    path.write_bytes(gzip.compress(content.encode()) if path.suffix == ".gz" else content.encode())
    return path


DENSE = "h,ffnh,numh,numl,lr,bs,ti,loss,smooth loss,exp_name,D,N,D/N"
MOE = (
    "seq_len,topk,nume,moeh,sed,h,ffnh,numh,numl,lr,bs,ti,loss,smooth loss,average_iter_time,target_iter,final_iter,"
    "exp_name,moe_layer_enum_type,mfa_version,numld,Nattn,N,Na,M,kvcache,D,D/N,total_time,Na/N,moe_name"
)


def step_law_moe(topk, nume, width, shared, rate, batch, smooth):
    """One of its shapes: 16 blocks, the first of them dense."""
    attention, first = 16 * 4 * 1408**2, 3 * 1408 * 3904
    total, active = (attention + first + 15 * 3 * 1408 * (k * width + shared) for k in (nume, topk))
    steps = round(2e9 / batch / 2048)
    name = f"{topk}in{nume}_lr{rate}_bs{batch}"
    shape = (2048, topk, nume, width, shared, 1408, 3904, 11, 16, rate, batch, steps)
    times = (smooth + 0.04, smooth, 0.4, -1, steps - 1, name, "1dense", "mha", 1, attention, total, active)
    return *shape, *times, 0, 45056, 2000000000, 2e9 / total, 0.4 * steps, active / total, f"{topk}in{nume}"


def test_step_laws_moe_table(tmp_path):
    shapes = [(1, 89, 352, 352), (2, 88, 352, 704), (1, 8, 3528, 3528), (3, 8, 2520, 7560)]
    rows = [step_law_moe(*shape, rate, 64, 2.6 + rate) for shape in shapes for rate in (0.0003453, 0.0006905)]
    runs = load_runs(write(tmp_path / "moe.csv", MOE, *rows), format="step_law")
    assert repr(runs).endswith("8 trunks, E in {1.83333, 4.5, 22.5, 45}, smooth loss, from moe.csv (step_law))")
    np.testing.assert_allclose(runs.experts[::2], [45, 22.5, 4.5, 11 / 6])
    assert runs["n_active_non_embedding"][:4:2].tolist() == [187_973_632, 232_579_072]  # as the authors count them
    np.testing.assert_array_equal(runs.n_active - runs["n_active_non_embedding"], 2 * 1408 * 65536)
    np.testing.assert_array_equal(runs.tokens, 64 * 15259 * 2048)
    assert (runs.vocab_size, runs["batch_tokens"][0]) == (65536, 64 * 2048)
    assert runs["last_loss"][0] == pytest.approx(runs.loss[0] + 0.04)
    np.testing.assert_allclose(runs["density"][::2], [1 / 89, 2 / 88, 1 / 8, 3 / 8])
    tuned = best_of(runs, "learning_rate")
    assert (len(tuned), set(tuned["learning_rate"])) == (4, {0.0003453})  # two shapes of one total size stay apart


def test_step_laws_dense_table(tmp_path):
    size = 7 * (4 * 960**2 + 3 * 960 * 9368)
    row = (960, 9368, 15, 7, 0.0003453, 736, 66342, 2.42, 2.41, "h960", 10**11, size, 10**11 / size)
    diverged = (960, 9368, 15, 7, 0.0221, 736, 66342, 11.1, 11.09, "h960-high", 10**11, size, 10**11 / size)
    runs = load_runs(write(tmp_path / "dense.csv", DENSE, row, diverged), format="step_law", where="loss < 5")
    assert (runs.loss.tolist(), runs.experts.tolist(), runs.run_id) == ([2.41], [1], ("h960",))
    assert runs.n_active[0] == size + 2 * 960 * 65536


def test_marins_isoflops_as_json_and_as_csv(tmp_path):
    cells = [("1e+18-d512", 1e18, 512, 3822845952, 3.5), ("3e+18-d896", 3e18, 896, 2908880896, 3.3)]
    cells += [("1e+21-d2560", 1e21, 2560, 66341306368, 2.62), ("1e+21-d2560-v2", 1e21, 2560, 66345500672, 2.6)]
    rows = [
        {"name": f"isoflop-moe-v16-{name}", "budget": c, "dim": d, "tokens": t, "gflops": 1.0, "macro_loss": loss}
        for name, c, d, t, loss in cells
    ]
    path = tmp_path / "old_isoflop_data_2.json"
    path.write_text(json.dumps([row | {"state": "finished"} for row in rows], indent=2))
    runs = load_runs(path, format="marin_isoflop")
    assert runs.loss.tolist() == [3.5, 3.3, 2.6]  # the repeat -v2 takes the place of the run it repeats
    assert runs["n_blocks"].tolist() == [6, 10, 26]
    assert runs["n_kv_heads"].tolist() == [1, 1, 5]
    np.testing.assert_allclose(runs.experts, [11, (64 * 512 + 896) / (4 * 512 + 896), 11])
    # the authors' budget: three forward passes, attention over 4,096 tokens and softmax included, no LM head
    weights = runs["n_active_non_embedding"] + runs["n_blocks"] * 64 * runs["d_model"]
    attention = runs["n_blocks"] * (4 * 4096 * runs["d_model"] + 3 * 4096 * runs["n_heads"])
    np.testing.assert_allclose(3 * (2 * weights + attention), runs["budget"] / runs.tokens, rtol=3e-4)
    lines = [(c, d, t, loss, 3.4, "v2" if name.endswith("-v2") else "") for name, c, d, t, loss in cells]
    header = "# source: made for a test\nbudget,dim,tokens,paloma_macro_loss,macro2,suffix"
    same = load_runs(write(tmp_path / "v16.csv", header, *lines), format="marin_isoflop")
    np.testing.assert_array_equal(same.n_active, runs.n_active)
    assert same.loss.tolist() == runs.loss.tolist()


def open_athena(*experiments):
    for name in experiments:
        for i, reason in enumerate(["none", "none", "off_center"]):
            yield "lab", "web", "llama", "", name, 1e9 / (1 + i), 1e8 * (1 + i), 6e17, 3.5 - 0.1 * i, i == 2, reason


def test_open_athenas_isoflops(tmp_path):
    header = "source,dataset,model,condition,experiment,tokens,params,budget,loss,outlier,reason"
    one = write(tmp_path / "one.csv", header, *open_athena("lab__web"))
    runs = load_runs(one, format="open_athena")
    assert (runs.n_active.tolist(), runs.where) == ([1e8, 2e8], "outlier = False")
    assert len(load_runs(pandas.read_csv(one), format="open_athena")) == 2
    several = write(tmp_path / "two.csv", header, *open_athena("lab__web", "lab__books"))
    with pytest.raises(RunsError, match=r"losses of different experiments cannot be compared.*lab__books, lab__web"):
        load_runs(several, format="open_athena")
    assert len(load_runs(several, format="open_athena", where="experiment = lab__books")) == 2


def test_epochs_chinchilla_points(tmp_path):
    header = "x,y,color,Model Size,Training FLOP,hex_color,loss"
    rows = [(150.0, 140.0, "#faebdd", 1e9, 6e19, "#faebdd", 2.9), (150.0, 170.0, "#f8d1b8", 7e9, 1e19, "#f8d1b8", 5.0)]
    runs = load_runs(write(tmp_path / "svg.csv", header, *rows), format="epoch_chinchilla")
    assert (runs.n_active.tolist(), runs.tokens.tolist(), runs.loss.tolist()) == ([1e9], [1e10], [2.9])
    more = {"columns": {"ratio": "tokens / n_active"}, "loss": "loss", "trunks": "run"}
    assert load_runs(tmp_path / "svg.csv", format="epoch_chinchilla", **more)["ratio"].tolist() == [10.0]


def test_gemstones(tmp_path):
    rows = [
        {"run_name": name, "params_active_precise": 543_482_880, "width": 1024, "depth": 28, "tokens": tokens}
        | {"seconds_per_step": 1.4, "final_loss": 3.0 + len(name) / 100 - tokens / 1e11}
        for name in ("PyGemma-1024x28_pretrain", "cooler_PyGemma-1024x28_pretrain")
        for tokens in (10_997_465_088, 22_003_318_784)
    ]
    path = tmp_path / "wandb_df_for_fitting_cool_end.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows[:3]))
    runs = load_runs(path, format="gemstones")
    assert (runs.trunk.tolist(), runs.trunk_source) == ([0, 0, 1], "column run_name")
    block = 3 * 1024**2 + 12 * 1024**2 + 2 * 1024  # grouped-query attention, gated FFN of 4 d, norms
    assert runs["n_active_non_embedding"].tolist() == [28 * block + 1024] * 3


CLARK = (
    "hyper_id,step,loss_c4,loss_validation,num_experts,d_model,num_blocks,num_heads,kqv_size,flop_increase,k,"
    "router_type,seed,routing_frequency,total_parameter_count,dense_parameter_count,flops_per_step,model_size_label"
)


def clark(hyper, step, loss, router, experts=8, k=1, seed=42):
    shape = (512, 6, 8, 32, 1.0, k, router, seed, 0.5, 6e7, 1.65e7, 4e13, "15M")
    return hyper, step, 3.3, loss, experts, *shape


def test_the_routed_models_of_clark_et_al(tmp_path):
    rows = [clark(h, step, 3.0 + h / 10 - step / 1e6, "Hash") for h in (7, 8) for step in (0, 10_000, 249_000)]
    rows += [
        clark(9, 249_000, 2.7, "S-Base"),
        clark(10, 249_000, 2.7, "Hash", k=2),
        clark(11, 249_000, 2.7, "Dense", 1),
    ]
    rows += [
        clark(12, 248_000, "", "Hash"),
        clark(12, 250_000, 2.6, "Hash"),
        clark(13, 249_000, 2.7, "Dense", 1, seed=1),
    ]
    path = write(tmp_path / "curves.csv.gz", CLARK, *rows)
    runs = load_runs(path, format="clark", where="router_type in {Hash, Dense}")
    assert runs.run_id == ("7-249000", "8-249000", "11-249000", "12-250000")
    np.testing.assert_array_equal(runs.tokens[:2], 249_000 * 524_288)
    assert (runs.n_trunks, runs.experts.tolist()) == (4, [8, 8, 1, 8])
    curves = load_runs(path, format="clark_curves", where="router_type = Hash, step > 0")
    assert [curves.trunk[0] == trunk for trunk in curves.trunk] == [True, True, False, False, False]
    assert curves.n_trunks == 3


def test_another_table_is_named(tmp_path):
    path = write(tmp_path / "runs.csv", "params,loss", (1e8, 3.0))
    for name, one in READERS.items():
        with pytest.raises(
            RunsError, match=f"runs.csv: not {re.escape(one.contents)} .*there are: loss, params"
        ) as error:
            load_runs(path, format=name)
        assert "\n" not in str(error.value)
    with pytest.raises(
        RunsError, match=r"no such file .*step_law is data/.* of github.com/step-law/steplaw at 32a8f4cc"
    ):
        load_runs(tmp_path / "moe_lr_bs_loss.csv", format="step_law")


def test_the_guide_says_what_each_table_holds_and_where_it_is_from():
    rows = [line.split(" | ") for line in text_of(DOCS / "runs.md").splitlines() if line.startswith("| `")]
    told = {row[0].strip("| `"): row[2:] for row in rows[1:]}
    for name, one in READERS.items():
        repository = f"[{one.repository}](https://github.com/{one.repository}) @ {one.commit}"
        assert told[name] == [one.counts, repository, f"`{one.file}`", f"{one.licence} |"]
    assert told.keys() == READERS.keys()
