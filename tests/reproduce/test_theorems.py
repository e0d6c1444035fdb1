"""The theorems' numbers by hand, their constructions, and a small run of the script."""

from __future__ import annotations

import math

import pytest
import torch

from reproduce import theorems
from reproduce.theorems import (
    FIRST,
    gaussian_projection,
    random_heads,
    theorem1_dim,
    theorem1_errors,
    theorem1_variance_dim,
    theorem2_errors,
    theorem2_matrices,
)
from tests.conftest import write_bert, write_corpus
from tests.reproduce import started


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


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


def test_the_construction_of_theorem_2_does_not_see_the_scores(generator):
    """With δ = 1/2ⁿ all slots have equal weights for every query, so all queries have the same output."""
    heads = random_heads(64, 11, generator)
    e, f = theorem2_matrices(gaussian_projection(13, 64, generator), 2.0**-64)
    outputs = heads.projected(e, f)
    torch.testing.assert_close(outputs, outputs[:, :1].expand_as(outputs), rtol=0, atol=1e-15)
    torch.testing.assert_close(outputs[0, 0], (f @ heads.value).mean(dim=1)[0])
    e, _ = theorem2_matrices(torch.ones(1, 1), 0.5)
    assert e.item() == 0.5 and theorem2_matrices(torch.ones(1, 1), 0.5)[1].item() == pytest.approx(math.exp(-0.5))


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


def test_the_k_by_variance_by_hand():
    """Uniform attention: 2 for values that are all alike; for others 1 + ‖w‖²/(n·mean²)."""
    mapping = torch.full((1, 4, 4), 1 / 4, dtype=torch.float64)
    value = torch.tensor([[[3.0, 1.0], [3.0, 2.0], [3.0, 3.0], [3.0, 6.0]]], dtype=torch.float64)
    found = theorem1_variance_dim(mapping, value, mapping @ value)
    torch.testing.assert_close(found, torch.tensor([[2.0, 1 + 50 / (4 * 9)]], dtype=torch.float64))
