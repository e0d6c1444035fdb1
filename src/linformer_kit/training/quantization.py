"""Quantisation-aware training: linear maps that round their weights and inputs to int8, as the exported model will.

Source: Jacob et al. 2018 (arXiv 1712.05877), by torchao. The weights stay in floating point, and gradients pass through
the rounding unchanged.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.quantizers.base import get_keys_to_not_convert

from linformer_kit.errors import InputError


def round_to_int8(model: PreTrainedModel) -> None:
    """Let the linear maps that `linformer export --int8 --format torch` quantises round as it does, in-place.

    Weights are rounded for each output channel, inputs for each token. The parameters keep their names and values, so
    the model is saved as any other.

    Raises:
        InputError: without torchao.
    """
    torchao = _torchao()
    rounded = torchao.quantization.qat.IntxFakeQuantizeConfig
    config = torchao.quantization.qat.QATConfig(
        activation_config=rounded(torch.int8, "per_token", is_symmetric=False),
        weight_config=rounded(torch.int8, "per_channel", is_symmetric=True),
        step="prepare",
    )
    kept = {*get_keys_to_not_convert(model)}
    torchao.quantization.quantize_(
        model, config, filter_fn=lambda module, name: isinstance(module, nn.Linear) and name not in kept
    )


def _torchao() -> Any:
    try:
        import torchao.quantization.qat
    except ImportError:
        raise InputError("quantization_aware: expected torchao (pip install linformer-kit[int8]), got none") from None
    return torchao
