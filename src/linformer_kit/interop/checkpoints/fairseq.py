"""Convert the official Linformer checkpoints of fairseq, and its RoBERTa checkpoints, without fairseq.

Source: fairseq, examples/linformer. The sequence is compressed before W_K and W_V, and biases are added after, so
`bias_order` is `after_projection`. Older files with other weight names are read too.
"""

from __future__ import annotations

import argparse
import os
import re
from typing import Any

import torch
from torch import Tensor

from linformer_kit.errors import InputError
from linformer_kit.interop.checkpoints.build import Converted, build_model, linformer_config, reading
from linformer_kit.models.heads import LinformerForMaskedLM, LinformerForSequenceClassification
from linformer_kit.models.modeling import LinformerModel, LinformerPreTrainedModel

PADDING_INDEX = 1  # of every fairseq dictionary: positions begin after it
_LINFORMER = "encoder.sentence_encoder."

# Older weight names and current ones, as regular expressions.
_OLD_NAMES = (
    (r"^decoder\.", "encoder."),
    (r"\.emb_layer_norm\.", ".layernorm_embedding."),
    (r"\.layers\.\d+\.shared_compress_layer\.", ".compress_layer."),
)
# Weights that no model needs: versions; with layerwise sharing, the copies in each layer and an unused bias.
_UNUSED = (r"\.version$", r"_float_tensor$", r"compress_(k|v|layer)\.bias$")
_NAMES = (
    (r"^encoder\.sentence_encoder\.embed_tokens\.", "linformer.embeddings.word_embeddings."),
    (r"^encoder\.sentence_encoder\.embed_positions\.", "linformer.embeddings.position_embeddings."),
    (r"^encoder\.sentence_encoder\.segment_embeddings\.", "linformer.embeddings.token_type_embeddings."),
    (r"^encoder\.sentence_encoder\.layernorm_embedding\.", "linformer.embeddings.layer_norm."),
    (r"^encoder\.sentence_encoder\.compress_layer\.weight", "linformer.encoder.projection.key_projection"),
    (r"\.self_attn\.compress_k\.weight", ".self_attn.projection.key_projection"),
    (r"\.self_attn\.compress_v\.weight", ".self_attn.projection.value_projection"),
    (r"^encoder\.sentence_encoder\.", "linformer.encoder."),
    (r"^encoder\.lm_head\.(weight|bias)", r"lm_head.decoder.\1"),
    (r"^encoder\.lm_head\.", "lm_head."),
)


def load_fairseq_checkpoint(
    path: str | os.PathLike[str],
    *,
    num_attention_heads: int | None = None,
    classification_head: str | None = None,
) -> LinformerPreTrainedModel:
    """Load an official Linformer (or RoBERTa) checkpoint as one of our models, with the same outputs.

    Args:
        path: The `.pt` file. It is a pickle: only tensors, plain containers and `argparse.Namespace` are allowed.
        num_attention_heads: h, if the file does not hold it.
        classification_head: Name of the classification head to use instead of the masked language model's head.

    Returns:
        `LinformerForMaskedLM`, `LinformerForSequenceClassification` with a classification_head, or `LinformerModel`
        if the file has neither head; in evaluation mode.

    Raises:
        InputError: if the file is not such a checkpoint.
    """
    return convert_fairseq(str(path), num_attention_heads, classification_head).model


