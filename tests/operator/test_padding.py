"""Padding as one object: its view of a mask, and that a model makes it once per forward pass."""

from __future__ import annotations

import pytest
import torch

from linformer_kit import LinformerModel
from linformer_kit.operator import padding as paddings
from tests.conftest import fields, randomise, tokens


@pytest.mark.parametrize("where", ["right", "holes"])
@pytest.mark.parametrize("kind", ["layerwise", "mean_pool", "window_norm_first", "full"])
def test_a_model_makes_it_once(config, kind, where, monkeypatch):
    """Not in each layer, not even where each layer has to put real tokens first for itself."""
    model = randomise(LinformerModel(config(**fields(kind), num_hidden_layers=3))).eval()
    sorts, checks = [], []
    for name, calls in (("real_tokens_first", sorts), ("_is_right_padded", checks)):
        real = getattr(paddings, name)
        monkeypatch.setattr(paddings, name, lambda mask, real=real, calls=calls: calls.append(1) or real(mask))
    mask = torch.ones(2, 31, dtype=torch.long)
    mask[0, 19:] = 0
    mask[1, 7:11] = int(where == "right")
    model(tokens(2, 31), mask, output_hidden_states=True)
    ordered = kind != "full"
    assert len(checks) == ordered and len(sorts) == (ordered and where == "holes")
