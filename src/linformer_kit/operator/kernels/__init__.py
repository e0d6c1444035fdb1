"""The operations of the operator: plain ones, and optional faster kernels with the same results.

The rest of the package uses only what is listed here. Which kernels are used is decided once for a forward pass, by
device, number format and the modes of torch, each for a measured reason (docs/speed.md). Traced, exported, compiled and
transformed (`torch.func`) code always uses the plain operations, and so does code within `plain()`.

    choose     the kernels for a forward pass
    Kernels    the operations: products with a weight and with E, feed-forward layers, and attention
    plain      a context that disables the faster kernels

Axes as in `slots`.
"""

from linformer_kit.operator.conditions import plain
from linformer_kit.operator.kernels.base import Kernels
from linformer_kit.operator.kernels.fast import FastKernels, choose
from linformer_kit.operator.kernels.processor import Processor
