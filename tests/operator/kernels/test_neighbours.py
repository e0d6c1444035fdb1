"""Attention over slots and neighbours in blocks: gradients, dropout, formats, and where the plain operations run."""

from __future__ import annotations

import pytest
import torch

from linformer_kit import LinformerAttention
from linformer_kit.operator import kernels
from linformer_kit.operator.kernels import neighbours as kernel
from linformer_kit.operator.kernels.softmax import Dropout
from linformer_kit.operator.neighbours import Neighbours

BATCH, HEADS, LENGTH, SLOTS, DIM = 3, 2, 29, 7, 5


@pytest.fixture(params=[(3, 1, True), (4, 70, True), (4, 900, False)], ids=str)
def blocks(request, monkeypatch):
    """A block in each call, several sequences in a call, and blocks without flash attention."""
    rows, together, flash = request.param
    monkeypatch.setattr(kernel, "_ROWS", rows)
    monkeypatch.setattr(kernel, "_COLUMNS", 40 * together)
    monkeypatch.setattr(kernel, "_SCORES", together)
    monkeypatch.setattr(kernel, "_uses_flash", lambda query, drop: flash and drop is None)
    monkeypatch.setattr(kernel, "_ALIGNED", 1)


def tensors(dtype=torch.float64) -> list[torch.Tensor]:
    sizes = [LENGTH, SLOTS, SLOTS, LENGTH, LENGTH]
    return [torch.randn(BATCH, HEADS, size, DIM, dtype=dtype, requires_grad=True) for size in sizes]


def gradients(total, given, **options):
    return torch.autograd.grad(total, given, allow_unused=True, materialize_grads=True, **options)


# First tokens of windows of one, of several, and of no token; the whole of a short text in one window.
EDGES = torch.tensor([[0, 1, 3, 3, 10, 20, 28, 29], [0, 2, 9, 11, 11, 11, 11, 11], [0, 1, 1, 1, 1, 1, 1, 1]])


def attend(given, window, *, masked=False, windows=False, dropout=0.0, first=0, rows=slice(None)):
    query, key, value, near_key, near_value = given
    lengths = torch.tensor([LENGTH, 11, 1]) if masked else None
    mask = None
    if masked:
        mask = torch.ones(BATCH, 1, 1, SLOTS, dtype=torch.bool)
        mask[1, ..., 3:] = False
    edges = None if not windows else EDGES[:, None] if masked else EDGES[:1, None]
    near = Neighbours(near_key, near_value, window, lengths, first, edges)
    return kernels.attention_with_neighbours(query[:, :, rows], key, value, mask, near, dropout=dropout)


@pytest.mark.parametrize("windows", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("window", [1, 4, 70])
def test_blocks_equal_the_plain_operations(blocks, window, masked, windows):
    given, results = tensors(), []
    for plain in (False, True):
        with kernels.plain() if plain else torch.enable_grad():
            out = attend(given, window, masked=masked, windows=windows)
            weights = torch.sin(torch.arange(out.numel(), dtype=torch.float64)).view(out.shape)
            results.append([out, *gradients((out * weights).sum(), given)])
    for ours, plain in zip(*results, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-10, atol=1e-10)
    with torch.no_grad():
        assert torch.equal(attend(given, window, masked=masked, windows=windows), results[0][0])


def test_gradients_by_numerical_differentiation(monkeypatch):
    monkeypatch.setattr(kernel, "_ROWS", 3)
    monkeypatch.setattr(kernel, "_COLUMNS", 400)
    given = [tensor.detach()[:2, :, :7].requires_grad_() for tensor in tensors()]
    edges = torch.tensor([[0, 1, 1, 3, 6, 7, 7, 7], [0, 1, 2, 4, 4, 4, 4, 4]])
    near = Neighbours(given[3], given[4], 4, torch.tensor([7, 4]), 0, edges[:, None])
    where = near.without_tokens()
    for drop in (None, Dropout(0.3, seed=5)):
        assert torch.autograd.gradcheck(
            lambda *t, drop=drop: kernel._NeighbourAttention.apply(*t, None, where, drop), given, fast_mode=True
        )


@pytest.mark.parametrize("masked", [False, True])
def test_gradients_of_gradients_are_those_of_the_plain_operations(masked):
    given, results = tensors(), []
    for plain in (False, True):
        with kernels.plain() if plain else torch.enable_grad():
            out = attend(given, 5, masked=masked, windows=masked).square().sum()
            first = gradients(out, given, create_graph=True)
            results.append(gradients(sum(part.square().sum() for part in first), given))
    for ours, plain in zip(*results, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-9, atol=1e-9)
    frozen = [given[0], *(tensor.detach() for tensor in given[1:])]
    (of_query,) = torch.autograd.grad(attend(frozen, 5).square().sum(), given[0], create_graph=True)
    assert torch.autograd.grad(of_query.square().sum(), given[0])[0].any()
    with pytest.raises(NotImplementedError, match="expected dropout 0"):
        gradients(attend(given, 5, dropout=0.5).sum(), given, create_graph=True)


def test_dropout_drops_slots_and_neighbours_alike(monkeypatch):
    """Each weight is 0 with the probability, else over 1 less it, so the mean of many runs is that without dropout."""
    monkeypatch.setattr(kernel, "_ROWS", 4)
    given = [tensor.detach() for tensor in tensors()]
    expected = attend(given, 5)
    torch.manual_seed(3)
    runs = torch.stack([attend(given, 5, dropout=0.25) for _ in range(60)])
    assert not torch.equal(runs[0], runs[1])
    error = (runs.mean(dim=0) - expected) / (runs.std(dim=0) / 60**0.5)
    assert error.abs().max() < 6
    torch.manual_seed(3)
    assert torch.equal(attend(given, 5, dropout=0.25), runs[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_other_formats_are_as_exact_as_the_plain_operations(dtype):
    given = tensors(dtype)
    exact = attend([tensor.double() for tensor in given], 5, masked=True)
    with kernels.plain():
        allowed = (attend(given, 5, masked=True) - exact).abs().max()
    assert (attend(given, 5, masked=True) - exact).abs().max() <= 2 * allowed


def test_an_empty_batch_with_padding():
    attention = LinformerAttention(12, 3, 32, 5, projection="mean_pool", sliding_window=4)
    empty = torch.randn(0, 9, 12, requires_grad=True)
    output, _ = attention(empty, empty, empty, torch.zeros(0, 9, dtype=torch.bool))
    output.sum().backward()
    assert output.shape == empty.grad.shape == (0, 9, 12)
