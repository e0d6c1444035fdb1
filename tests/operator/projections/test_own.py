"""A projection of a user, of each kind, against the equation."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from linformer_kit import InputError, LinformerAttention
from linformer_kit.operator.projections import MatrixProjection, WindowProjection
from linformer_kit.operator.reference import AttentionWeights, linformer_attention_reference
from linformer_kit.operator.slots import merge_heads, split_heads
from tests.reference.attention import windows

N, K, HEADS, EMBED = 19, 5, 3, 33


class Weighted(MatrixProjection):
    """Weighted sums of tokens, whose weights do not add up to 1: E for keys, twice E for values; by head if not shared."""

    learned = True
    by_text = False

    def __init__(self, *arguments, **named) -> None:
        super().__init__(*arguments, **named)
        self.weights = nn.Parameter(torch.randn(*() if self.sharing != "none" else (HEADS,), K, N))

    def matrices(self, source, lengths, slots):
        matrix = self.weights[..., :slots, :]
        matrix = matrix.expand(len(source), *matrix.shape) if self.by_text else matrix  # not zero at padding
        return matrix, 2 * matrix


class Same(MatrixProjection):
    """Says that E = F, and has two matrices."""

    def matrices(self, source, lengths, slots):
        matrix = torch.ones(slots, N)
        return matrix, 2 * matrix


class Products(WindowProjection):
    """Products of the tokens in each window."""

    def reduce(self, windows, tokens, are_values):
        inside = windows.of(merge_heads(tokens)).masked_fill(~windows.real[..., None], 1.0)
        return split_heads(inside.prod(dim=2), tokens.shape[1])


@pytest.mark.parametrize("sharing", ["headwise", "none"])
@pytest.mark.parametrize("length", [N, 4])
@pytest.mark.parametrize("by_text", [False, True])
def test_an_own_projection_computes_the_equation(sharing, length, by_text):
    projection = Weighted(N, K, num_heads=HEADS, sharing=sharing)
    projection.by_text = by_text
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


@pytest.mark.parametrize("length", [N, 4])
def test_an_own_projection_with_windows_computes_the_equation(length):
    layer = LinformerAttention(EMBED, HEADS, projection=Products(N, K, num_heads=HEADS)).double()
    x, padding = torch.randn(2, length, EMBED).double(), torch.arange(length) >= torch.tensor([[length], [3]])
    maps = (layer.q_proj, layer.k_proj, layer.v_proj, layer.out_proj)
    weights = AttentionWeights(*(each.weight for each in maps), *(each.bias for each in maps))
    products = [lambda rows: torch.stack([rows[list(w)].prod(dim=0) for w in windows(K, N, len(rows), False)])] * HEADS
    expected = linformer_attention_reference(x, x, x, weights, products, products, padding)
    torch.testing.assert_close(layer(x, x, x, padding)[0][~padding], expected[~padding], rtol=1e-12, atol=1e-12)


def test_an_own_projection_with_windows_may_be_causal():
    projection = Products(N, K, num_heads=HEADS)
    layer = LinformerAttention(EMBED, HEADS, projection=projection, sliding_window=4, causal=True).double()
    x = torch.randn(2, N, EMBED, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(layer(x, x, x)[0][:, 13].cos().sum(), x)
    assert gradient[:, :14].any(dim=-1).all() and not gradient[:, 14:].any()


def test_windows_need_a_longest_sequence(monkeypatch):
    monkeypatch.setattr(Products, "bounded", False)
    with pytest.raises(InputError, match=r"^seq_len: expected a positive integer, got None$"):
        Products(None, K, num_heads=HEADS)


def test_an_own_projection_without_resize_says_so():
    with pytest.raises(InputError, match=r"^projection: expected one with `_resize`, got Weighted$"):
        Weighted(N, K, num_heads=HEADS).resize(2 * N, "extend")


def test_matrices_and_slots_of_another_shape_are_rejected(monkeypatch):
    projection = Weighted(N, K, num_heads=HEADS)
    projection.weights = nn.Parameter(torch.randn(HEADS, K, N))  # by head, which only sharing `none` allows
    layer, x = LinformerAttention(EMBED, HEADS, projection=projection), torch.randn(2, N, EMBED)
    with pytest.raises(InputError, match=re.escape(f"matrices: expected [{K}, {N}], got [{HEADS}, {K}, {N}]")):
        layer(x, x, x)
    other = torch.randn(K, N)
    monkeypatch.setattr(Weighted, "matrices", lambda self, source, lengths, slots: (other, other))
    layer.projected_dim = K - 1
    with pytest.raises(InputError, match=re.escape(f"matrices: expected [{K - 1}, {N}], got [{K}, {N}]")):
        layer(x, x, x)
    layer.projected_dim = None
    layer.projection = Same(N, K, num_heads=HEADS)
    with pytest.raises(InputError, match=r"^matrices: expected E twice from Same, whose E = F, got two matrices$"):
        layer(x, x, x)
    layer.projection = Products(N, K, num_heads=HEADS)
    monkeypatch.setattr(Products, "reduce", lambda self, windows, tokens, are_values: tokens)
    with pytest.raises(InputError, match=re.escape(f"reduce: expected [2, {HEADS}, {K}, 11], got [2, {HEADS}, {N}, ")):
        layer(x, x, x)
