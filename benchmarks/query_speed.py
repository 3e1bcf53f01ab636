"""The time that a question to the fitted law takes, beside the same answers found with scipy.

    python -m benchmarks.query_speed

table: the best model of each E within 80 GB with 16,384 tokens in the KV cache. Peer: for each E, `brentq` for the
    width that fills the memory and `minimize_scalar` over the widths below.
losses: a million predictions. Peer: the law's formula in numpy, as one writes it down.
hours: the best models, a plan, and what a loss takes, in hours on GPUs, over the layouts of every width; CPU seconds.
    Peer: the table, whose budget is in FLOPs.
budgets: the compute optimum of many budgets for 32 E. Peer: `minimize_scalar` over ln N.
cold start: CPU seconds of a new process that imports and asks, from Python and in the shell, also of questions in
    hours, and of the refusal of a run's configuration. Peer: a process that imports numpy and scipy.
explorer: CPU seconds of its API in this process, server and client together. Peer: an endpoint of the same server
    that returns its argument.

The peers' objectives are plain Python on floats, which is what scipy's scalar methods are fastest with. The answers
are compared; a difference ends the benchmark with an error.
"""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
from scipy.optimize import brentq, minimize_scalar

from benchmarks.report import (
    ROOT,
    Options,
    Report,
    benchmark,
    cpu_seconds,
    cpu_seconds_of_children,
    in_turns,
    seconds,
)
from scaling_law import JointLaw

FLOPS = 1e22
MEMORY = 80e9
CONTEXT = 16_384
EXPERTS = (1, 2, 4, 8, 16, 32)
VOCABULARY = 50_257
BOUND = "the law in numpy at the answers"
LAW = JointLaw.published()
ASK = "from scaling_law import JointLaw; JointLaw.published().optimal(1e22, memory=80e9, kv_tokens=16384)"
SHELL = "scaling_law.commands.cli optimal --flops 1e22 --memory 80GB --kv-tokens 16k"
IMPORTS = "a process that imports numpy and scipy"
# What people wait for, as words of a command.
WAITS = {
    "scaling-law loss": "-m scaling_law loss --n-active 1B --tokens 100B --experts 8",
    "scaling-law optimal": "-m scaling_law optimal --flops 1e22",
    "scaling-law reach": "-m scaling_law reach --loss 2.2",
    "scaling-law describe": "-m scaling_law describe olmoe-1b-7b",
    "scaling-law optimal, 72 hours on 64 GPUs": "-m scaling_law optimal --hours 72 --gpus 64 --gpu h100",
    "scaling-law plan, 72 hours on 64 GPUs": "-m scaling_law plan --hours 72 --gpus 64 --gpu h100",
    "train.py --model.nope 1": "train.py --model.nope 1",
}


def agree(name: str, ours, theirs, tolerance: float) -> None:
    """End the benchmark where answers differ."""
    if not np.allclose(ours, theirs, rtol=tolerance, atol=0):
        raise SystemExit(f"{name}: the answers differ: {ours} and {theirs}")


def terms(experts, log=np.log):
    """Return (m, μ, n, ν) of the law for E experts: Eq. 3 and 4 as the paper prints them."""
    inner = 1.0 / (experts - 1.0 + 1.0 / (1.0 / LAW.e_start - 1.0 / LAW.e_max)) + 1.0 / LAW.e_max
    log_e = -log(inner)
    m = LAW.a * inner**-LAW.delta
    n = LAW.b * inner**-LAW.omega
    return m, LAW.alpha + LAW.gamma * log_e, n, LAW.beta + LAW.zeta * log_e


def plain_loss(n_active, tokens, experts):
    """Return the loss by the formula in numpy."""
    m, mu, n, nu = terms(experts)
    return m * n_active**mu + n * tokens**nu + LAW.c


def parameters(d: float, experts: float) -> float:
    """Return the parameters of a model of this width."""
    return 2.0 * d * VOCABULARY + (4.0 + 9.0 * experts) * d**3 / 64.0


def loss_at(flops: float, experts: float):
    """Return the loss as a function of N_act, in plain Python."""
    m, mu, n, nu = terms(experts, math.log)
    return lambda n_active: m * n_active**mu + n * (flops / (6.0 * n_active)) ** nu + LAW.c


