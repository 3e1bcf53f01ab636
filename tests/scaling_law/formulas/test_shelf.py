"""Published laws against numbers of their papers, or, where none are printed, arithmetic apart from the code."""

import json
import re

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from scaling_law import JointLaw, laws, published
from scaling_law.formulas.files import power_law
from scaling_law.law import LAWS
from scaling_law.law.shelf import SHELF, entry, published_rates
from scaling_law.law_files import law_card

GOPHER = 5.76e23  # FLOPs
# Hoffmann et al. 2022, Tables 3 and A3: parameters, and FLOPs of approaches 1, 2 and 3. The FLOPs of 175B in approach
# 3 are printed as 1.26e24, a slip: 6·175e9·12.0e12 = 1.26e25.
HOFFMANN = np.array(
    [
        (400e6, 1.92e19, 1.84e19, 2.21e19),
        (1e9, 1.21e20, 1.20e20, 1.62e20),
        (10e9, 1.23e22, 1.32e22, 2.46e22),
        (67e9, 5.76e23, 6.88e23, 1.71e24),
        (175e9, 3.85e24, 4.54e24, 1.26e25),
        (280e9, 9.90e24, 1.18e25, 3.52e25),
        (520e9, 3.43e25, 4.19e25, 1.36e26),
        (1e12, 1.27e26, 1.59e26, 5.65e26),
        (10e12, 1.30e28, 1.75e28, 8.55e28),
    ]
)
# Krajewski et al. 2024, Table 2: active parameters, tokens, G, FLOPs and loss of compute-optimal models, E = 64
KRAJEWSKI = [
    (100e6, 4.37e9, 8, 2.95e18, 3.133),
    (1e9, 28.94e9, 16, 1.93e20, 2.491),
    (3e9, 72.90e9, 16, 1.41e21, 2.245),
    (7e9, 137.60e9, 32, 6.46e21, 2.076),
    (70e9, 941.07e9, 32, 4.16e23, 1.694),
    (300e9, 2.96e12, 64, 5.69e24, 1.503),
    (1e12, 7.94e12, 64, 4.97e25, 1.367),
]


@pytest.mark.parametrize("law", SHELF.values(), ids=SHELF.keys())
def test_every_law_says_what_it_is_and_where_it_was_read(law):
    row = law.to_dict()
    for name in ("authors", "part", "equation", "source", "parameters", "answers"):
        assert row[name]
    assert row["variables"]
    assert law.evidence in ("paper", "code", "secondary")
    assert law.arxiv is None or re.fullmatch(r"\d{4}\.\d{5}", law.arxiv)
    assert law.arxiv or "github.com" in law.source
    assert ("others" in law.source or "survey" in law.source) == (law.evidence == "secondary")
    json.dumps(row, allow_nan=False)
    if law.kind is None:
        with pytest.raises(ValueError, match=f"{law.name}: .* gives {law.answers}, no loss: "):
            law.law()
        assert {*law.ranges} <= {*law.variables}
        return
    if not law.published:
        return
    found = law.law()
    assert law.authors in found.conditions.provenance
    assert law.arxiv is None or law.name == "ludziejewski" or law.arxiv in found.conditions.provenance
    assert law.name != "ludziejewski" or found == JointLaw.published()
    assert type(found) is law.kind is LAWS[row["kind"]]
    assert {*law.ranges} <= {*found.form.variables, "experts", "tokens_per_parameter"}


def test_the_listing_has_every_law_and_its_table_fits_a_terminal():
    table = laws()
    assert [row["name"] for row in table.to_rows()] == [*SHELF] == [row["name"] for row in table.to_dict()["laws"]]
    assert [row[0] for row in table.summary().rows] == [*SHELF]
    assert entry("yun").summary().rows[-2][1] == "none: a form to fit"
    with pytest.raises(ValueError, match=r"yun: Yun et al. 2024.* no coefficients; fit\(runs, kind='saturation'\)"):
        published("yun")


