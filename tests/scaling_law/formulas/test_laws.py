"""Laws against the paper's tables, their derivatives, their files."""

import json
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling_law import ChinchillaLaw, JointLaw, Law, RoutedLaw, StackLaw, published, register
from scaling_law.formulas import Form, Term, expert_transform
from scaling_law.formulas.files import ROWS
from scaling_law.formulas.terms import E_HAT
from scaling_law.law import LAWS, CrossingLaw, LadderLaw, SaturationLaw
from scaling_law.law.base import law_from_dict
from tests.scaling_law.synthetic import interaction_law

RECOVERED = ROWS["ludziejewski"]["coefficients"]
PRINTED = ROWS["ludziejewski"]["printed"]
# E → (m, μ, n, ν), as the LaTeX source of the table "reduced to the Chinchilla scaling law" holds them.
CHINCHILLA_TABLE = {
    1: (30.363993648167263, -0.18173956204827252, 53.98384414155987, -0.19650191228646036),
    2: (27.79821195271775, -0.17795397781692185, 66.84011296802187, -0.20648914813917155),
    4: (24.846202931338134, -0.17314011944591995, 87.70219698814259, -0.21918920603633535),
    8: (21.832989774298056, -0.1675966335114486, 119.91258457347162, -0.23381418809729415),
    16: (19.015896366339852, -0.16167306968397718, 167.50725788774776, -0.24944190245208414),
    32: (16.54244596529427, -0.1556980993088928, 234.67256254388218, -0.2652052390210445),
}
ROUTED = RoutedLaw(a=12.9, alpha=-0.083, delta=-0.118, gamma=0.0043, e_start=2.0746, e_max=238.7)
SATURATION = SaturationLaw(
    a=120.0, alpha=0.25, b=0.9, beta=0.5, c=200.0, gamma=0.25, f=1.6, d=-0.0004, e_start=2.0, e_max=250.0
)
# One of each kind, with coefficients of real size; what is tested of every law is tested of these.
EXAMPLES = [JointLaw.published(), JointLaw.published().to_chinchilla(4), ROUTED, SATURATION]
EXAMPLES += [
    LadderLaw(a=900.0, alpha=0.16, c=1.7),
    interaction_law(a=400.0, alpha=0.33, b=410.0, beta=0.28, q=0.6, c=1.7),
]
CROSSING = {**dict.fromkeys(("kappa", "q"), 0.0), **RECOVERED, "a": 80.0, "b": 90.0, "kappa": -0.04, "q": 0.8}
EXAMPLES += [CrossingLaw(**CROSSING)]
EXAMPLES += [
    StackLaw(
        [
            JointLaw.published().to_chinchilla(2).replace(experts=None),
            LadderLaw(900.0, 0.16, 1.7),
            JointLaw.published(),
        ],
        [0.5, 0.2, 0.3],
        2.0,
    )
]
EXAMPLES += [published(name) for name in ("kaplan", "clark_sbase", "krajewski", "abnar", "hunyuan")]
every_law = pytest.mark.parametrize("law", EXAMPLES, ids=lambda law: law.name)


def test_every_registered_law_has_an_example():
    assert {law.name for law in EXAMPLES} == {*LAWS}


@pytest.mark.parametrize("experts", CHINCHILLA_TABLE)
def test_recovered_coefficients_reproduce_the_per_expert_table(published, experts):
    law = published.to_chinchilla(experts)
    assert (law.m, law.mu, law.n, law.nu) == pytest.approx(CHINCHILLA_TABLE[experts], rel=6e-9)
    assert law.c == 1.3637


def test_printed_coefficients_are_the_recovered_ones_rounded_but_for_the_transform():
    for name, value in PRINTED.items():
        places = 2 if name in ("a", "b") else 4
        assert (round(RECOVERED[name], places) == value) == (name not in ("e_start", "e_max"))
    assert RECOVERED["e_max"] == pytest.approx(PRINTED["e_max"], rel=2e-6)
    assert RECOVERED["e_start"] == pytest.approx(PRINTED["e_start"] + 0.0098, abs=1e-4)


def test_predictions_of_both_sets_differ_by_what_was_found(published, paper_runs):
    printed = JointLaw.published(rounded=True)
    arguments = (paper_runs.n_active, paper_runs.tokens, paper_runs.experts)
    difference = np.abs(published.loss(*arguments) - printed.loss(*arguments)).max()
    assert difference == pytest.approx(0.0026, abs=1e-4)


