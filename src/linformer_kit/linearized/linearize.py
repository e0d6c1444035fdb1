"""Linearise an encoder of transformers, in-place."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import inspect
import logging
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from torch import nn
from transformers import PreTrainedModel
from transformers.utils import cached_file

from linformer_cli.errors import InputError, renamed
from linformer_cli.settings import LinearizeSettings, changed
from linformer_kit.files.tokenizer import reset_padding
from linformer_kit.linearized.adapter import Adapter, read_adapter
from linformer_kit.linearized.classes import (
    LinearFields,
    LinearizedModel,
    attach,
    linear_config_class,
    linear_model_class,
)
from linformer_kit.linearized.layers import AttentionLayer, attention_layers
from linformer_kit.linearized.products import use_fast_products
from linformer_kit.linearized.windows import use_exact_windows
from linformer_kit.models.base import NOT_SAVED, check_positions, longest_input, set_positions
from linformer_kit.operator.projections import PROJECTIONS
from linformer_kit.report.card import card_of, how_to_load

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Model = TypeVar("Model", PreTrainedModel, "SentenceTransformer")

DEFAULT_PROJECTED_DIM = 128

logger = logging.getLogger(__name__)


def linearize(
    model: Model,
    projected_dim: int | list[int] | list[list[int]] | None = None,
    *,
    adapter: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> Model:
    """Linearise a pretrained encoder: attention goes over k slots, and all weights are kept.

    Tested, with as many slots as tokens, to keep their outputs: `albert`, `bert`, `clip_vision_model`, `dinov2`,
    `distilbert`, `electra`, `eurobert`, `mobilebert`, `modernbert`, `roberta`, `siglip_vision_model`, `vit`,
    `xlm-roberta`. Decoders, encoders with a decoder, and models with attention code of their own (MPNet, DeBERTa,
    XLNet, Longformer) raise an error.

    The model is changed in-place and becomes a subclass of its class (such as `LinearBertForMaskedLM`) with its own
    model type; it saves and loads like any other. Layers that have a sliding window of their own keep it (`windows`).

    With the default settings nothing in the model is untrained, and outputs of texts of up to projected_dim tokens
    change by rounding only. Distillation (`linformer distill`) brings those of longer texts nearer to what they were.
    Learned E and F (projection `linear`, `dynamic`, convolutions) must be distilled or fine-tuned before use.

    Args:
        model: Any encoder that uses transformers' attention interface, with or without a head; or a
            `SentenceTransformer`, whose encoder is linearised. Its pooling, normalisation and prompts stay;
            `max_seq_length` becomes n with an adapter or `max_position_embeddings`.
        projected_dim: k, at most n; or a list with one k per linear layer, or with a list of one k per head for each
            of them; default: 128, or n if that is less.
        adapter: Name of an adapter that ships with the package (`linformer adapters` lists them), folder or hub id of
            one that `linformer distill --adapter_rank` made for this model. It is merged into the weights, and
            determines all other arguments. None: the weights stay as they are.
        settings: Fields of `LinearizeSettings`, with their defaults:

            - `sharing`: `headwise`, or `none`, `key_value`, `layerwise` (section 4 of the paper).
            - `projection`: `mean_pool`, or another of `operator.projections.PROJECTIONS`.
            - `shorter_input`: What texts shorter than n use: windows that tile them (`stretch`), which changes the
              outputs of short texts little, or the first columns and windows (`prefix`); default: `stretch` where slots
              are windows of tokens (`mean_pool`, `max_pool`, `conv`), else `prefix`.
            - `projection_initializer`: `mean_pooling`, the initialisation of E and F of projection `linear`, or another
              of `operator.projections.matrices`.
            - `sliding_window`: 128, w, the number of tokens around each query that it sees exactly, its own included;
              0: none.
            - `global_tokens`: g, the number of tokens at the start that every query sees exactly; default: 1 where
              slots are windows of tokens, else 0.
            - `layers`: Numbers of the layers to linearise, from 0; the others keep full attention. None: all.
              []: none, so nothing is approximated; layers with a window and products become faster.
            - `max_position_embeddings`: n, the new maximum length in tokens; default: that of the model.
            - `resize_mode`: How position embeddings are resized to n: repeated (`extend`, the default) or interpolated
              (`interpolate`).

    Returns:
        The model. Each E and F is a parameter `[projected_dim, n]` (W_P of projection `dynamic`:
        `[projected_dim, num_heads·head_dim]`), for sharing `none` with a first axis of heads, at
        `<attention layer>.linformer`, for `layerwise` at the base model's `linformer`.

    Raises:
        InputError: for a decoder, a model that does not use the interface, a `SentenceTransformer` that does not start
            with such an encoder of texts, invalid settings, and an adapter that is damaged, of another model, or
            contradicted by other arguments. Nothing is changed then, unless an adapter's weights do not fit it.

    Example:
        >>> model = lk.linearize(AutoModel.from_pretrained("FacebookAI/roberta-base"), projected_dim=128)
        >>> model = lk.linearize(SentenceTransformer("BAAI/bge-small-en-v1.5"), max_position_embeddings=4096)
    """
    given = LinearizeSettings(projected_dim=projected_dim, **settings)
    if not isinstance(model, nn.Sequential):
        linear = linearize_encoder(model, given, adapter)
        if linear.base_model is linear and linear.config.name_or_path:
            _warn_of_bare_encoder(linear.config.name_or_path)
        return linear
    sentences: Any = model
    linear = linearize_encoder(text_encoder(sentences), given, adapter)
    linear.is_of_sentences, longest = True, linear.config.linformer["seq_len"]
    if adapter is None and given.max_position_embeddings is None:
        # n is as before, so a lower limit is the author's choice.
        longest = min(longest, sentences.max_seq_length or longest)
    sentences.max_seq_length = longest  # also the tokenizer's `model_max_length`
    reset_padding(sentences.tokenizer)
    use = how_to_load(linear, "sentence_transformers", "SentenceTransformer")
    sentences._model_card_text = card_of(linear, longest, use=use)  # what `save` writes as README.md
    return model


def _with_fields(function: Callable[..., Any], kind: Any) -> inspect.Signature:
    """The signature of a function with the fields of settings instead of `**settings`, for `help` and completion."""
    signature = inspect.signature(function)
    *own, _ = signature.parameters.values()
    default = kind()
    fields = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=getattr(default, name))
        for name in vars(default)
        if name not in signature.parameters
    ]
    return signature.replace(parameters=[*own, *fields])


cast(Any, linearize).__signature__ = _with_fields(linearize, LinearizeSettings)


def optimize(model: Model) -> Model:
    """Make an encoder faster on a CPU, in-place, with the same outputs and gradients to rounding.

    Layers with a sliding window run in blocks (`windows`), and linear maps by the fastest library of this processor
    (`products`), if no accelerator is there. Classes, weights and saved files do not change; what `linearize` returns
    is as fast already. What was changed is logged (`logging`, level INFO; WARNING for windows that stay as they are).

    Args:
        model: Any model of transformers, or a `SentenceTransformer` that starts with an encoder of texts.

    Returns:
        The model.

    Raises:
        InputError: for any other object.
    """
    encoder = model if isinstance(model, PreTrainedModel) else text_encoder(model)
    kind, in_blocks, maps = type(encoder).__name__, use_exact_windows(encoder), use_fast_products(encoder)
    logger.info("%s: windows in blocks: %s; linear maps by the fastest library: %d", kind, in_blocks, maps)
    return model


def linearize_encoder(
    model: PreTrainedModel, given: LinearizeSettings, adapter: str | os.PathLike[str] | None = None
) -> LinearizedModel:
    """As `linearize`, for an encoder of transformers, with the arguments as settings."""
    changes = None if adapter is None else read_adapter(os.fspath(adapter))
    settings = given if changes is None else _agreed(given, changes)
    layers = attention_layers(model)
    if changes is not None:
        changes.check_base(model)
    fields = _fields(model, layers, settings)
    fields.new_projections()  # raises errors before anything is changed
    shared, copied = model.config, copy.deepcopy(model.config)  # which other models may share
    for module in model.modules():
        if getattr(module, "config", None) is shared:
            module.config = copied
    if settings.max_position_embeddings is not None:
        set_positions(model, settings.max_position_embeddings, settings.resize_mode)
    kind: Any = type(model)
    config_kind: Any = type(model.config)
    config_class = linear_config_class(config_kind)
    model.config.__class__ = config_class
    model.config.model_type = config_class.model_type
    model.config.linformer = dataclasses.asdict(fields)  # type: ignore[call-overload]
    model.__class__ = linear_model_class(kind, config_class)
    attach(model)
    # It is in no folder yet: PEFT would name the original, with full attention, as the base of its adapters.
    model.name_or_path = model.base_model.name_or_path = NOT_SAVED
    if changes is not None:
        changes.merge_into(model)
    return cast(LinearizedModel, model)


def text_encoder(model: Any) -> PreTrainedModel:
    """The encoder of texts that a `SentenceTransformer` starts with."""
    library = sys.modules.get("sentence_transformers")  # imported, if there is one of its models
    if library is None or not isinstance(model, library.SentenceTransformer):
        raise InputError(f"model: expected one of transformers, or a SentenceTransformer, got {type(model).__name__}")
    from sentence_transformers.sentence_transformer.modules import Transformer

    if not isinstance(model[0], Transformer) or not model.supports("text"):
        first = type(model[0]).__name__
        raise InputError(f"model: expected a SentenceTransformer that starts with a Transformer of texts, got {first}")
    return model[0].model


@functools.cache  # once for each model
def _warn_of_bare_encoder(name: str) -> None:
    """Warn of an encoder without a head that was loaded from an embedder of sentence-transformers."""
    with contextlib.suppress(OSError):  # it has none, or its folder is gone
        cached_file(name, "modules.json", local_files_only=True)
        logger.warning(
            "%s: pooling, normalisation, prompts and max_seq_length of sentence-transformers are left behind; "
            "linearize(SentenceTransformer(%r)) keeps them",
            *(name, name),
        )


def _agreed(given: LinearizeSettings, adapter: Adapter) -> LinearizeSettings:
    """The adapter's settings; arguments that contradict them raise an error, and defaults count as unset."""
    settings = adapter.settings
    for name, value in changed(given, LinearizeSettings).items():
        if value != (known := getattr(settings, name)):
            raise InputError(f"{name}: expected {known!r}, as adapter {adapter.name} has, got {value!r}")
    return settings


