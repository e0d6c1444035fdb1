"""Export to int8 for PyTorch: torchao's linear layers, saved as safetensors that `from_pretrained` loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torchao.quantization import Int8DynamicActivationInt8WeightConfig
from transformers import TorchAoConfig

from linformer_kit.errors import InputError, input_errors
from linformer_kit.export.agreement import cases, difference, random_inputs
from linformer_kit.export.exportable import ENCODER, Exportable, Made, Source
from linformer_kit.settings import ExportSettings

_INT8 = "PyTorch int8"


def make(settings: ExportSettings, source: Source, folder: Path) -> Made:
    """Write the model with int8 weights per channel; inputs of linear layers are quantised dynamically per token.

    Raises:
        InputError: for a model that torchao cannot quantise, or whose outputs change when it is loaded again.
    """
    case = cases(source.limit)[-1]
    inputs = random_inputs(source, case)
    with input_errors(f"int8: expected a model that torchao can quantise, got {settings.model}"):
        config = TorchAoConfig(Int8DynamicActivationInt8WeightConfig())
        made = _loaded(source.exportable, settings.model, quantization_config=config)
        before = made.run(inputs)
        made.model.save_pretrained(folder)
        written = _loaded(source.exportable, str(folder))
    if difference(made, inputs, written.run(inputs), before) != 0:
        raise InputError(f"int8: expected equal outputs for {case} when loaded again, got others")
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    return Made({_INT8: written.run}, {_INT8: size}, None)


def _loaded(exportable: Exportable, name: str, **arguments: Any) -> Exportable:
    auto_class = exportable.head.auto_class
    # As in `interop.loading`: the pooler's output is not used.
    ours = exportable.head == ENCODER and exportable.model.config.model_type == "linformer"
    bare: dict[str, Any] = {"add_pooling_layer": False} if ours else {}
    model = auto_class.from_pretrained(
        name, dtype=torch.float32, use_safetensors=True, trust_remote_code=False, **bare, **arguments
    )
    return Exportable(model, exportable.head, exportable.input_names)
