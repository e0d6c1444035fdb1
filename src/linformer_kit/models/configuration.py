"""`LinformerConfig`: the architecture of a Linformer as a transformers configuration."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import logging
import os
from collections.abc import Iterable
from typing import Any

from transformers import PreTrainedConfig
from transformers.activations import ACT2FN

from linformer_cli.errors import InputError
from linformer_cli.settings import ModelSettings
from linformer_kit.operator.projections import PROJECTIONS, largest_dim
from linformer_kit.operator.projections.sizes import slots_by_head

logger = logging.getLogger(__name__)

# Names other than dataclass fields that transformers passes to a configuration or stores in it.
_TRANSFORMERS_FIELDS = frozenset(
    (
        "_attn_implementation",
        "_commit_hash",
        "_name_or_path",
        "attn_implementation",
        "auto_map",
        "experts_implementation",
        "model_type",
        "name_or_path",
        "num_labels",
        "output_attentions",
        "quantization_config",  # of a model with int8 weights
        "torch_dtype",
        "use_cache",  # transformers' Trainer writes it into every configuration
    )
)
_PROBLEMS = (None, "regression", "single_label_classification", "multi_label_classification")
_FIELDS = [field.name for field in dataclasses.fields(ModelSettings)]


class LinformerConfig(ModelSettings, PreTrainedConfig):
    """Configuration of a Linformer encoder; fields and defaults are those of `settings.ModelSettings`;
    `linformer pretrain --help` says what each does.

    In the paper's letters: `max_position_embeddings` n, `projected_dim` k, `hidden_size` d_m, `num_attention_heads` h.

    Two additional fields: with `pooler`, for converted encoders, `LinformerModel` has BERT's pooler, a linear map and
    tanh over the first token; models with a head have no pooler. `trained_columns` is what `finetune` records of its
    files in a classifier of any type, so that it stays with the model (`inference.predict.read_classes`).

    Example:
        >>> config = LinformerConfig(max_position_embeddings=4096, projected_dim=256, sharing="layerwise")

    The constructor raises an error for unknown fields. `from_pretrained`, `from_json_file` and `from_dict` keep unknown
    fields of the file, since a later version or a user may have written them.

    Raises:
        InputError: a ValueError with the name of the field, the expected and the given value; for unknown fields too.
    """

    model_type = "linformer"

    pooler: bool = False
    trained_columns: dict[str, Any] | None = None

    def __post_init__(self, *, _from_file: dict[str, Any] | None = None, **kwargs: Any) -> None:
        _refuse_unknown(kwargs)
        _check_fields(self)
        super().__post_init__(**kwargs, **(_from_file or {}))

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Build a configuration from the content of a file; unknown fields are kept, with a warning, and saved again.

        Raises:
            InputError: for an invalid value of a field, in the file or among the keywords, and for a keyword that is a
                misspelt field.
        """
        fields = {field.name for field in dataclasses.fields(cls)}
        unknown = {name: config_dict[name] for name in config_dict.keys() - fields - _TRANSFORMERS_FIELDS}
        if unknown:
            warn_of_unknown(frozenset(unknown))
        known = {name: value for name, value in config_dict.items() if name not in unknown}
        unknown = {name: value for name, value in unknown.items() if not hasattr(cls, name)}  # must not replace methods
        returns_unused = kwargs.pop("return_unused_kwargs", False)
        config, unused = super().from_dict(
            {**known, "_from_file": unknown} if unknown else known, return_unused_kwargs=True, **kwargs
        )
        _check_fields(config)  # again, since the keywords are set one by one
        # Callers may pass keywords for tokenizers and models; only a near match of a field is treated as misspelt.
        _refuse_unknown(name for name in unused if difflib.get_close_matches(name, fields, 1, 0.9))
        return (config, unused) if returns_unused else config

    @classmethod
    def from_pretrained(cls, *arguments: Any, **kwargs: Any) -> Any:
        """As in transformers, except that unknown keywords raise an error instead of being ignored.

        Raises:
            InputError: as `from_dict`, and for unknown keywords unless `return_unused_kwargs` is true.
        """
        returns_unused = kwargs.pop("return_unused_kwargs", False)
        config, unused = super().from_pretrained(*arguments, return_unused_kwargs=True, **kwargs)
        if returns_unused:
            return config, unused
        _refuse_unknown(unused)
        return config

    @classmethod
    def from_json_file(cls, json_file: str | os.PathLike[str]) -> Any:
        """As in transformers, through `from_dict`."""
        return cls.from_dict(cls._dict_from_json_file(json_file))

    def projected_dim_of(self, layer: int) -> int | list[int]:
        """k of a layer, or of each of its heads."""
        return self.projected_dim[layer] if isinstance(self.projected_dim, list) else self.projected_dim

    @property
    def largest_projected_dim(self) -> int:
        """The largest k of all layers and heads."""
        return largest_dim(self.projected_dim)