@given(st.integers(1, 4096), st.floats(1.01, 50), st.floats(1.01, 1e4))
def test_expert_transform(experts, e_start, span):
    e_max = e_start + span
    assert expert_transform(1, e_start, e_max) == pytest.approx(e_start, rel=1e-9)
    e_hat = expert_transform(experts, e_start, e_max)
    assert e_start * (1 - 1e-9) <= e_hat < e_max * (1 + 1e-9)
    assert expert_transform(experts + 1, e_start, e_max) > e_hat
    inverse = 1 / (experts - 1 + 1 / (1 / e_start - 1 / e_max)) + 1 / e_max
    assert 1 / e_hat == pytest.approx(inverse, rel=1e-6)


@pytest.fixture(scope="module")
def columns():
    """Every variable that a law names, drawn independently of each other: [240]."""
    random = np.random.default_rng(0)
    names = ("n_active", "n_total", "n_active_non_embedding", "n_total_non_embedding")
    return {name: 10 ** random.uniform(7, 10, 240) for name in names} | {
        "tokens": 10 ** random.uniform(8.5, 11.5, 240),
        "experts": random.choice([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0], 240),
        "density": random.choice([0.02, 0.1, 0.25, 0.5, 1.0], 240),
        "granularity": random.choice([1.0, 2.0, 4.0, 8.0, 16.0], 240),
        "active_experts": random.choice([1.0, 2.0, 4.0, 8.0], 240),
        "shared_ratio": random.choice([0.0, 0.125, 0.25, 0.5], 240),
    }


def inputs_of(law, columns):
    return {name: columns[name] for name in law.form.variables}


def written_out(law, columns):
    """The formulas of the papers, term by term, without any of the package's code."""
    v, d, e = SimpleNamespace(**law.coefficients), columns["tokens"], columns["experts"]
    active, total = columns["n_active"], columns["n_total"]
    match law.name:
        case "chinchilla":
            return v.m * active**v.mu + v.n * d**v.nu + v.c
        case "kaplan":
            alpha_n, n_c = v.x * v.alpha_d, v.a ** (1 / v.x)
            return ((n_c / columns["n_active_non_embedding"]) ** (alpha_n / v.alpha_d) + v.b / d) ** v.alpha_d
        case "interaction":
            (a, x), (b, y) = ((v.a**v.q, v.x * v.q), (v.b**v.q, v.y * v.q))
            return v.c + ((a / active**x) ** (1 / v.q) + (b / d**y) ** (1 / v.q)) ** v.q
        case "stack":  # laws without E are of E = 2
            dense, ladder, joint = law.laws
            gain = joint.loss(active, d, e) / joint.loss(active, d, 2)
            losses = [dense.loss(active, d) * gain, ladder.loss(active, d) * gain, joint.loss(active, d, e)]
            return losses[0] ** 0.5 * losses[1] ** 0.2 * losses[2] ** 0.3
        case "ladder":
            return v.c + v.a / (active * d) ** v.alpha
        case "granularity":
            n, g = columns["n_total_non_embedding"], columns["granularity"]
            return v.c + (v.g / g**v.gamma + v.a) / n**v.alpha + v.b / d**v.beta
        case "sparsity":
            s = 1 - columns["density"]
            of_sparsity = v.c / (1 - s) ** v.lambda_ + v.d / ((1 - s) ** v.delta * total**v.gamma)
            return v.a / total**v.alpha + v.b / d**v.beta + of_sparsity + v.e
        case "five_factor":
            g, s = columns["active_experts"], columns["shared_ratio"]
            of_design = v.e * g + v.f / g + v.m * s**2 + v.n * s
            of_size = 1 / total**v.alpha + v.k / active**v.alpha + v.h * active / total
            rest = v.a / total**v.alpha + v.b / d**v.beta + v.c / active**v.alpha + v.epsilon
            return of_design * of_size + rest
    e_hat = 1 / (1 / (e - 1 + 1 / (1 / v.e_start - 1 / v.e_max)) + 1 / v.e_max)
    if law.name == "saturation":
        n = columns["n_active_non_embedding"]
        log_loss = np.log(v.a / n**v.alpha + v.b / e_hat**v.beta + v.c / d**v.gamma + v.f)
        return np.exp(log_loss + v.d * np.log(n) * np.log(e_hat))
    n = columns["n_active_non_embedding"] if law.name == "clark" else active
    of_size = v.a * e_hat**v.delta * n ** (v.alpha + v.gamma * np.log(e_hat))
    if law.name in ("routed", "clark"):
        return of_size
    if law.name == "crossing":
        of_tokens = v.b * e_hat ** (v.omega + v.kappa * np.log(e_hat)) * d ** (v.beta + v.zeta * np.log(e_hat))
        return (of_size + of_tokens) ** v.q + v.c
    return of_size + v.b * e_hat**v.omega * d ** (v.beta + v.zeta * np.log(e_hat)) + v.c


