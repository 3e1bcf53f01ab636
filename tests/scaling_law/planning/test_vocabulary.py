"""A law keeps the vocabulary of its runs, and sizes count it: asked without one, it answers inside its own range."""

import numpy as np
import pytest

from hub.base.tables import as_text
from scaling_law import Budget, Conditions, JointLaw, fit, load_runs
from scaling_law.figures.curves import memory_curves
from scaling_law.law.base import law_from_dict
from scaling_law.law_files import law_card
from scaling_law.planning import advantage, predicted_loss
from tests.scaling_law.synthetic import sweep_rows

RECORDED = [*sweep_rows(vocab_size=1024)]  # N_act 184k to 1.7M
FLOPS = 1e13  # inside


@pytest.fixture(scope="module")
def fitted():
    return fit(RECORDED).bootstrap(40)


@pytest.fixture(scope="module")
def law(fitted, tmp_path_factory):
    """Saved and read again."""
    folder = tmp_path_factory.mktemp("law")
    fitted.law.save_pretrained(folder)
    return JointLaw.from_pretrained(folder)


@pytest.mark.parametrize(
    ("column", "known"),
    [
        ([1024, None, 1024.0, float("nan")], 1024),  # those that say agree
        ([1024, 1024, 512, 1024], None),
        ([None] * 4, None),
        (["many", 1024, 1024, 1024], None),
        ([0.5] * 4, None),
        ([[1024]] * 4, None),
    ],
)
def test_runs_carry_the_vocabulary_that_they_share(column, known):
    size = {"n_active": 1e6, "experts": 1}
    rows = [size | {"tokens": 1e6 * (1 + i), "eval_loss": 4 - 0.1 * i, "vocab_size": column[i]} for i in range(4)]
    runs = load_runs(rows)
    assert runs.vocab_size == runs.subset(np.arange(4) < 2).vocab_size == known


def test_a_vocabulary_that_is_given_wins_and_the_note_stays(law):
    table = law.optimal(FLOPS, [1, 2], vocab_size=50_257)
    assert {row.limited_by for row in table} == {"smallest"}
    assert any("smaller than d_model 64 with a vocabulary of 50,257" in warning for warning in table.warnings)
    below = law.optimal(5e11, [1])  # its own vocabulary, and yet smaller than the smallest width
    assert any("smaller than d_model 64 with a vocabulary of 1,024" in warning for warning in below.warnings)


def test_every_question_counts_the_vocabulary_of_the_law(law):
    """Asked without a vocabulary as with 1,024, and not as with GPT-2's."""
    questions = [
        lambda **v: law.optimal(FLOPS, [1, 2, 4], **v).best.d_model,
        lambda **v: law.reach(5.0, [1, 4], **v).memory_bytes,
        lambda **v: law.reach(5.0, [1, 4], max_parameters=400_000, **v).flops,
        lambda **v: law.reach(5.0, [1, 2], flops=FLOPS, **v).memory_bytes,
        lambda **v: law.speedup(1, 2, match="memory", flops=FLOPS, **v).best.n_active,
        lambda **v: law.optimum_draws(FLOPS, [1, 2], max_parameters=300_000, **v).loss,
        lambda **v: advantage(FLOPS, 2, 1, **v)(law),
        lambda **v: law.plan(FLOPS, [1, 2], **v).architecture.n_active,
    ]
    for ask in questions:
        own, same, other = ask(), ask(vocab_size=1024), _or_nothing(lambda ask=ask: ask(vocab_size=50_257))
        np.testing.assert_array_equal(own, same)
        assert other is None or not np.array_equal(own, other, equal_nan=True)


def _or_nothing(ask):
    try:
        return ask()
    except ValueError:
        return None


def test_plans_new_runs_and_figures_count_it_too(law, published):
    made = law.plan(FLOPS, [1, 2])
    assert made.architecture.vocab_size == 1024
    assert any("give train.py a tokenizer of that size" in warning for warning in made.warnings)
    assert not any("tokenizer" in warning for warning in published.plan(1e20).warnings)
    design = law.next_runs(predicted_loss(5e5, 5e6, 2), 1e16, warmup_tokens=0)
    assert {row.architecture.vocab_size for row in design.rows} == {1024}
    ends = [curve.n_active[-1] for curve in memory_curves(law, Budget(FLOPS), [1, 2]).curves]
    assert ends == pytest.approx([row.n_active for row in law.optimal(FLOPS, [1, 2])])


def test_the_vocabulary_travels_and_is_shown(law, fitted, published):
    assert (law.vocab_size, law.conditions.vocab_size, law.to_chinchilla(2).vocab_size) == (1024, 1024, 1024)
    assert published.conditions.vocab_size == JointLaw.published(rounded=True).vocab_size == 50_257
    assert published.replace(conditions=None).vocab_size == 50_257
    assert "the vocabulary of these runs, 1,024 tokens" in law_card(law, "org/law")
    assert "vocabulary" not in law_card(law.replace(conditions=Conditions("unknown")), "org/law")
    result = fit(RECORDED)
    assert result.to_dict()["vocab_size"] == 1024
    assert "vocabulary 1,024; objective" in as_text(result.summary(), 200)


def test_a_file_of_a_law_from_before_is_read_and_a_wrong_vocabulary_refused(law):
    data = law.to_dict()
    old = {name: value for name, value in data["conditions"].items() if name != "vocab_size"}
    assert law_from_dict(data | {"conditions": old}).vocab_size == 50_257
    for wrong in (0, "1024", 1024.5, True):
        with pytest.raises(ValueError, match=r"conditions: vocab_size=.* must be an integer of at least 1"):
            law_from_dict(data | {"conditions": old | {"vocab_size": wrong}})
    with pytest.raises(ValueError, match="vocab_size=0 must be a whole number of at least 1"):
        law.optimal(FLOPS, vocab_size=0)
