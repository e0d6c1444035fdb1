"""The four linear maps are called, never read, so that attachments and replacements take effect.

The reference calls them on every token, as encoders with full attention do, and projects what they return, one head and
one sequence at a time.
"""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
import torch.nn.functional as F
from accelerate import cpu_offload, dispatch_model
from peft import IA3Config, LoraConfig, inject_adapter_in_model
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

import linformer_kit as lk
from linformer_kit import LinformerAttention
from linformer_kit.operator.projections import PROJECTIONS
from linformer_kit.operator.reference import AttentionWeights
from tests.conftest import SHARINGS, fields, pairs_of, randomise, some_padding, tokens
from tests.reference.attention import projected_attention_reference

EMBED, HEADS, N, K = 33, 3, 31, 7
MAPS = ("q_proj", "k_proj", "v_proj", "out_proj")


class FakeQuantizedLinear(nn.Linear):
    """Weights and inputs rounded to steps of 1/8, gradients straight through, as in quantisation-aware training."""

    def forward(self, inputs: Tensor) -> Tensor:
        return F.linear(self._rounded(inputs), self._rounded(self.weight), self.bias)

    @staticmethod
    def _rounded(tensor: Tensor) -> Tensor:
        return tensor + ((tensor * 8).round() / 8 - tensor).detach()


def each_map(change):
    def attach(layer: LinformerAttention) -> None:
        for name in MAPS:
            setattr(layer, name, change(getattr(layer, name)) or getattr(layer, name))

    return attach


def adapted(config):
    def attach(layer: LinformerAttention) -> None:
        inject_adapter_in_model(config, layer)
        with torch.no_grad():
            for name, parameter in layer.named_parameters():
                if "lora" in name or "ia3" in name:  # LoRA's B starts at zero and would hide mistakes
                    parameter.copy_(torch.randn_like(parameter) * 0.3)
        layer.double()

    return attach


def pruned(linear: nn.Linear) -> None:
    prune.l1_unstructured(linear, "weight", amount=0.5)
    with torch.no_grad():  # as an update or `load_state_dict` does; `weight` itself is stale until the map is called
        linear.weight_orig.mul_(1.5)


def fake_quantized(linear: nn.Linear) -> nn.Linear:
    quantized = FakeQuantizedLinear(linear.in_features, linear.out_features, dtype=torch.float64)
    quantized.load_state_dict(linear.state_dict())
    return quantized


def replaced(linear: nn.Linear) -> None:
    forward = linear.forward
    linear.forward = lambda inputs: forward(inputs).tanh()


def by_position(linear: nn.Linear) -> None:
    """As adapters and patches of activations that know where a token stands."""
    positions = torch.linspace(-1, 1, N, dtype=torch.float64)[:, None]
    linear.register_forward_hook(lambda _, given, output: output + positions[: output.shape[1]])


LORA = {"r": 5, "target_modules": list(MAPS)}
ATTACHED = {
    "lora": adapted(LoraConfig(**LORA)),
    "ia3": adapted(IA3Config(target_modules=list(MAPS), feedforward_modules=["out_proj"])),
    "pruned": each_map(pruned),
    "parametrized": each_map(lambda linear: parametrizations.weight_norm(linear) and None),
    "fake_quantized": each_map(fake_quantized),
    "replaced": each_map(replaced),
    "by_position": each_map(by_position),
}


def build(**arguments) -> LinformerAttention:
    given = {"max_seq_len": N, "projected_dim": K} | arguments
    return randomise(LinformerAttention(EMBED, HEADS, **given)).double()


def reference(layer: LinformerAttention, inputs: Tensor, mask: Tensor | None) -> Tensor:
    """Equation 7 of what the maps return for every token."""
    assert layer.projection is not None
    key, value = layer.k_proj(inputs), layer.v_proj(inputs)
    whole = torch.eye(EMBED, dtype=inputs.dtype)
    weights = AttentionWeights(whole, whole, whole, whole, None, None, None, None)
    dims, mapped = layer.projection.head_dims, (layer.q_proj(inputs), key, value)
    return layer.out_proj(projected_attention_reference(layer.projection, dims, mapped, weights, inputs, mask))


