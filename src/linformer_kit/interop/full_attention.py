"""Give a trained Transformer of this package, a model with full attention, other attention: E and F are new."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from linformer_kit.errors import InputError, renamed
from linformer_kit.interop.checkpoints.build import Converted, build_model, resize
from linformer_kit.interop.loading import auto_class_of, load_pretrained
from linformer_kit.models.configuration import LinformerConfig
from linformer_kit.settings import ResizeMode

_KIND = "a model of this package"
# Fields that say nothing in a model with full attention, so its values do not count.
SLOT_FIELDS = (
    *("projected_dim", "sharing", "projection", "projection_initializer", "shorter_input"),
    *("bias_order", "sliding_window", "global_tokens"),
)


def convert_full_attention(source: str, fields: Mapping[str, Any], resize_mode: ResizeMode) -> Converted:
    """Make a Linformer of a Transformer of this package, with all of its weights.

    Args:
        source: Folder or hub id.
        fields: Fields of `LinformerConfig` that differ from the source's; attention is `linformer` unless given.
        resize_mode: How positions are resized for another max_position_embeddings.

    Returns:
        The model, in evaluation mode, of the source's class; if its attention is linear, E and F are those of a new
        model.
    """
    with renamed("model", "source"):
        model: Any = load_pretrained(source, auto_class_of(source, _KIND), _KIND)
    if model.config.attention != "full":
        raise InputError(f"source: expected a model with full attention, got a Linformer in {source}")
    longest = fields.get("max_position_embeddings")
    if longest is not None and longest != model.config.max_position_embeddings:
        resize(model, longest, resize_mode)  # now, so that E and F start as in any model of the new length
    usual = LinformerConfig()
    new: dict[str, Any] = {name: getattr(usual, name) for name in SLOT_FIELDS}
    new["projected_dim"] = min(usual.projected_dim, model.config.max_position_embeddings)
    # An encoder without a head is read without its pooler.
    kept = model.config.to_dict() | new | {"attention": "linformer", "pooler": False}
    config = LinformerConfig.from_dict(kept | dict(fields))
    left_out = ["pooler.weight", "pooler.bias"] if model.config.pooler else []
    return Converted(build_model(type(model), config, model.state_dict(), source, new_projections=True), left_out)
