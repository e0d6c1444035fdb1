"""How numbers are written."""

from __future__ import annotations

import pytest

from reproduce.numbers import (
    listed,
    mean_and_deviation,
    mebibytes,
    milliseconds,
)


def test_units():
    assert (milliseconds(1.2345), milliseconds(0.0012345, ",.2f")) == ("1,234", "1.23")
    assert (mebibytes(3 * 2**20), mebibytes(2**19, ",.1f")) == ("3", "0.5")
    assert listed([2, 3, 5]) == "2, 3, 5"


@pytest.mark.parametrize(
    "numbers, sign, expected", [([1.0, 3.0], "", "2.00 ± 1.41"), ([2.5], "+", "+2.50"), ([-2.5], "+", "-2.50")]
)
def test_a_mean_has_the_deviation_of_a_sample(numbers, sign, expected):
    assert mean_and_deviation(numbers, 2, sign=sign) == expected
