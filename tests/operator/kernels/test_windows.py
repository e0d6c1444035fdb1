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


@pytest.mark.parametrize(("batch", "lengths"), [(3, None), (3, [37, 4, 0])])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, 1e-12), (torch.float32, 1e-6), (torch.bfloat16, 1e-2), (torch.float16, 1e-3)],
)
def test_means(monkeypatch, dtype, tolerance, batch, lengths):
    hidden, (positions, real) = window_inputs(dtype, batch, lengths)
    rows, real_rows = (part.expand(batch, -1, -1) for part in (positions, real))
    expected = torch.stack(
        [
            torch.stack(
                [text[at[kept]].double().sum(0) / max(1, int(kept.sum())) for at, kept in zip(*row, strict=True)]
            )
            for text, *row in zip(hidden, rows, real_rows, strict=True)
        ]
    )
    with kernels.plain():
        products = kernels.window_means(hidden, positions, real)
    if dtype != torch.float16:
        monkeypatch.setattr(windows, "_by_products", None)  # not called
    means = kernels.window_means(hidden, positions, real)
    for got in (means, products):
        assert got.dtype == dtype
        torch.testing.assert_close(got.double(), expected, rtol=tolerance, atol=tolerance)


def test_large_numbers_do_not_overflow():
    hidden, (positions, real) = window_inputs(torch.float16, 1, None)
    hidden = torch.full_like(hidden, 6e4)
    with kernels.plain():
        assert torch.equal(kernels.window_means(hidden, positions, real), hidden[:, :5])
    assert torch.equal(kernels.window_means(hidden, positions, real), hidden[:, :5])


def test_gradients_and_no_texts():
    hidden, (positions, real) = window_inputs(torch.float64, 2, [37, 9])
    assert torch.autograd.gradcheck(
        lambda given: kernels.window_means(given, positions, real), hidden.clone().requires_grad_()
    )
    assert kernels.window_means(hidden[:0], positions[:0], real[:0]).shape == (0, 5, 11)
