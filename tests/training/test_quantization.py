"""Quantisation-aware training: what is rounded, how, and that a trained model is saved as any other."""

from __future__ import annotations

import builtins
import copy

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from linformer_kit import InputError, LinformerConfig, LinformerForMaskedLM, LinformerForSequenceClassification
from linformer_kit.training.engine import Engine
from linformer_kit.training.quantization import round_to_int8
from tests.training.conftest import small_settings
from tests.training.test_engine import task

pytest.importorskip("torchao")

SIZES = {
    "max_position_embeddings": 37,
    "projected_dim": 8,
    "num_hidden_layers": 2,
    "hidden_size": 24,
    "num_attention_heads": 2,
    "intermediate_size": 29,
    "vocab_size": 101,
}
IDS = torch.arange(5, 34)[None]


def rounded(values: torch.Tensor) -> torch.Tensor:
    """Each row as the nearest multiples of its largest absolute value over 127.5."""
    scale = values.abs().amax(-1, keepdim=True) / 127.5
    return (values / scale).round().clamp(-128, 127) * scale


def test_weights_and_inputs_of_linear_maps_are_rounded():
    model = LinformerForSequenceClassification(LinformerConfig(**SIZES)).eval()
    whole = copy.deepcopy(model)
    round_to_int8(model)
    map_ = model.linformer.encoder.layers[0].fc1
    steps = torch.arange(-128, 128)[:: 255 // 23].tolist()
    inputs = torch.tensor([[*steps[:23], 127]]) / 127.5  # 255 steps from the least to the largest, so all are kept
    expected = inputs @ rounded(map_.weight).T + map_.bias
    difference = (inputs @ map_.weight.T + map_.bias - expected).abs().mean()
    assert (map_(inputs) - expected).abs().mean() < 0.1 * difference  # an outermost weight may be one step off
    with torch.no_grad():
        ours, theirs = model(IDS).logits, whole(IDS).logits
    assert 0 < (ours - theirs).abs().max() < 0.1 * theirs.abs().max()
    model(IDS).logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_what_the_export_leaves_is_left():
    model = LinformerForMaskedLM(LinformerConfig(**SIZES))
    round_to_int8(model)
    kinds = {name: type(module) for name, module in model.named_modules()}
    assert kinds["lm_head.decoder"] is torch.nn.Linear
    assert kinds["linformer.encoder.layers.1.self_attn.k_proj"] is not torch.nn.Linear


def test_a_trained_model_is_saved_as_any_other(tmp_path):
    model = LinformerForSequenceClassification(LinformerConfig(**SIZES))
    names = [*model.state_dict()]
    round_to_int8(model)
    model.save_pretrained(tmp_path)
    saved = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert [*saved.state_dict()] == names == [*model.state_dict()]
    assert type(saved.linformer.encoder.layers[0].fc1) is torch.nn.Linear


def test_the_setting_rounds_the_model():
    found = task()
    Engine(found, small_settings())
    assert "Fake" not in str(found.model)
    Engine(found, small_settings(quantization_aware=True))
    assert "Fake" in str(found.model)


def test_without_torchao(monkeypatch):
    real = builtins.__import__

    def imported(name, *others):
        if name.startswith("torchao"):
            raise ImportError(name)
        return real(name, *others)

    monkeypatch.setattr(builtins, "__import__", imported)
    with pytest.raises(InputError, match=r"quantization_aware: expected torchao \(pip install linformer-kit\[int8\]\)"):
        round_to_int8(LinformerForMaskedLM(LinformerConfig(**SIZES)))
