"""Every measured number on the pages and in the headers of recipes is in a committed result."""

from __future__ import annotations

import pytest

from linformer_kit.commands.table import RECIPES
from linformer_kit.linearized.adapter import CARD, shipped_adapters
from tests.documentation import numbers
from tests.documentation.pages import PAGES

# What was tried, as it was noted then; the page says so.
WITHOUT_RESULTS = {"log.md"}
CARDS = {name: folder / CARD for name, folder in shipped_adapters().items()}
CHECKED = {name: path.read_text("utf-8") for name, path in (PAGES | CARDS).items() if name not in WITHOUT_RESULTS}
CHECKED["recipes"] = "\n".join(
    line.removeprefix("#")
    for path in sorted(RECIPES.rglob("*.yaml"))
    for line in path.read_text("utf-8").splitlines()
    if line.startswith("#")
)


@pytest.mark.parametrize("page", sorted(CHECKED))
def test_every_measured_number_is_in_a_result(page):
    text = numbers.prose(CHECKED[page])
    measured, others = numbers.passages(page)
    wrong = [numbers.wrong_numbers(passage, expressions) for passage, expressions in measured if passage in text]
    assert not [line for line in wrong if line]
    assert not [passage for passage in (*(passage for passage, _ in measured), *others) if passage not in text]
    for passage in sorted((*(passage for passage, _ in measured), *others), key=len, reverse=True):
        text = text.replace(passage, " ")
    assert not numbers.walked(text)


def test_a_number_that_changed_is_found():
    assert numbers.wrong_numbers("of 4.81 nats", ["4.812"]) is None
    assert numbers.wrong_numbers("of 4.81 nats", ["4.82"]) == "'of 4.81 nats': expected 4.82, got 4.81"
    assert numbers.wrong_numbers("0.31 behind", ["-0.31"]) == "'0.31 behind': expected -0.31, got 0.31"
    assert numbers.wrong_numbers("1, 2 and 3", ["1", "sorted([3, 2])"]) is None
    assert numbers.wrong_numbers("from 1 to 2", ["1"]) == "'from 1 to 2': expected 1 numbers, got 2"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("a loss of 4.81 here", 1),
        ("`--rate 0.1`, section 5.1 and arXiv 2006.04768", 0),
        ("12 % in 30 ms", 2),
        ("n 512", 0),
    ],
)
def test_numbers_that_are_walked(text, count):
    assert len(numbers.walked(numbers.prose(text))) == count


def test_numbers_of_tables_and_studies():
    value = numbers.table("learning-gap", "code-128", "Transformer", "loss (nats)")
    assert value == pytest.approx(numbers.loss("learning-gap", "code-128", "Transformer"), abs=5e-4)
    assert numbers.gap("learning-gap", "code-128", "Transformer") == 0
