"""Texts and an encoder for small trainings."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.conftest import write_model, write_teacher
from tests.faults.fuzz import Places, prepared


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    """Documents with about eighteen training blocks: an epoch of nine batches."""
    folder = tmp_path_factory.mktemp("corpus")
    for number in range(7):
        lines = [f"def function_{number}_{line}(a): return a" for line in range(3)]
        (folder / f"{number}.txt").write_text("\n".join(lines))
    return folder


@pytest.fixture(scope="session")
def texts(tmp_path_factory) -> Path:
    """Labelled texts with nineteen training texts: an epoch of ten batches."""
    path = tmp_path_factory.mktemp("texts") / "texts.csv"
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("text", "label"))
        rows.writerows((f"number {number} was {('good', 'bad')[number % 2]}", number % 2) for number in range(24))
    return path


@pytest.fixture(scope="session")
def encoder(tmp_path_factory) -> Path:
    return write_model(tmp_path_factory.mktemp("encoder") / "model", "number was good bad 0 1 2 3 4 5 6 7 8 9")


@pytest.fixture(scope="session")
def teacher(tmp_path_factory) -> Path:
    return write_teacher(tmp_path_factory.mktemp("teacher") / "model", "def function return a ( ) : _ 0 1 2 3 4 5 6 7")


@pytest.fixture(scope="session")
def places(tmp_path_factory, corpus, texts, encoder) -> Places:
    return prepared(tmp_path_factory.mktemp("places"), corpus, texts, encoder)
