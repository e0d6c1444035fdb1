"""Convert BERT and RoBERTa (XLM-RoBERTa, CamemBERT) to Linformers: the same architecture under other names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedConfig

from linformer_cli.errors import InputError, renamed
from linformer_cli.settings import ResizeMode
from linformer_kit.interop.checkpoints.build import Converted, build_model, linformer_config
from linformer_kit.interop.checkpoints.pretrained import read_config
from linformer_kit.interop.loading import auto_class_of, load_pretrained, loaded, resize
from linformer_kit.models.heads import (
    LinformerForMaskedLM,
    LinformerForQuestionAnswering,
    LinformerForSequenceClassification,
    LinformerForTokenClassification,
)
from linformer_kit.models.modeling import LinformerModel, LinformerPreTrainedModel

ENCODER = "a pretrained encoder"  # in errors
# Model type: prefix of its class names.
_ROBERTA = {"roberta": "Roberta", "xlm-roberta": "XLMRoberta", "camembert": "Camembert"}
_BERT = {"bert": "Bert"}
MODEL_TYPES = {**_ROBERTA, **_BERT}

# Suffix of their class names: our class.
_CLASSES: dict[str, type[LinformerPreTrainedModel]] = {
    "ForMaskedLM": LinformerForMaskedLM,
    "ForSequenceClassification": LinformerForSequenceClassification,
    "ForTokenClassification": LinformerForTokenClassification,
    "ForQuestionAnswering": LinformerForQuestionAnswering,
    "Model": LinformerModel,
}
_BERT_CLASSES: dict[str, type[LinformerPreTrainedModel]] = {"ForPreTraining": LinformerForMaskedLM, **_CLASSES}

# Parts of their parameter names and ours, in the order of replacement; names that stay the same are omitted.
_Names = tuple[tuple[str, str], ...]
_ENCODER_NAMES: _Names = (
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
)
_ROBERTA_NAMES: _Names = (*_ENCODER_NAMES, ("roberta.", "linformer."), ("lm_head.bias", "lm_head.decoder.bias"))
_BERT_NAMES: _Names = (
    *_ENCODER_NAMES,
    ("bert.", "linformer."),
    ("cls.predictions.transform.dense", "lm_head.dense"),
    ("cls.predictions.transform.LayerNorm", "lm_head.layer_norm"),
    ("cls.predictions.bias", "lm_head.decoder.bias"),
    ("cls.predictions.decoder", "lm_head.decoder"),
)
# BERT's pooler and classifier together are RoBERTa's classification head.
_BERT_CLASSIFIER_NAMES: _Names = (
    *_BERT_NAMES,
    ("classifier", "classifier.out_proj"),
    ("linformer.pooler.dense", "classifier.dense"),
)

# Fields of the configuration that have the same name in ours.
_SAME = (
    "vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size hidden_act hidden_dropout_prob "
    "attention_probs_dropout_prob classifier_dropout type_vocab_size initializer_range layer_norm_eps pad_token_id "
    "bos_token_id eos_token_id tie_word_embeddings problem_type id2label label2id trained_columns"
)


def load_roberta_checkpoint(
    source: str | os.PathLike[str], *, resize_mode: ResizeMode = "extend", **fields: Any
) -> LinformerPreTrainedModel:
    """Load a RoBERTa (XLM-RoBERTa, CamemBERT) as a Linformer: its weights except a pooler's are kept, E and F are new.

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
    return convert_encoder(source, fields, resize_mode, _ROBERTA).model


def load_bert_checkpoint(
    source: str | os.PathLike[str], *, resize_mode: ResizeMode = "extend", **fields: Any
) -> LinformerPreTrainedModel:
    """Load a BERT as a Linformer: its weights except a pooler's are kept, E and F are new.

    Of a `BertForPreTraining` the masked language model is kept; the next-sentence head is left out.

    Args, Returns, Raises: as `load_roberta_checkpoint`.
    """
    return convert_encoder(source, fields, resize_mode, _BERT).model


