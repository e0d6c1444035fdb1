"""The n → k maps: counts, shapes, starts and refusals."""

from __future__ import annotations

import re
from typing import get_args

import pytest
import torch

from linformer_kit import InputError, LinearProjection
from linformer_kit.functional import pooling_matrix
from linformer_kit.projection import PROJECTIONS, build_projection
from linformer_kit.settings import Projection


@pytest.mark.parametrize(
    ("sharing", "count", "shape"),
    [("none", 10, (5, 7, 31)), ("headwise", 2, (7, 31)), ("key_value", 1, (7, 31)), ("layerwise", 1, (7, 31))],
)
def test_matrices_of_each_sharing(sharing, count, shape):
    projection = LinearProjection(31, 7, num_heads=5, sharing=sharing)
    assert projection.matrix_count() == count
    assert projection.key_projection.shape == shape
    assert sum(parameter.numel() for parameter in projection.parameters()) == count * 7 * 31
    assert (projection.value_projection is None) == (sharing in ("key_value", "layerwise"))


def test_start_is_scaled_pooling_in_an_order_whose_beginning_is_spread():
    projection = LinearProjection(31, 7, num_heads=3, sharing="none")
    for matrix in (*projection.key_projection, *projection.value_projection):
        assert torch.equal(matrix, pooling_matrix(7, 31)[[0, 4, 2, 6, 1, 5, 3]])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"projected_dim": 32}, "projected_dim: expected 1 to 31 (the longest sequence), got 32"),
        ({"projected_dim": 0}, "projected_dim: expected 1 to 31 (the longest sequence), got 0"),
        ({"sharing": "all"}, "sharing: expected one of none, headwise, key_value, layerwise, got 'all'"),
        (
            {"name": "dense"},
            "projection: expected one of linear, mean_pool, max_pool, conv, dense_conv, random, got 'dense'",
        ),
        ({"shorter_input": "crop"}, "shorter_input: expected one of prefix, stretch, got 'crop'"),
        ({"projected_dim": [7, 5]}, "projected_dim: expected one number for each of 3 heads, got 2"),
        ({"projected_dim": [7, 5, 0]}, "projected_dim: expected 1 to 31 (the longest sequence), got 0"),
        ({"projected_dim": [7, 5, 7], "name": "conv"}, "projected_dim: expected the same for all heads"),
    ],
)
def test_refusals(arguments, message):
    good = {"name": "linear", "seq_len": 31, "projected_dim": 7, "num_heads": 3, "sharing": "none"}
    good |= {"head_dim": 5, "shorter_input": "prefix"}
    with pytest.raises(InputError, match=re.escape(message)):
        build_projection(**{**good, **arguments})


def test_the_names_on_the_command_line_are_the_names_in_the_code():
    assert set(get_args(Projection)) == set(PROJECTIONS)
