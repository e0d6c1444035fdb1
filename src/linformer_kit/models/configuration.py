"""`LinformerConfig`: the architecture of a Linformer as a transformers configuration."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import logging
from collections.abc import Iterable
from typing import Any

from transformers import PreTrainedConfig
from transformers.activations import ACT2FN

from linformer_cli.errors import InputError, check_input
from linformer_cli.settings import ModelSettings
from linformer_cli.settings.declare import settings, suggestion
from linformer_kit.internals import FIELDS_BESIDE
from linformer_kit.operator.attention import check_bias_order, check_causal
from linformer_kit.operator.projections import PROJECTIONS
from linformer_kit.operator.projections.sizes import each_dim, largest_dim, slots_by_head

logger = logging.getLogger(__name__)

_PROBLEMS = (None, "regression", "single_label_classification", "multi_label_classification")
_FIELDS = [field.name for field in dataclasses.fields(ModelSettings)]


class LinformerConfig(ModelSettings, PreTrainedConfig):
    """Configuration of a Linformer encoder: the fields of `settings.ModelSettings`, and one more.

    In the paper's letters: `max_position_embeddings` n, `projected_dim` k, `hidden_size` d_m, `num_attention_heads` h.
    `linformer pretrain --help` says what each field does; `finetune` records its columns in `trained_columns`,
    and in `trained_pieces` whether it read long texts as pieces; `inference.predict` reads both.

    Example:
        >>> config = LinformerConfig(max_position_embeddings=4096, projected_dim=256, sharing="layerwise")

    Raises:
        InputError: a ValueError with the name of the field, the expected and the given value; for unknown fields too.
    """

    model_type = "linformer"

    trained_columns: dict[str, Any] | None = None
    trained_pieces: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        _reject_unknown(kwargs)
        _check_fields(self)
        super().__post_init__(**kwargs)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Build a configuration from the content of a file.

        Unknown fields, of a later version or of the user, are kept and saved again, with a warning.

        Raises:
            InputError: for an invalid value, in the file or among the keywords, and for a misspelt keyword.
        """
        fields = {field.name for field in dataclasses.fields(cls)}
        unknown = config_dict.keys() - fields - FIELDS_BESIDE
        known = {name: value for name, value in config_dict.items() if name not in unknown}
        returns_unused = kwargs.pop("return_unused_kwargs", False)
        config, unused = super().from_dict(known, return_unused_kwargs=True, **kwargs)
        _check_fields(config)  # again, since the keywords are set one by one
        # Callers may pass keywords for tokenizers and models; only a near match of a field is treated as misspelt.
        _reject_unknown(name for name in unused if difflib.get_close_matches(name, fields, 1, 0.9))
        if unknown:
            warn_of_unknown(frozenset(unknown))
        for name in unknown:
            if not hasattr(cls, name):  # must not replace methods
                setattr(config, name, config_dict[name])
        return (config, unused) if returns_unused else config

    @property
    def own_fields(self) -> dict[str, Any]:
        """The fields of `settings.ModelSettings`."""
        return {name: getattr(self, name) for name in _FIELDS}

    @property
    def has_slots(self) -> bool:
        """Whether any layer is linear."""
        return "linformer" in self.attention

    def is_full(self, layer: int) -> bool:
        """Whether a layer has full attention."""
        return (self.attention[layer] if isinstance(self.attention, list) else self.attention) == "full"

    @property
    def largest_projected_dim(self) -> int:
        """The largest k of all layers and heads."""
        return largest_dim(self.projected_dim)


def _reject_unknown(fields: Iterable[str]) -> None:
    """Raise an error for unknown fields, such as misspelt ones."""
    for name in fields:
        if name not in FIELDS_BESIDE:
            raise InputError(
                f"{name}: expected a field of LinformerConfig, got an unknown one{suggestion(name, _FIELDS)}"
            )


@functools.cache  # warn once for the same fields: a model and its tokenizer read the same file several times
def warn_of_unknown(names: frozenset[str]) -> None:
    """Log a warning with the fields of a file that are kept and not used."""
    listed = ", ".join(f"{name}{suggestion(name, _FIELDS)}" for name in sorted(names))
    logger.warning("config.json: kept fields that this version does not know and does not use: %s", listed)


@functools.partial(settings, strict=True)
class _Fields(ModelSettings):
    """The fields without conversion: "8" and True are no numbers."""


def _check_fields(config: LinformerConfig) -> None:
    """Check fields by the limits in `ModelSettings`, then contradictions."""
    given = {name: each_dim(value) for name, value in config.own_fields.items()}
    for name, value in vars(_Fields(**given)).items():
        setattr(config, name, value)
    labels = config.id2label
    check_input(labels is None or isinstance(labels, dict), "id2label", "a name for each class id", labels)
    check_input(config.problem_type in _PROBLEMS, "problem_type", f"one of {_PROBLEMS}", config.problem_type)
    width = config.local_convolution
    check_input(width == 0 or width % 2 == 1, "local_convolution", "0 or an odd number", width)
    check_input(config.final_norm or config.norm_first, "final_norm", "True without norm_first", config.final_norm)
    check_input(config.hidden_act in ACT2FN, "hidden_act", "an activation that transformers knows", config.hidden_act)
    pad, known = config.pad_token_id, f"a token id under vocab_size {config.vocab_size}"
    check_input(pad is None or pad < config.vocab_size, "pad_token_id", known, pad)
    heads, divisor = config.num_attention_heads, f"a divisor of hidden_size {config.hidden_size}"
    check_input(config.hidden_size % heads == 0, "num_attention_heads", divisor, heads)
    fits = isinstance(config.attention, str) or len(config.attention) == config.num_hidden_layers
    check_input(fits, "attention", f"one for each of {config.num_hidden_layers} layers", config.attention)
    if config.has_slots:
        check_projected_dim(config, config.projected_dim)
        kind = PROJECTIONS[config.projection]
        kind.check_shorter_input(config.shorter_input)
        check_bias_order(config.bias_order, kind.commutes and (config.sharing != "none" or not kind.learned))


def check_projected_dim(config: LinformerConfig, projected_dim: Any, seq_len: int | None = None) -> None:
    """Check k against the other fields: an integer, one for each layer, or one for each head of each layer.

    `seq_len` is another n than that of the configuration.
    """
    layers, longest = config.num_hidden_layers, seq_len or config.max_position_embeddings
    by_layer = projected_dim if isinstance(projected_dim, list) else [projected_dim] * layers
    check_input(len(by_layer) == layers, "projected_dim", f"one for each of {layers} layers", projected_dim)
    kind = PROJECTIONS[config.projection]
    for layer, each in enumerate(by_layer):
        dims = slots_by_head(each, config.num_attention_heads, limit=longest, limited_by="max_position_embeddings")
        if config.causal and not config.is_full(layer):
            check_causal(kind, config.shorter_input, longest, min(dims), config.sliding_window)
