"""Windows against hand-computed ones."""

from __future__ import annotations

import torch

from linformer_kit.operator.projections.windows import pooling_windows


def test_pooling_windows_by_hand():
    windows = pooling_windows(3, 7, 5, torch.tensor([5, 1]))
    assert windows.positions.shape == (2, 3, 3)
    held = [[row[real].tolist() for row, real in zip(*sample, strict=True)] for sample in zip(*windows, strict=True)]
    assert held == [[[0, 1], [2, 3], [4]], [[0], [], []]]
    assert windows.empty.tolist() == [[False, False, False], [False, True, True]]
    stretched = pooling_windows(3, 7, 5, torch.tensor([5, 2]), stretch=True)
    held = [[row[real].tolist() for row, real in zip(*sample, strict=True)] for sample in zip(*stretched, strict=True)]
    assert held == [[[0], [1, 2], [3, 4]], [[0], [1], []]]


def test_stretched_windows_are_as_wide_as_the_text_needs():
    """Not as the longest text needs: a text of 9 tokens costs a model of n 4,096 what it costs one of n 9."""
    assert pooling_windows(4, 4096, 9, stretch=True).positions.shape == (1, 4, 3)
    assert pooling_windows(4, 4096, 9, torch.tensor([3, 9]), stretch=True).positions.shape == (2, 4, 3)
    assert pooling_windows(4, 4096, 0, stretch=True).positions.shape == (1, 0, 1)