def convert_encoder(
    source: str | os.PathLike[str],
    fields: dict[str, Any],
    resize_mode: ResizeMode,
    model_types: Mapping[str, str] = MODEL_TYPES,
) -> Converted:
    """As `load_roberta_checkpoint`, for all or some of the model types, with the names of the weights left out."""
    source = str(source)
    with renamed("model", "source"):
        config: Any = read_config(source, f"model: expected {ENCODER}, got {source}")
        if config.model_type not in model_types:
            raise InputError(f"{source}: expected a model of type {', '.join(model_types)}, got {config.model_type}")
        _check_attention(source, config)
        prefix, classes = model_types[config.model_type], _BERT_CLASSES if config.model_type in _BERT else _CLASSES
        kinds = {prefix + end: end for end in classes}
        class_name = next(iter(config.architectures or []), "none")
        if class_name not in kinds:
            raise InputError(f"{source}: expected architectures in config.json of {', '.join(kinds)}, got {class_name}")
        model = load_pretrained(source, auto_class_of(source, ENCODER), ENCODER)
    kind, left_out = kinds[class_name], loaded(model).left_out
    weights = {name: tensor for name, tensor in model.state_dict().items() if name not in loaded(model).random}
    if config.model_type in _BERT:
        offset = 0
        names = _BERT_CLASSIFIER_NAMES if kind == "ForSequenceClassification" else _BERT_NAMES
    else:
        if kind == "ForMaskedLM" and config.hidden_act != "gelu":
            # Their head always uses gelu; ours uses the activation of the layers.
            raise InputError(f"{source}: expected hidden_act gelu in a masked language model, got {config.hidden_act}")
        if config.pad_token_id is None:
            raise InputError(f"{source}: expected a pad_token_id (positions begin after it), got None")
        offset, names = config.pad_token_id + 1, _ROBERTA_NAMES
    if kind in ("Model", "ForPreTraining"):
        unused = [name for name in weights if name.startswith(("pooler.", "bert.pooler.", "cls.seq_relationship."))]
        left_out = left_out + unused
        weights = {name: tensor for name, tensor in weights.items() if name not in unused}
    weights = {_renamed(name, names): tensor for name, tensor in weights.items()}
    kept = _kept_fields(config, offset)
    model_class = classes[kind]
    wanted = linformer_config(source, kept, fields)
    if wanted.max_position_embeddings != kept["max_position_embeddings"]:
        # Resize the model with full attention, so that E and F start as in any model of the new length.
        full = build_model(model_class, linformer_config(source, kept, {"attention": "full"}), weights, source)
        resize(full, wanted.max_position_embeddings, resize_mode, setting="max_position_embeddings")
        weights = full.state_dict()
    return Converted(build_model(model_class, wanted, weights, source, new_projections=True), left_out)


def _check_attention(source: str, config: PreTrainedConfig) -> None:
    kind = getattr(config, "position_embedding_type", None) or "absolute"
    if kind != "absolute":
        raise InputError(f"{source}: expected position_embedding_type absolute, got {kind}")
    if getattr(config, "is_decoder", False) or getattr(config, "add_cross_attention", False):
        raise InputError(f"{source}: expected an encoder, got a decoder")


def _renamed(name: str, names: _Names) -> str:
    for theirs, ours in names:
        name = name.replace(theirs, ours)
    return name


def _kept_fields(config: Any, offset: int) -> dict[str, Any]:
    """Fields of our configuration that the source decides; its positions begin at `offset`."""
    kept = {name: getattr(config, name, None) for name in _SAME.split()}
    for name in ("bos_token_id", "eos_token_id"):  # unused ones may lie outside the vocabulary
        if kept[name] not in range(config.vocab_size):
            kept[name] = None
    return kept | {"max_position_embeddings": config.max_position_embeddings - offset, "position_offset": offset}
