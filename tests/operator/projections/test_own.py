"""A projection of a user, with `compress` only, against the equation."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from linformer_kit import InputError, LinformerAttention
from linformer_kit.operator.projections import SequenceProjection
from linformer_kit.operator.reference import AttentionWeights, linformer_attention_reference

N, K, HEADS, EMBED = 19, 5, 3, 33


class Weighted(SequenceProjection):
    """Weighted sums of tokens, whose weights do not add up to 1: E for keys, twice E for values; by head if not shared."""

    commutes = True

    def __init__(self, *arguments, **named) -> None:
        super().__init__(*arguments, **named)
        self.weights = nn.Parameter(torch.randn(*() if self.sharing != "none" else (HEADS,), K, N))

    def compress(self, tokens, lengths, slots, *, values=False):
        matrix = self.weights[..., :slots, : tokens.shape[2]]
        return matrix @ tokens * (2 if values else 1)


@pytest.mark.parametrize("sharing", ["headwise", "none"])
@pytest.mark.parametrize("length", [N, 4])
def test_an_own_projection_computes_the_equation(sharing, length):
    projection = Weighted(N, K, num_heads=HEADS, sharing=sharing)
    layer = LinformerAttention(EMBED, HEADS, projection=projection).double()
    x, padding = torch.randn(2, length, EMBED).double(), torch.arange(length) >= torch.tensor([[length], [3]])
    maps = (layer.q_proj, layer.k_proj, layer.v_proj, layer.out_proj)
    weights = AttentionWeights(*(each.weight for each in maps), *(each.bias for each in maps))
    of_heads = projection.weights.expand(HEADS, K, N)
    keys = [lambda rows, matrix=matrix: matrix[:, : len(rows)] @ rows for matrix in of_heads]
    values = [lambda rows, matrix=matrix: 2 * matrix[:, : len(rows)] @ rows for matrix in of_heads]
    expected = linformer_attention_reference(x, x, x, weights, keys, values, padding)
    output = layer(x, x, x, padding)[0]
    torch.testing.assert_close(output[~padding], expected[~padding], rtol=1e-12, atol=1e-12)


def test_an_own_projection_without_resize_says_so():
    with pytest.raises(InputError, match=r"^projection: expected one with `_resize`, got Weighted$"):
        Weighted(N, K, num_heads=HEADS).resize(2 * N, "extend")


def test_slots_of_another_shape_are_rejected():
    projection = Weighted(N, K, num_heads=HEADS)
    projection.weights = nn.Parameter(torch.randn(HEADS, K, N))  # by head, which only sharing `none` allows
    layer, x = LinformerAttention(EMBED, HEADS, projection=projection), torch.randn(2, N, EMBED)
    with pytest.raises(InputError, match=re.escape(f"compress: expected [2, 1, slots, {EMBED}], got [2, {HEADS}, ")):
        layer(x, x, x)
