"""Hooks, replaced `forward` methods and foreign classes: conditions for calling a module as a whole."""

from __future__ import annotations

from torch import nn
from torch.nn.modules import module as torch_modules


def has_hooks(module: nn.Module) -> bool:
    """Whether a module has its own hooks, or a `forward` that replaces that of its class."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__
    )


def is_replaced(module: nn.Module) -> bool:
    """Whether a module must be called so that hooks or a replaced `forward` run; global hooks count too."""
    return has_hooks(module) or torch_modules._has_any_global_hook()


_KNOWN = ("torch.nn.modules.", "transformers.", "linformer_kit.")


def may_need_whole(module: nn.Module) -> bool:
    """Whether a module may keep its input or mix tokens: it has hooks, or a class from outside the known packages."""
    return is_replaced(module) or not type(module).__module__.startswith(_KNOWN)