def convert_fairseq(source: str, num_attention_heads: int | None, classification_head: str | None) -> Converted:
    """As `load_fairseq_checkpoint`, with the names of the weights left out."""
    weights, arguments = _read(source)
    weights = _current_names(source, weights)
    model_class, weights, left_out = _take_head(source, weights, classification_head)
    fields = _fields(source, weights, arguments)
    fields["num_attention_heads"] = _heads(source, arguments, num_attention_heads)
    if model_class is LinformerForSequenceClassification:
        fields["num_labels"] = len(_weight(source, weights, "classifier.out_proj.weight"))
        pooled = arguments.get("pooler_activation_fn") or "tanh"
        if pooled != "tanh":
            raise InputError(f"{source}: expected pooler_activation_fn tanh in a classification head, got {pooled}")
    if fields.get("sharing") == "layerwise":
        weights = {name: tensor for name, tensor in weights.items() if ".self_attn.compress_" not in name}
    rows = fields["max_position_embeddings"] + fields["position_offset"]
    for name in [name for name in weights if name.endswith("embed_positions.weight")]:
        weights[name] = weights[name][:rows]  # E may be shorter than the table
    renamed = {_substitute(name, _NAMES): tensor for name, tensor in weights.items()}
    if model_class is LinformerModel:
        renamed = {name.removeprefix("linformer."): tensor for name, tensor in renamed.items()}
    config = linformer_config(source, fields, {})
    return Converted(build_model(model_class, config, renamed, source, new_projections=False), left_out, learned=True)


