"""Inspection of models: results, files, rejected settings."""

from __future__ import annotations

import json
import re
import warnings

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes

from linformer_kit import LinformerForMaskedLM, LinformerModel
from linformer_kit.analysis.inspection import (
    Image,
    context_mappings,
    draw_context_mappings,
    draw_projections,
    effective_slots,
    in_drawn_order,
    projection_images,
    slot_order,
)
from linformer_kit.commands.cli import main
from tests.conftest import KINDS, fail, fields, randomise, save_tokenizer, slow_but, tokens, write_model


@pytest.fixture
def saved(config, tmp_path):
    """A factory of folders with a model and its tokenizer."""

    def build(**changes: object) -> str:
        randomise(LinformerForMaskedLM(config(**changes))).save_pretrained(tmp_path / "model")
        save_tokenizer(tmp_path / "model", 101)
        return str(tmp_path / "model")

    return build


@pytest.mark.parametrize("kind", slow_but(("none", "headwise", "layerwise", "mean_pool", "random", "full"), KINDS))
@pytest.mark.e2e
def test_pictures_and_numbers(saved, kind, drawn, tmp_path, capsys):
    out = tmp_path / "out"
    main(["inspect", saved(**fields(kind)), str(out), "--text", "w5 w6 w7 w8 w9 w10 w11", "--heads", "0", "2"])
    assert "| layer 1 |" in capsys.readouterr().out
    results = json.loads((out / "inspection.json").read_text())
    assert "/" not in results["model"]
    assert results["tokens"] == ["w5", "w6", "w7", "w8", "w9", "w10", "w11"]
    assert np.shape(results["effective_slots"]) == (2, 3)
    with np.load(out / "inspection.npz") as arrays:
        assert arrays["context_mappings"].shape[:3] == (2, 2, 7)  # the chosen heads alone
        assert results["arrays"] == {name: list(array.shape) for name, array in arrays.items()}
        images = set(arrays.files) - {"context_mappings"}
    expected = {
        "headwise": {"layer_0_E", "layer_0_F", "layer_1_E", "layer_1_F"},
        "key_value": {"layer_0_E", "layer_1_E"},
        "layerwise": {"all_layers_E"},
        "random": {"layer_0_R", "layer_1_R"},
        "mean_pool": set(),
        "window_mean_pool": set(),
        "max_pool": set(),
        "dynamic": set(),
        "full": set(),
        "local_full": set(),
        "local_norm_first": {"all_layers_E"},
        "window_norm_first": {"all_layers_E"},
    }
    expected |= dict.fromkeys(("norm_first", "local", "window"), expected["headwise"])
    by_head = {f"layer_{layer}_{matrix}_head_0" for layer in (0, 1) for matrix in "EF"}
    assert images == expected.get(kind, by_head)
    assert (out / "context_mapping.png").stat().st_size > 10_000
    assert (out / "projections.png").exists() == bool(images)


@pytest.mark.e2e
def test_the_default_text_is_real(saved, tmp_path):
    main(["inspect", saved(), str(tmp_path / "out"), "--max_tokens", "29"])
    results = json.loads((tmp_path / "out" / "inspection.json").read_text())
    assert len(results["tokens"]) == 29 and results["text"] == "the source of Python's argparse"


def test_context_mappings_are_those_of_the_model(config):
    model = randomise(LinformerModel(config(projected_dim=[7, 3]))).eval()
    ids = tokens(1, 31)
    mappings, effective, _ = context_mappings(model, ids, [1, 0], [2, 1])
    attentions = model(ids, output_attentions=True).attentions
    assert torch.equal(mappings[0, :, :, :3], attentions[1][0, [2, 1]]) and mappings[0, :, :, 3:].isnan().all()
    assert torch.equal(mappings[1], attentions[0][0, [2, 1]])
    torch.testing.assert_close(effective, torch.stack([effective_slots(weights[0]) for weights in attentions]))


@pytest.mark.parametrize(
    ("changes", "slots"),
    [
        ({}, [7, 3, 5]),
        ({"sharing": "none"}, [7, 3, 5]),
        ({"sharing": "layerwise"}, [7, 3, 5]),
        ({"projection": "mean_pool"}, [5, 2, 4]),  # of 37 positions 23 are filled, ⌈23·k/37⌉ windows
        ({"projection": "max_pool", "shorter_input": "stretch"}, [7, 3, 5]),
    ],
)
def test_slots_that_a_head_lacks_are_no_zeros(config, changes, slots):
    model = randomise(LinformerModel(config(projected_dim=[[7, 3, 5]] * 2, **changes))).eval()
    mappings, *_ = context_mappings(model, tokens(1, 23), [0, 1], [0, 1, 2])
    for head, count in enumerate(slots):
        assert mappings[:, head, :, count:].isnan().all()
        torch.testing.assert_close(mappings[:, head, :, :count].sum(dim=-1), torch.ones(2, 23))