@every_law
def test_values_and_draws_follow_the_formula(law, columns):
    law = law.replace(draws=np.tile(list(law.coefficients.values()), (2, 1)))
    expected, at = written_out(law, columns), inputs_of(law, columns)
    np.testing.assert_allclose(law.loss(**at), expected, rtol=1e-12)
    np.testing.assert_allclose(law.replace(conditions=None).loss_draws(**at), np.tile(expected, (2, 1)), rtol=1e-12)


def test_what_no_term_depends_on_may_be_left_out(published):
    assert ROUTED.loss(1e9) == ROUTED.loss(1e9, None, 1)
    assert published.to_chinchilla(8).loss(1e9, 1e10) == published.to_chinchilla(8).loss(1e9, 1e10, 8)


def changed_kind(**changes):
    """A class like RoutedLaw but for its name and what is changed."""
    return dataclass(frozen=True, repr=False)(type("Changed", (RoutedLaw,), {"name": "changed", **changes}))


@given(st.floats(1e5, 1e12), st.floats(1e5, 1e14), st.integers(1, 64))
def test_joint_law_is_its_chinchilla_view(n, d, e):
    law = JointLaw.published()
    assert law.to_chinchilla(e).loss(n, d) == pytest.approx(law.loss(n, d, e), rel=1e-12)
    assert law.loss(2 * n, d, e) < law.loss(n, d, e)
    assert law.loss(n, 2 * d, e) < law.loss(n, d, e)


def test_loss_broadcasts(published):
    loss = published.loss(np.geomspace(1e8, 1e9, 3)[:, None, None], np.array([1e9, 1e10])[:, None], [1, 2, 4, 8])
    assert loss.shape == (3, 2, 4)
    assert loss[2, 1, 3] == published.loss(1e9, 1e10, 8)


def test_warnings_name_the_worst_of_each_quantity(published):
    assert published.warnings(1e9, 2e10, 1) == []
    found = published.warnings([1e9, 1e10, 1e7], [1e10, 1e10, 1e10], [1, 1, 64])
    assert found == [
        "N_act 10M is outside the fitted 78.7M…2.72B (÷7.87)",
        "N_act 10B is outside the fitted 78.7M…2.72B (×3.68) at E = 1",
        "D/N 1K is outside the fitted 0.361…72.7 (×13.8)",
        "E = 64 is outside the fitted 1…32 (×2)",
        "not trusted: N_act ÷7.87, D/N ×13.8 and E ×2; "
        "backtests support C, N_act and D up to 30 times above the runs, D/N 3 times outside",
    ]
    assert published.check([1e9, 1e7, 1e9, 1e4], 1e12, [1, 1, 129, 1]).beyond.tolist() == [False, True, True, True]
    assert published.replace(conditions=None).warnings(1, 1, 1)[0].startswith("this law carries no fitted ranges")
    assert not published.replace(conditions=None).check(1, 1e20, 1).beyond


def test_the_loss_of_one_number_of_experts_is_not_passed_off_as_anothers(published):
    view = published.to_chinchilla(8)
    assert view.warnings(1e8, 1e9) == view.warnings(1e8, 1e9, 8) == []
    assert view.warnings(1e8, 1e9, [4, 8]) == ["this Chinchilla law holds for E = 8: its loss for E = 4 is the same"]


def test_a_law_shows_its_coefficients_with_the_intervals_of_its_draws(published):
    table = published.summary()
    assert table.title == published.formula
    assert [row[:2] for row in table.rows][:2] == [["a", "35.907"], ["alpha", "-0.18893"]]
    low, high = np.quantile(published.draws[:, 1], [0.025, 0.975])
    assert table.rows[1][2:] == [f"{low:.5g}", f"{high:.5g}"]
    assert published.replace(draws=None).summary().header == ["coefficient", "value"]
    assert "35.907" in published._repr_html_()
    assert repr(published).startswith("JointLaw(a=35.9075, alpha=-0.18893")
    assert "270 runs" in repr(published)


