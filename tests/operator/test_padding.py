"""Padding as one object: its view of a mask, and that a model makes it once per forward pass."""

from __future__ import annotations

import pytest
import torch

from linformer_kit import LinformerAttention, LinformerModel
from linformer_kit.operator import padding as paddings
from linformer_kit.operator.padding import Padding
from tests.conftest import KINDS, fields, randomise, tokens

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


def test_where_nobody_asks_there_is_no_order():
    assert Padding.of(HOLES, ordered=False).order is None


def test_zero_is_a_selection():
    hidden = torch.full((3, 5, 7), torch.nan)
    hidden[~HOLES] = 1.0
    assert torch.equal(Padding.of(HOLES).zero(hidden), (~HOLES)[..., None].float().expand(-1, -1, 7))


def test_some_of_the_sequences():
    padding = Padding.of(HOLES)
    for found, whole in zip(padding.of_samples(slice(1, 3)), padding, strict=True):
        assert torch.equal(found, whole[1:])
    assert Padding.of(RIGHT).of_samples(slice(1, 2)).order is None


@pytest.mark.parametrize("where", ["right", "holes"])
@pytest.mark.parametrize("kind", KINDS)
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


def test_attention_takes_a_mask_or_the_object():
    layer = LinformerAttention(33, 3, 31, 7)
    hidden, mask = torch.randn(3, 5, 33), HOLES
    expected = layer(hidden, hidden, hidden, mask)[0]
    assert torch.equal(layer(hidden, hidden, hidden, Padding.of(mask))[0], expected)


def test_sorted_has_an_order_for_every_mask():
    assert Padding.sorted(RIGHT).order.tolist() == [list(range(5))] * 3
    for found, expected in zip(Padding.sorted(HOLES), Padding.of(HOLES), strict=True):
        assert torch.equal(found, expected)
