"""The head runs on the masked tokens, and on so many others that the sizes of tensors repeat."""

from __future__ import annotations

import pytest
import torch

from linformer_kit import LinformerConfig, LinformerForMaskedLM
from linformer_kit.settings import IGNORED_LABEL
from linformer_kit.training.tasks import masked_language_model
from tests.conftest import randomise


@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 600])
def test_the_number_of_predicted_tokens_is_a_multiple(count):
    labels = torch.full((3, 200), IGNORED_LABEL)
    chosen = torch.randperm(600)[:count]
    labels.view(-1)[chosen] = 5
    positions = masked_language_model._predicted_positions(labels)
    assert len(positions) == min(600, -(-count // 256) * 256)
    assert torch.equal(positions[:count], chosen.sort().values) and len(set(positions.tolist())) == len(positions)


def test_the_other_tokens_add_nothing(monkeypatch):
    model = randomise(
        LinformerForMaskedLM(
            LinformerConfig(
                vocab_size=53,
                hidden_size=12,
                num_hidden_layers=1,
                num_attention_heads=3,
                intermediate_size=7,
                max_position_embeddings=31,
                projected_dim=5,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
            )
        )
    ).double()
    ids = torch.randint(5, 53, (3, 31))
    labels = torch.where(torch.rand(3, 31) < 0.3, ids, IGNORED_LABEL)
    results = []
    for multiple in (1, 64):
        monkeypatch.setattr(masked_language_model, "_PREDICTED", multiple)
        positions = masked_language_model._predicted_positions(labels)
        loss = model(input_ids=ids, labels=labels, predicted_positions=positions).loss
        results.append([loss, *torch.autograd.grad(loss, [*model.parameters()])])
    for exact, padded in zip(*results, strict=True):
        torch.testing.assert_close(padded, exact, rtol=1e-10, atol=1e-12)
