"""Attention in blocks is attention: outputs, gradients, dropout, and how exact bfloat16 is."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from linformer_kit.operator import kernels, slots
from linformer_kit.operator.kernels import softmax
from linformer_kit.operator.kernels.processor import Processor
from tests.operator.kernels.inputs import attention_inputs

TRAINS_IN_BLOCKS = pytest.mark.skipif(
    not Processor.here().attends_in_blocks(1, 1, dropout=0.0, gradient=True), reason="not on this processor"
)
# batch, heads, query_len, keys, head_dim
SHAPES = [(5, 3, 29, 7, 5), (3, 2, 1, 1, 1), (2, 1, 53, 31, 11), (7, 3, 2, 13, 3)]


@pytest.mark.parametrize("masked", ["none", "all alike", "each"])
@pytest.mark.parametrize("shape", SHAPES)
def test_block_attention_is_attention(small_blocks, shape, masked):
    """Outputs and gradients, in double precision, with several blocks to a sequence and several sequences to a block."""
    tensors, mask = attention_inputs(shape, torch.float64, masked)
    for tensor in tensors:
        tensor.requires_grad_()
    results = []
    for attend in (softmax._BlockAttention.apply, lambda q, k, v, m, _: F.scaled_dot_product_attention(q, k, v, m)):
        context = attend(*tensors, mask, None)
        weights = torch.sin(torch.arange(context.numel(), dtype=torch.float64)).view(context.shape)
        results.append([context, *torch.autograd.grad((context * weights).sum(), tensors)])
    for ours, plain in zip(*results, strict=True):
        assert torch.allclose(ours, plain, rtol=1e-10, atol=1e-10)
    with torch.no_grad():
        assert torch.allclose(softmax._block_attention(*tensors, mask), results[0][0], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("drop", [None, softmax.Dropout(0.3, seed=5)], ids=["whole", "dropout"])
def test_block_attention_by_numerical_differentiation(small_blocks, drop):
    tensors, mask = attention_inputs((2, 2, 7, 3, 2), torch.float64, "each")
    assert torch.autograd.gradcheck(
        lambda *t: softmax._BlockAttention.apply(*t, mask, drop), [t.requires_grad_() for t in tensors]
    )


@TRAINS_IN_BLOCKS
@pytest.mark.parametrize("spread", [1, 3, 9])
@pytest.mark.parametrize("shape", [(1, 12, 700, 256, 64), (3, 3, 211, 67, 32), (2, 3, 61, 13, 24)])
def test_bfloat16_is_as_exact_as_eager_attention(shape, spread):
    """At most 1.5 times its error in the same format, for outputs and gradients, however far scores spread."""
    tensors, _ = attention_inputs(shape, torch.bfloat16, "none")
    tensors[0] *= spread
    exact = [tensor.double().requires_grad_() for tensor in tensors]
    rounded = [tensor.requires_grad_() for tensor in tensors]
    assert softmax._attends_in_blocks(*rounded)

    def eager(query, key, value):
        return slots.context_mapping(query, key) @ value

    def results(attend, inputs):
        context = attend(*inputs)
        upstream = torch.cos(torch.arange(context.numel(), dtype=torch.float64)).view(context.shape)
        return [context, *torch.autograd.grad(context, inputs, upstream.to(context.dtype))]

    truth, plain, ours = results(eager, exact), results(eager, rounded), results(kernels.attention, rounded)
    for right, theirs, mine in zip(truth, plain, ours, strict=True):
        error, allowed = ((got.double() - right).square().mean().sqrt().item() for got in (mine, theirs))
        assert error <= 1.5 * allowed


def test_dropout_in_blocks():
    """By its definition: each weight is 0 with the probability, else over 1 less it; other seeds drop other weights."""
    query, key = torch.zeros(3, 2, 4001, 1), torch.zeros(3, 2, 97, 1)
    value = torch.eye(97).expand(3, 2, -1, -1)  # the context is the weights
    weights = 97 * softmax._block_attention(query, key, value, None, softmax.Dropout(0.3, seed=1))
    dropped = weights == 0
    assert torch.allclose(weights[~dropped], torch.tensor(1 / 0.7), rtol=1e-4)
    deviation = (0.3 * 0.7) ** 0.5
    assert abs(dropped.double().mean() - 0.3) < 4 * deviation / dropped.numel() ** 0.5
    for dim in ((0, 1, 2), (0, 1, 3), (2, 3)):
        shares = dropped.double().mean(dim)
        assert (shares - 0.3).abs().max() < 5 * deviation / (dropped.numel() / shares.numel()) ** 0.5
    again, other = (
        softmax._block_attention(query, key, value, None, softmax.Dropout(0.3, seed=seed)) for seed in (1, 2)
    )
    assert torch.equal(97 * again, weights)
    assert 0.05 < (dropped & (other == 0)).double().mean() < 0.13


def test_attention_weights_are_not_kept_for_the_backward_pass():
    tensors, _ = attention_inputs((2, 3, 101, 97, 2), torch.float64, "none")
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.numel()), lambda _: None):
        softmax._BlockAttention.apply(
            *(tensor.requires_grad_() for tensor in tensors), None, softmax.Dropout(0.1, seed=0)
        )
    assert max(kept) < 2 * 3 * 101 * 97