@every_law
def test_saved_laws_come_back_bit_for_bit(law, tmp_path):
    law = law.replace(draws=np.random.default_rng(0).normal(size=(7, len(law.coefficients))))
    path = law.save_pretrained(tmp_path / "law")
    assert path.name == "scaling_law.json"
    assert [p.name for p in path.parent.iterdir()] == ["scaling_law.json"]
    for source in (tmp_path / "law", path):
        again = type(law).from_pretrained(source)
        assert again == law
        assert again.conditions == law.conditions
        np.testing.assert_array_equal(again.draws, law.draws)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "format"),
        ({"version": 2}, "version is 2"),
        ({"law": "cubic"}, "law='cubic'"),
        ({"coefficients": {"a": 1.0}}, "coefficients"),
        ({"draws": [[1.0, 2.0]]}, "draws"),
        ({"conditions": {"nonsense": 1}}, "conditions"),
    ],
)
def test_foreign_files_are_refused(published, tmp_path, change, message):
    (tmp_path / "scaling_law.json").write_text(json.dumps(published.to_dict() | change))
    with pytest.raises(ValueError, match=message):
        Law.from_pretrained(tmp_path)


def test_missing_and_mistaken_laws(published, tmp_path):
    for source, message in ((tmp_path, r"scaling_law\.json"), ("not-there", "no folder or Hub repo")):
        with pytest.raises(FileNotFoundError, match=message):
            Law.from_pretrained(source)
    published.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="JointLaw, not a ChinchillaLaw"):
        ChinchillaLaw.from_pretrained(tmp_path)


def test_text_is_read_as_everywhere(published):
    exact = published.loss(1e9, 2e9, 8)
    assert published.loss("1B", "2B", 8) == published.loss("1e9", "2G", "8") == exact
    assert published.loss(["1B", 2e9], "2B", 8).tolist() == published.loss([1e9, 2e9], 2e9, 8).tolist()
    assert published.loss("1B", "2B", "1,2-8").shape == (4,)
    assert published.loss_draws("1B", "2B", 8)[0] == published.loss_draws(1e9, 2e9, 8)[0]
    assert published.warnings("1B", "2B", "64") == published.warnings(1e9, 2e9, 64)
    assert published.check("1k", "2T", "8").beyond
    *_, last = published.to_chinchilla(8).warnings("1B", "2B", "8,16")
    assert last == "this Chinchilla law holds for E = 8: its loss for E = 16 is the same"


def of_file(law="mine", **form):
    """Read a law's file with this form: data from anyone's repository."""
    return law_from_dict({"format": "scaling_law", "version": 1, "law": law, "form": form, "coefficients": {}})


