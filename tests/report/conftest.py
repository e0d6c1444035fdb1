"""Access to the figures that a test writes."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure


@pytest.fixture(autouse=True)
def _drawn(drawn) -> None:
    """All figures."""


@pytest.fixture
def figures(drawn, monkeypatch) -> list[Figure]:
    """The figures that the code under test has written, in their order; once where a file of each format is written."""
    written, write = [], Figure.savefig

    def noted(figure, *arguments, **options):
        if figure not in written:
            written.append(figure)
        write(figure, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", noted)
    return written
