"""Operations of a layer, by hand and as torch counts them."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from linformer_kit import LinformerModel
from linformer_kit.experiments.cost.operations import Cost, bound, layer_cost
from tests.conftest import SIZES, tokens

WIDTHS = {"hidden_size": 7, "intermediate_size": 5, "itemsize": 2}


def test_linformer_layer_by_hand():
    """n 11, k 3, d 7, f 5, 2 sequences."""
    queries_and_output, compression, keys_and_values = 2 * 11 * 49, 3 * 11 * 7, 2 * 3 * 49
    scores_and_context, feed_forward = 2 * 11 * 3 * 7, 2 * 11 * 7 * 5
    products = queries_and_output + compression + keys_and_values + scores_and_context + feed_forward
    weights, matrix, activations = 4 * 49 + 2 * 35, 33, 3 * 2 * 77
    expected = Cost(flop=2 * 2 * products, bytes=2 * (weights + matrix + activations))
    assert expected == Cost(flop=4 * 2835, bytes=2 * 761)
    assert layer_cost(11, 3, batch=2, **WIDTHS) == expected


def test_transformer_layer_by_hand():
    products = 4 * 11 * 49 + 2 * 121 * 7 + 2 * 11 * 35
    assert layer_cost(11, None, batch=2, **WIDTHS) == Cost(flop=4 * products, bytes=2 * (266 + 7 * 2 * 77))


def test_training_is_three_times_as_much():
    once, step = (layer_cost(11, 3, batch=2, train=train, **WIDTHS) for train in (False, True))
    assert step == Cost(flop=3 * once.flop, bytes=3 * once.bytes)


@pytest.mark.parametrize("projected_dim", [7, None])
def test_as_torch_counts_it(config, projected_dim):
    """Two layers share E and nothing else. With gradients, so that no product is one that torch cannot see into."""
    attention = {"attention": "full"} if projected_dim is None else {"sharing": "layerwise"}
    model = LinformerModel(config(**attention))
    counter = FlopCounterMode(display=False)
    # The kernel that SDPA takes on a CPU is not one that torch counts.
    with counter, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        model(tokens(2, 37))
    widths = {name: SIZES[name] for name in ("hidden_size", "intermediate_size")}
    cost = layer_cost(37, projected_dim, batch=2, itemsize=4, **widths)
    assert counter.get_total_flops() == 2 * cost.flop


def test_the_slower_of_operations_and_bytes_binds():
    cost = Cost(flop=600, bytes=35)
    assert bound(cost, flop_per_second=100, bytes_per_second=7) == (6.0, "compute")
    assert bound(cost, flop_per_second=200, bytes_per_second=7) == (5.0, "memory")
