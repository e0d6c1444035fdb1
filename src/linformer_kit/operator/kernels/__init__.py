"""The products of the operator as fast as the machine allows: the plain ones, or faster ways to the same numbers.

Which one runs is decided here by device, number format and shape alone, each for a measured reason (docs/speed.md). A
trace, an export, a compiled or a transformed function (`torch.func`) always gets the plain form, and so does whatever
runs within `plain()`.

Axes as in `functional`.
"""

from linformer_kit.operator.kernels.products import apply_linear, compress, linear
from linformer_kit.operator.kernels.softmax import arranged, attention
from linformer_kit.operator.kernels.tokens import block_tokens, blocks, is_large, runs_in_blocks
from linformer_kit.operator.kernels.when import has_hooks, is_replaced, may_need_whole, plain

__all__ = [
    "apply_linear",
    "arranged",
    "attention",
    "block_tokens",
    "blocks",
    "compress",
    "has_hooks",
    "is_large",
    "is_replaced",
    "linear",
    "may_need_whole",
    "plain",
    "runs_in_blocks",
]
