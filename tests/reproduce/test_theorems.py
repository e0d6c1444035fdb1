"""The theorems' numbers by hand, their constructions, and a small run of the script."""

from __future__ import annotations

import math

import pytest
import torch

from reproduce import theorems
from reproduce.theorems import (
    FIRST,
    theorem1_dim,
    theorem1_errors,
    theorem2_errors,
)
from tests.conftest import write_bert, write_corpus
from tests.reproduce import started


def test_errors_by_hand():
    mapping = torch.tensor([[[0.5, 0.5], [0.0, 1.0]]], dtype=torch.float64)
    value = torch.tensor([[[4.0, 0.0], [2.0, 3.0]]], dtype=torch.float64)
    exact = mapping @ value  # [[3, 1.5], [2, 3]]
    approximate = exact + torch.tensor([[[0.3, 0.0], [0.4, 0.3]]], dtype=torch.float64)
    first = theorem1_errors(mapping, value, exact, approximate)
    expected = [0.5 / math.sqrt(13), 0.3 / math.sqrt(1.5**2 + 9)]
    torch.testing.assert_close(first["vector"], torch.tensor([expected], dtype=torch.float64))
    torch.testing.assert_close(first["row"][0, :, 0], torch.tensor([0.1, 0.2], dtype=torch.float64))
    corrected = [0.3 / (math.sqrt(0.5) * math.sqrt(20)), 0.4 / math.sqrt(20)]
    torch.testing.assert_close(first["corrected"][0, :, 0], torch.tensor(corrected, dtype=torch.float64))
    second = theorem2_errors(mapping, value, exact, approximate)
    torch.testing.assert_close(
        second["relative"], torch.tensor([[0.3 / math.sqrt(11.25), 0.5 / math.sqrt(13)]]).double()
    )
    stated = [0.3 / (math.sqrt(0.5) * math.sqrt(29)), 0.5 / math.sqrt(29)]
    torch.testing.assert_close(second["stated"], torch.tensor([stated], dtype=torch.float64))


def start(folder, *options: object) -> dict:
    small = ("--lengths", 32, "--head_dim", 7, "--draws", 4, "--epsilons", 0.5, 0.25)
    return started.start(theorems, folder, *small, *options)


@pytest.mark.e2e
def test_a_small_run(tmp_path, capsys):
    (tmp_path / "texts").mkdir()
    corpus = write_corpus(tmp_path / "texts")
    model = write_bert(tmp_path / "model", (corpus / "0.txt").read_text(), longest=23)
    content = start(tmp_path / "out", "--model", model, "--text_file", corpus, "--samples", 2, "--layers", 1)
    assert "## Theorem 2" in capsys.readouterr().out and (tmp_path / "out" / "theorems.png").exists()
    for attention, n in (("random", 32), ("model", 23)):
        for theorem, measure in ((1, "vector"), (2, "relative")):
            of = theorems.of_case(content, attention, n, theorem)
            last = {method: records[-1][measure] for method, records in of.items()}
            assert last["SVD"]["error"] < 1e-6 and last["pooling"]["error"] < 1e-6  # at k = n
            assert last["answer 0"] == {"error": 1.0, "factor": 1.0, "held": [0.0, 0.0]}
        proof = theorems.of_case(content, attention, n, 1)[FIRST]
        assert {theorem1_dim(n, 0.5), theorem1_dim(n, 0.25)} <= {record["k"] for record in proof}
        assert proof[0]["vector"]["error"] > proof[-1]["vector"]["error"]
    again = start(tmp_path / "again")
    assert again["records"] == [record for record in content["records"] if record["attention"] == "random"]