def _read(source: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Weights and arguments of the model, from files with `args` or with `cfg`."""
    if not os.path.isfile(source):
        raise InputError(f"{source}: expected a fairseq checkpoint, got no such file")
    wanted = f"{source}: expected a pickle of tensors and argparse.Namespace, got something else"
    with reading(wanted), torch.serialization.safe_globals([argparse.Namespace]):
        content = torch.load(source, map_location="cpu", weights_only=True)
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        raise InputError(f"{source}: expected a fairseq checkpoint with a model in it, got something else")
    weights = content["model"]
    if not all(isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in weights.items()):
        raise InputError(f"{source}: expected tensors by name in the model, got other things")
    arguments = content.get("args")
    if arguments is None and isinstance(content.get("cfg"), dict):
        arguments = content["cfg"].get("model")
    if isinstance(arguments, argparse.Namespace):
        arguments = vars(arguments)
    return dict(weights), arguments if isinstance(arguments, dict) else {}


def _current_names(source: str, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights under current names, without unneeded ones, with fused W_Q, W_K and W_V split."""
    current = {}
    for name, tensor in weights.items():
        name = _substitute(name, _OLD_NAMES)
        if any(re.search(pattern, name) for pattern in _UNUSED):
            continue
        fused = re.fullmatch(r"(.*\.self_attn\.)in_proj_(weight|bias)", name)
        if fused and tensor.dim() and len(tensor) % 3:
            raise InputError(f"{source}: expected a multiple of 3 rows in {name}, got {len(tensor)}")
        if fused and tensor.dim():
            for part, third in zip("qkv", tensor.chunk(3), strict=True):
                current[f"{fused[1]}{part}_proj.{fused[2]}"] = third.clone()
        else:
            current[name] = tensor
    return current


def _heads(source: str, arguments: dict[str, Any], num_attention_heads: int | None) -> int:
    said = arguments.get("encoder_attention_heads")
    heads = num_attention_heads if said is None else said
    if heads is None:
        raise InputError(f"{source}: expected num_attention_heads to be given (the file lacks it), got none")
    if num_attention_heads not in (None, heads):
        raise InputError(f"num_attention_heads: expected {said} (as in {source}) or none, got {num_attention_heads}")
    return heads


def _take_head(
    source: str, weights: dict[str, Tensor], classification_head: str | None
) -> tuple[type[LinformerPreTrainedModel], dict[str, Tensor], list[str]]:
    """The class of the model, the weights without those of other heads, and the names of the weights left out."""
    prefix = re.compile(r"(encoder\.)?classification_heads\.([^.]+)\.")
    names = sorted({match[2] for match in map(prefix.match, weights) if match})
    bodies = {name: tensor for name, tensor in weights.items() if not prefix.match(name)}
    if classification_head is None:
        has_head = any(name.startswith("encoder.lm_head.") for name in bodies)
        left_out = [name for name in weights if name not in bodies]
        return LinformerForMaskedLM if has_head else LinformerModel, bodies, left_out
    if classification_head not in names:
        raise InputError(
            f"classification_head: expected one of {', '.join(names) or 'none at all'} in {source}, "
            f"got {classification_head!r}"
        )
    body = {name: tensor for name, tensor in bodies.items() if not name.startswith("encoder.lm_head.")}
    left_out = [name for name in bodies if name not in body]
    for name, tensor in weights.items():
        match = prefix.match(name)
        if match and match[2] == classification_head:
            body[f"classifier.{name[match.end() :]}"] = tensor
        elif match:
            left_out.append(name)
    return LinformerForSequenceClassification, body, left_out


def _fields(source: str, weights: dict[str, Tensor], arguments: dict[str, Any]) -> dict[str, Any]:
    """Fields of the configuration: sizes from the weights, the rest from the arguments."""
    tokens, positions, inner = (
        _weight(source, weights, f"{_LINFORMER}{name}.weight")
        for name in ("embed_tokens", "embed_positions", "layers.0.fc1")
    )
    layers = {int(match[1]) for match in (re.search(r"\.layers\.(\d+)\.", name) for name in weights) if match}
    fields: dict[str, Any] = {
        "vocab_size": tokens.shape[0],
        "hidden_size": tokens.shape[1],
        "num_hidden_layers": len(layers),
        "intermediate_size": inner.shape[0],
        "hidden_act": arguments.get("activation_fn", "gelu"),
        "hidden_dropout_prob": arguments.get("dropout", 0.1),
        "attention_probs_dropout_prob": arguments.get("attention_dropout", 0.1),
        "classifier_dropout": arguments.get("pooler_dropout"),
        "max_position_embeddings": positions.shape[0] - PADDING_INDEX - 1,
        "position_offset": PADDING_INDEX + 1,
        "layer_norm_eps": 1e-5,
        "bias_order": "after_projection",
        "attention": "full",
        "tie_word_embeddings": True,
    }
    segments = f"{_LINFORMER}segment_embeddings.weight"
    if segments in weights:
        fields["type_vocab_size"] = len(_weight(source, weights, segments))
    output = weights.get("encoder.lm_head.weight")
    if output is not None:
        fields["tie_word_embeddings"] = torch.equal(output, tokens)
    return fields | _projection_fields(source, weights)


def _projection_fields(source: str, weights: dict[str, Tensor]) -> dict[str, Any]:
    """n, k and the sharing, read from the compression matrices; empty for a RoBERTa."""
    name, sharing = f"{_LINFORMER}compress_layer.weight", "layerwise"
    if name not in weights:
        name = f"{_LINFORMER}layers.0.self_attn.compress_k.weight"
        sharing = "headwise" if f"{_LINFORMER}layers.0.self_attn.compress_v.weight" in weights else "key_value"
    if name not in weights:
        return {}
    matrix = _weight(source, weights, name, ranks=(2, 3))
    if matrix.dim() == 3:  # not in the official code: the same format with a matrix for each head
        sharing = "none"
    projected_dim, longest = matrix.shape[-2:]
    return {
        "attention": "linformer",
        "sharing": sharing,
        "projected_dim": projected_dim,
        "max_position_embeddings": longest,
    }


def _weight(source: str, weights: dict[str, Tensor], name: str, *, ranks: tuple[int, ...] = (2,)) -> Tensor:
    """A weight by name; rejects a missing one or one with another number of dimensions."""
    if name not in weights:
        raise InputError(f"{source}: expected {name} in the model, got no such weight")
    if weights[name].dim() not in ranks:
        dimensions = " or ".join(map(str, ranks))
        raise InputError(f"{source}: expected {name} of {dimensions} dimensions, got {list(weights[name].shape)}")
    return weights[name]


def _substitute(name: str, patterns: tuple[tuple[str, str], ...]) -> str:
    for pattern, replacement in patterns:
        name = re.sub(pattern, replacement, name)
    return name
