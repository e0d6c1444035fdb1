"""Optional faster kernels for the products of the operator, with the same results.

The rest of the package uses only the functions listed here. The kernel is chosen by device, number format and shape
only, each for a measured reason (docs/speed.md). Traced, exported, compiled and transformed (`torch.func`) code always
uses the plain operations, and so does code within `plain()`.

    linear, apply_linear, compress    X·Wᵀ + b for tensors, for a module, and E·X
    apply_feed_forward                two linear modules with GELU between them
    widened                           other products, in float32 where the processor has nothing better
    attention                         attention over few keys and a sliding window of tokens
    plain                             a context that disables these kernels

Axes as in `slots`.
"""

from linformer_kit.operator.conditions import plain
from linformer_kit.operator.kernels.processor import Processor
from linformer_kit.operator.kernels.products import apply_feed_forward, apply_linear, compress, linear, widened
from linformer_kit.operator.kernels.softmax import attention
