"""Blocks of tokens give the same result as all tokens at once, and are used only where this is unobservable."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import linformer_kit as lk
from linformer_kit.models.modeling import Inputs
from linformer_kit.operator.kernels import FastKernels
from tests.conftest import SIZES, some_padding

KINDS = [
    {"projection": "conv", "sharing": "layerwise"},
    {"projection": "mean_pool", "shorter_input": "stretch", "projected_dim": [11, 5]},
    {"local_convolution": 5, "norm_first": True, "attention": "full"},
    {"sliding_window": 5, "sharing": "none", "projected_dim": [[7, 5, 3], [2, 2, 4]]},
    {"sliding_window": 2, "local_convolution": 5, "norm_first": True, "bias_order": "after_projection"},
    {"causal": True, "attention": ["linformer", "full"], "sliding_window": 6, "projection": "mean_pool"},
]


def model_of(**fields):
    torch.manual_seed(0)
    return lk.LinformerModel(lk.LinformerConfig(**{**SIZES, **fields})).double().eval()


@pytest.mark.parametrize("mask", [None, some_padding(31)], ids=["whole", "padded"])
@pytest.mark.parametrize("fields", KINDS, ids=str)
@pytest.mark.e2e
def test_blocks_of_tokens_give_what_the_whole_gives(small_blocks, fields, mask):
    model = model_of(**fields)
    ids = torch.randint(5, 101, (3, 31))
    whole = model(ids, mask)
    real = slice(None) if mask is None else mask.bool()
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            blocked = model(ids, mask)
        assert torch.allclose(blocked.last_hidden_state[real], whole.last_hidden_state[real], rtol=0, atol=1e-11)


def test_inputs_are_never_overwritten(small_blocks):
    model = model_of()
    embeds = torch.randn(2, 31, 33, dtype=torch.float64)
    given = embeds.clone()
    with torch.no_grad():
        first = model(inputs_embeds=embeds).last_hidden_state
    assert torch.equal(embeds, given)
    whole = model(inputs_embeds=embeds).last_hidden_state  # with gradients: not in blocks
    torch.testing.assert_close(first, whole, rtol=0, atol=1e-12)


class Remembered(nn.Module):
    """Gives the same memory at each call, as a cache does."""

    def __init__(self, kept, inner):
        super().__init__()
        self.kept, self.weight = kept.detach(), getattr(inner, "weight", None)
        self.word_embeddings = getattr(inner, "word_embeddings", None)

    def forward(self, *_):
        return self.kept


@pytest.mark.parametrize("name", ["word_embeddings", "embeddings"])
def test_memory_of_others_is_not_overwritten(small_blocks, name):
    model = model_of()
    ids, owner = torch.randint(5, 101, (1, 31)), model if name == "embeddings" else model.embeddings
    inner = getattr(owner, name)
    kept = inner(ids if name == "word_embeddings" else Inputs(ids, torch.arange(31)[None], None, None, None))
    setattr(owner, name, Remembered(kept, inner))
    before = kept.clone()
    with torch.no_grad():
        first = model(ids).last_hidden_state
        expected = first.clone()
        assert torch.equal(model(ids).last_hidden_state, expected)
    assert torch.equal(kept, before) and torch.equal(first, expected)


class LargestTensor(TorchDispatchMode):
    """The most elements of any tensor that is made, and the memories of that many."""

    def __init__(self):
        super().__init__()
        self.memories = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.memories[tensor.untyped_storage().data_ptr()] = (
                    tensor.untyped_storage().nbytes() // tensor.itemsize
                )
        return result


@pytest.mark.e2e
def test_inference_holds_the_hidden_states_once(small_blocks):
    """Of everything that grows with the text only the hidden states themselves are as large as they are."""
    model = model_of(max_position_embeddings=997, projected_dim=3, intermediate_size=131)
    ids = torch.randint(5, 101, (1, 997))
    with torch.no_grad(), LargestTensor() as largest:
        model(ids)
    assert sorted(largest.memories.values())[-1] == 997 * 33
    assert sum(size > 997 * 33 // 2 for size in largest.memories.values()) == 1


@pytest.mark.parametrize("what", ["fc1", "q_proj", "self_attn"])
def test_replaced_parts_run(small_blocks, what):
    """Patched, so that they give twice as much."""
    model = model_of()
    ids = torch.randint(5, 101, (1, 31))
    before = model(ids).last_hidden_state
    for layer in model.encoder.layers:
        part = layer.self_attn.q_proj if what == "q_proj" else getattr(layer, what)
        whole = part.forward
        doubled = (lambda *a, whole=whole, **k: (2 * whole(*a, **k)[0], None)) if what == "self_attn" else None
        part.forward = doubled or (lambda *a, whole=whole: 2 * whole(*a))
    expected = model(ids).last_hidden_state
    assert not torch.allclose(expected, before, rtol=0, atol=1e-9)
    with torch.no_grad():
        assert torch.allclose(model(ids).last_hidden_state, expected, atol=1e-11)


def test_what_is_fast_is_used(monkeypatch):
    """Counts calls: no other test would notice that a fast implementation is never used."""
    calls = []
    for name in ("attention", "compress", "linear", "apply_linear", "feed_forward"):
        real = getattr(FastKernels, name)

        def record(*inputs, real=real, name=name, **options):
            calls.append(name)
            return real(*inputs, **options)

        monkeypatch.setattr(FastKernels, name, record)
    ids = torch.randint(5, 101, (1, 31))
    model_of()(ids)
    # Of the feed-forward layer both maps: the second is within its own backward pass.
    per_layer = {"attention": 1, "compress": 2, "linear": 3, "apply_linear": 3, "feed_forward": 1}
    assert {name: calls.count(name) for name in set(calls)} == {name: 2 * count for name, count in per_layer.items()}


@pytest.mark.e2e
def test_hooks_see_the_whole(small_blocks):
    """Hooks see all tokens at once, and tensors that they keep are not overwritten."""
    model = model_of()
    ids = torch.randint(5, 101, (2, 31))
    whole = model(ids)
    for name, part in model.named_modules():
        if not name or isinstance(part, nn.ModuleList):
            continue
        kept = []
        handle = part.register_forward_hook(
            lambda *a, kept=kept: kept.append((a[2], a[2].clone())) if isinstance(a[2], torch.Tensor) else None
        )
        with torch.no_grad():
            output = model(ids).last_hidden_state
        handle.remove()
        assert torch.allclose(output, whole.last_hidden_state, atol=1e-11)
        for value, copy in kept:
            assert torch.equal(value, copy), name
