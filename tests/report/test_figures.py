"""Helpers of all figures."""

from __future__ import annotations

import pytest

from linformer_kit.report.figures import log_ticks, new_figure, number_ticks, show_grid


@pytest.mark.parametrize("minor", [False, True])
def test_numbers_are_written_in_full(minor):
    _, axes = new_figure((2, 2))
    number_ticks(axes.yaxis, ",g", unit="×", minor=minor)
    assert axes.yaxis.get_major_formatter()(2000, 0) == "2,000×"
    assert axes.yaxis.get_minor_formatter()(2000, 0) == ("2,000×" if minor else "")


def test_ticks_of_logarithmic_axes():
    _, axes = new_figure((2, 2))
    axes.set_yscale("log")
    log_ticks(axes.yaxis, (1, 3))
    assert {1.0, 3.0, 10.0, 30.0} <= {
        round(float(place), 6) for place in axes.yaxis.get_major_locator().tick_values(1, 30)
    }
    show_grid(axes)
    assert axes.xaxis.get_gridlines()[0].get_visible()
