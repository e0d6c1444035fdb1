"""Outputs of the encoder are part of the autograd graph, for all kinds of padding."""

from __future__ import annotations

import pytest
import torch

from linformer_kit import LinformerForMaskedLM, LinformerModel
from linformer_kit.operator import padding as paddings
from linformer_kit.operator.kernels import plain
from tests.conftest import KINDS, fields, of_shorter, randomise, tokens

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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ["right", "left", "holes"])
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


@pytest.mark.parametrize("sharing", ["none", "layerwise"])
def test_gradients_of_weights_of_heads_with_unequal_slots(config, sharing):
    model = randomise(LinformerModel(config(sharing=sharing, projected_dim=[[7, 3, 5], [2, 7, 3]]))).double().eval()
    ids = tokens(2, 31)
    with torch.no_grad():
        expected = model(ids).last_hidden_state
    out = model(ids, **BOTH)
    torch.testing.assert_close(out.last_hidden_state, expected)
    for weights in out.attentions:
        weights.retain_grad()
    out.last_hidden_state.pow(3).sum().backward()
    for weights, dims in zip(out.attentions, ([7, 3, 5], [2, 7, 3]), strict=True):
        for head, dim in enumerate(dims):
            assert weights.grad[:, head, :, :dim].all() and not weights[:, head, :, dim:].any()


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


@pytest.mark.parametrize("kind", ["headwise", "local"])
def test_right_padding_is_not_sorted(config, kind, monkeypatch):
    model = randomise(LinformerModel(config(**fields(kind)))).eval()
    ids, mask = tokens(1, 31), padded("right")
    with plain(), torch.no_grad():
        expected = model(ids, mask).last_hidden_state
    sorted_masks = []

    def watched(padding_mask):
        sorted_masks.append(padding_mask)
        return padding_mask.int().argsort(dim=1, stable=True)

    monkeypatch.setattr(paddings, "real_tokens_first", watched)
    with torch.no_grad():
        torch.testing.assert_close(model(ids, mask).last_hidden_state[:, :TOKENS], expected[:, :TOKENS])
        assert not sorted_masks
        model(ids, mask.flip(1))
    assert len(sorted_masks) == 1  # once for all layers


@pytest.mark.parametrize("kind", ["headwise", "conv", "local"])
@pytest.mark.e2e
@pytest.mark.unchecked
def test_compiled_for_padding_anywhere(config, kind):
    """No graph depends on where padding stands."""
    model = randomise(LinformerForMaskedLM(config(**fields(kind)))).eval()
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    ids = tokens(1, 31)
    for where in ("right", "left", "holes"):
        mask = padded(where)
        with torch._dynamo.config.patch(error_on_recompile=where != "right"):
            ours = compiled(ids, mask, **BOTH)
        eager = model(ids, mask, **BOTH)
        for found, expected in zip(ours.hidden_states, eager.hidden_states, strict=True):
            torch.testing.assert_close(found[mask == 1], expected[mask == 1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["headwise", "local", "local_full"])
@torch.no_grad()
def test_states_of_a_large_batch_with_holes(config, kind):
    """More tokens than one block of inference."""
    model = randomise(LinformerModel(config(intermediate_size=1543, **fields(kind)))).eval()
    ids, mask = tokens(37, 31), padded("holes").expand(37, -1)
    shown, expected = model(ids, mask, output_hidden_states=True), model(ids, mask)
    torch.testing.assert_close(
        shown.last_hidden_state[mask == 1], expected.last_hidden_state[mask == 1], rtol=1e-4, atol=1e-4
    )
