"""Figures are drawn."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _drawn(drawn) -> None:
    """All figures."""
