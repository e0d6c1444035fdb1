"""Attention over slots against hand-computed values."""

from __future__ import annotations

import math

import pytest
import torch

from linformer_kit import InputError
from linformer_kit.operator.attention import LinformerAttention
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


def test_a_slot_that_stands_for_no_token_has_no_weight():
    attention = LinformerAttention(8, 2, 16, 4, slot_exponent=0.5).double()
    with torch.no_grad():
        attention.projection.key_projection[1] = 0
        attention.projection.value_projection[1] = 0
    tokens = torch.randn(2, 16, 8, dtype=torch.float64)
    weights = attention(tokens, tokens, tokens, need_weights=True, average_attn_weights=False)[1]
    assert weights[..., 1].eq(0).all() and weights[..., [0, 2, 3]].gt(0).all()
    with torch.no_grad():
        attention.projection.key_projection.zero_()
    weights = attention(tokens, tokens, tokens, need_weights=True)[1]
    torch.testing.assert_close(
        weights, torch.full_like(weights, 1 / 4), msg="all slots are alike if none stands for a token"
    )


@pytest.mark.parametrize(("projection", "length"), [("random", 4096), ("dynamic", 70_000), ("mean_pool", 70_000)])
def test_counts_of_tokens_beyond_the_range_of_float16(projection, length):
    attention = LinformerAttention(8, 2, length, 1, projection=projection, slot_exponent=1.0).half()
    tokens = torch.randn(1, length, 8, dtype=torch.float16)
    (slots,) = attention.project(tokens, tokens)
    assert slots.bias.dtype == torch.float16
    torch.testing.assert_close(
        slots.bias.flatten().double(), torch.full((2,), length, dtype=torch.float64).log(), rtol=1e-3, atol=0
    )


def test_exponents_that_are_no_number_or_too_large_are_refused():
    for refused in (math.nan, math.inf, 1e300, -101, "1", True):
        with pytest.raises(InputError, match=r"^slot_exponent: expected None or a number from -100 to 100, got "):
            LinformerAttention(8, 2, 16, 4, slot_exponent=refused)