def test_a_published_law_knows_the_ranges_of_its_runs():
    chinchilla, krajewski = published("chinchilla"), published("krajewski")
    assert chinchilla.warnings(1e9, 2e10) == []
    assert chinchilla.warnings(70e9, 1.4e12) == [
        "N_act 70B is outside the fitted 70M…16B (×4.38)",
        "D 1.4T is outside the fitted 5B…500B (×2.8)",
    ]
    at = {"n_total_non_embedding": 1e9, "tokens": 2e10, "granularity": 4}
    assert krajewski.warnings(**at) == []
    assert krajewski.warnings(**at | {"granularity": 128, "experts": 64}) == [
        "granularity 128 is outside the fitted 1…16 (×8)",
        "granularity is over 4 times outside its range: do not act on this prediction",
    ]
    assert not krajewski.check(**at).beyond
    assert krajewski.check(**at | {"experts": 8}).beyond  # it is a law for 64 experts
    assert published("besiroglu").conditions.n_runs == 240


def test_what_no_range_is_known_of_is_not_trusted():
    unknown = "range of {} unknown: nothing checks how far an answer extrapolates there"
    abnar = published("abnar")  # whose paper states that of density alone
    at = {"n_total": 6e17, "tokens": 1e12, "density": 0.1}
    assert abnar.warnings(**at) == [unknown.format("n_total, D")]
    assert not abnar.check(**at).trusted
    assert not abnar.check(**at).beyond  # it is not refused
    assert abnar.optimal(1e21).best.loss == min(row.loss for row in abnar.optimal(1e21))
    kaplan, dense = published("kaplan"), {"n_active_non_embedding": 1e8, "tokens": 1e10}
    assert kaplan.check(**dense).trusted
    assert kaplan.check(**dense, experts=1).trusted
    assert kaplan.warnings(**dense, experts=8) == [unknown.format("E")]  # that of dense models, whatever E
    assert not kaplan.compute_optimal(1e30, force=True).check.trusted  # in N without embeddings, its own variable
    assert not published("ludziejewski").to_chinchilla(1000).check(1e9, 2e10).trusted
    assert published("hunyuan").warnings(
        n_total=1e10, n_active=1e9, tokens=1e11, active_experts=8, shared_ratio=0.3
    ) == ["this law carries no fitted ranges: nothing checks how far an answer extrapolates"]


def near(value, rel=1e-3):
    return pytest.approx(value, rel=rel)


@pytest.mark.parametrize(
    ("name", "flops", "size", "tokens", "per_token"),
    [
        ("kaplan_optimum", 1e21, near(4.68e9), near(3.56e10, 0.1), 6),  # Hoffmann et al., Appendix D.4; rounded powers
        ("chinchilla_approach1", 1e21, near(2.86e9), near(5.827e10), 6),  # Hoffmann et al., Appendix D.4
        ("hunyuan_large", 3.109e24, near(58.1e9, 2e-3), near(5.6e12, 0.01), None),  # its stated optimum
        ("ling_optimum", 3e20, near(5.191e9), near(5.780e10), 1),  # C = M D
        ("ling_optimum_dense", 3e20, near(8.297e9), near(3.614e10), 1),
    ],
)
def test_allocations_at_a_budget(name, flops, size, tokens, per_token):
    answer = tuple(optimum(name, flops).values())
    assert answer == (size, tokens)
    assert per_token is None or per_token * np.prod(answer) == near(flops, 0.1 if name == "kaplan_optimum" else 1e-3)


def optimum(name, flops):
    """Evaluate the size and the tokens of an allocation; without a law of tokens, they are those of C = 6 N D."""
    coefficients = entry(name).coefficients
    size = power_law(coefficients["size"], {"flops": flops})
    if "tokens" in coefficients:
        return {"size": size, "tokens": power_law(coefficients["tokens"], {"flops": flops})}
    return {"size": size, "tokens": np.asarray(flops) / (6 * size)}


EXPERTS_OF = {"krajewski": [64], "krajewski_e16": [16]}
EXPERTS_OF |= {name: [1] for name in ("kaplan", "chinchilla", "besiroglu", "muennighoff")}
EXPERTS_OF |= {name: [1, 2, 4, 8, 16, 32] for name in ("ludziejewski", "hunyuan")}
EXPERTS_OF["abnar"] = [1, 2, 4, 8, 16]  # a density of 0.05 at least


