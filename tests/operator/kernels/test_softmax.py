"""Attention in parts is attention: outputs, gradients, dropout, and how exact bfloat16 is."""

from __future__ import annotations

import pytest
import torch

from linformer_kit import LinformerAttention
from linformer_kit.operator import kernels
from linformer_kit.operator.kernels import FastKernels, choose
from linformer_kit.operator.kernels import softmax as kernel
from linformer_kit.operator.kernels.processor import Processor
from linformer_kit.operator.neighbours import Neighbours
from linformer_kit.operator.slots import Slots, attend_slots
from linformer_kit.operator.window import Window
from tests.conftest import pairs_of, values_of
from tests.operator.kernels.inputs import attention_inputs

BY_PRODUCTS = pytest.mark.skipif(not Processor.here().attends_by_products, reason="not on this processor")
BATCH, HEADS, LENGTH, SLOTS, DIM = 3, 2, 29, 7, 5


@pytest.fixture(params=[(3, 1, True), (4, 70, True), (4, 900, False)], ids=str)
def parts(request, monkeypatch):
    """A block in each part, several sequences in a part, and parts by products."""
    rows, together, flash = request.param
    monkeypatch.setattr("linformer_kit.operator.window._ROWS", rows)
    monkeypatch.setattr(kernel, "_COLUMNS", 40 * together)
    monkeypatch.setattr(kernel, "_SCORES", together)
    monkeypatch.setattr(FastKernels, "prefers_products", lambda _, query, neighbours, dropout: not flash or dropout > 0)
    monkeypatch.setattr("linformer_kit.operator.window._ALIGNED", 1)


def tensors(dtype=torch.float64) -> list[torch.Tensor]:
    sizes = [LENGTH, SLOTS, SLOTS, LENGTH, LENGTH]
    return [torch.randn(BATCH, HEADS, size, DIM, dtype=dtype, requires_grad=True) for size in sizes]


def gradients(total, given, **options):
    return torch.autograd.grad(total, given, allow_unused=True, materialize_grads=True, **options)


# First tokens of windows of one, of several, and of no token; the whole of a short text in one window.
EDGES = torch.tensor([[0, 1, 3, 3, 10, 20, 28, 29], [0, 2, 9, 11, 11, 11, 11, 11], [0, 1, 1, 1, 1, 1, 1, 1]])


def attend(given, window, *, masked=False, windows=False, causal=False, **options):
    query, key, value, near_key, near_value = given
    lengths = torch.tensor([LENGTH, 11, 1]) if masked else None
    empty = None
    if masked:
        empty = torch.zeros(BATCH, 1, SLOTS, dtype=torch.bool)
        empty[1, :, 3:] = True
    edges = None if not windows else EDGES[:, None] if masked else EDGES[:1, None]
    near = Neighbours(near_key, near_value, Window(window, causal, lengths=lengths), edges)
    return attend_slots(query, Slots(key, value, empty, None, near), choose(query), **options)[0]


SEEN = [(1, False), (4, False), (70, False), (10, True)]  # the window, and whether it is causal


@pytest.mark.parametrize(("seen", "masked", "windows"), pairs_of(SEEN, [False, True], [False, True]))
def test_parts_equal_the_plain_operations(parts, seen, masked, windows):
    (window, causal), given, results = seen, tensors(), []
    kind = {"masked": masked, "windows": windows, "causal": causal}
    for plain, need_weights in ((False, False), (True, False), (False, True)):
        with kernels.plain() if plain else torch.enable_grad():
            out = attend(given, window, **kind, need_weights=need_weights)
            weights = torch.sin(torch.arange(out.numel(), dtype=torch.float64)).view(out.shape)
            results.append([out, *gradients((out * weights).sum(), given)])
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=1e-10, atol=1e-10)
    with torch.no_grad():
        assert torch.equal(attend(given, window, **kind), results[0][0])


SHAPES = [(5, 3, 29, 7, 5), (3, 2, 1, 1, 1), (2, 1, 53, 31, 11), (7, 3, 2, 13, 3)]


@pytest.mark.parametrize(("shape", "masked"), values_of(SHAPES, ["none", "all alike", "each"]))
def test_products_without_neighbours_are_attention(parts, monkeypatch, shape, masked):
    monkeypatch.setattr(FastKernels, "prefers_products", lambda *_: True)
    given, mask = attention_inputs(shape, torch.float64, masked)
    given = [tensor.requires_grad_() for tensor in given]
    results = []
    for attend_plainly in (False, True):
        with kernels.plain() if attend_plainly else torch.enable_grad():
            context = choose(given[0]).attention(*given, mask)
            weights = torch.sin(torch.arange(context.numel(), dtype=torch.float64)).view(context.shape)
            results.append([context, *torch.autograd.grad((context * weights).sum(), given)])
    for ours, plain in zip(*results, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-10, atol=1e-10)


