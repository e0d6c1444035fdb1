"""Labelled texts divided into parts, with one line for sources that are not as expected."""

from __future__ import annotations

import json

import pytest

from reproduce.labelled_texts import MOST, main


def review(fold):
    return {"text": f"of fold {fold}", "label": "good", "fold": fold}


def test_reviews_are_divided_by_fold(tmp_path):
    source = tmp_path / "reviews.jsonl"
    source.write_text("".join(json.dumps(review(fold)) + "\n" for fold in range(10)))
    main(["reviews", str(source), str(tmp_path / "out")])
    parts = {name: (tmp_path / "out" / f"{name}.jsonl").read_text().splitlines() for name in MOST}
    assert {name: len(lines) for name, lines in parts.items()} == {"train": 7, "validation": 1, "test": 2}
    assert json.loads(parts["validation"][0]) == {"text": "of fold 7", "label": "good"}


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ('{"fold": 1}', "source: expected the texts of reviews (see --help), got "),
        (json.dumps(review(8)), "expected texts to learn from, for validation and to test, got test"),
    ],
)
def test_other_sources_are_one_line(line, error, tmp_path, capsys):
    source = tmp_path / "reviews.jsonl"
    source.write_text(line + "\n")
    with pytest.raises(SystemExit, match="2"):
        main(["reviews", str(source), str(tmp_path / "out")])
    (said,) = capsys.readouterr().err.splitlines()
    assert error in said and not (tmp_path / "out").exists()