@pytest.mark.parametrize(("name", "experts"), EXPERTS_OF.items())
def test_a_law_of_sizes_and_tokens_has_optima(name, experts):
    """For the E that it was fitted to; more experts cost nothing but memory."""
    table = published(name).optimal(1e21, granularity=4, force=True)
    assert [row.experts for row in table] == experts
    losses = [row.loss for row in table]
    assert name == "hunyuan" or losses == sorted(losses, reverse=True)
    for row in table:
        assert row.training_flops == pytest.approx(1e21)
        assert 1e8 < row.n_active < 1e11


def test_the_card_of_a_law_names_its_variables_and_their_ranges():
    card = law_card(published("krajewski"), "org/law")
    assert "Its variables are `granularity`, `n_total_non_embedding`, `tokens`" in card
    assert "| granularity | 1 | 16 |" in card
    assert "Active parameters" not in card
    unknown = law_card(published("hunyuan"), "org/law")
    assert "ranges" not in unknown


def test_kaplan():
    def loss(n, d):
        return published("kaplan").loss(n_active_non_embedding=n, tokens=d)

    # §1.2: doubling N multiplies the loss by 2^−α_N = 0.95 where data is plenty
    assert loss(2e8, 1e30) / loss(1e8, 1e30) == pytest.approx(0.95, abs=0.002)
    # Eq. 4.4: D of 5e3 N^0.74 keeps the loss within 0.02 of that of infinite data
    for n in (1e7, 1e8, 1e9):
        assert 0.01 < np.log(loss(n, 5e3 * n**0.74) / loss(n, 1e30)) < 0.025
    np.testing.assert_allclose(loss([1e8, 1e9, 1e6], [1e10, 22e9, 22e6]), [2.787857, 2.369316, 4.293808], atol=1e-6)


@pytest.mark.parametrize(
    ("name", "sizes", "tokens", "loss"),
    [
        # Figure 4: 40B for Gopher's budget, which the printed digits miss
        ("chinchilla", [4.0361e10, 2.21695e9], [2.3785e12, 7.51782e10], pytest.approx(1.92085, abs=1e-5)),
        ("besiroglu", [7.2357e10, 2.78212e9], [1.32676e12, 5.99065e10], pytest.approx(1.973405, abs=1e-6)),
    ],
)
def test_chinchilla_at_two_budgets(name, sizes, tokens, loss):
    best = published(name).compute_optimal(np.array([GOPHER, 1e21]), experts=[1])
    np.testing.assert_allclose(np.ravel(best.n_active), sizes, rtol=1e-4)
    np.testing.assert_allclose(np.ravel(best.tokens), tokens, rtol=1e-4)
    assert published(name).loss(70e9, 1.4e12) == loss


def test_chinchilla():
    law, printed = published("chinchilla"), published("chinchilla_printed")
    assert float(np.ravel(printed.compute_optimal(GOPHER, experts=[1]).n_active)[0]) < 33e9
    assert printed.loss(70e9, 1.4e12) == pytest.approx(1.93665, abs=1e-5)
    sizes = np.ravel(law.compute_optimal(HOFFMANN[:, 3], experts=[1], force=True).n_active)
    np.testing.assert_allclose(sizes, HOFFMANN[:, 0], rtol=0.10)  # Table A3 comes from neither set of coefficients
    assert law.nu / (law.mu + law.nu) == pytest.approx(0.46, abs=0.005)  # Table 2: N ∝ C^0.46
    besiroglu = {"m": 482.01, "mu": -0.3478, "n": 2085.43, "nu": -0.3658, "c": 1.8172}  # as printed
    assert published("besiroglu").coefficients == pytest.approx(besiroglu, rel=3e-4)


@pytest.mark.parametrize(("approach", "exponent"), [(1, 0.50), (2, 0.49)])
def test_chinchilla_from_curves_and_isoflops(approach, exponent):
    name = f"chinchilla_approach{approach}"
    size = entry(name).coefficients["size"]
    slope, intercept = np.polyfit(np.log(HOFFMANN[:, approach]), np.log(HOFFMANN[:, 0]), 1)
    assert (size["flops"], size["scale"]) == pytest.approx((slope, np.exp(intercept)), rel=1e-9)
    assert slope == pytest.approx(exponent, abs=0.005)  # Table 2
    np.testing.assert_allclose(optimum(name, HOFFMANN[:, approach])["size"], HOFFMANN[:, 0], rtol=0.035)