@pytest.mark.parametrize("changes", [{}, {"projection": "mean_pool"}, {"shorter_input": "stretch"}])
def test_columns_of_global_tokens_and_neighbours(config, changes):
    more = {"global_tokens": 2, "sliding_window": 4}
    model = randomise(LinformerModel(config(projected_dim=[[7, 3, 5], [5, 2, 5]], **more, **changes))).eval()
    ids = tokens(1, 37)
    mappings, _, columns = context_mappings(model, ids, [0, 1], [1, 2])
    assert columns == (2, 5, 4) and mappings.shape == (2, 2, 37, 11)
    torch.testing.assert_close(mappings.nansum(dim=-1), torch.ones(2, 2, 37))
    attentions = model(ids, output_attentions=True).attentions
    # Forward passes with and without gradients may round differently.
    torch.testing.assert_close(mappings[0, 0, :, :5], attentions[0][0, 1, :, :5])
    assert mappings[0, 0, :, 5:7].isnan().all()
    torch.testing.assert_close(mappings[..., 7:], torch.stack([each[0, [1, 2], :, -4:] for each in attentions]))
    drawn = in_drawn_order(model, mappings, [0, 1], [1, 2])
    for part in (slice(0, 2), slice(7, 11)):
        assert torch.equal(drawn[..., part], mappings[..., part])
    if model.config.projection == "linear":
        order = slot_order(model.encoder.projections[0].key_projection.detach()[:3])
        assert torch.equal(drawn[0, 0, :, 2:5], mappings[0, 0][:, 2 + order])


def test_columns_where_layers_that_share_slots_differ_in_k(config):
    """A short text is a slot for each token in a layer with more slots than tokens, and fewer in another."""
    more = {"projection": "mean_pool", "shorter_input": "stretch", "sliding_window": 4, "sharing": "layerwise"}
    model = randomise(LinformerModel(config(projected_dim=[29, 5], **more))).eval()
    mappings, _, columns = context_mappings(model, tokens(1, 23), [0, 1], [0])
    assert columns == (0, 23, 4)
    torch.testing.assert_close(mappings.nansum(dim=-1), torch.ones(2, 1, 23))
    assert mappings[0, 0, :, 23:].isnan().all() and mappings[1, 0, :, 5:23].isnan().all()


def test_a_text_of_global_tokens_has_no_slots(config):
    model = randomise(LinformerModel(config(global_tokens=3))).eval()
    mappings, _, columns = context_mappings(model, tokens(1, 3), [0], [1])
    assert columns == (0, 3, 0) and not mappings.isnan().any()


@pytest.mark.e2e
def test_saved_arrays_match_each_other_and_the_model(saved, tmp_path):
    """Row s of E and of F belong to slot s of P̄, as in the model: attention can be computed from what is saved."""
    model = saved(projected_dim=[[7, 3, 5]] * 2)
    main(["inspect", model, str(tmp_path / "out"), "--text", "w5 w6 w7 w8 w9 w10 w11", "--heads", "1"])
    attention = LinformerModel.from_pretrained(model).encoder.attentions[0]
    with np.load(tmp_path / "out" / "inspection.npz") as arrays:
        assert np.array_equal(arrays["layer_0_E"], attention.projection.key_projection.detach())
        assert np.array_equal(arrays["layer_0_F"], attention.projection.value_projection.detach())
        saved_mappings = arrays["context_mappings"]
    encoder = LinformerModel.from_pretrained(model).eval()
    ids = torch.tensor([[5, 6, 7, 8, 9, 10, 11]])
    expected = encoder(ids, output_attentions=True).attentions[1][0, 1, :, :3].detach()
    torch.testing.assert_close(torch.from_numpy(saved_mappings[1, 0]), expected)


def test_pictures_have_slots_in_one_order(config):
    model = randomise(LinformerModel(config(sharing="none", projected_dim=[[7, 3, 5]] * 2)))
    images = projection_images(model, [0, 1], [2])
    for key, value, layer in ((*images[:2], 0), (*images[2:], 1)):
        matrix = model.encoder.projections[layer].key_projection.detach()[10:]
        assert np.array_equal(key.order, slot_order(matrix)) and np.array_equal(value.order, key.order)
        mappings = torch.arange(5.0).expand(2, 1, 1, 5)
        assert np.array_equal(in_drawn_order(model, mappings, [0, 1], [2])[layer, 0, 0], key.order)


