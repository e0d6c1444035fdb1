"""Convert RoBERTa, and the models of the same architecture (XLM-RoBERTa, CamemBERT), to Linformers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import transformers
from torch import Tensor
from transformers import PreTrainedConfig

from linformer_kit.errors import InputError
from linformer_kit.interop.checkpoints.build import Converted, build_model, linformer_config, reading, resize
from linformer_kit.interop.checkpoints.pretrained import Weights, check_pretrained_folder, check_size, read_config
from linformer_kit.interop.loading import lost_weights
from linformer_kit.linearized.classes import LinearizedConfig, linear_model_class, stock_name
from linformer_kit.linearized.fields import EXACT
from linformer_kit.models.heads import (
    LinformerForMaskedLM,
    LinformerForQuestionAnswering,
    LinformerForSequenceClassification,
    LinformerForTokenClassification,
)
from linformer_kit.models.modeling import LinformerModel, LinformerPreTrainedModel
from linformer_kit.settings import ResizeMode, is_local_path

# Model type: prefix of its class names.
MODEL_TYPES = {"roberta": "Roberta", "xlm-roberta": "XLMRoberta", "camembert": "Camembert"}

# Suffix of their class names: our class.
CLASSES: dict[str, type[LinformerPreTrainedModel]] = {
    "ForMaskedLM": LinformerForMaskedLM,
    "ForSequenceClassification": LinformerForSequenceClassification,
    "ForTokenClassification": LinformerForTokenClassification,
    "ForQuestionAnswering": LinformerForQuestionAnswering,
    "Model": LinformerModel,
}

# Their parameter names and ours, in the order of replacement; names that stay the same are omitted.
ENCODER_NAMES = (
    ("attention.self.linformer.", "self_attn.projection."),
    *((f"linformer.{name}", f"encoder.projection.{name}") for name in ("key_projection", "matrix")),
    ("embeddings.LayerNorm", "embeddings.layer_norm"),
    ("encoder.layer.", "encoder.layers."),
    ("attention.self.query", "self_attn.q_proj"),
    ("attention.self.key", "self_attn.k_proj"),
    ("attention.self.value", "self_attn.v_proj"),
    ("attention.output.dense", "self_attn.out_proj"),
    ("attention.output.LayerNorm", "self_attn_layer_norm"),
    ("intermediate.dense", "fc1"),
    ("output.dense", "fc2"),
    ("output.LayerNorm", "final_layer_norm"),
    ("pooler.dense", "pooler"),
)
_NAMES = (*ENCODER_NAMES, ("roberta.", "linformer."), ("lm_head.bias", "lm_head.decoder.bias"))


_OF_PROJECTIONS = ("projected_dim", "sharing", "projection", "projection_initializer", "shorter_input")


class Encoder(NamedTuple):
    """Result of `read_encoder`."""

    config: PreTrainedConfig
    class_name: str
    weights: dict[str, Tensor]
    left_out: list[str]


def load_roberta_checkpoint(
    source: str | os.PathLike[str], *, resize_mode: ResizeMode = "extend", **fields: Any
) -> LinformerPreTrainedModel:
    """Load a RoBERTa (XLM-RoBERTa, CamemBERT) as a Linformer: all its weights are kept, E and F are new.

    Args:
        source: Folder or hub id.
        resize_mode: How positions are resized for another max_position_embeddings: repeated (`extend`) or stretched
            (`interpolate`).
        fields: Fields of `LinformerConfig` that the source does not decide: projected_dim, sharing, projection, …
            With `attention="full"` the result is the source's model in our classes, with equal outputs.

    Returns:
        The model, in evaluation mode, of the class that corresponds to the source's; n is the source's longest input
        (its position table less the unused rows) unless max_position_embeddings is given. New E and F are untrained:
        continue training before use.

    Raises:
        InputError: if the source is not a complete model of this kind, or a field does not fit.
    """
    return convert_roberta(source, fields, resize_mode).model


def convert_roberta(source: str | os.PathLike[str], fields: dict[str, Any], resize_mode: ResizeMode) -> Converted:
    """As `load_roberta_checkpoint`, with the names of the weights left out."""
    config, class_name, weights, left_out = read_encoder(source, MODEL_TYPES, CLASSES)
    if class_name == "ForMaskedLM" and config.hidden_act != "gelu":
        # Their head always uses gelu; ours uses the activation of the layers.
        raise InputError(f"{source}: expected hidden_act gelu in a masked language model, got {config.hidden_act}")
    if config.pad_token_id is None:
        raise InputError(f"{source}: expected a pad_token_id (positions begin after it), got None")
    model = build_linear(
        source,
        config,
        CLASSES[class_name],
        rename(weights, _NAMES),
        offset=config.pad_token_id + 1,
        fields=fields,
        resize_mode=resize_mode,
    )
    return Converted(model, left_out, learned=isinstance(config, LinearizedConfig))


def model_type(source: str) -> str:
    """Model type of a folder or hub id.

    Raises:
        InputError: if there is no model.
    """
    return _read_config(source)[0].model_type


def base_model_type(source: str) -> str:
    """Model type of a folder or hub id; for a model linearised in place, that of the original."""
    return _base(_read_config(source)[0])


def _base(config: Any) -> str:
    return config.linformer["base_model_type"] if isinstance(config, LinearizedConfig) else config.model_type


def read_encoder(source: str | os.PathLike[str], model_types: Mapping[str, str], classes: dict[str, Any]) -> Encoder:
    """Read a model with transformers' own class; a class name is a value of `model_types` and a key of `classes`.

    Raises:
        InputError: if it is of another kind, incomplete, or has parts that a Linformer lacks.
    """
    source = str(source)
    config, size = _read_config(source)
    if (base := _base(config)) not in model_types:
        raise InputError(f"{source}: expected a model of type {', '.join(model_types)}, got {base}")
    known = {model_types[base] + end: end for end in classes}
    architecture = next(iter(config.architectures or []), "none")
    linear = isinstance(config, LinearizedConfig)
    if linear:
        architecture = stock_name(architecture)
    if architecture not in known:
        raise InputError(f"{source}: expected architectures in config.json of {', '.join(known)}, got {architecture}")
    _check_attention(source, config)
    if linear and (full := config.linformer["full_layers"]):
        raise InputError(
            f"{source}: expected a model whose layers are all linear, got full attention in {', '.join(full)}"
        )
    what, model_class = f"source: expected a pretrained encoder, got {source}", getattr(transformers, architecture)
    if linear:
        config_class: Any = type(config)
        model_class = linear_model_class(model_class, config_class)
    if size is not None:
        check_size(size, lambda: model_class(config), what)
    with reading(what):
        loaded, info = model_class.from_pretrained(source, output_loading_info=True, use_safetensors=True)
    missing = {name for name in info["missing_keys"] if not name.startswith("pooler.")}
    if missing:
        raise InputError(f"{source}: expected all weights of {architecture}, got none for {min(missing)}")
    if lost := lost_weights(loaded, info["unexpected_keys"]):
        raise InputError(f"{source}: expected weights of {architecture}, got {lost[0]} as well")
    weights = {name: tensor for name, tensor in loaded.state_dict().items() if name not in info["missing_keys"]}
    left_out = [name for name in info["unexpected_keys"] if not name.endswith("position_ids")]
    return Encoder(config, known[architecture], weights, left_out)


def rename(weights: dict[str, Tensor], names: Sequence[tuple[str, str]]) -> dict[str, Tensor]:
    """Rename weights by replacing parts of their names, one pair after the other."""
    renamed = {}
    for name, tensor in weights.items():
        for theirs, ours in names:
            name = name.replace(theirs, ours)
        renamed[name] = tensor
    return renamed


def build_linear(
    source: str | os.PathLike[str],
    config: Any,
    model_class: type[LinformerPreTrainedModel],
    weights: dict[str, Tensor],
    *,
    offset: int,
    fields: dict[str, Any],
    resize_mode: ResizeMode,
) -> LinformerPreTrainedModel:
    """Build the Linformer of transformers' configuration and renamed weights; `offset` is that of its positions."""
    same = (
        "vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size hidden_act hidden_dropout_prob "
        "attention_probs_dropout_prob classifier_dropout type_vocab_size initializer_range layer_norm_eps pad_token_id "
        "bos_token_id eos_token_id tie_word_embeddings problem_type id2label label2id trained_columns"
    )
    kept = {name: getattr(config, name, None) for name in same.split()}
    kept["max_position_embeddings"] = config.max_position_embeddings - offset
    kept["position_offset"] = offset
    kept["pooler"] = "pooler.weight" in weights
    for name in ("bos_token_id", "eos_token_id"):  # unused ones may lie outside the vocabulary
        if kept[name] not in range(config.vocab_size):
            kept[name] = None
    if isinstance(config, LinearizedConfig):
        own = {name: config.linformer[name] for name in (*_OF_PROJECTIONS, *EXACT)}
        if own["projection"] == "dynamic":
            weights = _before_maps(str(source), weights)
        wanted = dict(fields)
        longest = wanted.pop("max_position_embeddings", None)
        model = build_model(
            model_class, linformer_config(str(source), kept | own, wanted), weights, str(source), new_projections=False
        )
        if longest is not None:
            resize(model, longest, resize_mode)
        return model
    made = linformer_config(str(source), kept, fields)
    if made.max_position_embeddings != kept["max_position_embeddings"]:
        # Resize the model with full attention, so that E and F start as in any model of the new length.
        full = linformer_config(str(source), kept, {"attention": "full"})
        model = build_model(model_class, full, weights, str(source), new_projections=False)
        resize(model, made.max_position_embeddings, resize_mode)
        weights = model.state_dict()
    return build_model(model_class, made, weights, str(source), new_projections=True)


