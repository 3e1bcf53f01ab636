"""The optima of published laws for one budget: each number against the law asked by itself, or against its paper."""

import pytest

from hub.base.tables import as_text
from scaling_law import ExtrapolationError, JointLaw, compare, published
from scaling_law.law.shelf import SHELF

FLOPS = 1e21


@pytest.fixture(scope="module")
def comparison():
    return compare(FLOPS)


def test_every_law_of_sizes_and_tokens_has_its_optimum(comparison):
    names = [name for name, law in SHELF.items() if law.published and law.answers == "loss"]
    assert [row.law for row in comparison.rows] == [name for name in names if "tokens" in SHELF[name].variables]
    for row in comparison.rows:
        assert 6 * row.optimum.n_active * row.optimum.tokens == pytest.approx(FLOPS, rel=1e-9)
    assert comparison["chinchilla"].optimum.tokens_per_parameter == pytest.approx(33.9, abs=0.1)


def test_a_law_says_what_it_says_when_it_is_asked_alone(comparison):
    assert comparison["ludziejewski"].optimum == JointLaw.published().optimal(FLOPS, force=False).best
    fine = compare(FLOPS, laws=["krajewski_e16"])["krajewski_e16"]
    losses = {
        g: published("krajewski_e16").optimal(FLOPS, 16, granularity=g, force=True).best.loss for g in (8, 16, 32, 64)
    }
    assert fine.granularity in losses
    assert fine.optimum.loss == pytest.approx(losses[fine.granularity], rel=1e-12)


def test_the_number_of_active_experts_is_chosen_where_a_law_depends_on_it(comparison):
    """Zhao et al. 2025: 6.78 active experts are best, of which 31 % are shared."""
    assert comparison["hunyuan"].granularity == 8
    losses = [published("hunyuan").optimal(FLOPS, granularity=8, shared_ratio=s).best.loss for s in (0.2, 0.3, 0.4)]
    assert comparison["hunyuan"].optimum.loss == losses[1] == min(losses)


def test_what_an_answer_is_worth_stands_beside_it():
    far = compare(1e29, laws=["krajewski_e16", "hunyuan"])
    assert far["krajewski_e16"].optimum is None
    assert "beyond the limit" in far["krajewski_e16"].remark
    assert far["hunyuan"].remark == "not trusted: ranges unknown"
    assert not far.trusted
    forced = compare(1e29, laws=["krajewski_e16"], force=True)
    assert forced["krajewski_e16"].optimum.n_active > 0
    assert any("do not act" in warning for warning in forced.warnings)
    with pytest.raises(ExtrapolationError, match="krajewski_e16: too far from the runs"):
        compare(1e29, laws=["krajewski_e16"])
    with pytest.raises(ValueError, match=r"marin: Marin 2026, .* gives optimum, no loss: N = "):
        compare(FLOPS, laws="marin")
    assert any("range of n_total, D unknown" in warning for warning in compare(1e13, laws=["abnar"]).warnings)
    assert compare(FLOPS, laws="ludziejewski")["ludziejewski"].remark == "outside its runs"


def test_memory_limits_every_model_and_no_loss_is_ranked():
    small = compare(FLOPS, memory="24GB")
    for row in small.rows:
        if row.optimum is not None:
            assert 2 * row.optimum.n_total <= 24e9 * (1 + 1e-9)
    text = as_text(small)
    assert "Losses on different corpora and tokenizers are not comparable." in text
    assert "best" not in text
