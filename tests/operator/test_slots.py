"""Attention over slots against hand-computed values."""

from __future__ import annotations

import math

import pytest
import torch

from linformer_kit.operator.slots import Slots, attend_slots, context_mapping, merge_heads, split_heads


def test_split_and_merge_heads_are_inverse():
    hidden = torch.randn(2, 5, 21)
    heads = split_heads(hidden, 3)
    assert heads.shape == (2, 3, 5, 7)
    assert torch.equal(heads[:, 1], hidden[..., 7:14])
    assert torch.equal(merge_heads(heads), hidden)


def test_context_mapping_by_hand():
    query = torch.tensor([[[[math.log(3.0), 0.0]]]]) * math.sqrt(2)
    key = torch.tensor([[[[1.0, 5.0], [0.0, 7.0]]]])
    torch.testing.assert_close(context_mapping(query, key), torch.tensor([[[[0.75, 0.25]]]]))


def test_context_mapping_ignores_padded_keys():
    query, key = torch.randn(2, 3, 5, 7), torch.randn(2, 3, 11, 7)
    padding = torch.zeros(2, 11, dtype=torch.bool)
    padding[1, 4:] = True
    weights = context_mapping(query, key, padding)
    assert (weights[1, ..., 4:] == 0).all()
    torch.testing.assert_close(weights[1, ..., :4], context_mapping(query, key[:, :, :4])[1])


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("projected", [False, True])
def test_attention_over_nothing_but_padding_is_finite(need_weights, projected):
    query, key, value = (torch.randn(1, 3, 5, 7, requires_grad=True) for _ in range(3))
    empty = torch.ones(1, 5, dtype=torch.bool)
    out, _ = attend_slots(query, [Slots(key, value, empty, None, projected)], need_weights=need_weights)
    out.sum().backward()
    assert out.isfinite().all()
    assert query.grad.isfinite().all() and key.grad.isfinite().all() and value.grad.isfinite().all()
