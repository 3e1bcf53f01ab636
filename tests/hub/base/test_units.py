"""Quantities as people write them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.base.units import (
    format_bytes,
    format_count,
    format_decimal,
    format_ends,
    format_experts,
    format_flops,
    format_rough,
    parse_batch,
    parse_bytes,
    parse_context,
    parse_count,
    parse_experts,
    parse_flops,
    parse_hours,
    parse_parameters,
    parse_tokens,
)

GB, GIB = 1e9, 1024**3
MEANINGS = {
    parse_count: {"1e22": 1e22, " 1.1B ": 1.1e9, "100B": 1e11, "7b": 7e9, "16k": 16_000, "50_257": 50_257, 3: 3},
    parse_bytes: {"80GB": 80 * GB, "80gb": 80 * GB, "80G": 80 * GB, "640 GB": 640 * GB, "12000000": 12e6, 80: 80}
    | {"80GiB": 80 * GIB, "80 gib": 80 * GIB, "80Gi": 80 * GIB},
    parse_context: {"16k": 16_384, "16K": 16_384, "16000": 16_000, "1M": 1024**2, "64": 64, 16: 16},
    parse_hours: {"504": 504, "504h": 504, "21d": 504, "3w": 504, "3 W": 504, "90min": 1.5, "0.5d": 12, 72: 72},
    parse_tokens: {"36T": 36e12, "1000": 1000, "1e2": 100, "0.5K": 500, "0": 0, 1280: 1280},
    parse_parameters: {"7B": 7e9, "1e8": 1e8, "0": 0},
    parse_flops: {"1e22": 1e22, "22K": 22_000, "0": 0},
    parse_batch: {"0.5M": 5e5, "65536": 65_536},
}
FORGOTTEN = {  # units of tokens, parameters, FLOPs and contexts
    (parse_tokens, "36"): "tokens='36' has no unit: did you mean 36B or 36T?",
    (parse_tokens, " 0.5 "): "did you mean 0.5B or 0.5T?",
    (parse_tokens, 36): "tokens=36 has no unit: did you mean 36B or 36T?",
    (parse_parameters, "7"): "n_active='7' has no unit: did you mean 7M or 7B?",
    (parse_flops, "22"): "flops='22' has no unit: did you mean 1e22?",
    (parse_batch, "4"): "batch_tokens='4' has no unit: did you mean 4K or 4M?",
    (parse_context, "16"): "kv_tokens='16' has no unit: did you mean 16k?",
}


@pytest.mark.parametrize("parse", MEANINGS)
def test_meanings(parse):
    assert {text: parse(text) for text in MEANINGS[parse]} == MEANINGS[parse]


@pytest.mark.parametrize(("parse", "text"), FORGOTTEN)
def test_a_forgotten_unit_is_asked_for(parse, text):
    with pytest.raises(ValueError, match="has no unit") as refused:
        parse(text)
    assert FORGOTTEN[parse, text] in str(refused.value)


@pytest.mark.parametrize("parse", [parse_count, parse_bytes, parse_context, parse_hours, parse_tokens, parse_flops])
def test_nonsense_is_refused(parse):
    for text in ("", "GB", "80 bananas", "1e", "-5GB", "nan", "inf", "1e999", "80gbb", "0x10", "1,5GB", "__"):
        with pytest.raises(ValueError, match=r"^(value|memory|kv_tokens|hours|tokens|flops)="):
            parse(text)


@pytest.mark.parametrize("text", ["80", " 80 ", "8e4", "640.5"])
def test_a_memory_whose_unit_was_forgotten_is_refused(text):
    with pytest.raises(ValueError, match=rf"memory='{text}' is .* bytes: did you mean {text.strip()}GB\?"):
        parse_bytes(text)


@given(st.text(max_size=12))
def test_any_text_parses_or_is_refused(text):
    for parse in MEANINGS:
        try:
            value = parse(text)
        except ValueError:
            continue
        assert 0 <= value < float("inf")


@given(st.floats(1, 1e27))
def test_formatted_counts_read_back(value):
    assert parse_count(format_count(value)) == pytest.approx(value, rel=6e-3)


def test_format_count():
    shown = {None: "–", 0: "0", 12: "12", 0.3612: "0.361", 999: "999", 999.6: "1K", 1_500: "1.5K", 999_936: "1M"}
    shown |= {999.9e6: "1B", 1.7205e9: "1.72B", -2e9: "-2B", 999.4e12: "999T", 999.9e12: "1e15", 1e22: "1e22"}
    assert {value: format_count(value) for value in shown} == shown
    assert format_count(float("inf")) == "inf"


def test_format_bytes_and_flops():
    sizes = (None, 80e9, 12972288, 12, 2e15, 2e18)
    assert [format_bytes(size) for size in sizes] == ["–", "80 GB", "13 MB", "12 B", "2 PB", "2e18 B"]
    assert [format_flops(v) for v in (None, 0, 1e22, 4.72e11, 9.999e12)] == ["–", "0", "1e22", "4.72e11", "1e13"]
    assert [format_decimal(v) for v in (None, 2.5)] == ["–", "2.5000"]


def test_experts():
    assert parse_experts("1,2,4") == [1, 2, 4]
    assert parse_experts("1-32") == [1, 2, 4, 8, 16, 32]
    assert parse_experts("1-4,8, 2") == [1, 2, 4, 8]
    assert parse_experts("3-16, 1-512") == [3, 6, 12, 16, 1, 2, 4, 8, 32, 64, 128, 256, 512]
    assert parse_experts("7-7") == [7]
    for text in ("0", "4-2", "a", "", "1,,2", "1.5", "-1"):
        with pytest.raises(ValueError, match="experts="):
            parse_experts(text)


def test_listed_experts():
    assert format_experts([1, 2, 4, 8.0]) == ["1", "2", "4", "8"]
    assert format_experts([1, 3, 4, 5, 9, 10]) == ["1", "3 to 5", "9", "10"]
    assert format_experts(2**k for k in range(12)) == ["1", "2", "4", "8", "16", "32", "…", "2048"]


@pytest.mark.parametrize(
    ("low", "high", "written"),
    [
        (2.5057, 2.5118, ("2.506", "2.512")),
        (2.0952, 2.1187, ("2.10", "2.12")),
        (1.634, 1.797, ("1.63", "1.80")),
        (2.107, 2.107, ("2.107", "2.107")),
        (2.107, math.inf, ("2.1", "inf")),
        (1.3702, 6.4655, ("1.4", "6.5")),
    ],
)
def test_ends_of_an_interval_have_the_decimals_that_its_width_allows(low, high, written):
    assert format_ends(low, high) == written


@pytest.mark.parametrize(
    ("value", "written"),
    [(0.0123, "0.012"), (4.81, "4.8"), (9.97, "10"), (339.1, "340"), (10_869.0, "11,000")],
)
def test_ends_of_hours_have_two_digits(value, written):
    assert format_rough(value) == written
