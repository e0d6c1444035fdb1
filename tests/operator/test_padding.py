"""Padding as one object: its view of a mask, and that a model makes it once per forward pass."""

from __future__ import annotations

import pytest
import torch

from linformer_kit import LinformerModel
from linformer_kit.operator import padding as paddings
from linformer_kit.operator.padding import Padding
from tests.conftest import fields, randomise, tokens

RIGHT = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]]).bool()
HOLES = torch.tensor([[1, 0, 0, 1, 0], [0, 0, 0, 0, 1], [0, 1, 1, 0, 1]]).bool()


def test_right_padding_needs_no_order():
    padding = Padding.of(RIGHT)
    assert padding.order is None and padding.lengths.tolist() == [3, 5, 0]
    hidden = torch.randn(3, 5, 7)
    assert padding.real_first(hidden) is padding.put_back(hidden) is hidden
    assert padding.reordered() is padding
    after = Padding.after(padding.lengths, 5)
    assert torch.equal(after.mask, RIGHT) and after.order is None


def test_real_tokens_come_first_and_go_back():
    padding = Padding.of(HOLES)
    assert padding.order.tolist() == [[1, 2, 4, 0, 3], [0, 1, 2, 3, 4], [0, 3, 1, 2, 4]]
    assert padding.lengths.tolist() == [3, 4, 2]
    hidden = torch.randn(3, 5, 7)
    first = padding.real_first(hidden)
    assert torch.equal(first[0], hidden[0, [1, 2, 4, 0, 3]])
    assert torch.equal(padding.put_back(first), hidden)
    ordered = padding.reordered()
    assert ordered.order is None and torch.equal(ordered.lengths, padding.lengths)
    assert torch.equal(ordered.mask, torch.arange(5) >= padding.lengths[:, None])


@pytest.mark.parametrize("where", ["right", "holes"])
@pytest.mark.parametrize("kind", ["layerwise", "mean_pool", "window_norm_first", "full"])
def test_a_model_makes_it_once(config, kind, where, monkeypatch):
    """Not in each layer, not even where each layer has to put real tokens first for itself."""
    model = randomise(LinformerModel(config(**fields(kind), num_hidden_layers=3))).eval()
    sorts, checks = [], []
    for name, calls in (("real_tokens_first", sorts), ("_is_right_padded", checks)):
        real = getattr(paddings, name)
        monkeypatch.setattr(paddings, name, lambda mask, real=real, calls=calls: calls.append(1) or real(mask))
    mask = torch.ones(2, 31, dtype=torch.long)
    mask[0, 19:] = 0
    mask[1, 7:11] = int(where == "right")
    model(tokens(2, 31), mask, output_hidden_states=True)
    ordered = kind != "full"
    assert len(checks) == ordered and len(sorts) == (ordered and where == "holes")
