"""Outputs of the encoder are part of the autograd graph, for all kinds of padding."""

from __future__ import annotations

import pytest
import torch

from linformer_kit import LinformerModel
from tests.conftest import KINDS, fields, of_shorter, randomise, tokens, values_of

BOTH = {"output_hidden_states": True, "output_attentions": True}
TOKENS = 19


def padded(where: str) -> torch.Tensor:
    """A mask of 31 positions with 19 real tokens."""
    mask = torch.zeros(31, dtype=torch.long)
    places = {"right": slice(None, TOKENS), "left": slice(-TOKENS, None)}
    mask[places.get(where) or torch.randperm(31)[:TOKENS]] = 1
    return mask[None]


def gradients(model: LinformerModel, ids: torch.Tensor, mask: torch.Tensor | None = None) -> list[torch.Tensor]:
    """Of all hidden states and weights, for a loss that reads real tokens only."""
    out = model(ids, mask, **BOTH)
    shown = [*out.hidden_states, *out.attentions]
    for tensor in shown:
        tensor.retain_grad()
    last = out.last_hidden_state if mask is None else out.last_hidden_state[mask == 1][None]
    last.pow(3).sum().backward()
    assert all(tensor.grad is not None for tensor in shown)
    return [tensor.grad for tensor in shown]


@pytest.mark.parametrize(("kind", "where"), values_of(KINDS, ["right", "left", "holes"]))
def test_gradients_are_retained(config, kind, where):
    """Those of the same text without padding, and none at padding."""
    model = randomise(LinformerModel(config(**fields(kind)))).double().eval()
    mask = padded(where)
    real = mask == 1
    ids = tokens(1, 31)
    states = model.config.num_hidden_layers + 1
    alone, beside = gradients(model, ids[real][None]), gradients(model, ids, mask)
    for ours, theirs in zip(beside[:states], alone[:states], strict=True):
        assert theirs.any()
        torch.testing.assert_close(ours[real], theirs[0])
        assert not ours[~real].any()
    for ours, theirs in zip(beside[states:], alone[states:], strict=True):
        ours = ours[0][:, real[0]]
        ours = ours[..., real[0]] if model.config.attention == "full" else of_shorter(ours, theirs, model.config)
        assert theirs.any()
        torch.testing.assert_close(ours, theirs[0])


@pytest.mark.parametrize("projected_dim", [7, [[7, 3, 5], [2, 7, 3]]])
def test_weights_are_those_before_dropout(config, projected_dim):
    model = LinformerModel(config(projected_dim=projected_dim, attention_probs_dropout_prob=0.5)).train()
    out = model(tokens(2, 31), output_attentions=True)
    for weights in out.attentions:
        weights.retain_grad()
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, 31))
    out.last_hidden_state.pow(3).sum().backward()
    # Half of them were dropped, and what was dropped has no gradient.
    assert all(0.3 < (weights.grad[:, 0, :, :2] == 0).float().mean() < 0.7 for weights in out.attentions)
