"""A look inside: what is computed, what is written, what is refused."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch

from linformer_kit import LinformerForMaskedLM, LinformerModel
from linformer_kit.analysis.inspection import context_mappings, effective_slots, projection_images, slot_order
from linformer_kit.cli import main
from tests.conftest import KINDS, fields, randomise, tokens
from tests.test_convert import save_tokenizer


@pytest.fixture
def saved(config, tmp_path):
    """A factory of folders with a model and its tokenizer."""

    def build(**changes: object) -> str:
        randomise(LinformerForMaskedLM(config(**changes))).save_pretrained(tmp_path / "model")
        save_tokenizer(tmp_path / "model", 101)
        return str(tmp_path / "model")

    return build


@pytest.mark.parametrize("kind", KINDS)
def test_pictures_and_numbers(saved, kind, tmp_path, capsys):
    out = tmp_path / "out"
    main(["inspect", saved(**fields(kind)), str(out), "--text", "w5 w6 w7 w8 w9 w10 w11", "--heads", "0", "2"])
    assert "| layer 1 |" in capsys.readouterr().out
    results = json.loads((out / "inspection.json").read_text())
    assert results["tokens"] == ["w5", "w6", "w7", "w8", "w9", "w10", "w11"]
    assert np.shape(results["effective_slots"]) == (2, 3)
    with np.load(out / "inspection.npz") as arrays:
        assert arrays["context_mappings"].shape[:3] == (2, 3, 7)
        images = set(arrays.files) - {"context_mappings"}
    expected = {
        "headwise": {"layer_0_E", "layer_0_F", "layer_1_E", "layer_1_F"},
        "key_value": {"layer_0_E", "layer_1_E"},
        "layerwise": {"all_layers_E"},
        "random": {"layer_0_R", "layer_1_R"},
        "mean_pool": set(),
        "max_pool": set(),
        "full": set(),
    }
    by_head = {f"layer_{layer}_{matrix}_head_0" for layer in (0, 1) for matrix in "EF"}
    assert images == expected.get(kind, by_head)
    assert (out / "context_mapping.png").stat().st_size > 10_000
    assert (out / "projections.png").exists() == bool(images)


def test_the_default_text_is_real(saved, tmp_path):
    main(["inspect", saved(), str(tmp_path / "out"), "--max_tokens", "29"])
    results = json.loads((tmp_path / "out" / "inspection.json").read_text())
    assert len(results["tokens"]) == 29 and results["text"] == "the source of Python's argparse"


def test_context_mappings_are_those_of_the_model(config):
    model = randomise(LinformerModel(config(projected_dim=[7, 3]))).eval()
    ids = tokens(1, 31)
    mappings = context_mappings(model, ids)
    attentions = model(ids, output_attentions=True).attentions
    assert torch.equal(mappings[0], attentions[0][0]) and torch.equal(mappings[1][..., :3], attentions[1][0])
    assert (mappings[1][..., 3:] == 0).all()


def test_effective_slots_by_hand():
    one, all_alike, halves = torch.tensor([1.0, 0, 0, 0]), torch.full((4,), 0.25), torch.tensor([0.5, 0.5, 0, 0])
    mappings = torch.stack([one, all_alike, halves])[None, :, None].expand(1, 3, 5, 4)
    torch.testing.assert_close(effective_slots(mappings), torch.tensor([[1.0, 4, 2]]))


def test_slots_are_ordered_by_where_they_look(config):
    matrix = torch.tensor([[0.0, 0, 0, 5], [1, 0, 0, 0], [0, 2, 2, 0], [9, 1, 0, 0]])
    assert slot_order(matrix).tolist() == [1, 3, 2, 0]
    image = projection_images(LinformerModel(config()), [0], [0])[0]
    centres = (image.matrix * torch.arange(37)).sum(dim=1) / image.matrix.sum(dim=1)
    assert (centres.diff() > 0).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["MODEL", "OUT", "--layers", "2"], "layers: expected 0 to 1, got 2"),
        (["MODEL", "OUT", "--heads", "-1"], "heads: expected 0 to 2, got -1"),
        (["MODEL", "OUT", "--text", " "], "text: expected some words, got none"),
        (["MODEL", "OUT", "--max_tokens", "38"], "max_tokens: expected 1 to 37 (the longest sequence), got 38"),
        (
            ["MODEL", "OUT", "--text", "w5", "--text_file", "FILE"],
            "text, text_file: expected at most one of them, got both",
        ),
        (["MODEL", "OUT", "--text_file", "FILE"], "FILE: expected UTF-8, got byte 0xff at 3"),
        (["MODEL", "OUT", "--text_file", "NONE"], "NONE: No such file or directory"),
        (["MODEL", "MODEL"], "output_dir: expected a new or empty folder, got"),
        (["NONE", "OUT"], "model: expected a folder, got"),
    ],
)
def test_bad_input_is_one_line(saved, arguments, message, tmp_path, capsys):
    places = {
        "MODEL": saved(),
        "OUT": str(tmp_path / "out"),
        "FILE": str(tmp_path / "FILE"),
        "NONE": str(tmp_path / "NONE"),
    }
    (tmp_path / "FILE").write_bytes(b"abc\xff")
    with pytest.raises(SystemExit) as exit_:
        main(["inspect", *(places.get(argument, argument) for argument in arguments)])
    assert exit_.value.code == 2
    assert re.fullmatch(rf"linformer: error: .*{re.escape(message)}.*\n", capsys.readouterr().err.splitlines(True)[-1])
    assert not (tmp_path / "out").exists()
