"""float32 through another library is the same map, gradients too."""

from __future__ import annotations

import contextlib
import gc

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from linformer_kit import LinformerAttention, LinformerModel
from linformer_kit.operator import kernels
from linformer_kit.operator.kernels import choose, fast
from linformer_kit.operator.kernels.processor import Processor
from tests.conftest import tokens, values_of
from tests.operator.kernels.inputs import prefer_onednn


@pytest.mark.parametrize("batch", [0, 1, 3])
@pytest.mark.parametrize("fast", [True, False])
def test_compress(monkeypatch, batch, fast):
    prefer_onednn(monkeypatch, fast)
    matrix, hidden = torch.randn(31, 337, requires_grad=True), torch.randn(batch, 337, 149, requires_grad=True)
    compressed = choose(hidden).compress(matrix, hidden)
    expected = torch.einsum("kn,bnd->bkd", matrix.double(), hidden.double())
    torch.testing.assert_close(compressed.double(), expected, rtol=1e-5, atol=1e-4)
    for ours, plain in zip(
        torch.autograd.grad(compressed.sum(), (matrix, hidden)),
        torch.autograd.grad(expected.sum(), (matrix, hidden)),
        strict=True,
    ):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-4)


def feed_forward(dtype=torch.float64, *, bias=True):
    """Two maps with GELU between them, and their input."""
    torch.manual_seed(0)
    first, second = nn.Linear(7, 29, bias=bias, dtype=dtype), nn.Linear(29, 11, bias=bias, dtype=dtype)
    return first, second, torch.randn(2, 13, 7, dtype=dtype, requires_grad=True)


class InFloat32(nn.Linear):
    """As adapters compute."""

    def forward(self, inputs):
        return super().forward(inputs).float()


MAPS = ["", "q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"]
MIXED = [{}, {"sliding_window": 3}, {"attention": "full"}]


@pytest.mark.parametrize(("name", "fields"), values_of(MAPS, MIXED))
def test_mixed_precision_has_the_gradients_of_the_plain_operations(config, fields, name):
    """Also where a map returns float32."""
    model, ids, found = LinformerModel(config(**fields)), tokens(2, 13), []
    layer = model.encoder.layers[0]
    if name:
        parent = layer if name.startswith("fc") else layer.self_attn
        old = getattr(parent, name)
        setattr(parent, name, InFloat32(old.in_features, old.out_features))
    for context in (contextlib.nullcontext(), kernels.plain()):
        with torch.autocast("cpu", torch.bfloat16), context:
            output = model(ids).last_hidden_state
        found.append(torch.autograd.grad(output.float().square().sum(), list(layer.fc1.parameters())))
    torch.testing.assert_close(*found, rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    ("trained", "bias"), [("all", True), ("inputs", False), ("first", True), ("second.bias", True)]
)
def test_feed_forward(monkeypatch, trained, bias):
    """Outputs, gradients of those parameters that have one, and gradients of gradients; GELU is computed again."""
    first, second, inputs = feed_forward(bias=bias)
    wanted = {"inputs": [inputs], "first": [*first.parameters()], "second": [*second.parameters()]}
    wanted |= {
        "all": [tensor for part in wanted.values() for tensor in part],
        "second.bias": [second.bias] if bias else [second.weight],
    }
    for tensor in wanted["all"]:
        tensor.requires_grad_(any(tensor is other for other in wanted[trained]))
    calls, gelu = [], F.gelu
    monkeypatch.setattr(fast.F, "gelu", lambda hidden: calls.append(1) or gelu(hidden))
    output = choose(inputs).feed_forward(first, second, inputs)
    torch.autograd.grad(output.sum(), wanted[trained], retain_graph=True)
    assert len(calls) == (2 if second.weight.requires_grad else 1)
    expected = second(F.gelu(first(inputs)))
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-14)
    upstream = torch.randn_like(output).requires_grad_()
    results = []
    for result in (output, expected):
        first_order = torch.autograd.grad(result, wanted[trained], upstream, create_graph=True)
        total = sum(part.square().sum() for part in first_order)
        second_order = torch.autograd.grad(
            total, [*wanted[trained], upstream], allow_unused=True, materialize_grads=True
        )
        results.append((*first_order, *second_order))
    torch.testing.assert_close(*results, rtol=0, atol=1e-10)


def test_checkpointing_keeps_nothing_of_a_feed_forward():
    """Tensors that are alive after a forward pass: the inputs of the layers, not one of the width between the maps."""
    first, second, inputs = feed_forward()
    hidden = inputs
    for _ in range(3):
        hidden = checkpoint(choose(hidden).feed_forward, first, second, hidden, use_reentrant=False)
        hidden = F.pad(hidden, (0, -4))
    gc.collect()
    alive = [each for each in gc.get_objects() if isinstance(each, torch.Tensor) and each.shape == (2, 13, 29)]
    assert hidden.requires_grad and not alive


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_maps_without_gradients(monkeypatch, dtype, bias):
    """With and without GELU, as exact as torch's own in the same number format."""
    if dtype == torch.bfloat16 and not Processor.here().attends_by_products:
        pytest.skip("not on this processor")
    prefer_onednn(monkeypatch)
    module = nn.Linear(31, 37, bias=bias).to(dtype)
    inputs = torch.randn(3, 347, 31).to(dtype)
    asked = []
    real = fast.onednn_linear
    monkeypatch.setattr(fast, "onednn_linear", lambda *a, **gelu: asked.append(gelu) or real(*a, **gelu))
    parts = [None if part is None else part.double() for part in (module.weight, module.bias)]
    exact = F.linear(inputs.double(), *parts)
    with torch.no_grad():
        for gelu, right in ((False, exact), (True, F.gelu(exact))):
            plain = F.gelu(module(inputs)) if gelu else module(inputs)
            error, allowed = (
                (got.double() - right).abs().max().item()
                for got in (choose(inputs).apply_linear(module, inputs, gelu=gelu), plain)
            )
            assert error <= 3 * allowed
    assert asked == ([{"gelu": False}, {"gelu": True}] if bias or dtype == torch.float32 else [])
    assert choose(inputs).apply_linear(module, inputs, gelu=True).grad_fn is not None
    with kernels.plain(), torch.no_grad():
        assert torch.equal(choose(inputs).apply_linear(module, inputs), module(inputs))


@pytest.mark.parametrize("way", ["is_grads_batched", "vmap"])
@pytest.mark.parametrize("options", [{}, {"sliding_window": 4, "global_tokens": 1}])
def test_many_gradients_of_a_layer_at_once(options, way):
    attention = LinformerAttention(12, 3, 32, 5, **options).double()
    feed = nn.Linear(12, 17).double(), nn.Linear(17, 12).double()
    x = torch.randn(2, 9, 12, dtype=torch.float64, requires_grad=True)
    output = choose(x).feed_forward(*feed, attention(x, x, x)[0])
    given = (x, *(part for part in attention.parameters() if part.requires_grad), *feed[1].parameters())
    upstream = torch.randn(3, *output.shape, dtype=torch.float64)
    if way == "vmap":
        batched = torch.func.vmap(lambda grad: torch.autograd.grad(output, given, grad, retain_graph=True))(upstream)
    else:
        batched = torch.autograd.grad(output, given, upstream, retain_graph=True, is_grads_batched=True)
    for index, grad in enumerate(upstream):
        single = torch.autograd.grad(output, given, grad, retain_graph=True)
        torch.testing.assert_close([part[index] for part in batched], [*single], rtol=0, atol=1e-10)
