"""Small models of each family of encoders in transformers, with random weights."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel

_TEXT = {
    "vocab_size": 211,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 53,
    "max_position_embeddings": 61,
    "pad_token_id": 0,
    "initializer_range": 0.2,  # so that attention is not uniform
}
_OFFSET = _TEXT | {"max_position_embeddings": 63, "pad_token_id": 1}  # RoBERTa's positions begin after it
_IMAGES = {
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 53,
    "image_size": 42,
    "patch_size": 6,
    "initializer_range": 0.2,
}


class Family(NamedTuple):
    """One kind of encoder: its configuration and bare model in transformers, and sizes of a small one."""

    config: str
    model: str
    sizes: dict[str, Any]


FAMILIES = {
    "albert": Family("AlbertConfig", "AlbertModel", _TEXT | {"embedding_size": 29}),
    "bert": Family("BertConfig", "BertModel", _TEXT),
    "clip_vision_model": Family("CLIPVisionConfig", "CLIPVisionModel", _IMAGES),
    "dinov2": Family("Dinov2Config", "Dinov2Model", _IMAGES),
    "distilbert": Family("DistilBertConfig", "DistilBertModel", _TEXT | {"hidden_dim": 53}),
    "electra": Family("ElectraConfig", "ElectraModel", _TEXT | {"embedding_size": 29}),
    "eurobert": Family(
        "EuroBertConfig", "EuroBertModel", _TEXT | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12}
    ),
    "mobilebert": Family(
        "MobileBertConfig", "MobileBertModel", _TEXT | {"embedding_size": 29, "intra_bottleneck_size": 24}
    ),
    "modernbert": Family(
        "ModernBertConfig",
        "ModernBertModel",
        _TEXT | {"local_attention": 8, "cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2},
    ),
    "roberta": Family("RobertaConfig", "RobertaModel", _OFFSET),
    "siglip_vision_model": Family("SiglipVisionConfig", "SiglipVisionModel", _IMAGES),
    "vit": Family("ViTConfig", "ViTModel", _IMAGES),
    "xlm-roberta": Family("XLMRobertaConfig", "XLMRobertaModel", _OFFSET),
}


def build(family: Family) -> PreTrainedModel:
    """A small model of a family, in evaluation mode."""
    return getattr(transformers, family.model)(getattr(transformers, family.config)(**family.sizes)).eval()


def example(model: PreTrainedModel, length: int, *, padded: bool = False) -> dict[str, Tensor]:
    """Two inputs of a model: images, or texts of `length` tokens; with `padded`, the second has a third of padding."""
    if model.main_input_name == "pixel_values":
        size = model.config.image_size
        return {"pixel_values": torch.randn(2, 3, size, size).to(model.dtype)}
    ids = torch.randint(3, model.config.vocab_size, (2, length))
    mask = torch.ones_like(ids)
    if padded:
        mask[1, -(length // 3) :] = 0
        ids[1, -(length // 3) :] = model.config.pad_token_id
    return {"input_ids": ids, "attention_mask": mask}
