"""`linformer inspect`: numbers, pictures, rejected settings."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import torch

from linformer_cli.cli import main
from linformer_kit import LinformerForMaskedLM, LinformerModel
from linformer_kit.analysis.inspection import draw_context_mappings, effective_slots
from tests.conftest import fail, fields, randomise, save_tokenizer

IDS = [5, 6, 7, 8, 9, 10, 11]
TEXT = " ".join(f"w{number}" for number in IDS)


@pytest.fixture
def saved(config, tmp_path):
    """A factory of folders with a model and its tokenizer."""

    def build(dtype: torch.dtype = torch.float32, **changes: object) -> str:
        randomise(LinformerForMaskedLM(config(**changes))).to(dtype).save_pretrained(tmp_path / "model")
        save_tokenizer(tmp_path / "model", 101)
        return str(tmp_path / "model")

    return build


@pytest.mark.parametrize("kind", ["window_mean_pool", "full"])
@pytest.mark.e2e
def test_pictures_and_numbers(saved, kind, drawn, tmp_path, capsys):
    model, out = saved(**fields(kind)), tmp_path / "out"
    main(["inspect", model, str(out), "--text", TEXT, "--heads", "0", "2"])
    text = (out / "inspection.md").read_text()
    assert "| layer 1 |" in text and text in capsys.readouterr().out
    results = json.loads((out / "inspection.json").read_text())
    assert "/" not in results["model"] and results["tokens"] == TEXT.split() and results["heads"] == [0, 2]
    encoder = LinformerModel.from_pretrained(model).eval()
    attentions = torch.stack(encoder(torch.tensor([IDS]), output_attentions=True).attentions)[:, 0].detach()
    np.testing.assert_allclose(results["effective_slots"], effective_slots(attentions), rtol=1e-5)
    assert (out / "context_mapping.png").stat().st_size > 10_000


@pytest.mark.e2e
def test_layers_and_heads_that_differ_in_k(saved, tmp_path):
    """Also in half precision, and with the default text."""
    model = saved(torch.bfloat16, sharing="none", projected_dim=[[7, 3, 5], [2, 1, 2]])
    main(["inspect", model, str(tmp_path / "out"), "--layers", "1", "0", "--heads", "1"])
    results = json.loads((tmp_path / "out" / "inspection.json").read_text())
    assert len(results["tokens"]) == 37 and results["text"] == "the source of Python's argparse"
    assert results["layers"] == [1, 0] and max(results["effective_slots"][1]) <= 2.1


def test_effective_slots_by_hand():
    one, all_alike, halves = torch.tensor([1.0, 0, 0, 0]), torch.full((4,), 0.25), torch.tensor([0.5, 0.5, 0, 0])
    mappings = torch.stack([one, all_alike, halves])[None, :, None].expand(1, 3, 5, 4)
    torch.testing.assert_close(effective_slots(mappings), torch.tensor([[1.0, 4, 2]]))


def test_bad_input_is_one_line(saved, tmp_path, capsys):
    cases = [
        ([tmp_path / "out", "--layers", "2"], "layers: expected 0 to 1, got 2"),
        ([tmp_path / "out", "--text", " "], "text: expected some words, got none"),
        ([tmp_path / "model"], "output_dir: expected a new or empty folder, got"),
    ]
    model = saved()
    for arguments, message in cases:
        assert message in fail(capsys, "inspect", model, *arguments)
    broken = LinformerForMaskedLM.from_pretrained(model)
    broken.linformer.encoder.layers[0].self_attn.q_proj.weight.data.fill_(3e38)
    broken.save_pretrained(model)
    message = "model: expected finite numbers, got a NaN or infinity in the attention of layer 0"
    assert message in fail(capsys, "inspect", model, tmp_path / "out", "--text", "w5 w6 w7")
    assert not (tmp_path / "out").exists()


def test_long_and_strange_tokens_stay_labels():
    labels = {"\n\t ": r"\n\t ", "déjà": "déjà", "a" * 99: "a" * 15 + "…", "$x$": "$x$", "\\n": r"\\n"}
    results = {"attention": "linformer", "global_tokens": 0, "sliding_window": 0, "layers": [1], "heads": [0]}
    mappings = [torch.full((1, len(labels), 3), 1 / 3)] * 2
    axes = draw_context_mappings({**results, "tokens": [*labels]}, mappings).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == [*labels.values()]
    assert axes.get_xlabel() == "slot"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        axes.figure.draw_without_rendering()