def _fields(model: PreTrainedModel, layers: list[AttentionLayer], settings: LinearizeSettings) -> LinearFields:
    """What the configuration will say of the linear layers; raises the errors of settings that do not fit the model."""
    kind, seq_len = type(model).__name__, settings.max_position_embeddings
    linear = _chosen(layers, settings.layers, kind)
    shapes = {(layer.num_heads, layer.head_dim, layer.keys) for layer in linear or layers[:1]}
    if len(shapes) > 1:
        raise InputError(f"model: expected layers with equal heads and lengths, got {kind} with {sorted(shapes)}")
    ((num_heads, head_dim, keys),) = shapes
    if seq_len is not None:
        with renamed("seq_len", "max_position_embeddings"), renamed("mode", "resize_mode"):
            check_positions(model, seq_len, settings.resize_mode)
    elif longest := longest_input(model):
        seq_len = longest
    elif model.main_input_name == "input_ids":
        raise InputError(f"max_position_embeddings: expected a number for {kind}, which has no longest input, got none")
    else:
        seq_len = keys  # an image has one size
    names = {field.name for field in dataclasses.fields(LinearFields)} - {"layers"}  # type: ignore[arg-type]
    values = {name: value for name, value in vars(settings).items() if name in names}
    if settings.projected_dim is None:
        values["projected_dim"] = min(DEFAULT_PROJECTED_DIM, seq_len)
    windowed = PROJECTIONS[settings.projection].windowed
    if settings.global_tokens is None:
        values["global_tokens"] = int(windowed)
    if settings.shorter_input is None:
        values["shorter_input"] = "stretch" if windowed else "prefix"
    return LinearFields(
        base_model_type=model.config.model_type,
        layers=[layer.name for layer in linear],
        local_layers=[layer.name for layer in layers if layer.local],
        full_layers=[layer.name for layer in layers if not layer.local and layer not in linear],
        num_heads=num_heads,
        head_dim=head_dim,
        seq_len=seq_len,
        **values,
    )


def _chosen(layers: list[AttentionLayer], numbers: list[int] | None, kind: str) -> list[AttentionLayer]:
    """The layers to linearise."""
    possible = [number for number, layer in enumerate(layers) if not layer.local]
    if not possible and numbers != []:
        raise InputError(
            f"model: expected at least one layer with global attention, got {kind}, whose layers all attend to a local "
            "window; layers=[] keeps them"
        )
    numbers = possible if numbers is None else numbers
    if sorted(set(numbers) & set(possible)) != sorted(numbers):
        raise InputError(f"layers: expected one or more of {possible}, each once, got {numbers!r}")
    return [layers[number] for number in sorted(numbers)]