def compare(layer: LinformerAttention, inputs: Tensor, mask: Tensor | None) -> None:
    """Outputs and gradients of all parameters; both draw the same numbers where something is drawn."""
    real = slice(None) if mask is None else ~mask
    results = []
    parameters = [parameter for parameter in layer.parameters() if parameter.requires_grad]
    for call in (lambda: layer(inputs, inputs, inputs, mask)[0], lambda: reference(layer, inputs, mask)):
        torch.manual_seed(1)
        output = call()[real]
        gradients = torch.autograd.grad(output.square().sum(), [inputs, *parameters])
        results.append([output, *gradients])
    names = [name for name, parameter in layer.named_parameters() if parameter.requires_grad]
    # Of a sum that is zero but for rounding (the key bias under mean pooling), the terms say how large rounding is.
    most = max(plain.abs().max().item() for plain in results[1])
    for name, ours, plain in zip(("output", "inputs", *names), *results, strict=True):
        torch.testing.assert_close(
            ours, plain, rtol=1e-9, atol=1e-11 * most, msg=lambda said, name=name: f"{name} {said}"
        )


@pytest.mark.parametrize(("sharing", "attached", "projection"), pairs_of(SHARINGS, ATTACHED, PROJECTIONS))
def test_what_is_attached_is_obeyed(sharing, attached, projection):
    layer = build(projection=projection, sharing=sharing)
    before = copy.deepcopy(layer).eval()
    ATTACHED[attached](layer)
    inputs = torch.randn(3, 23, EMBED, dtype=torch.float64, requires_grad=True)
    with_padding = some_padding(23) == 0
    if attached == "by_position":  # maps see real tokens first
        with_padding[1:] = False
    for training, mask in itertools.product((True, False), (None, with_padding)):
        layer.train(training)
        compare(layer, inputs, mask)
    plain = before(inputs, inputs, inputs)[0]
    if attached != "parametrized":  # the same weights in another form
        assert not torch.allclose(layer(inputs, inputs, inputs)[0], plain, rtol=1e-3)


@pytest.mark.parametrize(("projection", "attached"), [("linear", "lora"), ("mean_pool", "parametrized")])
def test_the_bias_that_comes_later_is_what_the_map_gives_for_zero(attached, projection):
    """E·(X·W) + 1·b of the merged weights."""
    layer, merged = (build(projection=projection, bias_order="after_projection") for _ in range(2))
    ATTACHED[attached](layer)
    merged.projection.load_state_dict(layer.projection.state_dict())
    with torch.no_grad():
        for name in MAPS:
            called, plain = getattr(layer, name), getattr(merged, name)
            plain.bias.copy_(called(torch.zeros(EMBED, dtype=torch.float64)))
            plain.weight.copy_((called(torch.eye(EMBED, dtype=torch.float64)) - plain.bias).T)
    for length in (N, 23, 5):
        inputs = torch.randn(3, length, EMBED, dtype=torch.float64)
        torch.testing.assert_close(layer(inputs, inputs, inputs)[0], merged(inputs, inputs, inputs)[0])


@pytest.mark.parametrize("projection", [*PROJECTIONS, None])
def test_recording_hooks_see_every_token_once_and_change_nothing(projection):
    sizes = {"max_seq_len": None, "projected_dim": None} if projection is None else {}
    layer = build(projection=projection, **sizes)
    inputs = torch.randn(2, 23, EMBED, dtype=torch.float64)
    before, seen = layer(inputs, inputs, inputs)[0], []
    for name in MAPS:
        getattr(layer, name).register_forward_hook(
            lambda _, given, output, name=name: seen.append((name, output.shape))
        )
    torch.testing.assert_close(layer(inputs, inputs, inputs)[0], before)
    assert sorted(seen) == sorted((name, (2, 23, EMBED)) for name in MAPS)


@pytest.mark.parametrize("kind", ["layerwise", "random", "window"])
def test_offloaded_models_give_what_they_gave(config, kind, tmp_path):
    model = randomise(lk.LinformerForMaskedLM(config(**fields(kind)))).eval()
    ids = tokens(2, 31)
    mask = torch.ones_like(ids)
    mask[0, 19:] = 0
    with torch.no_grad():
        before = model(ids, mask).logits
        offloaded = cpu_offload(copy.deepcopy(model), execution_device="cpu")
        assert all(parameter.is_meta for parameter in offloaded.parameters())
        torch.testing.assert_close(offloaded(ids, mask).logits, before)
        places = {"linformer.embeddings": "cpu", "linformer.encoder": "disk", "lm_head": "cpu"}
        spread = dispatch_model(model, places, main_device="cpu", offload_dir=tmp_path, force_hooks=True)
        torch.testing.assert_close(spread(ids, mask).logits, before)