def _refuse_unknown(fields: Iterable[str]) -> None:
    """Raise an error for unknown fields, such as misspelt ones."""
    for name in fields:
        if name not in _TRANSFORMERS_FIELDS:
            raise InputError(f"{name}: expected a field of LinformerConfig, got an unknown one{_suggestion(name)}")


def _suggestion(name: str) -> str:
    close = difflib.get_close_matches(name, _FIELDS, 1, 0.8)
    return f" (did you mean {close[0]}?)" if close else ""


@functools.cache  # warn once for the same fields: a model and its tokenizer read the same file several times
def warn_of_unknown(names: frozenset[str]) -> None:
    """Log a warning with the fields of a file that are kept and not used."""
    listed = ", ".join(f"{name}{_suggestion(name)}" for name in sorted(names))
    logger.warning("config.json: kept fields that this version does not know and does not use: %s", listed)


def _check_fields(config: LinformerConfig) -> None:
    """Check fields by the limits in `ModelSettings`, which also converts values such as "12", then contradictions."""
    checked = ModelSettings(**{name: getattr(config, name) for name in _FIELDS})
    for name, value in vars(checked).items():
        setattr(config, name, value)
    _require(config.problem_type in _PROBLEMS, "problem_type", f"one of {_PROBLEMS}", config.problem_type)
    width = config.local_convolution
    _require(width == 0 or width % 2 == 1, "local_convolution", "0 or an odd number", width)
    _require(config.hidden_act in ACT2FN, "hidden_act", "an activation that transformers knows", config.hidden_act)
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        known = f"a token id under vocab_size {config.vocab_size}"
        _require((getattr(config, name) or 0) < config.vocab_size, name, known, getattr(config, name))
    _require(
        config.hidden_size % config.num_attention_heads == 0,
        "num_attention_heads",
        f"a divisor of hidden_size {config.hidden_size}",
        config.num_attention_heads,
    )
    if config.attention == "linformer":
        check_projected_dim(config, config.projected_dim)


def check_projected_dim(config: ModelSettings, projected_dim: Any) -> None:
    """Check k against the other fields: an integer, one for each layer, or one for each head of each layer."""
    layers, longest = config.num_hidden_layers, config.max_position_embeddings
    by_layer = projected_dim if isinstance(projected_dim, list) else [projected_dim]
    fits = by_layer is not projected_dim or len(by_layer) == layers
    _require(fits, "projected_dim", f"one for each of {layers} layers", projected_dim)
    slots = [
        slots_by_head(each, config.num_attention_heads, limit=longest, limited_by="max_position_embeddings")
        for each in by_layer
    ]
    if not PROJECTIONS[config.projection].nested:
        sharing = [sum(slots, start=())] if config.sharing == "layerwise" else slots
        kernel = f"a kernel of {config.projection}, since its size depends on k"
        expected = f"the same k in all layers and heads that share {kernel}"
        _require(all(len(set(dims)) == 1 for dims in sharing), "projected_dim", expected, projected_dim)


def _require(condition: bool, name: str, expected: str, got: Any) -> None:
    if not condition:
        raise InputError(f"{name}: expected {expected}, got {got!r}")
