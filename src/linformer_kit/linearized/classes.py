"""Classes of linearised models: those of transformers with E and F, and with their own model type.

`LinearBertForMaskedLM` is `BertForMaskedLM` with linear attention, `LinearBertConfig` its configuration. They are
created on first use, for any encoder of transformers, and registered with the Auto classes.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, get_args

import torch
import transformers
from huggingface_hub.dataclasses import strict
from transformers import CONFIG_MAPPING, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.utils.generic import can_return_tuple

from linformer_cli.errors import InputError, check_choice, input_errors
from linformer_cli.settings import ClassifierPooling, SlotSettings
from linformer_cli.settings.declare import Length, settings
from linformer_kit.internals import (
    attention_implementation,
    check_before_saving,
    model_classes,
    record_outputs,
    set_output_attentions,
)
from linformer_kit.linearized.attention import IMPLEMENTATION, LAYER, LocalAttention, SharedLayer
from linformer_kit.linearized.products import use_fast_products
from linformer_kit.models.base import LinearModel, last_layer, reject_packed
from linformer_kit.operator.conditions import reject_old_exporter
from linformer_kit.operator.padding import pooled
from linformer_kit.operator.projections import FullAttention, SequenceProjection, bind_replica, build_projection
from linformer_kit.operator.projections.sizes import largest_dim

MODEL_TYPE = "linearized"
POOLING = "classifier_pooling"  # field of the configuration
EXACT = ("sliding_window", "global_tokens")  # entries for tokens that queries see exactly, besides the slots
_PREFIX = "Linear"
# Auto classes of causal models and of models with a decoder.
_GENERATORS = ("AutoModelForCausalLM", "AutoModelForSeq2SeqLM")
# Arguments that transformers passes on to attention functions, or drops.
_NOT_FOR_SLOTS = (
    *("is_causal", "attn_mask", "head_mask"),
    *("cu_seq_lens_q", "cu_seq_lens_k", "seq_idx"),  # several texts in a row
)
# Methods that compute with attention weights of pairs of tokens.
_OF_PAIRS = ("predict_contacts",)


@settings
class LinearFields(SlotSettings):
    """What config.json says of the linear layers, under `linformer`.

    Attributes:
        base_model_type: Model type of the original model.
        layers: Names of the linear attention modules within the base model.
        local_layers: Names of those with a window of their own, which they keep.
        full_layers: Names of those that keep full attention.
        num_heads: h.
        head_dim: d.
        seq_len: n.

    All others are arguments of `linearize`.
    """

    base_model_type: str
    layers: list[str]
    local_layers: list[str]
    full_layers: list[str]
    num_heads: Length
    head_dim: Length
    seq_len: Length

    @classmethod
    def of(cls, content: Any) -> LinearFields:
        """Read and check the field; raises an `InputError` with the name of the entry."""
        if not isinstance(content, dict):
            raise InputError(f"linformer: expected names and values in config.json, got {content!r}")
        known = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
        if unknown := [name for name in content if name not in known]:
            raise InputError(f"linformer.{unknown[0]}: expected entries that `linearize` writes, got an unknown one")
        if absent := [name for name in (*cls.__annotations__, *known) if name not in content]:
            raise InputError(f"linformer.{absent[0]}: expected a value, got none, in config.json")
        try:
            return cls(**content)
        except InputError as error:
            raise InputError(f"linformer.{error}, in config.json") from None

    @property
    def attention_names(self) -> list[str]:
        """Names of all attention modules within the base model."""
        return [*self.layers, *self.local_layers, *self.full_layers]

    @property
    def shared(self) -> bool:
        """Whether all layers have one E = F."""
        return self.sharing == "layerwise"

    def new_projections(self) -> list[SequenceProjection]:
        """New E and F of each layer, or the shared one of all; numbers of slots that do not fit raise an error."""
        layers, dims = len(self.layers), self.projected_dim
        if isinstance(dims, list) and len(dims) != layers:
            raise InputError(f"projected_dim: expected one for each of {layers} layers, got {dims}")
        layer_dims = [self.projected_dim_of(layer) for layer in range(layers)]
        built = [largest_dim(dims)][:layers] if self.shared else layer_dims
        projections = [build_projection(self, self.seq_len, k, self.num_heads, self.head_dim) for k in built]
        for k in layer_dims if self.shared else ():
            projections[0].checked_slots(k, self.num_heads)
        return projections


class LinearizedConfig(PreTrainedConfig):
    """Configuration of a linearised model: that of the original model and the field `linformer`.

    Attributes:
        linformer: The original model type, the names of the layers, n and k, and how E and F are built.
    """

    model_type = MODEL_TYPE

    linformer: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __new__(cls, *arguments: Any, linformer: Any = None, **fields: Any) -> Any:
        """Of this class itself, as Auto classes and composite models call it: the subclass for the original model type.

        Raises:
            InputError: if `linformer` was not written by `linearize`.
        """
        if cls is LinearizedConfig:
            base = LinearFields.of(linformer).base_model_type
            if base == MODEL_TYPE or base not in CONFIG_MAPPING:
                raise InputError(f"linformer.base_model_type: expected a model type of transformers, got {base!r}")
            cls = linear_config_class(CONFIG_MAPPING[base])
        return super().__new__(cls)

    @PreTrainedConfig.output_attentions.setter
    def output_attentions(self, value: bool) -> None:
        """Whether models return P̄ of all layers unless a call says otherwise."""
        set_output_attentions(self, value)

    def validate_output_attentions(self) -> None:
        """Accept any value: transformers allows it with `eager` attention only, but linear attention returns P̄ too."""

    def to_dict(self) -> dict[str, Any]:
        """As in transformers, with `attn_implementation`, so that loading it in a class without E and F fails."""
        return {**super().to_dict(), "attn_implementation": IMPLEMENTATION}


class LinearizedModel(LinearModel):
    """Base class of linearised models: E and F, length checks and resizing."""

    def __init__(self, config: Any, *arguments: Any, **named: Any) -> None:
        if not config.linformer:
            raise InputError(
                f"config: expected that of a linearised model (see `linearize`), got {type(config).__name__}"
            )
        if (asked := attention_implementation(config)) is not None:
            _check_implementation(asked)
        super().__init__(config, *arguments, **named)
        attach(self)

    @property
    def longest_sequence(self) -> int:
        return self.config.linformer["seq_len"]

    def set_attn_implementation(self, attn_implementation: Any, *arguments: Any, **named: Any) -> None:
        """Accept linear attention only.

        Raises:
            InputError: for any other implementation, which would ignore E and F.
        """
        _check_implementation(attn_implementation)
        super().set_attn_implementation(attn_implementation, *arguments, **named)

    def attention_names(self) -> list[str]:
        """Names of all attention modules within the base model, including those that keep their own attention."""
        known = self._fields.attention_names
        return [name for name, _ in self.base_model.named_modules() if name in known]

    @property
    def _fields(self) -> LinearFields:
        return LinearFields.of(self.config.linformer)

    def _layer_counts(self) -> tuple[int, int]:
        base = self.base_model
        states = [LAYER in module._modules for module in base.modules() if module is not base]
        return sum(states), len(self._fields.attention_names)

    def _slots(self) -> Any:
        return self.config.linformer["projected_dim"]

    def _record_size(self, seq_len: int, projected_dim: Any) -> None:
        self.config.linformer |= {"seq_len": seq_len, "projected_dim": projected_dim}
        for number, name in enumerate(self._fields.layers if self._fields.shared else ()):
            getattr(self.base_model.get_submodule(name), LAYER).projected_dim = self._fields.projected_dim_of(number)


def _check_implementation(asked: Any) -> None:
    if asked != IMPLEMENTATION:
        raise InputError(
            f"attn_implementation: expected {IMPLEMENTATION}, as the model has, got {asked!r}, which would ignore its "
            "E and F"
        )


def _check_parts(model: PreTrainedModel) -> None:
    """Refuse to save a model that would be loaded again with full attention in a part that is linear.

    Such as CLIP, or a classifier whose encoder alone was linearised: their classes build the parts by themselves, from
    a configuration that says nothing of E and F. Whether a class does is seen by building it, without weights.
    """
    parts = {
        name: part
        for name, part in model.named_modules()
        if isinstance(part, LinearizedModel) and part.config is not model.config
    }
    if not parts:
        return
    kind = type(model).__name__
    with torch.device("meta"), input_errors(f"model: expected parts that {kind} builds from its configuration"):
        loaded = dict(type(model)(type(model.config).from_dict(model.config.to_dict())).named_modules())
    for name, part in parts.items():
        again = loaded.get(name)
        if not isinstance(again, LinearizedModel) or again.config.linformer != part.config.linformer:
            raise InputError(
                f"model: expected linear parts that {kind} builds again when it is loaded, got {type(part).__name__} "
                f"as {name}, which would have full attention; save it by itself: model.{name}.save_pretrained(FOLDER)"
            )


def attach(model: PreTrainedModel) -> None:
    """Add new E and F to the layers of a model, as its configuration describes."""
    fields = LinearFields.of(model.config.linformer)
    base = model.base_model
    modules = dict(base.named_modules())
    for name in fields.attention_names:
        if name not in modules:
            kind = type(model).__name__
            raise InputError(f"linformer.layers: expected names of modules of {kind}, got {name!r}")
    if base is not model:
        config_class: Any = type(model.config)
        base_class: Any = type(base)
        base.__class__ = linear_model_class(base_class, config_class)
    projections = fields.new_projections()
    states: dict[str, Any] = {name: LocalAttention() for name in fields.local_layers}
    states |= {name: FullAttention(fields.num_heads) for name in fields.full_layers}
    for number, name in enumerate(fields.layers):
        states[name] = SharedLayer(base, fields.projected_dim_of(number)) if fields.shared else projections[number]
        states[name].sliding_window, states[name].global_tokens = fields.sliding_window, fields.global_tokens
    for name, state in states.items():
        like = next(modules[name].parameters())
        modules[name].add_module(LAYER, state.to(like.device, like.dtype))
    if fields.shared and projections:
        base.add_module(LAYER, projections[0].to(base.device, base.dtype))
    PreTrainedModel.set_attn_implementation(model, IMPLEMENTATION)
    use_fast_products(model)
    for changed in (model, base):
        record_outputs(changed)


@functools.cache
def linear_config_class(base: Any) -> Any:
    """The linearised class of a configuration class; it and its models are registered with the Auto classes."""
    namespace: dict[str, Any] = {
        "model_type": MODEL_TYPE,
        "__module__": __name__,
        "__doc__": f"`{base.__name__}` with E and F.",
    }
    if not pools_by_itself(base):
        namespace[POOLING] = None
    linear: Any = type(f"{_PREFIX}{base.__name__}", (LinearizedConfig, base), namespace)
    linear = strict(linear)  # as for transformers' own classes; it collects the validators, which are not inherited
    for auto_class, model_class in model_classes(base):
        if auto_class.__name__ not in _GENERATORS:
            auto_class.register(linear, linear_model_class(model_class, linear))
    return linear


@functools.cache
def linear_model_class(base: Any, config_class: Any) -> Any:
    """The linearised class of a model class."""
    namespace: dict[str, Any] = {name: _refused(name) for name in _OF_PAIRS if hasattr(base, name)}
    forward = base.forward
    if base.__name__.endswith("ForSequenceClassification") and not pools_by_itself(base.config_class):
        forward = _pooled_forward(forward)
    namespace |= {
        "config_class": config_class,
        "forward": _checked_forward(forward),
        "__module__": __name__,
        "__doc__": f"`{base.__name__}`, linear.",
    }
    return type(f"{_PREFIX}{base.__name__}", (LinearizedModel, base), namespace)


def pools_by_itself(config_class: Any) -> bool:
    """Whether classifiers of a configuration class have a `classifier_pooling` of their own, as ModernBERT's."""
    return hasattr(config_class, POOLING)


