"""The plain implementation is used if code is transformed or mixes dtypes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from linformer_kit import LinformerAttention
from linformer_kit.operator.kernels import choose
from tests.operator.kernels.inputs import attention_inputs, prefer_onednn
from tests.operator.kernels.test_tokens import model_of


def test_transformed_functions_take_the_plain_way(monkeypatch):
    prefer_onednn(monkeypatch)
    weight = torch.randn(64, 512)
    inputs = torch.randn(3, 64, 512)
    mapped = torch.func.vmap(lambda rows: choose(rows).linear(rows, weight))(inputs)
    torch.testing.assert_close(mapped, F.linear(inputs, weight), rtol=1e-4, atol=1e-4)
    tensors, _ = attention_inputs((2, 3, 5, 7, 11), torch.bfloat16, "none")
    context = torch.func.vmap(lambda q, k, v: choose(q).attention(q[None], k[None], v[None])[0])(*tensors)
    torch.testing.assert_close(context, F.scaled_dot_product_attention(*tensors))


def test_training_in_mixed_precision():
    """Autocast brings bfloat16 to the attention and float32 to the parameters; gradients are those of torch's attention."""
    model = model_of(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0).float().train()
    ids = torch.randint(5, 101, (2, 31))
    gradients = []
    for enabled in (True, False):
        with torch.backends.mkldnn.flags(enabled=enabled), torch.autocast("cpu", torch.bfloat16):
            loss = model(ids).last_hidden_state.float().square().mean()
        gradients.append(torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad]))
    for ours, plain in zip(*gradients, strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, plain, rtol=0.1, atol=0.02 * plain.abs().max().item() + 1e-6)


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