def _before_maps(source: str, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """W_P for the tokens before W_K instead of the mapped ones: W_K·W_P, since the bias has no effect in the softmax.

    Raises:
        InputError: for one W_P of all layers, whose products with the W_K of each layer differ.
    """
    changed = dict(weights)
    for name, matrix in weights.items():
        owner, found, _ = name.rpartition("projection.key_projection")
        if found and f"{owner}k_proj.weight" not in weights:
            raise InputError(
                f"{source}: expected a dynamic projection with its own W_P in each layer (W_P must be multiplied by "
                "the W_K of each layer), got sharing layerwise"
            )
        if found:
            product = matrix.double() @ weights[f"{owner}k_proj.weight"].double()
            changed[name] = product.to(matrix.dtype)
    return changed


def _read_config(source: str) -> tuple[Any, Weights | None]:
    """The configuration and, for a folder, the size of the weights."""
    folder, weights = Path(source), None
    if is_local_path(source):
        if not folder.is_dir():
            raise InputError(
                f"source: expected a folder, a hub id or a fairseq file, got {folder}, which does not exist"
            )
        weights = check_pretrained_folder(folder, "source")
    return read_config(source, f"source: expected a pretrained encoder, got {source}"), weights


def _check_attention(source: str, config: PreTrainedConfig) -> None:
    kind = getattr(config, "position_embedding_type", None) or "absolute"
    if kind != "absolute":
        raise InputError(f"{source}: expected position_embedding_type absolute, got {kind}")
    if getattr(config, "is_decoder", False) or getattr(config, "add_cross_attention", False):
        raise InputError(f"{source}: expected an encoder, got a decoder")
