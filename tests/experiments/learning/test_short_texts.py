"""Short texts in models for long ones: padded batches, and slots that no token reaches."""

from __future__ import annotations

import pytest
import torch

import linformer_kit as lk
from linformer_kit.experiments.learning import short_texts
from linformer_kit.operator.projections.starts import spread_order
from linformer_kit.training.metrics import mean_token_loss


def test_short_texts_are_padded_and_measured_as_alone(config):
    """The loss of padded sentences is the mean, over their tokens, of their losses without padding."""
    rows = [{"input_ids": torch.arange(5, 5 + n), "labels": torch.arange(5, 5 + n)} for n in (11, 17)]
    batch = short_texts._padded(rows)
    model = lk.LinformerForMaskedLM(config()).eval()
    together = mean_token_loss(model, [batch], bf16=False)
    alone = [mean_token_loss(model, [{k: v[None] for k, v in row.items()}], bf16=False) for row in rows]
    assert together == pytest.approx((11 * alone[0] + 17 * alone[1]) / 28, rel=1e-5)


def test_slots_that_no_token_has_reached_are_masked(config):
    """6 tokens of 36 reach windows 0 and 1 of 9, and those alone are attended to."""
    model = lk.LinformerModel(config(max_position_embeddings=36, projected_dim=9, num_hidden_layers=1))
    (projection,) = model.encoder.projections
    seen = []
    projection.register_forward_hook(short_texts._mask_unreached)
    projection.register_forward_hook(lambda _, inputs, slots: seen.append(slots[0].empty))
    ids = torch.randint(5, 101, (2, 11))
    mask = torch.ones_like(ids)
    mask[0, 6:] = 0
    model(ids, mask), model(ids)
    reached = [[row for row, slot in enumerate(spread_order(9)) if slot * 4 < length] for length in (6, 11)]
    assert [(~row).nonzero().flatten().tolist() for row in seen[0]] == reached
    assert [(~row).nonzero().flatten().tolist() for row in seen[1]] == reached[1:]
    assert list(map(len, reached)) == [2, 3]
