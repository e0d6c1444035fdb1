"""Means over windows in one pass are those of the products, and of sums."""

from __future__ import annotations

import pytest
import torch

from linformer_kit.operator import kernels
from linformer_kit.operator.projections import MeanPoolProjection

LENGTH = 37


@pytest.mark.parametrize("lengths", [None, [37, 4, 0]])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.bfloat16, 1e-2)])
def test_means(dtype, tolerance, lengths):
    hidden = torch.randn(3, LENGTH + 3, 11).to(dtype)[:, 1:-2]  # the batch is not contiguous
    given = None if lengths is None else torch.tensor(lengths)
    windows = MeanPoolProjection(LENGTH, 5, num_heads=1).windows(LENGTH, given, 5)
    assert kernels.suits_embedding_bag(hidden) and not kernels.suits_embedding_bag(hidden.half())
    rows = zip(hidden, windows.positions.expand(3, -1, -1), windows.real.expand(3, -1, -1), strict=True)
    expected = [
        torch.stack([text[at[kept]].double().sum(0) / max(1, int(kept.sum())) for at, kept in zip(*row, strict=True)])
        for text, *row in rows
    ]
    with kernels.plain():
        products = windows.means(hidden)
    for got in (kernels.window_means(hidden, *windows), windows.means(hidden), products):
        assert got.dtype == dtype
        torch.testing.assert_close(got.double(), torch.stack(expected), rtol=tolerance, atol=tolerance)