def test_gradients_by_numerical_differentiation(parts):
    given = [tensor.detach()[:2, :, :7].requires_grad_() for tensor in tensors()]
    edges = torch.tensor([[0, 1, 1, 3, 6, 7, 7, 7], [0, 1, 2, 4, 4, 4, 4, 4]])

    def attend_again(query, key, value, near_key, near_value, dropout):
        torch.manual_seed(5)
        near = Neighbours(near_key, near_value, Window(4, lengths=torch.tensor([7, 4])), edges[:, None])
        return choose(query).attention(query, key, value, None, near, dropout=dropout)

    for dropout in (0.0, 0.3):
        assert torch.autograd.gradcheck(attend_again, (*given, dropout), fast_mode=True)


def test_dropout_drops_slots_and_neighbours_alike(monkeypatch):
    """Each weight is 0 with the probability, else over 1 less it, so the mean of many runs is that without dropout."""
    monkeypatch.setattr("linformer_kit.operator.window._ROWS", 4)
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
def test_other_formats_are_as_exact_as_two_products(dtype):
    given = tensors(dtype)
    exact = attend([tensor.double() for tensor in given], 5, masked=True)
    allowed = (attend(given, 5, masked=True, need_weights=True) - exact).abs().max()
    assert (attend(given, 5, masked=True) - exact).abs().max() <= 2 * allowed


def test_an_empty_batch_with_padding():
    attention = LinformerAttention(12, 3, 32, 5, projection="mean_pool", sliding_window=4)
    empty = torch.randn(0, 9, 12, requires_grad=True)
    output, _ = attention(empty, empty, empty, torch.zeros(0, 9, dtype=torch.bool))
    output.sum().backward()
    assert output.shape == empty.grad.shape == (0, 9, 12)


@BY_PRODUCTS
@pytest.mark.parametrize("spread", [1, 3, 9])
@pytest.mark.parametrize("shape", [(1, 12, 700, 256, 64), (3, 3, 211, 67, 32), (2, 3, 61, 13, 24)])
def test_bfloat16_is_as_exact_as_eager_attention(shape, spread):
    """At most 1.5 times its error in the same format, for outputs and gradients, however far scores spread."""
    given, _ = attention_inputs(shape, torch.bfloat16, "none")
    given[0] *= spread
    exact = [tensor.double().requires_grad_() for tensor in given]
    rounded = [tensor.requires_grad_() for tensor in given]

    def eager(query, key, value):
        return (query @ key.mT / query.shape[-1] ** 0.5).softmax(dim=-1) @ value

    def results(attend, inputs):
        context = attend(*inputs)
        upstream = torch.cos(torch.arange(context.numel(), dtype=torch.float64)).view(context.shape)
        return [context, *torch.autograd.grad(context, inputs, upstream.to(context.dtype))]

    truth, plain, ours = results(eager, exact), results(eager, rounded), results(choose(given[0]).attention, rounded)
    for right, theirs, mine in zip(truth, plain, ours, strict=True):
        error, allowed = ((got.double() - right).square().mean().sqrt().item() for got in (mine, theirs))
        assert error <= 1.5 * allowed


@pytest.mark.parametrize("window", [None, 1])
def test_gradients_of_parts_are_summed_in_full_precision(monkeypatch, window):
    """In bfloat16 a thousand small gradients would be lost beside the sum of the first ones."""
    monkeypatch.setattr(FastKernels, "prefers_products", lambda *_: True)
    monkeypatch.setattr("linformer_kit.operator.window._ROWS", 1)
    monkeypatch.setattr(kernel, "_SCORES", 1)
    query, near, key, value = (torch.zeros(1, 1, size, 1, dtype=torch.bfloat16) for size in (1024, 1024, 2, 2))
    tokens = None if window is None else Neighbours(near, near, Window(window))
    choose(query).attention(query, key, value.requires_grad_(), None, tokens).sum().backward()
    expected = torch.full((1, 1, 2, 1), 1024 / (2 + (window or 0)))
    torch.testing.assert_close(value.grad.float(), expected, rtol=0.01, atol=0)


def test_attention_weights_are_not_kept_for_the_backward_pass(monkeypatch):
    monkeypatch.setattr(FastKernels, "prefers_products", lambda *_: True)
    given, _ = attention_inputs((2, 3, 101, 97, 2), torch.float64, "none")
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.numel()), lambda _: None):
        choose(given[0]).attention(*(tensor.requires_grad_() for tensor in given), dropout=0.1)
    assert not kept or max(kept) < 2 * 3 * 101 * 97
