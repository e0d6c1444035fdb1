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
