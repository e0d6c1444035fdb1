"""Run all commands and code blocks of the README and of each guide, in order."""

from __future__ import annotations

import runpy

import pytest

from tests.conftest import slow_but
from tests.documentation.conftest import run_python
from tests.documentation.pages import PAGES, steps

QUICK = ("how-it-works.md", "operator.md", "python.md")
GUIDES = [page for page in PAGES if page not in ("README.md", "export.md") and steps(page)]

pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings("ignore:flex_attention called without")]


def test_readme(read):
    read("README.md")


@pytest.mark.parametrize("page", slow_but(QUICK, GUIDES))
def test_guide(page, read):
    read(page)


@pytest.mark.slow
@pytest.mark.parametrize(("example", "least"), enumerate((0.8, 0.9, 0.9)), ids=("patches", "series", "table"))
def test_examples_of_vectors_learn(example, least, capsys):
    """Chance is 0.1 for patches and 0.5 for series; the larger class of the table has 0.77."""
    blocks = [step.text for step in steps("python.md") if "lk.LinformerEncoder(" in step.text]
    assert len(blocks) == 3
    run_python(blocks[example], ())
    assert float(capsys.readouterr().out.removeprefix("accuracy ")) > least


@pytest.mark.slow
def test_the_server_of_the_page_answers_with_names_of_classes(read):
    read("export.md")
    answer = runpy.run_path("serve.py")["answer"]("the film was good")
    assert answer.keys() == {"bad", "good"} and sum(answer.values()) == pytest.approx(1)
