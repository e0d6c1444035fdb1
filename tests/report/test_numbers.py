"""How numbers are written."""

from __future__ import annotations

import pytest

from linformer_kit.report.numbers import (
    billions,
    gibibytes,
    listed,
    mean_and_deviation,
    mebibytes,
    microseconds,
    milliseconds,
)


def test_units():
    assert (milliseconds(1.2345), milliseconds(0.0012345, ",.2f")) == ("1,234", "1.23")
    assert microseconds(0.00123456) == "1.23e+03" and microseconds(1.7e-6) == "1.7"
    assert (mebibytes(3 * 2**20), mebibytes(2**19, ",.1f"), gibibytes(5 * 2**30)) == ("3", "0.5", "5.000 GiB")
    assert billions(7.4e9) == "7"
    assert listed([2, 3, 5]) == "2, 3, 5"


@pytest.mark.parametrize(
    "numbers, sign, expected", [([1.0, 3.0], "", "2.00 ± 1.41"), ([2.5], "+", "+2.50"), ([-2.5], "+", "-2.50")]
)
def test_a_mean_has_the_deviation_of_a_sample(numbers, sign, expected):
    assert mean_and_deviation(numbers, 2, sign=sign) == expected
