"""The filter language, at the ends of what it says."""

import pytest

from hub import RecordError, parse_filter, select
from tests.hub.samples import make_record


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ("", True),
        (None, True),
        ("E == 4 and d = 64", True),
        ("E=4,N>=1,", True),
        ("experts in {1, 4}, final", True),
        ("E in {1,8}", False),
        ("E != 4", False),
        ("D <= 1.5M", True),
        ("D ≥ 1_500_000", True),
        ("tokens < 1e6", False),
        ("seed = 0", True),
        ("mfu < 1", False),
        ("mfu != 1", False),
        ("diverged", False),
        ("status in {final, diverged}", True),
        ("status != final", False),
        ("sweep = demo", True),
    ],
)
def test_terms(where, kept):
    record = make_record(tokens=1_500_000, mfu=None)
    assert select([record], where) == [record] * kept


@pytest.mark.parametrize("named", ["1M", "1000K", "0.001B"])
@pytest.mark.parametrize(
    ("tokens", "fulfilled"),
    [
        (998_999, {"<", "<=", "!="}),
        (999_000, {"=", "<=", ">=", "in"}),
        (1_001_000, {"=", "<=", ">=", "in"}),
        (1_001_001, {">", ">=", "!="}),
    ],
)
def test_a_number_with_a_suffix_means_what_is_called_so(named, tokens, fulfilled):
    tests = {symbol: f"D {symbol} {named}" for symbol in ("=", "!=", "<", "<=", ">", ">=")}
    tests["in"] = f"D in {{{named}}}"
    assert {symbol for symbol, where in tests.items() if parse_filter(where)({"tokens": tokens})} == fulfilled


def test_a_number_without_a_suffix_is_exact():
    for where in ("D >= 1e6", "D = 1000000"):
        assert [parse_filter(where)({"tokens": tokens}) for tokens in (999_999, 1_000_000)] == [False, True]


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        ("E", "'E' is not a condition; write a field and a comparison, such as D >= 1B"),
        ("experts ~ 3", "'experts ~ 3' is not a condition"),
        ("E > 1; D > 2", "'E > 1; D > 2' is not a condition"),
        ("D in {}", "tokens='' is not a quantity"),
        ("E = eight", "experts='eight' is not a quantity: write a number"),
        ("N_total > n_active", "n_active' is not a quantity"),
        ("depth < 4", "field 'depth' is unknown: did you mean 'd_expert'? There are E, D, N"),
        ("hardware < 3", "'hardware < 3' is not a condition"),
        ("__class__ = 1", "field '__class__' is unknown"),
    ],
)
def test_what_cannot_be_read_is_one_clear_error(where, reason):
    with pytest.raises(RecordError) as caught:
        parse_filter(where)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_other_fields_may_be_asked_for():
    assert parse_filter("d <= 1024", ("d_model",), ())({"d_model": 1024})
    with pytest.raises(RecordError, match=r"field 'status' is unknown.* d, d_model"):
        parse_filter("status = final", ("d_model",), ())
