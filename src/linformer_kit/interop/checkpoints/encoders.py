"""Convert encoders with full attention to Linformers: the same architecture, for BERT and RoBERTa under other names."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from transformers import PreTrainedConfig

from linformer_cli.errors import InputError, renamed
from linformer_cli.settings import ResizeMode, SlotSettings
from linformer_kit.interop.checkpoints.pretrained import read_config
from linformer_kit.interop.loading import Loaded, build_config, build_model, load_model, renamed_weights, resize
from linformer_kit.models.configuration import LinformerConfig
from linformer_kit.models.heads import (
    LinformerForMaskedLM,
    LinformerForQuestionAnswering,
    LinformerForSequenceClassification,
    LinformerForTokenClassification,
)
from linformer_kit.models.modeling import LinformerModel, LinformerPreTrainedModel

ENCODER = "a pretrained encoder"  # in errors
SLOT_FIELDS = tuple(field.name for field in dataclasses.fields(SlotSettings))
# Model type: prefix of its class names.
_PREFIXES = {
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
    "camembert": "Camembert",
    "bert": "Bert",
    LinformerConfig.model_type: "Linformer",
}
# Suffix of their class names: our class.
_CLASSES: dict[str, type[LinformerPreTrainedModel]] = {
    "ForMaskedLM": LinformerForMaskedLM,
    "ForPreTraining": LinformerForMaskedLM,
    "ForSequenceClassification": LinformerForSequenceClassification,
    "ForTokenClassification": LinformerForTokenClassification,
    "ForQuestionAnswering": LinformerForQuestionAnswering,
    "Model": LinformerModel,
}

# Parts of their names and ours, as for `renamed_weights`.
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
_KEPT = (
    "vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size hidden_act hidden_dropout_prob "
    "attention_probs_dropout_prob classifier_dropout type_vocab_size initializer_range layer_norm_eps pad_token_id "
    "bos_token_id eos_token_id tie_word_embeddings problem_type id2label label2id trained_columns"
)


def load_encoder_checkpoint(
    source: str | os.PathLike[str], *, resize_mode: ResizeMode = "extend", **fields: Any
) -> LinformerPreTrainedModel:
    """Load an encoder with full attention as a Linformer: its weights except a pooler's are kept, E and F are new.

    Args:
        source: Folder or hub id of a BERT, RoBERTa, XLM-RoBERTa or CamemBERT, or of a model of this package with full
            attention. Of a `BertForPreTraining` the masked language model is kept; the next-sentence head and its
            pooler are left out.
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
    with renamed("model", "source"):
        config = read_encoder_config(str(source))
        return convert_encoder(str(source), config, resize_mode=resize_mode, **fields).model


def read_encoder_config(source: str) -> PreTrainedConfig:
    """The configuration of an encoder, which is checked."""
    return read_config(source, f"model: expected {ENCODER}, got {source}")


def convert_encoder(source: str, config: PreTrainedConfig, *, resize_mode: ResizeMode, **fields: Any) -> Loaded:
    """As `load_encoder_checkpoint`, of an encoder with this configuration."""
    full, _, _, left_out = _full_attention(source, config)
    kept = {field.name: getattr(full.config, field.name) for field in dataclasses.fields(LinformerConfig)}
    for name in (*SLOT_FIELDS, "bias_order", "attention"):  # they say nothing of a model with full attention
        del kept[name]
    linear = build_config(source, {**kept, **fields})
    if linear.max_position_embeddings != full.config.max_position_embeddings:
        # Before E and F are built, which start as in any model of the new length.
        resize(full, linear.max_position_embeddings, resize_mode)
    return build_model(type(full), linear, full.state_dict(), source, left_out=left_out, new_projections=True)


def _full_attention(source: str, config: Any) -> Loaded:
    """The source as a model of this package with full attention."""
    if config.model_type not in _PREFIXES:
        known, other = ", ".join(_PREFIXES), config.model_type
        raise InputError(f"{source}: expected a model of type {known}, got {other}; `linformer linearize` takes others")
    if getattr(config, "is_decoder", False):
        raise InputError(f"{source}: expected an encoder, got a decoder")
    kinds = {_PREFIXES[config.model_type] + end: end for end in _CLASSES}
    class_name = next(iter(config.architectures or []), "none")
    if class_name not in kinds:
        raise InputError(f"{source}: expected architectures in config.json of {', '.join(kinds)}, got {class_name}")
    loaded = load_model(source, None, ENCODER, config=config, to_run=False)
    if config.model_type == LinformerConfig.model_type:
        if config.has_slots:
            raise InputError(f"model: expected a model with full attention, got a Linformer in {source}")
        return loaded
    kind = kinds[class_name]
    model, _, random, left_out = loaded
    weights = {name: tensor for name, tensor in model.state_dict().items() if name not in random}
    if config.model_type == "bert":
        offset, names = 0, _BERT_CLASSIFIER_NAMES if kind == "ForSequenceClassification" else _BERT_NAMES
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
    weights = renamed_weights(weights, names)
    kept = _kept_fields(config, offset) | {"attention": "full"}
    return build_model(_CLASSES[kind], build_config(source, kept), weights, source, left_out=left_out)


def _kept_fields(config: Any, offset: int) -> dict[str, Any]:
    """Fields of our configuration that the source decides; its positions begin at `offset`."""
    kept = {name: getattr(config, name, None) for name in _KEPT.split()}
    for name in ("bos_token_id", "eos_token_id"):  # unused ones may lie outside the vocabulary
        if kept[name] not in range(config.vocab_size):
            kept[name] = None
    return kept | {"max_position_embeddings": config.max_position_embeddings - offset, "position_offset": offset}
