"""Convert the official Linformer checkpoints of fairseq, and its RoBERTa checkpoints, without fairseq.

Source: fairseq, examples/linformer. The sequence is compressed before W_K and W_V, and biases are added after, so
`bias_order` is `after_projection`. Older files with other weight names are read too.
"""

from __future__ import annotations

import argparse
import logging
import os
import pickle
import re
from typing import Any

import torch
from torch import Tensor

from linformer_cli.errors import InputError, input_errors
from linformer_kit.internals import tied_weights
from linformer_kit.interop.loading import renamed_weights
from linformer_kit.models.configuration import LinformerConfig
from linformer_kit.models.heads import LinformerForMaskedLM
from linformer_kit.models.modeling import LinformerModel, LinformerPreTrainedModel

logger = logging.getLogger(__name__)

PADDING_INDEX = 1  # of every fairseq dictionary: positions begin after it
_LINFORMER = "encoder.sentence_encoder."

# Parts of older names and current ones, and of current names and ours, as for `renamed_weights`.
_OLD_NAMES = (("decoder.", "encoder."), (".emb_layer_norm.", ".layernorm_embedding."))
# Weights that no model needs: versions; with layerwise sharing, the copies in each layer and an unused bias.
_UNUSED = (r"\.version$", r"_float_tensor$", r"compress_(k|v|layer)\.bias$")
_NAMES = (
    ("encoder.sentence_encoder.", "linformer.encoder."),
    ("linformer.encoder.embed_tokens.", "linformer.embeddings.word_embeddings."),
    ("linformer.encoder.embed_positions.", "linformer.embeddings.position_embeddings."),
    ("linformer.encoder.layernorm_embedding.", "linformer.embeddings.layer_norm."),
    ("compress_layer.weight", "projection.key_projection"),
    ("compress_k.weight", "projection.key_projection"),
    ("compress_v.weight", "projection.value_projection"),
    ("encoder.lm_head.weight", "lm_head.decoder.weight"),
    ("encoder.lm_head.bias", "lm_head.decoder.bias"),
    ("encoder.lm_head.", "lm_head."),
)


def load_fairseq_checkpoint(path: str | os.PathLike[str]) -> LinformerPreTrainedModel:
    """Load an official Linformer (or RoBERTa) checkpoint as one of our models, with the same outputs.

    Args:
        path: The `.pt` file. It is a pickle: only tensors, plain containers and `argparse.Namespace` are allowed.

    Returns:
        `LinformerForMaskedLM`, or `LinformerModel` if the file has no such head; in evaluation mode. Classification
        heads are left out, with a warning. The tokenizer is not in the file (docs/pretraining.md).

    Raises:
        InputError: if the file is not such a checkpoint.
    """
    with input_errors(f"{path}: expected a fairseq checkpoint of a Linformer or RoBERTa, got another file"):
        weights, arguments = _read(str(path))
        left_out = [name for name in weights if "classification_heads." in name]
        weights = _current_names({name: tensor for name, tensor in weights.items() if name not in left_out})
        fields = _fields(weights, arguments)
    if fields.get("sharing") == "layerwise":
        weights = {name: tensor for name, tensor in weights.items() if ".self_attn.compress_" not in name}
    renamed = renamed_weights(weights, _NAMES)
    has_head = any(name.startswith("lm_head.") for name in renamed)
    if not has_head:
        renamed = {name.removeprefix("linformer."): tensor for name, tensor in renamed.items()}
    model_class = LinformerForMaskedLM if has_head else LinformerModel
    expected = f"{path}: expected weights of {model_class.__name__}"
    for name, tensor in renamed.items():
        if not tensor.isfinite().all():
            raise InputError(f"{expected}: got NaN or infinite numbers in {name}")
    with input_errors(str(path)):
        model = model_class(LinformerConfig(**fields))
    new = model.state_dict()
    with input_errors(expected):
        model.load_state_dict({name: new[name] for name in tied_weights(model) & new.keys()} | renamed)
    if left_out:
        names = sorted({name.rpartition(".")[0] for name in left_out})
        logger.warning("%s: not in the result: %s", path, ", ".join(names))
    return model.eval()


def _read(source: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Weights and arguments of the model, from files with `args` or with `cfg`."""
    with torch.serialization.safe_globals([argparse.Namespace]):
        try:
            content = torch.load(source, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError:
            # torch's message suggests `weights_only=False`, which is unsafe for untrusted files.
            raise ValueError("its pickle is broken or holds disallowed objects") from None
    arguments = content.get("args") or content["cfg"]["model"]
    return content["model"], vars(arguments) if isinstance(arguments, argparse.Namespace) else arguments


def _current_names(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights under current names, without unneeded ones, with fused W_Q, W_K and W_V split."""
    current = {}
    for name, tensor in renamed_weights(weights, _OLD_NAMES).items():
        name = re.sub(r"\.layers\.\d+\.shared_compress_layer\.", ".compress_layer.", name)
        if any(re.search(pattern, name) for pattern in _UNUSED):
            continue
        if fused := re.fullmatch(r"(.*\.self_attn\.)in_proj_(weight|bias)", name):
            for part, third in zip("qkv", tensor.chunk(3), strict=True):
                current[f"{fused[1]}{part}_proj.{fused[2]}"] = third.clone()
        else:
            current[name] = tensor
    return current


def _fields(weights: dict[str, Tensor], arguments: dict[str, Any]) -> dict[str, Any]:
    """Fields of the configuration: sizes from the weights, the rest from the arguments."""
    tokens = weights[f"{_LINFORMER}embed_tokens.weight"]
    vocab_size, hidden_size = tokens.shape
    positions, inner = (weights[f"{_LINFORMER}{name}.weight"] for name in ("embed_positions", "layers.0.fc1"))
    longest = positions.shape[0] - PADDING_INDEX - 1
    layers = {int(match[1]) for match in (re.search(r"\.layers\.(\d+)\.", name) for name in weights) if match}
    return {
        "num_attention_heads": arguments["encoder_attention_heads"],
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "num_hidden_layers": len(layers),
        "intermediate_size": inner.shape[0],
        "hidden_act": arguments.get("activation_fn", "gelu"),
        "hidden_dropout_prob": arguments.get("dropout", 0.1),
        "attention_probs_dropout_prob": arguments.get("attention_dropout", 0.1),
        "classifier_dropout": arguments.get("pooler_dropout"),
        "max_position_embeddings": longest,
        "projected_dim": min(LinformerConfig().projected_dim, longest),
        "position_offset": PADDING_INDEX + 1,
        "layer_norm_eps": 1e-5,
        "bias_order": "after_projection",
        "attention": "full",
        "tie_word_embeddings": torch.equal(weights.get("encoder.lm_head.weight", tokens), tokens),
        **_projection_fields(weights),
    }


def _projection_fields(weights: dict[str, Tensor]) -> dict[str, Any]:
    """n, k and the sharing, read from the compression matrices; empty for a RoBERTa."""
    name, sharing = f"{_LINFORMER}compress_layer.weight", "layerwise"
    if name not in weights:
        name = f"{_LINFORMER}layers.0.self_attn.compress_k.weight"
        sharing = "headwise" if f"{_LINFORMER}layers.0.self_attn.compress_v.weight" in weights else "key_value"
    if name not in weights:
        return {}
    projected_dim, longest = weights[name].shape
    return {
        "attention": "linformer",
        "sharing": sharing,
        "projected_dim": projected_dim,
        "max_position_embeddings": longest,
    }
