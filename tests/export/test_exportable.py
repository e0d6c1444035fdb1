"""The comparison with PyTorch: its cases, and that it detects errors."""

from __future__ import annotations

import numpy as np
import pytest

from linformer_cli.errors import InputError
from linformer_kit.export.exportable import Case, cases, check_agreement, differences, load, random_inputs
from tests.export.conftest import LENGTH, linformer


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return load(str(linformer("LinformerForTokenClassification", tmp_path_factory.mktemp("model"))))


@pytest.mark.parametrize("limit", [37, 4099])
def test_shapes_from_one_token_to_the_longest(limit):
    shapes = cases(limit)
    assert len(shapes) == len(set(shapes)) == 18
    assert {1, 2, limit - 1, limit} <= {case.length for case in shapes} and max(shape[1] for shape in shapes) == limit
    assert {case.padding for case in shapes if case.length == limit} == {"none", "right", "left"}
    assert all(case.rows == 1 for case in shapes if case.length >= 1024)


@pytest.mark.parametrize(("padding", "side"), [("left", 0), ("right", -1)])
def test_inputs_are_padded_on_their_side_with_the_padding_token(source, padding, side):
    inputs = random_inputs(source, Case(3, 23, padding))
    mask = inputs["attention_mask"]
    assert (mask[:, side] == 0).all() and (mask[:, -1 - side] == 1).all()
    assert (np.diff(mask, axis=1) * (1 + 2 * side) >= 0).all()  # padding first, or last, and in one piece
    assert ((inputs["input_ids"] == source.tokenizer.pad_token_id) == (mask == 0)).all()
    assert (mask.sum(axis=1) >= 12).all()
    assert (random_inputs(source, Case(3, 23, "none"))["attention_mask"] == 1).all()


def test_padded_positions_do_not_count_and_every_other_number_does(source):
    case = Case(2, 7, "left")

    def difference(at_padding, at_token):
        def run(inputs):
            outputs = source.run(inputs)
            outputs[0][:, 0] += at_padding
            outputs[0][1, 6, 2] += at_token
            return outputs

        return differences(source, run, [case])[case]

    assert difference(5, 0) == 0
    assert difference(5, 3) == pytest.approx(3)


@pytest.mark.e2e
def test_what_agrees_passes_with_its_figures(source):
    found = check_agreement(source, source.run)
    assert found["largest_difference"] == 0 and len(found["shapes"]) == 18
    assert 0 < found["float32_error"] < 1e-4 and found["tolerance"] == 8 * found["float32_error"]


@pytest.mark.parametrize("wrong", [1e-3, np.nan])
@pytest.mark.e2e
def test_one_wrong_number_in_one_shape_is_seen(source, wrong):
    def run(inputs):
        outputs = source.run(inputs)
        if inputs["input_ids"].shape == (2, LENGTH - 1):
            outputs[0][1, LENGTH // 2, 1] += wrong
        return outputs

    with pytest.raises(
        InputError, match=r"^model: expected the exported model within .* of PyTorch, got .* for 2 x 36 tokens"
    ):
        check_agreement(source, run)
