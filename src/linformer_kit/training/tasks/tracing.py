"""Record the inputs and outputs of an encoder's layers during a forward pass, with gradients."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

_LAYER = re.compile(r"(.*\.\d+)\.")  # the innermost module of a list that holds an attention layer


@dataclass
class Trace:
    """Tensors of one forward pass, one for each layer.

    Attributes:
        inputs: Input of each layer, `[batch, seq_len, embed]`.
        outputs: Output of each layer.
        attention: Output of each attention module, heads merged, before or after W_O depending on the model.
    """

    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    attention: list[Tensor] = field(default_factory=list)


def layer_names(attention_names: Sequence[str]) -> list[str]:
    """The layers that hold these attention modules, each once.

    Example:
        >>> layer_names(["encoder.layer.0.attention.self", "encoder.layer.1.attention.self"])
        ['encoder.layer.0', 'encoder.layer.1']
    """
    return list(dict.fromkeys(match[1] for name in attention_names if (match := _LAYER.match(name))))


@contextmanager
def traced(
    model: PreTrainedModel, attention_names: Sequence[str], given: Sequence[Tensor] | None = None
) -> Iterator[Trace]:
    """Record the layers of a model with forward hooks.

    Args:
        model: The model.
        attention_names: Names of its attention modules, within its base model.
        given: Inputs that replace each layer's own; None: keep them.
    """
    trace = Trace()
    modules = dict(model.base_model.named_modules())

    def take_in(_: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        if given is not None:
            hidden = given[len(trace.inputs)]
            args, kwargs = ((hidden, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": hidden})
        trace.inputs.append(args[0] if args else kwargs["hidden_states"])
        return args, kwargs

    def into(found: list[Tensor]) -> Callable[[nn.Module, tuple, Any], None]:
        return lambda _, args, output: found.append(output[0] if isinstance(output, tuple) else output)

    hooks = [modules[name].register_forward_hook(into(trace.attention)) for name in attention_names]
    for name in layer_names(attention_names):
        hooks.append(modules[name].register_forward_pre_hook(take_in, with_kwargs=True))
        hooks.append(modules[name].register_forward_hook(into(trace.outputs)))
    try:
        yield trace
    finally:
        for hook in hooks:
            hook.remove()
