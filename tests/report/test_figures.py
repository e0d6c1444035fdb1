"""Helpers of all figures."""

from __future__ import annotations

import pytest

from linformer_kit.report.figures import log_ticks, new_figure, number_ticks, save_figure, show_grid


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


def test_the_same_figure_gives_the_same_svg(tmp_path):
    """So that drawing committed results again changes no file."""
    written = []
    for _ in range(2):
        figure, axes = new_figure((2, 2))
        axes.plot([1, 2], label="a line")
        axes.fill_between([0, 1], [1, 2], [2, 3])
        save_figure(figure, tmp_path / "x.png", vector=True)
        written.append((tmp_path / "x.svg").read_bytes())
    assert written[0] == written[1] and (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    save_figure(figure, tmp_path / "alone.png")
    assert not (tmp_path / "alone.svg").exists()
