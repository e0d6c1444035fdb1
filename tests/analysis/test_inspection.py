"""`linformer inspect`: numbers, pictures, rejected settings."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import torch

from linformer_kit import LinformerForMaskedLM, LinformerModel
from linformer_kit.analysis.inspection import draw_context_mappings, effective_slots
from linformer_kit.commands.cli import main
from tests.conftest import KINDS, fail, fields, randomise, save_tokenizer, slow_but

IDS = [5, 6, 7, 8, 9, 10, 11]
TEXT = " ".join(f"w{number}" for number in IDS)


@pytest.fixture
def saved(config, tmp_path):
    """A factory of folders with a model and its tokenizer."""

    def build(**changes: object) -> str:
        randomise(LinformerForMaskedLM(config(**changes))).save_pretrained(tmp_path / "model")
        save_tokenizer(tmp_path / "model", 101)
        return str(tmp_path / "model")

    return build


@pytest.mark.parametrize("kind", slow_but(("none", "headwise", "layerwise", "window_mean_pool", "full"), KINDS))
@pytest.mark.e2e
def test_pictures_and_numbers(saved, kind, drawn, tmp_path, capsys):
    """What is saved is what the model computes with."""
    model, out = saved(**fields(kind)), tmp_path / "out"
    main(["inspect", model, str(out), "--text", TEXT, "--heads", "0", "2"])
    assert "| layer 1 |" in capsys.readouterr().out
    results = json.loads((out / "inspection.json").read_text())
    assert "/" not in results["model"] and results["tokens"] == TEXT.split()
    encoder = LinformerModel.from_pretrained(model).eval()
    attentions = torch.stack(encoder(torch.tensor([IDS]), output_attentions=True).attentions)[:, 0].detach()
    np.testing.assert_allclose(results["effective_slots"], effective_slots(attentions), rtol=1e-5)
    with np.load(out / "inspection.npz") as arrays:
        np.testing.assert_allclose(arrays["context_mappings"], attentions[:, [0, 2]], atol=1e-6)
        names = set(arrays.files) - {"context_mappings"}
        for name in names:
            layer = 1 if name.startswith("layer_1") else 0
            matrix = getattr(
                encoder.encoder.projections[layer], "value_projection" if "_F" in name else "key_projection"
            )
            assert np.array_equal(arrays[name], (matrix[0] if "head" in name else matrix).detach())
    pairs = {f"layer_{layer}_{matrix}" for layer in (0, 1) for matrix in "EF"}
    expected = {"none": {f"{name}_head_0" for name in pairs}, "key_value": {"layer_0_E", "layer_1_E"}}
    expected |= dict.fromkeys(("headwise", "norm_first", "local", "window"), pairs)
    expected |= {key: {"all_layers_E"} for key in ("layerwise", "local_norm_first", "window_norm_first")}
    assert names == expected.get(kind, set())
    assert (out / "context_mapping.png").stat().st_size > 10_000
    assert (out / "projections.png").exists() == bool(names)


@pytest.mark.e2e
def test_layers_and_heads_that_differ_in_k(saved, config, tmp_path):
    """Also in half precision, with the default text, and a layer that is named twice."""
    dims = [[7, 3, 5], [2, 1, 2]]
    model = randomise(LinformerForMaskedLM(config(sharing="none", projected_dim=dims))).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "model")
    save_tokenizer(tmp_path / "model", 101)
    options = ["--max_tokens", "29", "--layers", "1", "0", "1", "--heads", "1"]
    main(["inspect", str(tmp_path / "model"), str(tmp_path / "out"), *options])
    results = json.loads((tmp_path / "out" / "inspection.json").read_text())
    assert len(results["tokens"]) == 29 and results["text"] == "the source of Python's argparse"
    assert results["layers"] == [1, 0]
    with np.load(tmp_path / "out" / "inspection.npz") as arrays:
        mappings = arrays["context_mappings"]
        assert arrays["layer_0_E_head_1"].shape == (3, 37)
    assert np.isnan(mappings[0, ..., 2:]).all() and not np.isnan(mappings[1]).any() and not mappings[1, ..., 3:].any()
    np.testing.assert_allclose(np.nansum(mappings, axis=-1), 1, rtol=2e-2)


@pytest.mark.parametrize("where", ["embeddings.word_embeddings.weight", "encoder.layers.1.self_attn.projection.value"])
def test_a_model_that_gives_nan_is_refused(saved, where, tmp_path, capsys):
    model = LinformerForMaskedLM.from_pretrained(saved())
    parameter = next(value for name, value in model.named_parameters() if where in name)
    parameter.data[6] = torch.nan
    model.save_pretrained(tmp_path / "model")
    error = fail(capsys, "inspect", tmp_path / "model", tmp_path / "out", "--text", "w5 w6 w7")
    found = "the attention of layer 0" if "word" in where else "layer 1 F"
    assert f"model: expected finite numbers, got a NaN or infinity in {found}" in error
    assert not (tmp_path / "out").exists()


@pytest.mark.e2e
def test_nothing_is_left_after_an_interruption(saved, tmp_path, monkeypatch):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("linformer_kit.analysis.inspection.draw_projections", interrupt)
    model = saved()
    before = set(tmp_path.iterdir())
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        main(["inspect", model, str(tmp_path / "out"), "--text", "w5"])
    assert set(tmp_path.iterdir()) == before


def test_effective_slots_by_hand():
    one, all_alike, halves = torch.tensor([1.0, 0, 0, 0]), torch.full((4,), 0.25), torch.tensor([0.5, 0.5, 0, 0])
    mappings = torch.stack([one, all_alike, halves])[None, :, None].expand(1, 3, 5, 4)
    torch.testing.assert_close(effective_slots(mappings), torch.tensor([[1.0, 4, 2]]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["MODEL", "OUT", "--layers", "2"], "layers: expected 0 to 1, got 2"),
        (["MODEL", "OUT", "--text", " "], "text: expected some words, got none"),
        (["MODEL", "OUT", "--text", "w5", "--text_file", "FILE"], "text, text_file: expected at most one of them, got"),
        (["MODEL", "OUT", "--text_file", "FILE"], "FILE: expected UTF-8 text, got the byte 0xff"),
        (["MODEL", "MODEL"], "output_dir: expected a new or empty folder, got"),
    ],
)
def test_bad_input_is_one_line(saved, arguments, message, tmp_path, capsys):
    places = {"MODEL": saved(), **{name: str(tmp_path / name) for name in ("OUT", "FILE")}}
    (tmp_path / "FILE").write_bytes(b"abc\xff")
    error = fail(capsys, "inspect", *(places.get(argument, argument) for argument in arguments))
    assert message in error
    assert not (tmp_path / "OUT").exists()


def test_long_and_strange_tokens_stay_labels():
    labels = {
        "\n\t ": r"\n\t ",
        "déjà": "déjà",
        "a" * 99: "a" * 15 + "…",
        "$x$": "$x$",
        "\\n": r"\\n",
    }
    results = {"attention": "linformer", "global_tokens": 0, "sliding_window": 0, "layers": [1], "heads": [0]}
    mappings = np.full((1, 1, len(labels), 3), 1 / 3)
    axes = draw_context_mappings({**results, "tokens": [*labels]}, mappings).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == [*labels.values()]
    assert axes.get_xlabel() == "slot"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        axes.figure.draw_without_rendering()
