"""Faster products in encoders of transformers: linear maps run by `kernels`, with the outputs of torch's own.

Each map gets a `forward` of its own. Its class stays `nn.Linear` and its weights stay where they are, so quantisation,
adapters, hooks, pruning, sharding and saving find what they expect.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from linformer_kit.models.modeling import LinformerPreTrainedModel
from linformer_kit.operator.drop_in import LinformerAttention
from linformer_kit.operator.kernels import Processor, choose

_FORWARD = nn.Linear.forward


def use_fast_products(model: nn.Module) -> int:
    """Let `kernels` compute the linear maps of a model in-place, if this processor is faster so in some number format.

    Returns the number of maps that were changed.

    Modules of this package do it by themselves. With an accelerator nothing is changed: `nn.DataParallel` would run
    the `forward` of the original module in each of its replicas.
    """
    if torch.accelerator.is_available() or not _fast_formats():
        return 0
    own = [module for module in model.modules() if isinstance(module, (LinformerPreTrainedModel, LinformerAttention))]
    inside = {part for module in own for part in module.modules()}
    maps = [module for module in model.modules() if type(module) is nn.Linear and module not in inside]
    maps = [module for module in maps if "forward" not in vars(module)]
    for module in maps:
        vars(module)["forward"] = _FastLinear(module).forward
    return len(maps)


def _fast_formats() -> set[torch.dtype]:
    """The number formats in which `kernels` may be faster than torch on this processor."""
    formats, here = (torch.float32, torch.bfloat16, torch.float16), Processor.here()
    return {dtype for dtype in formats if here.prefers_onednn(dtype) or not here.has_instructions(dtype)}


class _FastLinear:
    """Owner of the `forward` of a linear map; a copy or pickle of the map has its own.

    It does not keep the map alive, so that a model is freed with its last reference. A bound method, and no object that
    can be called, is what `torch.compile` accepts for all layers at once.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = weakref.ref(module)
        self._formats = _fast_formats()

    def __reduce__(self) -> Any:
        return _FastLinear, (self._module(),)

    def forward(self, input: Float[Tensor, "*rows columns"]) -> Float[Tensor, "*rows out"]:
        """X·Wᵀ + 1·b, or what a class that was changed later computes."""
        module: Any = self._module()
        if type(module).forward is not _FORWARD:
            return type(module).forward(module, input)
        if input.dtype not in self._formats:  # to choose takes longer than a small product
            return F.linear(input, module.weight, module.bias)
        return choose(input).linear(input, module.weight, module.bias)
