"""What published laws say of one budget: each number against the law asked by itself, or against its paper."""

import numpy as np
import pytest

from hub.base.tables import as_text
from scaling_law import ExtrapolationError, JointLaw, compare, published
from scaling_law.law.shelf import SHELF
from scaling_law.size.architecture import active_parameters

FLOPS = 1e21


@pytest.fixture(scope="module")
def found():
    return compare(FLOPS)


def test_every_law_with_coefficients_is_asked_and_says_something(found):
    assert [opinion.law for opinion in found.rows] == [name for name, own in SHELF.items() if own.published]
    for opinion in found.rows:
        assert opinion.n_active or opinion.says or opinion.silent
        if opinion.n_active and opinion.tokens:
            assert 6 * opinion.n_active * opinion.tokens == pytest.approx(FLOPS, rel=1e-9)


def test_numbers_of_the_papers(found):
    assert found["chinchilla_approach1"].n_active == pytest.approx(2.86e9, rel=5e-3)  # Hoffmann et al., D.4
    kaplan = found["kaplan_optimum"].n_active
    width = np.geomspace(64, 20_000, 100_001)
    non_embedding = np.interp(kaplan, active_parameters(width), active_parameters(width, vocab_size=0))
    assert non_embedding == pytest.approx(4.68e9, rel=2e-3)  # as Hoffmann et al. read it, D.4
    assert found["chinchilla"].tokens_per_parameter == pytest.approx(33.9, abs=0.1)
    assert found["marin"].loss == pytest.approx(2.606, abs=1e-3)


def test_a_law_says_what_it_says_when_it_is_asked_alone(found):
    row = JointLaw.published().optimal(FLOPS, force=True).best
    own = found["ludziejewski"]
    assert (own.experts, own.n_active, own.loss) == (row.experts, row.n_active, row.loss)
    fine = compare(FLOPS, laws=["krajewski_e16"])["krajewski_e16"]
    losses = {
        g: published("krajewski_e16").optimal(FLOPS, 16, granularity=g, force=True).best.loss for g in (8, 16, 32, 64)
    }
    assert fine.granularity in losses
    assert fine.loss == pytest.approx(losses[fine.granularity], rel=1e-12)


def test_the_number_of_active_experts_is_chosen_where_a_law_depends_on_it(found):
    """Zhao et al. 2025: 6.78 active experts are best, of which 31 % are shared."""
    assert found["hunyuan"].granularity == 8
    losses = [published("hunyuan").optimal(FLOPS, granularity=8, shared_ratio=s).best.loss for s in (0.2, 0.3, 0.4)]
    assert found["hunyuan"].loss == losses[1] == min(losses)


def test_what_a_law_cannot_say_is_said(found):
    assert found["clark_hash"].silent == "does not depend on tokens"
    assert found["besiroglu"].silent == "holds for dense models only"
    assert found["ling_rates"].silent == "gives no size, tokens or loss"
    assert "peak LR" in found["ling_rates"].says
    assert "n_total_non_embedding" in found["step_law"].silent  # a rate is told up to ten times outside the runs
    assert "beyond the guard of 10 times" in found["step_law"].silent
    refused = compare(1e29, laws=["krajewski_e16", "hunyuan"])["krajewski_e16"]
    assert refused.n_active is None
    assert "beyond the guard" in refused.silent
    assert compare(1e29, laws=["krajewski_e16"], force=True)["krajewski_e16"].n_active > 0


def test_what_an_answer_is_worth_stands_beside_it():
    far = compare(1e30, laws=["marin", "chinchilla_approach2", "ling_optimum", "step_law", "chinchilla_approach1"])
    assert [o.law for o in far.rows if not o.beyond_guard] == ["chinchilla_approach1"]
    assert not any(o.answers or o.trusted for o in far.rows if o.beyond_guard)
    assert far["chinchilla_approach1"].trust == "not trusted: ranges unknown"
    forced = compare(1e30, laws=["marin"], force=True)
    assert (forced["marin"].trust, forced.trusted) == ("not trusted: flops ×3.33e+09", False)
    assert "do not act" in forced.warnings[1]
    with pytest.raises(ExtrapolationError, match="marin: too far from the runs"):
        compare(1e30, laws=["marin", "clark_rl"])
    tiny = compare(1e13, laws=["abnar"])
    assert (tiny["abnar"].trusted, tiny.trusted) == (False, False)
    assert any("range of n_total, D unknown" in warning for warning in tiny["abnar"].warnings)
    assert compare(1e21, laws="marin")["marin"].trust == "outside its runs"
    assert compare(1e22, laws="marin")["marin"].trust == "not trusted: flops ×33.3"


def test_memory_limits_every_model_and_no_loss_is_ranked(found):
    small = compare(FLOPS, memory="24GB")
    for opinion in small.rows:
        if opinion.n_total and opinion.experts:
            assert 2 * opinion.n_total <= 24e9 * (1 + 1e-9)
    text = as_text(small)
    assert "Losses on different corpora and tokenizers are not comparable." in text
    assert "best" not in text