def with_scipy(experts: float) -> tuple[float, float]:
    """Find (d_model, loss) of the best model that fits."""
    loss_of_size = loss_at(FLOPS, experts)

    def spare_bytes(d: float) -> float:
        return MEMORY - 2.0 * parameters(d, experts) - 2.0 * 2.0 * CONTEXT * d * d / 64.0

    def loss(log_d: float) -> float:
        return loss_of_size(parameters(math.exp(log_d), 1.0))

    limit = math.log(brentq(spare_bytes, 64.0, 1e5, xtol=1e-9))
    solution = minimize_scalar(loss, bounds=(math.log(64.0), limit), method="bounded", options={"xatol": 1e-8})
    # The bounded method never tries the bound itself, where the answer lies if memory decides.
    best = limit if loss(limit) < solution.fun else float(solution.x)
    return math.exp(best), loss(best)


def compute_optimum_with_scipy(flops: float, experts: float) -> float:
    """Find the loss of the compute optimum."""
    loss = loss_at(flops, experts)
    bounds = (math.log(1e3), math.log(flops / 6e3))
    solution = minimize_scalar(lambda log_n: loss(math.exp(log_n)), bounds=bounds, options={"xatol": 1e-8})
    return float(solution.fun)


def table(report: Report, rounds: int) -> None:
    """Measure the table of the best model of each E."""

    def ours():
        return LAW.optimal(FLOPS, EXPERTS, memory=MEMORY, kv_tokens=CONTEXT)

    rows = ours().rows
    n, d, e = (np.array([getattr(row, name) for row in rows]) for name in ("n_active", "tokens", "experts"))
    widths, losses = zip(*map(with_scipy, EXPERTS), strict=True)
    # The peer knows no trusted region.
    forced = LAW.optimal(FLOPS, EXPERTS, memory=MEMORY, kv_tokens=CONTEXT, force=True).rows
    agree("loss of the table", [row.loss for row in forced], losses, 1e-9)
    # The loss is flat at the best width.
    agree("width of the table", [row.d_model for row in forced], widths, 1e-4)
    peer = "minimize_scalar for each E"
    works = {"ours": ours, peer: lambda: list(map(with_scipy, EXPERTS)), BOUND: lambda: plain_loss(n, d, e)}
    note = "with memory split, learning rate and range check"
    report.add_of(in_turns(works, rounds), "table of 6 E within 80 GB", peer, BOUND, note=note)


def hours(report: Report, rounds: int) -> None:
    """Measure questions in hours."""
    eight = {"gpus": 8, "gpu": "h100"}
    many = {"gpus": 64, "gpu": "h100"}
    peer = "table of 6 E within 80 GB"
    questions = {
        "6 E, 72 hours on 8 GPUs": lambda: LAW.optimal(hours=72, **eight),
        "6 E, 72 hours on 64 GPUs": lambda: LAW.optimal(hours=72, **many),
        "6 E, integral sizes, 72 hours on 64 GPUs": lambda: LAW.optimal(hours=72, integral=True, **many),
        "plan of 72 hours on 64 GPUs": lambda: LAW.plan(hours=72, **many),
        "hours to loss 2.3 on 8 GPUs": lambda: LAW.reach(2.3, **eight),
    }
    works = {**questions, peer: lambda: LAW.optimal(FLOPS, EXPERTS, memory=MEMORY, kv_tokens=CONTEXT)}
    times = in_turns(works, rounds, cpu_seconds)
    for name in questions:
        report.add_of(times, name, peer, ours=name, note="CPU seconds")


def losses(report: Report, count: int, rounds: int) -> None:
    """Measure many predictions."""
    random = np.random.default_rng(0)
    n = 10 ** random.uniform(7, 11, count)
    d = 10 ** random.uniform(8, 13, count)
    e = random.integers(1, 65, count).astype(float)
    _, mu, _, nu = terms(e)
    agree("losses", LAW.loss(n, d, e), plain_loss(n, d, e), 1e-12)
    peer = "the formula in numpy"
    bound = "its powers of N and D alone"
    works = {
        "ours": lambda: LAW.loss(n, d, e),
        peer: lambda: plain_loss(n, d, e),
        bound: lambda: (n**mu, d**nu),
    }
    report.add_of(in_turns(works, rounds), f"{count:,} losses", peer, bound, note="ours checks its input")