JOINT, ABNAR = JointLaw.published(), published("abnar")
POWER = {"n_active": "-alpha"}
SLOPES = {"n_active": "alpha"}
BAD_INPUT = [
    (lambda: register(changed_kind(name="")), "must be set"),
    (lambda: register(changed_kind(name="joint")), "must be set and unique"),
    (lambda: register(changed_kind(form=Form((Term("a", SLOPES),)))), r"fields .*delta.* must be .* \(a, alpha\)"),
    (lambda: Form((Term("a", SLOPES), Term("a", {"tokens": "beta"}))), "must be unique"),
    (lambda: Form((Term("a", {"n_active": "a"}),)), "must be unique"),
    (lambda: Form((Term("a"), Term("c"))), "one constant at most"),
    (lambda: Form((Term("a", SLOPES),), (E_HAT,)), "no term uses e_hat"),
    (lambda: Form((Term("e_max", {"e_hat": "alpha"}),), (E_HAT,)), "must be unique"),
    (lambda: JOINT.loss(0, 1e9, 1), "n_active=0 must be positive and finite"),
    (lambda: JOINT.loss(1e8, -1, 1), "tokens=-1 must be positive and finite"),
    (lambda: JOINT.loss(1e8, np.nan, 1), "tokens=nan must be positive and finite"),
    (lambda: JOINT.loss(1e8, 1e9, 0.5), "experts=0.5 must be at least 1 and finite"),
    (lambda: JOINT.loss(1e9, None, 8), "tokens=None must be given"),
    (lambda: JOINT.loss([1e9, 2e9], [1e9, 2e9, 3e9], 8), r"n_active of \[2\], tokens of \[3\]: arrays must have one"),
    (lambda: JOINT.loss("big", 2e9, 8), "n_active='big' is not a quantity"),
    (lambda: JOINT.loss(1e9, [[1e9], [1e9, 2e9]], 8), r"tokens=\[\[1.*\] must be numbers, or text such as '1B'"),
    (lambda: JOINT.loss(1e9, 2e9, "eight"), "experts='eight' is not an integer"),
    (lambda: ABNAR.loss(n_total=1e9, tokens=1e10, density=2), "density=2 must be positive and at most 1"),
    (lambda: ABNAR.loss(n_total=1e9, tokens=1e10, density=0), "density=0 must be positive and at most 1"),
    (lambda: JOINT.replace(a=-1), "a=-1 must be positive"),
    (lambda: JOINT.replace(b=0), "b=0 must be positive"),
    (lambda: JOINT.replace(c=-0.1), "c=-0.1 must not be negative"),
    (lambda: JOINT.replace(e_start=0.9), "e_start=0.9 must be above 1"),
    (lambda: JOINT.replace(kappa=1), "field of JointLaw 'kappa' is unknown.* a, alpha, "),
    (lambda: JOINT.replace(draws=np.zeros((2, 3))), r"draws have shape \(2, 3\); \[n, 11\] is needed"),
    (lambda: JOINT.to_chinchilla(8).replace(experts=-3), "experts=-3 must be at least 1 and finite"),
    (lambda: JOINT.to_chinchilla(8).chinchilla_coefficients(4), "experts=4: this Chinchilla law holds for E = 8 only"),
    (lambda: StackLaw([JOINT], [1.0], experts=0), "experts=0 must be at least 1"),
    (lambda: StackLaw([JOINT], [0.5]), r"weights=\[0.5\] must be one for each of 1 laws, of sum 1"),
    (lambda: StackLaw([JOINT, JOINT], [1.5, -0.5]), "of sum 1"),
    (lambda: StackLaw([], []), "one for each of 0 laws"),
    (lambda: StackLaw([ABNAR], [1.0]), "the sparsity law depends on density"),
    (lambda: of_file(), "form={} must have terms, such as"),
    (lambda: of_file(terms=[1]), r"form=.*\[1\].* must have terms"),
    (lambda: of_file(terms={"a": "n_active"}), "term 'a' is 'n_active'; it must be such as"),
    (lambda: of_file(terms={"a": {"n_active": None}}), "term 'a', 'n_active': None must be the name of a coefficient"),
    (lambda: of_file(terms={"a": {"n_active*": "b"}}), r"term 'a', 'n_active\*': 'b' must be"),
    (lambda: of_file(terms={"a": {"n_active": "--b"}}), "coefficient '-b' must be a name of letters"),
    (lambda: of_file(terms={"a": {"n_active": "lambda"}}), "coefficient 'lambda' must be a name of letters"),
    (lambda: of_file(terms={"__class__": POWER}), "coefficient '__class__' must be a name of letters"),
    (lambda: of_file(terms={"a b": POWER}), "coefficient 'a b' must be a name of letters"),
    (lambda: of_file(terms={"loss": POWER}), "coefficient 'loss' is the name of something that every law has"),
    (lambda: of_file(terms={"draws": POWER}), "coefficient 'draws' is the name of something"),
    (lambda: of_file(terms={"a": POWER}, evaluate="print()"), "form: field 'evaluate' is unknown; there are terms"),
    (lambda: of_file(terms={"a": POWER}, transforms=["exec"]), "transform 'exec' is unknown; there are e_hat; one of"),
    (lambda: of_file(terms={"a": POWER}, coefficients=["a"]), r"fields \(a\) must be those of its form \(a, alpha\)"),
    (lambda: of_file(terms={"a": POWER}, coefficients=5), "form: coefficients=5 must be a list of names"),
    (lambda: of_file(terms={"a": POWER}, transforms="e_hat"), "form: transforms='e_hat' must be a list of names"),
    (lambda: of_file("joint", terms={"a": POWER}), "law='joint' is the name of another form, L = a·Ê"),
    (lambda: of_file("os.system('ls')", terms={"a": POWER}), "law=.* must be a name of letters, digits and _"),
    (lambda: of_file(terms={"a": POWER}), r"coefficients must be exactly \['a', 'alpha'\]"),
]


@pytest.mark.parametrize(("call", "words"), BAD_INPUT)
def test_bad_input_is_one_line_that_names_it(call, words):
    with pytest.raises(ValueError, match=words) as error:
        call()
    assert "\n" not in str(error.value)
    assert "changed" not in LAWS
    LAWS.pop("mine", None)


def test_a_constant_may_be_zero(published):
    assert published.replace(c=0).c == 0
