"""The comparison with PyTorch: its cases, and that it detects errors."""

from __future__ import annotations

import numpy as np
import pytest

from linformer_cli.errors import InputError
from linformer_kit.export.exportable import Case, check_agreement, differences, load
from tests.export.conftest import LENGTH, linformer


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return load(str(linformer("LinformerForTokenClassification", tmp_path_factory.mktemp("model"))))


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


def test_a_nan_in_one_of_two_outputs_is_seen(tmp_path):
    source, case = load(str(linformer("LinformerForQuestionAnswering", tmp_path / "model"))), Case(2, 7)

    def run(inputs):
        start, end = source.run(inputs)
        return [start, end + np.nan]

    assert np.isnan(differences(source, run, [case])[case])


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
