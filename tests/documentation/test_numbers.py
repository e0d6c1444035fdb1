"""Measured rows on the pages come from committed results.

Rows between `<!-- rows of FOLDER -->` and `<!-- end -->` stand in a table of that folder of benchmarks/.
"""

from __future__ import annotations

import itertools
import re

import pytest

from linformer_kit.linearized.adapter import CARD, shipped_adapters
from tests.documentation.pages import PAGES, ROOT

BENCHMARKS = ROOT / "benchmarks"
CARDS = {name: folder / CARD for name, folder in shipped_adapters().items()}

_ROWS = re.compile(r"<!-- rows of (\S+) -->\n(.*?)<!-- end -->", re.DOTALL)


@pytest.mark.parametrize("name", PAGES | CARDS)
def test_rows_are_those_of_the_results(name):
    for folder, rows in _ROWS.findall((PAGES | CARDS)[name].read_text(encoding="utf-8")):
        tables = (path.read_text(encoding="utf-8").splitlines() for path in (BENCHMARKS / folder).glob("*.md"))
        assert {line for line in rows.splitlines() if line} <= {*itertools.chain(*tables)}, folder
