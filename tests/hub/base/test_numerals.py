"""Numbers as spreadsheets write them: read where they can be one number only, else refused with both readings."""

import pytest

from hub.base.errors import InputError
from hub.base.numerals import read_cells, why_no_number

COLUMNS = [
    (["3.78", "1e9", ""], [3.78, 1e9, None]),
    (["50000000,0", "3,7844082616128194"], [5e7, 3.7844082616128194]),
    (["1.234.567,5", "1.234"], [1234567.5, 1234.0]),
    (["1,234,567.5", "1,234"], [1234567.5, 1234.0]),
    (["0,784", "−1,5"], [0.784, -1.5]),
    (["2,5E+08", "1,234E+09"], [2.5e8, 1.234e9]),
    (["50 000 000", "12 345,5"], [5e7, 12345.5]),
    (["50\u00a0000\u00a0000", "1\u202f234,5"], [5e7, 1234.5]),
    (["1'000'000", "3"], [1e6, 3.0]),
    (["1,5B", "80M"], ["1.5B", "80M"]),
    (["3.5", "-", "N/A"], [3.5, None, None]),
    (["adamw", "-", "none"], ["adamw", "-", "none"]),
    (["3,784", "2,551"], ["3,784", "2,551"]),
    (["2.5", "2,5"], [2.5, "2,5"]),
    (["1.2.3", "10:30", "1,2,3"], ["1.2.3", "10:30", "1,2,3"]),
]


@pytest.mark.parametrize(("cells", "values"), COLUMNS)
def test_a_column_alone(cells, values):
    assert read_cells([cells]) == [values]


@pytest.mark.parametrize(
    ("other", "value"), [("1,5", 3.784), ("0.5", 3784.0), ("1,234,567", 3784.0), ("12.345,6", 3.784), ("5", "3,784")]
)
def test_what_a_column_leaves_open_the_others_settle(other, value):
    assert read_cells([["3,784"], [other]])[0] == [value]


def test_columns_that_disagree_settle_nothing():
    assert read_cells([["3,784"], ["1,5"], ["0.5"]]) == [["3,784"], [1.5], [0.5]]


@pytest.mark.parametrize("columns", [[["1.234"], ["3,78"]], [["1.234", "3,78"]]])
def test_a_point_among_decimal_commas_is_refused(columns):
    with pytest.raises(InputError, match=r"'1\.234' among decimal commas is 1\.234 or 1234: write one of the two"):
        read_cells(columns)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("3,784", "is 3.784 or 3784: write one of the two"),
        ("3,78", "has a decimal comma: write a decimal point"),
        ("1,234,567", "has commas: write it without them"),
        ("diverged", "is not a number"),
        (None, "is not a number"),
    ],
)
def test_why_a_value_is_no_number(value, why):
    assert why_no_number(value) == why
