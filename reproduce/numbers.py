"""Number formatting of all reports; the functions' names are the units."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence


def listed(numbers: Iterable[int]) -> str:
    """Numbers with commas between them."""
    return ", ".join(map(str, numbers))


def mean_and_deviation(numbers: Sequence[float], decimals: int, *, sign: str = "") -> str:
    """The mean and, for several numbers, the sample standard deviation.

    Args:
        numbers: One number or more.
        decimals: Digits after the decimal point.
        sign: "+" to show the sign of a positive mean too.
    """
    deviation = f" ± {statistics.stdev(numbers):.{decimals}f}" if len(numbers) > 1 else ""
    return f"{statistics.fmean(numbers):{sign}.{decimals}f}{deviation}"


def milliseconds(seconds: float, form: str = ",.0f") -> str:
    """Seconds as milliseconds, without the unit."""
    return f"{seconds * 1e3:{form}}"


def mebibytes(count: float, form: str = ",.0f") -> str:
    """Bytes as MiB, without the unit."""
    return f"{count / 2**20:{form}}"
