"""Adapters: the list of those that ship, and how one is trained.

Instead of all weights, low-rank changes of the layers' linear maps are trained, and E and F.

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

from linformer_cli.errors import renamed
from linformer_cli.settings import AdaptersSettings, DistillSettings, LinearizeSettings, model_label
from linformer_kit.files.manifest import read_json, write_manifest
from linformer_kit.linearized.adapter import (
    ABOUT,
    PREFIX,
    WEIGHTS,
    Adapter,
    adapter_folder,
    base_fingerprint,
    learned_parameters,
    shipped_adapters,
)
from linformer_kit.linearized.classes import LinearizedModel
from linformer_kit.report.base import table
from linformer_kit.report.card import CARD, license_of
from linformer_kit.report.training import adapter_card
from linformer_kit.training.tracing import layer_names

_COLUMNS = ["adapter", "base model", "licence", "n", "k", "cosine", "MB"]
_SCALE = 2  # factor of B·A: PEFT's lora_alpha / r
_NAME = "default"  # PEFT's name of the only adapter
LOW_RANK = ".lora_"  # part of the names of A and B


def main(settings: AdaptersSettings) -> None:
    """Print the adapters as a table, or the card of one."""
    if settings.card is not None:
        with renamed("adapter", "card"):
            print((adapter_folder(settings.card) / CARD).read_text(encoding="utf-8"), end="")
        return
    rows = []
    for name, folder in shipped_adapters().items():
        about = read_json(folder / ABOUT)
        base, student = about["base_model"], about["distillation"]["student"]
        cosine = about["distillation"]["curve"]["cosine"][-1][1]
        sizes = f"{student['seq_len']:,}", str(student["projected_dim"])
        megabytes = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
        rows.append([name, base["name"], base["license"], *sizes, f"{cosine:.3f}", f"{megabytes:.1f}"])
    print("\n".join(table(_COLUMNS, rows)))
    compared = "similarity of the embeddings of the adapted model to those of the base model, mean over held-out texts"
    print(f"\nCosine: {compared}.\nIn Python:")
    print(f'  model = lk.linearize(SentenceTransformer("{rows[0][1]}"), adapter="{rows[0][0]}")')


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
    license = license_of(settings.model, download=True) or "unknown"
    name = model_label(settings.model)
    names = [field.name for field in dataclasses.fields(LinearizeSettings)]
    assert settings.adapter_rank is not None
    # As resolved, so that they stay what they are if defaults change.
    resolved = {name: student.config.linformer[name] for name in ("projected_dim", "shorter_input", "global_tokens")}
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
