"""Losses and entropies against values by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from linformer_kit import LinformerForMaskedLM
from linformer_kit.training.metrics import masked_token_losses, unigram_entropy
from tests.conftest import randomise, tokens


def test_unigram_entropy_by_hand():
    blocks = [np.array([[0, 5, 5, 2]]), np.array([[0, 7, 9, 2]])]
    assert unigram_entropy(blocks, vocab_size=11, special_ids=[0, 2]) == pytest.approx(1.5 * math.log(2))


def test_sums_are_those_of_the_model(config):
    model = randomise(LinformerForMaskedLM(config())).eval()
    ids = tokens(3, 31)
    labels = ids.masked_fill(torch.rand(3, 31) > 0.3, -100)
    labels[1] = -100
    sums, counts = masked_token_losses(model, ids, labels)
    assert counts.tolist() == (labels != -100).sum(dim=1).tolist() and counts[1] == 0
    torch.testing.assert_close(sums.sum() / counts.sum(), model(ids, labels=labels).loss)
    torch.testing.assert_close(sums[2] / counts[2], model(ids[2:], labels=labels[2:]).loss)
