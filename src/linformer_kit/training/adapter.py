"""Train an adapter instead of all weights: low-rank changes of the layers' linear maps, and E and F.

Source of the low-rank changes: Hu et al. 2021 (arXiv 2106.09685), by PEFT.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, inject_adapter_in_model
from safetensors.torch import save_file
from torch import nn
from transformers import PreTrainedModel

from linformer_cli.settings import DistillSettings, LinearizeSettings, model_label
from linformer_kit.files.manifest import write_manifest
from linformer_kit.linearized.adapter import (
    ABOUT,
    PREFIX,
    WEIGHTS,
    Adapter,
    base_fingerprint,
    learned_parameters,
)
from linformer_kit.linearized.classes import LinearizedModel
from linformer_kit.models.card import CARD, license_of
from linformer_kit.report.training import adapter_card
from linformer_kit.training.tracing import layer_names

_SCALE = 2  # factor of B·A: PEFT's lora_alpha / r
_NAME = "default"  # PEFT's name of the only adapter
LOW_RANK = ".lora_"  # part of the names of A and B


def add_adapter(student: LinearizedModel, rank: int) -> None:
    """Give each linear map of the layers a change B·A of low rank, in-place; all other weights are frozen.

    E and F, which the teacher does not have, are trained as a whole.
    """
    base = student.base_model
    inject_adapter_in_model(_configuration(student, rank, None), base)
    learned = learned_parameters(base)
    for name, parameter in student.named_parameters():
        parameter.requires_grad_(LOW_RANK in name)
    for parameter in learned.values():
        parameter.requires_grad_(True)


def made_adapter(student: LinearizedModel, teacher: PreTrainedModel, settings: DistillSettings) -> Adapter:
    """The adapter of a trained student, rounded to bfloat16; `teacher` is the base model."""
    weights = {
        name.replace(f".{_NAME}.", "."): parameter.detach().to("cpu", torch.bfloat16).contiguous()
        for name, parameter in student.base_model.named_parameters()
        if parameter.requires_grad
    }
    license = license_of(settings.teacher, download=True) or "unknown"
    name = model_label(settings.teacher)
    names = [field.name for field in dataclasses.fields(LinearizeSettings)]
    # As resolved, so that they stay what they are if defaults change.
    resolved = {name: student.config.linformer[name] for name in ("projected_dim", "global_tokens")}
    about = {
        "base_model": {"name": name, "fingerprint": base_fingerprint(teacher), "license": license},
        "linearize": {name: getattr(settings, name) for name in names} | resolved,
    }
    return Adapter(name, _configuration(student, settings.adapter_rank, name), weights, about)


def write_adapter(adapter: Adapter, results: dict[str, Any], folder: Path) -> None:
    """Write an adapter as a folder in PEFT's format, with the results of its distillation."""
    folder.mkdir()
    adapter.config.save_pretrained(str(folder))
    save_file({PREFIX + name: tensor for name, tensor in adapter.weights.items()}, folder / WEIGHTS)
    about = adapter.about | {"distillation": results}
    (folder / ABOUT).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    (folder / CARD).write_text(adapter_card(about), encoding="utf-8")
    write_manifest(folder)


def _configuration(student: LinearizedModel, rank: int, base_model: str | None) -> LoraConfig:
    """PEFT's configuration of the adapter; for a saved one with the name of the base model."""
    layers = tuple(f"{name}." for name in layer_names(student.attention_names()))
    linear = [
        name.removesuffix(".base_layer")
        for name, module in student.base_model.named_modules()
        if name.startswith(layers) and isinstance(module, nn.Linear) and LOW_RANK not in name
    ]
    return LoraConfig(
        r=rank,
        lora_alpha=_SCALE * rank,
        lora_dropout=0.0,
        target_modules=linear,
        base_model_name_or_path=base_model,
        inference_mode=base_model is not None,
    )
