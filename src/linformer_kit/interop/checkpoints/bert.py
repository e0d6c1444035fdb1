"""Convert BERT to a Linformer: RoBERTa's architecture with other names, token types and positions from 0."""

from __future__ import annotations

import os
from typing import Any

from linformer_kit.interop.checkpoints.build import Converted
from linformer_kit.interop.checkpoints.roberta import CLASSES, ENCODER_NAMES, build_linear, read_encoder, rename
from linformer_kit.linearized.classes import LinearizedConfig
from linformer_kit.models.heads import LinformerForMaskedLM, LinformerForSequenceClassification
from linformer_kit.models.modeling import LinformerPreTrainedModel
from linformer_kit.settings import ResizeMode

MODEL_TYPES = {"bert": "Bert"}

_CLASSES: dict[str, type[LinformerPreTrainedModel]] = {"ForPreTraining": LinformerForMaskedLM, **CLASSES}
_MASKED_LM_NAMES = (
    ("cls.predictions.transform.dense", "lm_head.dense"),
    ("cls.predictions.transform.LayerNorm", "lm_head.layer_norm"),
    ("cls.predictions.bias", "lm_head.decoder.bias"),
    ("cls.predictions.decoder", "lm_head.decoder"),
)
# BERT's pooler and classifier together are RoBERTa's classification head.
_CLASSIFICATION_NAMES = (("classifier", "classifier.out_proj"), ("linformer.pooler", "classifier.dense"))


def load_bert_checkpoint(
    source: str | os.PathLike[str], *, resize_mode: ResizeMode = "extend", **fields: Any
) -> LinformerPreTrainedModel:
    """Load a BERT as a Linformer: all its weights are kept, E and F are new.

    Of a `BertForPreTraining` the masked language model is kept; the next-sentence head and its pooler are left out.

    Args, Returns, Raises: as `roberta.load_roberta_checkpoint`.
    """
    return convert_bert(source, fields, resize_mode).model


def convert_bert(source: str | os.PathLike[str], fields: dict[str, Any], resize_mode: ResizeMode) -> Converted:
    """As `load_bert_checkpoint`, with the names of the weights left out."""
    config, class_name, weights, left_out = read_encoder(source, MODEL_TYPES, _CLASSES)
    model_class = _CLASSES[class_name]
    names = [*ENCODER_NAMES, ("bert.", "linformer."), *_MASKED_LM_NAMES]
    if model_class is LinformerForSequenceClassification:
        names.extend(_CLASSIFICATION_NAMES)
    if class_name == "ForPreTraining":
        left_out += [name for name in weights if name.startswith(("bert.pooler.", "cls.seq_relationship."))]
        weights = {name: tensor for name, tensor in weights.items() if name not in left_out}
    renamed = rename(weights, names)
    model = build_linear(source, config, model_class, renamed, offset=0, fields=fields, resize_mode=resize_mode)
    return Converted(model, left_out, learned=isinstance(config, LinearizedConfig))
