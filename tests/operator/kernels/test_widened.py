"""Number formats that the processor has no instructions for: computed in float32, and rounded once."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F

from linformer_kit.operator.kernels import choose, plain
from linformer_kit.operator.kernels.processor import Processor
from linformer_kit.operator.neighbours import Neighbours
from linformer_kit.operator.window import Window

pytestmark = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
ONE_ROUNDING = {torch.bfloat16: 2**-8, torch.float16: 2**-11}


@pytest.fixture(autouse=True)
def without_instructions(monkeypatch):
    here = dataclasses.replace(Processor.here(), capabilities={"avx2": True})
    monkeypatch.setattr(Processor, "here", staticmethod(lambda: here))


def random(*shape, dtype):
    return (torch.randn(*shape) / 4).to(dtype).requires_grad_()


def of_first(name):
    """An operation of the kernels that the first tensor chooses."""
    return lambda *tensors: getattr(choose(tensors[0]), name)(*tensors)


def linear_case(dtype):
    return (
        F.linear,
        of_first("linear"),
        [random(2, 9, 16, dtype=dtype), random(8, 16, dtype=dtype), random(8, dtype=dtype)],
    )


def compress_case(dtype):
    return torch.matmul, of_first("compress"), [random(4, 9, dtype=dtype), random(3, 9, 16, dtype=dtype)]


def of_heads(dtype, *lengths):
    return [random(3, 2, length, 8, dtype=dtype) for length in lengths]


def attention_case(dtype):
    mask = torch.arange(5) < torch.tensor([5, 2, 1])[:, None, None, None]

    def reference(query, key, value):
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)

    return reference, lambda *tensors: choose(tensors[0]).attention(*tensors, mask), of_heads(dtype, 11, 5, 5)


def neighbours_case(dtype):
    def ours(query, key, value, near_key, near_value):
        near = Neighbours(near_key, near_value, Window(3), edges=torch.tensor([[[0, 3, 5, 8, 11]]]))
        return choose(query).attention(query, key, value, None, near)

    def reference(*tensors):
        with plain():
            return ours(*tensors)

    return reference, ours, of_heads(dtype, 11, 4, 4, 11, 11)


@pytest.mark.parametrize("case", [linear_case, compress_case, attention_case, neighbours_case])
def test_as_in_float32_and_rounded_once(case, dtype):
    """Gradients too; without gradients the same."""
    reference, ours, tensors = case(dtype)
    out = ours(*tensors)
    wide = [tensor.detach().float().requires_grad_() for tensor in tensors]
    exact = reference(*wide)
    direction = torch.randn_like(exact).to(dtype)
    gradients = torch.autograd.grad(out, tensors, direction)
    expected = torch.autograd.grad(exact, wide, direction.float())
    for result, wanted in zip((out, *gradients), (exact, *expected), strict=True):
        assert result.dtype == dtype
        torch.testing.assert_close(result.float(), wanted, rtol=ONE_ROUNDING[dtype], atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(ours(*tensors).float(), exact.detach(), rtol=ONE_ROUNDING[dtype], atol=1e-5)