def _pooled_forward(base_forward: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a classifier's `forward`: with `classifier_pooling`, its last layer maps pooled hidden states to classes.

    The layers of its family's head before the last one are not used then.
    """

    @functools.wraps(base_forward)
    @can_return_tuple
    def forward(self: LinearizedModel, **named: Any) -> Any:
        how = self.config.classifier_pooling
        if how is None:
            return base_forward(self, **named)
        check_choice(POOLING, how, get_args(ClassifierPooling))
        labels = named.pop("labels", None)
        encoded = self.base_model(**named)
        vectors = pooled(encoded.last_hidden_state, named.get("attention_mask"), how)
        logits = self.get_submodule(last_layer(self))(vectors)
        loss = None if labels is None else self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
        return SequenceClassifierOutput(loss, logits, encoded.get("hidden_states"), encoded.get("attentions"))

    return forward


def _refused(name: str) -> Callable[..., Any]:
    def method(self: LinearizedModel, *arguments: Any, **named: Any) -> Any:
        raise InputError(
            f"{name}: expected a model with full attention, whose weights are of pairs of tokens, got slots"
        )

    return method


def _checked_forward(base_forward: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a model's `forward`: check its inputs first, and apply `config.output_attentions` at every depth.

    The wrapper keeps the signature, which transformers' Trainer and exporters read.
    """
    parameters = list(inspect.signature(base_forward).parameters.values())[1:]
    names = [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]

    @functools.wraps(base_forward)
    def forward(self: LinearizedModel, *arguments: Any, **named: Any) -> Any:
        by_place = dict(zip(names, arguments, strict=False))
        if len(by_place) < len(arguments) or by_place.keys() & named.keys():
            return base_forward(self, *arguments, **named)  # raises the TypeError
        named = by_place | named
        for name in _NOT_FOR_SLOTS:
            if (value := named.get(name)) is not None and value is not False:
                raise InputError(f"{name}: expected none with linear attention, whose slots mix all positions, got one")
        reject_old_exporter()
        bind_replica(self.base_model)
        reject_packed(named.get("position_ids"), named.get("attention_mask"))
        if self.main_input_name == "input_ids" and not torch.compiler.is_exporting():
            for tokens in (named.get("input_ids"), named.get("inputs_embeds")):
                if isinstance(tokens, torch.Tensor) and tokens.dim() > 1 and tokens.shape[1] > self.longest_sequence:
                    raise InputError(
                        f"sequence length: expected at most {self.longest_sequence}, got {tokens.shape[1]}"
                    )
        if named.get("output_attentions") is None and self.config.output_attentions:
            named["output_attentions"] = True  # transformers takes None for False
        return base_forward(self, **named)

    return forward


def stock_name(name: str) -> str:
    """The name of the original class of a linearised one."""
    return name.removeprefix(_PREFIX)


check_before_saving(_check_parts)


def __getattr__(name: str) -> Any:
    """Look up classes by name, as pickle does in another process."""
    base = getattr(transformers, stock_name(name), None) if name.startswith(_PREFIX) else None
    if base is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if issubclass(base, PreTrainedConfig):
        return linear_config_class(base)
    return linear_model_class(base, linear_config_class(base.config_class))
