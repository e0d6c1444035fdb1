"""Detect operations that an accelerator would reject or synchronise for, on a machine without one."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

# These bring numbers from one device to another because they were asked to.
_TRANSFERS = (torch.ops.aten.copy_, torch.ops.aten._to_copy, torch.ops.aten.set_)


class OneDevice(TorchDispatchMode):
    """Rejects operations on tensors of several devices, except scalars, in forward and backward passes.

    The meta device alone accepts some (an index on the CPU, in `gather`) that CUDA rejects, or for which it
    synchronises.
    """

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = pytree.tree_leaves((args, kwargs or {}))
        devices = {tensor.device for tensor in given if isinstance(tensor, torch.Tensor) and tensor.dim()}
        if len(devices) > 1 and function.overloadpacket not in _TRANSFERS:
            raise AssertionError(f"{function}: expected tensors on one device, got {sorted(map(str, devices))}")
        return function(*args, **(kwargs or {}))