@pytest.mark.parametrize(
    ("name", "losses", "dense"),
    [
        ("clark_sbase", [2.74415, 2.43053, 2.28457, 2.08581, 2.01452], 51.8e6),
        ("clark_rl", [2.74647, 2.47925, 2.28594, 2.14977, 2.09405], 48.9e6),
        ("clark_hash", [2.73007, 2.45578, 2.27312, 2.11073, 2.02750], 47.0e6),
    ],
)
def test_clark(name, losses, dense):
    """Values by base-10 logarithms; a figure shows that 5M with 128 experts is worth about 55M dense parameters."""
    law = published(name)
    n, e = np.array([1e8, 1e8, 1e9, 1e9, 1e9]), np.array([1, 64, 1, 64, 512])
    np.testing.assert_allclose(law.loss(n_active_non_embedding=n, experts=e), losses, atol=6e-6)
    routed = law.loss(n_active_non_embedding=5e6, experts=128)
    same = minimize_scalar(
        lambda x: (np.log(law.loss(n_active_non_embedding=np.exp(x)) / routed)) ** 2, bounds=(15, 20), method="bounded"
    )
    assert np.exp(same.x) == pytest.approx(dense, rel=0.01)


@pytest.mark.parametrize(("n_act", "tokens", "granularity", "flops", "loss"), KRAJEWSKI)
def test_krajewski(n_act, tokens, granularity, flops, loss):
    """Table 2: the losses to the printed digits of the coefficients, and the optimum over N, D and G of Eq. 10."""
    law, e = published("krajewski"), 64

    def total(n):
        return n * (8 * e + 4) / 12  # N_act = 12 d² n_blocks and N = (8 E + 4) d² n_blocks

    found = law.loss(n_total_non_embedding=total(n_act), tokens=tokens, granularity=granularity)
    assert loss - 0.024 < found < loss

    def affordable(n, g):
        d_model = (64 * n / 12) ** (1 / 3)  # d_model = 64 n_blocks
        return flops / ((72 * d_model**2 + 14 * d_model * e * g) * d_model / 64)

    def best(g):
        def loss_of(log_n):
            n = np.exp(log_n)
            return float(law.loss(n_total_non_embedding=total(n), tokens=affordable(n, g), granularity=g))

        return minimize_scalar(
            loss_of, bounds=np.log([n_act / 30, n_act * 30]), method="bounded", options={"xatol": 1e-6}
        )

    optima = {g: best(g) for g in (1, 2, 4, 8, 16, 32, 64, 128)}
    chosen = min(optima, key=lambda g: optima[g].fun)
    assert chosen == granularity
    n = np.exp(optima[chosen].x)
    assert n == pytest.approx(n_act, rel=0.03)
    assert affordable(n, chosen) == pytest.approx(tokens, rel=0.03)


def test_abnar():
    """No loss is printed: values by hand, and what the text says of optimal sparsity at a fixed budget."""
    law = published("abnar")
    n = np.array([1e9, 1e9, 1e10, 1e10, 18.8e9])
    d = np.array([2e10, 2e10, 1e11, 1e11, 110.2e9])
    sparsity = np.array([0, 0.5, 0.9, 0.95, 0.98])
    found = law.loss(n_total=n, tokens=d, density=1 - sparsity)
    np.testing.assert_allclose(found, [2.565681, 2.589949, 2.149838, 2.190219, 2.169335], atol=1e-6)
    assert published("abnar").lambda_ < 0  # "the exponent for sparsity term λ is negative"
    budget, sizes = 1e20, np.geomspace(1e8, 1e11, 4001)
    best = []
    for density in (1.0, 0.5, 0.25, 0.1):
        active = sizes * density
        losses = law.loss(n_total=sizes, tokens=budget / (6 * active), density=density)
        i = int(np.argmin(losses))
        best.append((sizes[i], active[i], losses[i]))
    total, active, losses = np.transpose(best)
    assert np.all(np.diff(total) > 0)
    assert np.all(np.diff(active) < 0)
    assert np.all(np.diff(losses) < 0)


