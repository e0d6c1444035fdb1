"""How E and F start: the matrices themselves, and that no start depends on n in scale."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from linformer_kit import LinformerAttention, LinformerConfig, LinformerForMaskedLM
from linformer_kit.errors import InputError
from linformer_kit.operator.projections import LinearProjection
from linformer_kit.operator.projections.starts import STARTS, pooling_matrix, spread_order

N, K, HEADS = 131, 17, 3
RANDOM = ("normal", "lecun_normal")


def test_shifted_pooling_is_the_default_and_its_rows_are_spread():
    expected = pooling_matrix(K, N)[spread_order(K)]
    projection = LinearProjection(N, K, num_heads=HEADS, sharing="headwise")
    assert torch.equal(projection.key_projection, expected)
    assert torch.equal(projection.value_projection, projection.key_projection)
    assert LinformerConfig().projection_initializer == projection.initializer == "shifted_pooling"
    by_head = LinearProjection(N, K, num_heads=HEADS, sharing="none")
    assert torch.equal(by_head.key_projection, STARTS["shifted_pooling"](HEADS, K, N))
    assert torch.equal(by_head.key_projection[0], expected) and not torch.equal(by_head.key_projection[1], expected)


@pytest.mark.parametrize(
    ("name", "std"),
    [
        ("normal", 0.02),
        ("lecun_normal", 1 / math.sqrt(N)),
    ],
)
def test_what_is_random_has_its_variance(name, std):
    matrices = STARTS[name](HEADS, K, N)
    assert matrices.shape == (HEADS, K, N)
    assert matrices.std().item() == pytest.approx(std, rel=0.05) and abs(matrices.mean()) < std / 10


def test_windows_of_heads_are_shifted():
    """12 positions, 2 windows of 6, 3 heads: each begins 2 positions after the one before, round the end."""
    matrices = STARTS["shifted_pooling"](3, 2, 12)
    inside = [[row.nonzero().flatten().tolist() for row in matrix] for matrix in matrices]
    assert inside[0] == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]
    assert inside[1] == [[2, 3, 4, 5, 6, 7], [0, 1, 8, 9, 10, 11]]
    assert inside[2] == [[4, 5, 6, 7, 8, 9], [0, 1, 2, 3, 10, 11]]
    assert torch.allclose(matrices.square().sum(-1), torch.ones(3, 2))


@pytest.mark.parametrize("name", RANDOM)
def test_e_f_and_models_are_drawn_apart(name):
    projection = LinearProjection(N, K, num_heads=HEADS, initializer=name)
    key, value = projection.key_projection.clone(), projection.value_projection.clone()
    assert not torch.equal(key, value)
    projection.reset_parameters()
    assert not torch.equal(projection.key_projection, key)
    torch.manual_seed(5)
    first = STARTS[name](1, K, N)
    torch.manual_seed(5)
    assert torch.equal(STARTS[name](1, K, N), first)


@pytest.mark.parametrize("name", STARTS)
def test_heads_with_their_own_k_keep_their_place(name):
    """What a head starts with depends on which head it is, not on the k of the others."""
    torch.manual_seed(7)
    uneven = LinearProjection(N, [5, 17, 11], num_heads=3, sharing="none", initializer=name).key_projection
    torch.manual_seed(7)
    expected = torch.cat([STARTS[name](3, k, N)[head] for head, k in enumerate((5, 17, 11))])
    assert torch.equal(uneven, expected)


@pytest.mark.parametrize("sharing", ["headwise", "layerwise", "none"])
def test_models_start_so(sharing, config):
    torch.manual_seed(3)
    model = LinformerForMaskedLM(config(sharing=sharing, projection_initializer="mean_pooling"))
    matrices = [parameter for name, parameter in model.named_parameters() if "key_projection" in name]
    assert matrices
    for matrix in matrices:
        torch.testing.assert_close(matrix.sum(-1), torch.ones(matrix.shape[:-1]))


def test_refused():
    expected = ", ".join(STARTS)
    with pytest.raises(InputError, match=f"projection_initializer: expected one of {expected}, got 'zeros'"):
        LinformerAttention(32, 2, 16, 4, projection_initializer="zeros")
    with pytest.raises(InputError, match=r"projection_initializer: expected one of .*, got 'zeros'"):
        LinformerConfig(projection_initializer="zeros")


@pytest.mark.parametrize("k_of", [lambda n: 32, lambda n: n // 4], ids=["k 32", "k n/4"])
def test_the_default_keeps_its_scale_from_128_to_65536(k_of):
    """Projected keys of unit variance, and gradients on E that follow those on the slots, whatever n is."""
    for n in (128, 1024, 8192, 65536):
        k = min(k_of(n), 256 if n > 1024 else n)  # rows are alike: of many, some tell
        width = n // k_of(n)
        matrix = STARTS["pooling"](1, k, k * width)[0].requires_grad_()
        x = torch.randn(k * width, 16)
        slots = matrix @ x
        assert slots.std().item() == pytest.approx(1, rel=0.15)
        upstream = torch.randn_like(slots)
        (gradient,) = torch.autograd.grad(slots, matrix, upstream)
        # Each entry is the product of two vectors of 16 independent numbers of variance 1.
        assert gradient.std().item() == pytest.approx(4, rel=0.15)


def test_pooling_matrix_by_hand():
    expected = torch.tensor([[1.0, 0, 0, 0, 0], [0, 0.5**0.5, 0.5**0.5, 0, 0], [0, 0, 0, 0.5**0.5, 0.5**0.5]])
    assert torch.equal(pooling_matrix(3, 5), expected)


@pytest.mark.parametrize(("projected_dim", "seq_len"), [(1, 1), (1, 13), (7, 7), (7, 31), (97, 211)])
def test_pooling_windows_tile_the_sequence(projected_dim, seq_len):
    windows = pooling_matrix(projected_dim, seq_len) > 0
    assert torch.equal(windows.sum(dim=0), torch.ones(seq_len, dtype=torch.long))
    sizes = windows.sum(dim=1)
    assert sizes.max() - sizes.min() <= 1
    # Rows of length 1: independent inputs of variance 1 give slots of variance 1, whatever n is.
    norms = pooling_matrix(projected_dim, seq_len).norm(dim=1)
    torch.testing.assert_close(norms, torch.ones(projected_dim))


def test_spread_order_by_hand():
    assert spread_order(1) == [0]
    assert spread_order(5) == [0, 4, 2, 1, 3]
    assert spread_order(8) == [0, 4, 2, 6, 1, 5, 3, 7]


@pytest.mark.parametrize("count", [2, 7, 64, 97, 128])
def test_every_beginning_of_the_order_is_spread(count):
    """No stretch without any of the first j is longer than four times what j evenly spread ones would leave."""
    order = spread_order(count)
    assert sorted(order) == list(range(count))
    for j in range(1, count + 1):
        edges = [-1, *sorted(order[:j]), count]
        assert max(b - a for a, b in itertools.pairwise(edges)) <= max(4 * count / j, 2)
