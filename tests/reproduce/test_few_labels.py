"""Accuracy by number of labels, at a tiny size."""

from __future__ import annotations

import numpy as np
import pandas
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

from reproduce import few_labels as script
from tests.long_texts import article, write_encoder
from tests.reproduce.started import start


@pytest.mark.e2e
def test_a_small_run(tmp_path, monkeypatch):
    monkeypatch.setattr(script, "STRENGTHS", (1.0,))
    encoder, data = write_encoder(tmp_path / "encoder"), tmp_path / "texts"
    SentenceTransformer(modules=[Transformer(str(encoder)), Pooling(33)], device="cpu").save(str(tmp_path / "model"))
    data.mkdir()
    for part, first in (("train", 0), ("validation", 8), ("test", 12)):
        rows = [
            {"text": f"{['river', 'stone'][n % 2]} {article(n, 13)}", "label": "ab"[n % 2]}
            for n in range(first, first + 8)
        ]
        pandas.DataFrame(rows).to_json(data / f"{part}.jsonl", orient="records", lines=True)
    options = ("--model", tmp_path / "model", "--data", data, "--labels", 10, 99, "--draws", 2, "--n", 127)
    records = start(script, tmp_path / "out", *options)["records"]
    assert [(each["way"], each["labels"], len(each["accuracies"])) for each in records] == [
        (way, labels, draws) for way in script.WAYS for labels, draws in ((10, 2), (16, 1))
    ]
    assert all(0 <= accuracy <= 1 for each in records for accuracy in each["accuracies"])
    row = next(
        line for line in (tmp_path / "out" / "few_labels.md").read_text().splitlines() if line.startswith("| 16")
    )
    more = 100 * (records[-1]["accuracies"][0] - records[1]["accuracies"][0])
    assert f"{more:+.1f} ± " in row and (tmp_path / "out" / "few_labels.png").exists()


def test_as_many_of_each_class_are_drawn_where_there_are_as_many():
    labels = np.array(["a"] * 30 + ["b"] * 3 + ["c"] * 10)
    for count, expected in ((7, [2, 2, 3]), (9, [3, 3, 3]), (20, [3, 8, 9]), (43, [3, 10, 30])):
        rows = script.drawn(labels, count, draw=0)
        assert len({*rows}) == count and sorted(np.unique(labels[rows], return_counts=True)[1]) == expected
    assert {*script.drawn(labels, 7, 0)} != {*script.drawn(labels, 7, 1)}