def test_hunyuan():
    """Section "optimal" values of the paper: G 6.78, S 0.31, N_a / N 40 % at 30B and 22 % at 671B."""
    law = published("hunyuan")

    def loss(total, ratio=0.1, tokens=1e12, g=7.0, s=0.3):
        return law.loss(ratio * total, tokens, n_total=total, active_experts=g, shared_ratio=s)

    g, s, ratio = np.linspace(1, 30, 29_001), np.linspace(0, 1, 10_001), np.linspace(0.01, 1, 9_901)
    assert g[np.argmin(loss(9e9, g=g))] == pytest.approx(6.78, abs=0.01)
    assert s[np.argmin(loss(9e9, s=s))] == pytest.approx(0.31, abs=0.01)
    for total, best in ((30e9, 0.40), (671e9, 0.22)):
        found = ratio[np.argmin(loss(total, ratio, g=6.7778, s=0.31485))]
        assert found == pytest.approx(best, abs=0.005)
    assert loss(9e9, 1 / 9, 1e11, 7, 1 / 7) == pytest.approx(2.405292, abs=1e-6)
    assert loss(3e9, 1 / 3, 5e10, 8, 1 / 8) == pytest.approx(2.546584, abs=1e-6)
    assert loss(3e9, s=0.0) > 0  # models without shared experts can be asked
    with pytest.raises(ValueError, match="shared_ratio=-1 must be at least 0 and at most 1"):
        loss(3e9, s=-1.0)


def test_learning_rates_and_batches():
    ling = published_rates("ling_rates", flops=[3e20, 1e21])
    np.testing.assert_allclose(ling["learning_rate"], [8.563e-4, 7.123e-4], rtol=1e-3)
    np.testing.assert_allclose(ling["batch_tokens"], [2.010e6, 3.117e6], rtol=1e-3)
    step = published_rates("step_law", n_total_non_embedding=[1e9, 2.15e8, 6e7], tokens=[1e11, 2e10, 2e9])
    np.testing.assert_allclose(step["learning_rate"], [1.63250e-3, 2.98017e-3, 3.65130e-3], rtol=1e-5)
    np.testing.assert_allclose(step["batch_tokens"], [1_107_715, 441_892, 118_663], atol=0.5)
    # Table 3: 2.12e-4 for a MoE of 6.5B, which is its total size
    large = published_rates("step_law", n_total_non_embedding=6.5e9, tokens=1e10)
    assert large["learning_rate"] == pytest.approx(2.12e-4, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "question", "message"),
    [
        ("step_law", {"tokens": 1e10}, "step_law depends on n_total_non_embedding, tokens, not on tokens"),
        ("step_law", {"n_total_non_embedding": 0.0, "tokens": 1e10}, "n_total_non_embedding=0 must be positive"),
        (
            "marin",
            {"flops": 1e20},
            "law='marin' gives optimum, no rates; there are ling_rates, step_law, deep",
        ),
        ("step_law", {"n_total_non_embedding": 1e9, "tokens": 1e16}, "too far from the runs .* to answer: D 1"),
    ],
)
def test_rates_that_cannot_be_given_are_refused(name, question, message):
    with pytest.raises(ValueError, match=message):
        published_rates(name, **question)
    if "too far" in message:
        assert published_rates(name, **question, force=True)["learning_rate"] > 0


def test_marin():
    """The README's projections, and the measured optima of its sweep."""
    loss = entry("marin").coefficients["loss"]
    assert power_law(loss, {"flops": [1e21, 1e23]}) == pytest.approx([2.606, 2.252], abs=6e-4)
    measured = {1e18: 3.5273, 3e18: 3.3398, 1e19: 3.1494, 3e19: 3.0066, 1e20: 2.8509, 3e20: 2.7222}
    np.testing.assert_allclose(power_law(loss, {"flops": [*measured]}), [*measured.values()], atol=0.008)
    found = optimum("marin", np.array([*measured]))
    np.testing.assert_allclose(6 * found["size"] * found["tokens"], [*measured], rtol=0.01)
