"""Run all commands and code blocks of each guide, in order."""

from __future__ import annotations

import pytest

from tests.conftest import slow_but
from tests.documentation.pages import PAGES, steps

QUICK = ("convert.md", "how-it-works.md", "python.md", "theory.md", "training.md")


@pytest.mark.e2e
@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("page", slow_but(QUICK, [page for page in PAGES if page != "README.md" and steps(page)]))
def test_guide(page, read):
    read(page)
