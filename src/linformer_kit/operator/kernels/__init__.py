"""Optional: the products of the operator by faster kernels that give the same numbers.

The rest of the package calls the functions listed here and nothing else of this folder. Which kernel runs is decided
inside, by device, number format and shape alone, each for a measured reason (docs/speed.md). A trace, an export, a
compiled or a transformed function (`torch.func`) always gets the plain operations, and so does what runs within
`plain()`.

    linear, apply_linear, compress    X·Wᵀ + b by tensors, by a module, and E·X
    attention, arranged               attention over few keys, and their layout in memory for it
    runs_in_blocks, is_large          whether inference goes over blocks of tokens, one after the other
    blocks, block_tokens              these blocks
    plain                             a context without any of it

Axes as in `slots`.
"""

from linformer_kit.operator.kernels.conditions import has_onednn, plain
from linformer_kit.operator.kernels.products import apply_linear, compress, linear
from linformer_kit.operator.kernels.softmax import arranged, attention
from linformer_kit.operator.kernels.tokens import block_tokens, blocks, is_large, runs_in_blocks

__all__ = [
    "apply_linear",
    "arranged",
    "attention",
    "block_tokens",
    "blocks",
    "compress",
    "has_onednn",
    "is_large",
    "linear",
    "plain",
    "runs_in_blocks",
]
