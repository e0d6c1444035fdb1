"""Names of transformers, and of torch's exporter, that are not public or may change: all that this package uses.

Tested with transformers 5.23 and torch 2.13. A new one is checked here; what `operator` needs is in its `conditions`.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

# What a layer computes with `sdpa`.
from transformers.integrations.sdpa_attention import sdpa_attention_forward as sdpa_attention_forward

# What is visible in a mask that models ask for, and the mask that layers get with `sdpa`.
from transformers.masking_utils import bidirectional_mask_function as bidirectional_mask_function
from transformers.masking_utils import causal_mask_function as causal_mask_function
from transformers.masking_utils import sdpa_mask as sdpa_mask
from transformers.models.auto import modeling_auto

# The head of RoBERTa, which ours is.
from transformers.models.roberta.modeling_roberta import RobertaClassificationHead as RobertaClassificationHead
from transformers.utils import output_capturing

# Names other than dataclass fields that transformers passes to a configuration or stores in it.
FIELDS_BESIDE = frozenset(
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
# In the source of a model whose layers all have the window of its configuration.
_CONFIGURED_WINDOW = "create_causal_mask if self.config.sliding_window is None else create_sliding_window_causal_mask"


def eager_attention_forward(*arguments: Any) -> tuple[Tensor, Tensor]:
    """What a layer computes with `eager`; the same code is in most models."""
    from transformers.models.bert.modeling_bert import eager_attention_forward as forward  # a tenth of a second

    return forward(*arguments)


def attention_implementation(model: PreTrainedModel | PreTrainedConfig) -> str | None:
    """The name of the attention function of a model or configuration, which has only a public setter; None: not set."""
    config: Any = getattr(model, "config", model)
    return config._attn_implementation


def implementations(config: PreTrainedConfig) -> dict[str, Any]:
    """What a configuration asks for as attention and as experts, by the name of the option of `from_pretrained`."""
    names = ("attn_implementation", "experts_implementation")
    return {name: getattr(config, f"_{name}", None) for name in names}


def without_length_guards() -> AbstractContextManager[None]:
    """Exports have no guards on lengths inside, as those of `torch.onnx.export`: short texts have the same program."""
    from torch.fx.experimental import _config  # a tenth of a second

    config: Any = _config
    return config.patch(backed_size_oblivious=True)


def shift_labels_of(model_class: type[PreTrainedModel]) -> None:
    """Make transformers' Trainer shift labels, which it does with label smoothing for classes that it knows by name."""
    modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_class.__name__] = model_class.__name__


def tied_weights(model: PreTrainedModel) -> set[str]:
    """Names of the weights of a model that are those of another name."""
    return set(model._tied_weights_keys or ()) if model.config.tie_word_embeddings else set()


def grouped_indices(lengths: list[int], batch_size: int, generator: torch.Generator) -> list[int]:
    """Random order of texts in which those of one batch are of similar length, as of transformers' Trainer."""
    from transformers.trainer_pt_utils import get_length_grouped_indices  # it imports much

    return get_length_grouped_indices(lengths, batch_size, generator=generator)


def accepts_attention_functions(model: PreTrainedModel) -> bool:
    """Whether the source code of a model uses the attention interface."""
    return model._can_set_attn_implementation()


def window_of_configuration(model: nn.Module) -> int | None:
    """The window of all layers of a model that reads it from its configuration, such as Mistral, if there is one.

    Found in its source code, as transformers itself finds what a model supports; in other models the layers with a
    window have an attribute `sliding_window`. None too if layers compute with their mask (Doge).
    """
    kind: Any = type(model)
    if not isinstance(model, PreTrainedModel) or _CONFIGURED_WINDOW not in _source(kind):
        return None
    layers: set[Any] = {type(module) for module in model.modules() if "Attention" in type(module).__name__}
    reads_mask = any(re.search(r"\battention_mask[.\[]", _source(layer)) for layer in layers)
    return None if reads_mask else model.config.sliding_window


@functools.cache
def _source(kind: type[nn.Module]) -> str:
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):  # a class without a file
        return ""


def check_before_saving(check: Callable[[PreTrainedModel], None]) -> None:
    """Let every model of transformers be checked before `save_pretrained`: any may have a linear part."""
    save = PreTrainedModel.save_pretrained

    @functools.wraps(save)
    def save_pretrained(self: PreTrainedModel, *arguments: Any, **named: Any) -> Any:
        check(self)
        return save(self, *arguments, **named)

    PreTrainedModel.save_pretrained = save_pretrained  # type: ignore[method-assign]


def chosen_fields(config: PreTrainedConfig) -> dict[str, Any]:
    """The fields of a configuration that differ from the defaults which their declarations give."""
    defaults = type(config).default_config_fields()
    return {name: value for name, value in config.to_dict().items() if value != defaults.get(name)}


def set_output_attentions(config: PreTrainedConfig, value: bool) -> None:
    """Set what the public property accepts for `eager` attention only."""
    config._output_attentions = value


def model_classes(config_class: type[PreTrainedConfig]) -> Iterator[tuple[Any, Any]]:
    """Each Auto class that knows a configuration class, with the first model class that it has for it."""
    auto_classes: list[tuple[str, Any]] = inspect.getmembers(modeling_auto, inspect.isclass)
    for _, auto_class in auto_classes:
        mapping = getattr(auto_class, "_model_mapping", None)
        if mapping is not None and config_class in mapping:
            classes = mapping[config_class]
            yield auto_class, classes[0] if isinstance(classes, (list, tuple)) else classes


def record_outputs(model: PreTrainedModel) -> None:
    """Let a model whose class was changed record hidden states and attentions: constructors note it by class."""
    output_capturing._CAN_RECORD_REGISTRY[model] = model._can_record_outputs


def is_recorded(arguments: Mapping[str, Any]) -> bool:
    """Whether attention weights are recorded in this forward pass, from the arguments of an attention function.

    Most models pass `output_attentions` to their layers; all of them use the collector.
    """
    collector = output_capturing._active_collector
    if arguments.get("output_attentions"):
        return True
    if torch.compiler.is_compiling():  # a separately compiled layer cannot read a context variable
        return collector.compiling and "attentions" in (collector.get() or ())
    return "attentions" in (collector.get() or ())
