"""Windows against hand-computed ones."""

from __future__ import annotations

import torch

from linformer_kit.operator.projections.windows import pooling_windows


def test_stretched_windows_are_as_wide_as_the_text_needs():
    """Not as the longest text needs: a text of 9 tokens costs a model of n 4,096 what it costs one of n 9."""
    assert pooling_windows(4, 4096, 9, stretch=True).positions.shape == (1, 4, 3)
    assert pooling_windows(4, 4096, 9, torch.tensor([3, 9]), stretch=True).positions.shape == (2, 4, 3)
    assert pooling_windows(4, 4096, 0, stretch=True).positions.shape == (1, 0, 1)
