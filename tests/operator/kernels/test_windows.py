"""Means over windows in one pass are those of the products, and of sums."""

from __future__ import annotations

import pytest
import torch

from linformer_kit.operator import kernels
from linformer_kit.operator.kernels import windows
from linformer_kit.operator.projections.windows import pooling_windows

LENGTH = 37


def window_inputs(dtype, batch, lengths):
    hidden = torch.randn(batch, LENGTH + 3, 11).to(dtype)[:, 1:-2]  # the batch is not contiguous
    given = None if lengths is None else torch.tensor(lengths)
    return hidden, pooling_windows(5, LENGTH, LENGTH, given, stretch=True)


@pytest.mark.parametrize("lengths", [None, [37, 4, 0]])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.bfloat16, 1e-2)])
def test_means(monkeypatch, dtype, tolerance, lengths):
    hidden, (positions, real) = window_inputs(dtype, 3, lengths)
    rows = zip(hidden, positions.expand(3, -1, -1), real.expand(3, -1, -1), strict=True)
    expected = [
        torch.stack([text[at[kept]].double().sum(0) / max(1, int(kept.sum())) for at, kept in zip(*row, strict=True)])
        for text, *row in rows
    ]
    with kernels.plain():
        products = kernels.window_means(hidden, positions, real)
    monkeypatch.setattr(windows, "_by_products", None)  # not called
    for got in (kernels.window_means(hidden, positions, real), products):
        assert got.dtype == dtype
        torch.testing.assert_close(got.double(), torch.stack(expected), rtol=tolerance, atol=tolerance)


def test_large_numbers_do_not_overflow():
    hidden, (positions, real) = window_inputs(torch.float16, 1, None)
    hidden = torch.full_like(hidden, 6e4)
    assert torch.equal(kernels.window_means(hidden, positions, real), hidden[:, :5])


def test_gradients():
    hidden, (positions, real) = window_inputs(torch.float64, 2, [37, 9])
    assert torch.autograd.gradcheck(
        lambda given: kernels.window_means(given, positions, real), hidden.clone().requires_grad_(), fast_mode=True
    )
