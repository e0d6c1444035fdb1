"""The report of methods to embed long texts."""

from __future__ import annotations

from typing import Any

import pytest

from linformer_kit.report.documents import documents_markdown, write_documents_report
from linformer_kit.report.documents_figures import drawn_methods
from tests.report.bench_results import ENVIRONMENT

METHODS = ("cut", "pieces", "pieces_overlapping", "stretched", "linearised")


def search(recall: float, **more: Any) -> dict[str, Any]:
    return {"recall@1": recall, "recall@10": recall + 0.1, "mrr": recall + 0.05, "queries": 7, **more}


def results(names: tuple[str, ...] = METHODS, **fields: Any) -> dict[str, Any]:
    """A whole JSON: the recall of method i at n is i/10 + n/10,000."""
    lengths = {"512": 0.0512, "1024": 0.1024}
    late = {
        name: {
            n: search(number / 10 + share, positions=[search(0.8), search(number / 10)]) for n, share in lengths.items()
        }
        for number, name in enumerate(names)
    }
    return {
        "environment": ENVIRONMENT,
        "settings": {
            "teacher": "a teacher",
            "lengths": [1024, 512],
            "fact_lengths": [512],
            "articles": 17,
            "queries": 7,
            "candidates": 5,
            "min_tokens": 512,
            "resize_mode": "extend",
            "repetitions": 3,
        },
        "teacher_length": 512,
        "positions": [[0, 512], [512, 1024]],
        "labelled": [13, 11],
        "methods": {name: {"parameters": 22_700_000, "reads": 512, "fingerprint": ""} for name in names},
        "scores": {
            "late_sentence": late,
            "agreement": {"cut": {"512": {"cosine": 1.0, "lowest": 0.5}}},
            "passkey": {name: {"512": search(0.25)} for name in names},
            "same_document": {"cut": {"512": search(0.5)}},
            "classification": {"cut": {"512": {"accuracy": 0.875}, "1024": {"accuracy": 0.75}}},
        },
        "cost": {
            name: {n: {"median_s": 0.1 * int(n) / 512 * (1 + number), "peak_bytes": 2**26} for n in lengths}
            for number, name in enumerate(names)
        },
        "complete": True,
        **fields,
    }


def test_tables():
    text = documents_markdown(results())
    for row in (
        "| method | 0–512 | 512–1,024 |",
        "| pieces, overlapping | 80.0% (90.0%) | 20.0% (30.0%) |",
        "| method | n 512 | n 1,024 |",
        "| stretched | 35.1% (45.1%) | 40.2% (50.2%) |",
        "| pieces | 25.0% |",
        "| cut | 1.0000 (0.5000) | – |",
        "| cut | 50.0% (60.0%), 0.550 | – |",
        "| cut | 87.5% | 75.0% |",
        "| pieces | 200 ms, 64 MiB | 400 ms, 64 MiB |",
    ):
        assert row in text.splitlines(), row
    assert "positions resized (`extend`); 22.7 million" in text and "of more than 512 tokens: 13 for training" in text
    assert "17 texts, which stays in the text" in text and "Not complete" not in text and "The figures show" not in text


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "Weights as saved, mixed precision with bfloat16: auto."),
        ({"dtype": "float32", "bf16": "false"}, "Weights in float32, mixed precision with bfloat16: false."),
        ({"dtype": "bfloat16", "bf16": "auto"}, "Weights and activations in bfloat16."),
    ],
)
def test_the_number_format_is_said(settings, said):
    given = results()
    given["settings"] |= settings
    assert f"get the same text. {said}\n" in documents_markdown(given)


def test_a_partial_report(tmp_path):
    partial = results(scores={"late_sentence": {}, "needle": {}}, cost={}, complete=False)
    text = write_documents_report(partial, tmp_path)
    assert "Not complete" in text and "##" not in text.replace("# Embeddings", "")
    assert {path.name for path in tmp_path.iterdir()} == {"documents.json", "documents.md", "report.html"}
    partial["scores"]["late_sentence"] = {"cut": {"512": search(0.5, positions=[search(0.8), search(0.1)])}}
    text = write_documents_report(partial, tmp_path)
    assert "| cut | 50.0% (60.0%) | – |" in text and "0–512 | 512" in text


def test_figures(tmp_path, figures):
    write_documents_report(results(), tmp_path)
    cost, positions = figures
    assert {path.suffix for path in tmp_path.iterdir()} == {".html", ".json", ".md", ".png"}
    assert len(cost.axes) == 6 and [axis.get_visible() for axis in cost.axes] == [True] * 5 + [False]
    (late, *_) = cost.axes
    xs, ys = late.lines[1].get_data()
    assert list(xs) == pytest.approx([0.2, 0.4]) and list(ys) == pytest.approx([0.1512, 0.2024])
    assert cost.axes[0].get_xlabel() == "seconds per document"
    assert [late.yaxis.get_major_formatter()(share) for share in (0.97, 0.975)] == ["97%", "97.5%"]
    (axis,) = positions.axes
    assert [list(line.get_ydata()) for line in axis.lines[:2]] == [[0.8, 0], [0.8, 0.1]]
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["0–512", "512–1,024"]
    assert positions.legends[0].get_title().get_text() == "n 1,024 tokens"


def test_at_most_six_methods_are_drawn(tmp_path, figures):
    names = (*METHODS, "student", "other", "third")
    shown = ["cut", "pieces", "stretched", "linearised", "student", "other"]
    assert drawn_methods(results(names[:6])) == list(names[:6])
    assert drawn_methods(results(names)) == shown
    text = write_documents_report(results(names), tmp_path)
    assert f"The figures show {', '.join(shown)}." in text
    assert all(len(axis.lines) <= 6 for figure in figures for axis in figure.axes)