@pytest.mark.parametrize("where", ["embeddings.word_embeddings.weight", "encoder.layers.1.self_attn.projection.value"])
def test_a_model_that_gives_nan_is_refused(saved, where, tmp_path, capsys):
    model = LinformerForMaskedLM.from_pretrained(saved())
    parameter = next(value for name, value in model.named_parameters() if where in name)
    parameter.data[6] = torch.nan
    model.save_pretrained(tmp_path / "model")
    with pytest.raises(SystemExit):
        main(["inspect", str(tmp_path / "model"), str(tmp_path / "out"), "--text", "w5 w6 w7"])
    found = "the attention of layer 0" if "word" in where else "layer 1 F"
    assert capsys.readouterr().err.endswith(f"model: expected finite numbers, got a NaN or infinity in {found}\n")
    assert not (tmp_path / "out").exists()


@pytest.mark.e2e
def test_half_precision_a_pooler_left_out_and_a_layer_named_twice(config, tmp_path, capsys):
    model = LinformerForMaskedLM(config(pooler=True)).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "model")
    save_tokenizer(tmp_path / "model", 101)
    main(["inspect", str(tmp_path / "model"), str(tmp_path / "out"), "--text", "w5", "--layers", "1", "1"])
    assert json.loads((tmp_path / "out" / "inspection.json").read_text())["layers"] == [1]


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


def test_max_tokens_leaves_room_for_text(tmp_path, capsys):
    model = write_model(tmp_path / "model", "a b c")
    error = fail(capsys, "inspect", model, tmp_path / "out", "--text", "a b c", "--max_tokens", "2")
    assert "max_tokens: expected 3 to 23 (the longest sequence), got 2" in error


def test_slots_are_ordered_by_where_they_look(config):
    matrix = torch.tensor([[0.0, 0, 0, 5], [1, 0, 0, 0], [0, 2, 2, 0], [9, 1, 0, 0]])
    assert slot_order(matrix).tolist() == [1, 3, 2, 0]
    image = projection_images(LinformerModel(config()), [0], [0])[0]
    matrix = image.matrix[image.order]
    centres = (matrix * np.arange(37)).sum(axis=1) / matrix.sum(axis=1)
    assert (np.diff(centres) > 0).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["MODEL", "OUT", "--layers", "[]"], "layers: expected at least one, got none"),
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


INSPECTED = {
    "attention": "linformer",
    "projection": "linear",
    "layers": [1],
    "heads": [0],
    "columns": {"global tokens": 0, "slots": 3, "neighbours": 0},
}


def drawn_axes(mappings: np.ndarray, tokens: list[str], **changes: object) -> Axes:
    return draw_context_mappings({**INSPECTED, "tokens": tokens, **changes}, mappings).axes[0]


def test_long_and_strange_tokens_stay_labels():
    labels = {
        "short": "short",
        "\n\t ": r"\n\t ",
        "déjà": "déjà",
        "a" * 99: "a" * 15 + "…",
        "中文中": r"\u4e2d\u6587\u4…",
        "$x$": "$x$",
        "\\n": r"\\n",
    }
    axes = drawn_axes(np.full((1, 1, len(labels), 3), 1 / 3), [*labels])
    assert [label.get_text() for label in axes.get_yticklabels()] == [*labels.values()]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of a glyph that the font lacks
        axes.figure.draw_without_rendering()


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_slots_are_counted_in_whole_numbers(slots):
    axes = drawn_axes(np.ones((1, 1, 50, slots)), ["a"] * 50)
    assert [tick for tick in axes.get_xticks() if -0.5 <= tick <= slots - 0.5] == list(range(slots))


def test_missing_slots_are_grey_and_count_for_nothing():
    mappings = np.full((1, 1, 5, 4), 0.5)
    mappings[..., 2:] = np.nan
    image = drawn_axes(mappings, ["a"] * 5).images[0]
    assert image.get_clim() == (0, 0.5)
    there, missing = image.to_rgba(image.get_array())[0, [0, 3]]
    assert 0 < missing[0] == missing[1] == missing[2] < 1 == missing[3]
    assert len(set(there[:3])) > 1


@pytest.mark.parametrize(("projection", "label"), [("mean_pool", "slot, by its place in the text"), ("random", "slot")])
def test_only_slots_with_a_place_have_one(projection, label):
    assert drawn_axes(np.ones((1, 1, 5, 3)), ["a"] * 5, projection=projection).get_xlabel() == label


def test_global_tokens_and_neighbours_are_set_apart():
    columns = {"global tokens": 2, "slots": 5, "neighbours": 4}
    axes = drawn_axes(np.ones((1, 1, 5, 11)), ["a"] * 5, columns=columns)
    assert axes.get_xlabel() == "2 global tokens, 5 slots, 4 neighbours"
    assert [line.get_xdata()[0] for line in axes.lines] == [1.5, 6.5]


@pytest.mark.parametrize(("positions", "interpolation"), [(293, "nearest"), (9973, "antialiased")])
def test_cells_are_sharp_unless_there_are_more_than_pixels(positions, interpolation):
    image = Image("E", np.ones((3, positions)), "slot", "position", np.arange(3))
    assert draw_projections([image]).axes[0].images[0].get_interpolation() == interpolation