def budgets(report: Report, count: int, rounds: int) -> None:
    """Measure the compute optimum of many budgets; the peer is asked about a quarter of them."""
    flops = np.logspace(18, 25, count)
    e = np.arange(1.0, 33.0)
    optimum = LAW.compute_optimal(flops, e)
    pairs = [(i, i % len(e)) for i in range(0, count, 4)]
    peer_losses: list[float] = []

    def minimise(i: int, j: int) -> None:
        peer_losses.append(compute_optimum_with_scipy(flops[i], e[j]))

    seconds_of_pair = statistics.median([seconds(lambda i=i, j=j: minimise(i, j)) for i, j in pairs])
    agree("losses of the budgets", [optimum.loss[i, j] for i, j in pairs], peer_losses, 1e-9)
    works = {
        "ours": lambda: LAW.compute_optimal(flops, e),
        BOUND: lambda: plain_loss(optimum.n_active, optimum.tokens, e),
    }
    times = in_turns(works, rounds)
    times["minimize_scalar"] = seconds_of_pair * optimum.loss.size
    note = f"peer: the median of {len(pairs)} pairs × {optimum.loss.size:,}"
    report.add_of(times, f"{count:,} budgets × 32 E", "minimize_scalar", BOUND, note=note)


def cold_start(report: Report, rounds: int) -> None:
    """Measure new processes that import and ask."""

    def process(*arguments: str):
        command = [sys.executable, *arguments]
        return lambda: subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)

    peer = "a process that imports scipy.optimize"
    numpy_alone = "that imports numpy"
    typer = "Python's, and typer and rich imported"
    python = "cold start: import and ask"
    shell = "cold start in the shell"
    usage = "scaling-law --help"
    works = {
        python: process("-c", ASK),
        peer: process("-c", "import scipy.optimize"),
        numpy_alone: process("-c", "import numpy"),
        shell: process("-m", *SHELL.split()),
        typer: process("-c", f"import pydantic.fields, rich.table, typer; {ASK}"),
        usage: process("-m", "scaling_law.commands.cli", "--help"),
    }
    times = in_turns(works, rounds, cpu_seconds_of_children)
    report.add_of(times, python, peer, numpy_alone, ours=python)
    report.add_of(times, shell, peer, typer, ours=shell, note="scaling-law optimal …")
    report.add_of(times, usage, peer, ours=usage)


def waits(report: Report, rounds: int) -> None:
    """Measure commands that people wait for; an answer far from the runs, or a refusal, has a status of its own."""

    def process(*arguments: str):
        command = [sys.executable, *arguments]
        return lambda: subprocess.run(command, cwd=ROOT, check=False, capture_output=True)

    works = {name: process(*words.split()) for name, words in WAITS.items()}
    times = in_turns({**works, IMPORTS: process("-c", "import numpy, scipy")}, rounds, cpu_seconds_of_children)
    for name in works:
        report.add_of(times, name, IMPORTS, ours=name)


def explorer(report: Report, rounds: int) -> None:
    """Measure the endpoints of the explorer's API."""
    if find_spec("gradio") is None:
        report.skipped.append("the explorer needs the extra [explorer]")
        return
    import gradio as gr
    from gradio_client import Client

    from scaling_law.explorer.app import page, settings

    def echo(text: str) -> str:
        return text

    with page() as app:
        gr.api(echo, api_name="echo")
    _, address, _ = app.launch(**settings(), server_name="127.0.0.1", inbrowser=False, quiet=True)
    ask = Client(address, verbose=False).predict
    peer = "an endpoint that returns its argument"
    works = {
        "explorer: /loss": lambda: ask(n_active="1B", tokens="20B", experts="8", api_name="/loss"),
        "explorer: /optimal, 72 hours on 64 GPUs": lambda: ask(hours="72", gpus="64", gpu="h100", api_name="/optimal"),
    }
    times = in_turns({**works, peer: lambda: ask("1B", api_name="/echo")}, rounds, cpu_seconds)
    app.close()
    for name in works:
        report.add_of(times, name, peer, ours=name, note="CPU seconds")


@benchmark(
    {
        "--rounds": (200, 20, "of the table; a tenth of it for the others"),
        "--points": (1_000_000, 100_000),
        "--budgets": (1000, 100),
    }
)
def main(report: Report, options: Options) -> None:
    table(report, options.rounds)
    hours(report, max(3, options.rounds // 20))
    losses(report, options.points, max(3, options.rounds // 10))
    budgets(report, options.budgets, max(3, options.rounds // 10))
    cold_start(report, max(3, options.rounds // 20))
    waits(report, max(3, options.rounds // 20))
    explorer(report, max(3, options.rounds // 20))


if __name__ == "__main__":
    main()
