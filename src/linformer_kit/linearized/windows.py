"""Exact windows: layers that attend to a sliding window, in blocks of queries instead of with an n × n mask.

Encoders such as ModernBERT and EmbeddingGemma have a window in most layers. `import linformer_kit` registers
`attn_implementation="exact_windows"` with transformers: these layers then take time and memory linear in n, with the
same outputs as `sdpa`; all other layers run as with `sdpa`. Weights, configuration and saved files stay what they are.

Axes: batch, heads, seq_len (n), head_dim; blocks of consecutive queries (rows), with the tokens that they may see.
"""

from __future__ import annotations

import logging
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from linformer_kit.internals import (
    attention_implementation,
    bidirectional_mask_function,
    causal_mask_function,
    eager_attention_forward,
    is_recorded,
    sdpa_attention_forward,
    sdpa_mask,
    window_of_configuration,
)
from linformer_kit.linearized.layers import check_weights, is_causal_without_mask
from linformer_kit.models.base import LinearModel
from linformer_kit.operator.conditions import has_values, is_exporting
from linformer_kit.operator.kernels import choose
from linformer_kit.operator.neighbours import Neighbours
from linformer_kit.operator.window import Window, as_bias, block_count

IMPLEMENTATION = "exact_windows"
logger = logging.getLogger(__name__)

_WORTH = 2  # below this many times the columns of a block, sdpa is as fast


class WindowMask(NamedTuple):
    """Which tokens each query sees, in blocks of queries: what layers with a window get as `attention_mask`."""

    # What is added to the scores, made once for all layers; the first column of a block is the first token that its
    # first row sees.
    bias: Float[Tensor, "batch_or_1 blocks rows seen"]
    window: Window
    # Queries that see no token: those of padding. `bias` shows them all, to stay finite; their output is 0, as by sdpa.
    blind: Bool[Tensor, "batch_or_1 seq_len"] | None

    def pairs(self, length: int) -> Bool[Tensor, "batch_or_1 1 seq_len seq_len"]:
        """The mask over pairs of positions, for attention weights."""
        _, blocks, rows, seen = self.bias.shape
        first = torch.arange(blocks, device=self.bias.device)[:, None, None] * rows
        column = first + torch.arange(seen, device=self.bias.device)
        wide = self.bias.new_zeros(*self.bias.shape[:3], blocks * rows + seen, dtype=torch.bool)
        wide = wide.scatter(-1, column.expand(self.bias.shape), self.bias == 0)
        before = self.window.before
        return wide.flatten(1, 2)[:, None, :length, before : before + length]

    @property
    def ndim(self) -> int:
        """As of masks over pairs, so that models pass on a mask that `generate` made."""
        return 4

    def contiguous(self) -> WindowMask:
        """The same: transformers asks for it with a cache of a fixed size."""
        return self

    def __getattr__(self, name: str) -> Any:
        expected = "sdpa, as the layers do not only pass on their mask"
        raise AttributeError(f"attn_implementation: expected {expected}, got {IMPLEMENTATION} (mask.{name})")


def window_mask(**arguments: Any) -> WindowMask | Tensor | None:
    """The mask for layers: in blocks if they have a window and the text is long enough, else that of `sdpa`.

    The mask function of transformers decides what is visible, within `local_size` tokens on each side.
    """
    if isinstance(arguments.get("attention_mask"), WindowMask):
        return arguments["attention_mask"]
    if torch.jit.is_tracing() or not _has_window(arguments):
        return sdpa_mask(**arguments)
    length, size, device = arguments["q_length"], arguments["local_size"], arguments["device"]
    # So transformers calls a causal window and nothing besides.
    is_causal = arguments.get("allow_is_causal_skip", False)
    window = Window(size if is_causal else 2 * size + 1, is_causal)
    rows, seen = window.block_size(length, 0)
    if not is_exporting() and length < _WORTH * seen:
        return sdpa_mask(**arguments)
    blocks = torch.arange(block_count(length, rows), device=device)[None, :, None, None] * rows
    query = blocks + torch.arange(rows, device=device)[:, None]
    key = blocks - window.before + torch.arange(seen, device=device)
    batch = torch.arange(arguments["batch_size"], device=device)[:, None, None, None]
    padding = arguments.get("attention_mask")
    inside = key.clamp(0, length - 1)
    visible = arguments["mask_function"](batch, torch.zeros_like(batch), query.clamp(max=length - 1), inside)
    visible = visible & (key >= 0) & (key < length)
    if padding is not None:
        visible = visible & padding.bool()[batch, inside]
    is_plain = is_causal or arguments.get("allow_is_bidirectional_skip", False)
    if not is_plain:  # other functions than a window may show tokens beyond the blocks
        pairs, inside_blocks = sdpa_mask(**arguments), (visible & (query < length)).expand(len(batch), -1, -1, -1)
        if pairs is None or not has_values(pairs) or pairs.sum() != inside_blocks.sum():
            return pairs
    blind = ~visible.any(dim=-1)
    bias = as_bias(visible | blind[..., None], torch.promote_types(arguments["dtype"], torch.float32))
    if padding is None and is_plain:
        return WindowMask(bias, window, None)
    # Taken by index, since exporting refuses to flatten any number of blocks.
    position = torch.arange(length, device=device)
    return WindowMask(bias, window, blind[:, position // rows, position % rows])


def _has_window(arguments: dict[str, Any]) -> bool:
    """Whether a mask is that of a window over the tokens of one forward pass, without a cache of earlier ones."""
    offsets = arguments.get("q_offset", 0), arguments.get("kv_offset", 0)
    return (
        arguments.get("local_size") is not None
        and arguments["mask_function"] not in (bidirectional_mask_function, causal_mask_function)
        and not any(isinstance(offset, Tensor) or offset for offset in offsets)
        and arguments["q_length"] == arguments["kv_length"]
    )


def window_attention(
    module: nn.Module,
    query: Float[Tensor, "batch heads seq_len head_dim"],
    key: Float[Tensor, "batch key_heads keys head_dim"],
    value: Float[Tensor, "batch key_heads keys head_dim"],
    attention_mask: WindowMask | Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **arguments: Any,
) -> tuple[Float[Tensor, "batch seq_len heads head_dim"], Float[Tensor, "batch heads seq_len keys"] | None]:
    """softmax(Q·Kᵀ·scaling)·V (equation 2) over the tokens that a mask from `window_mask` shows.

    Args:
        module: The attention layer that calls this function.
        query: Q·W_Q by heads; `key` and `value` likewise.
        attention_mask: From `window_mask`; any other is for `sdpa`, and None means what it means there: each query sees
            all keys, or itself and the keys before it where the layer is causal.
        scaling: Scale of the scores; None: 1/√head_dim.
        dropout: Dropout on the weights.
        arguments: All other arguments of the layer.

    Returns:
        The output, with heads as the second-to-last axis; and the weights P if transformers records them, or None.

    Raises:
        InputError: for attention with a term that is not computed here, such as sinks or a cap of the scores.
    """
    check_weights(module, arguments)
    need_weights = is_recorded(arguments)
    if not need_weights and not isinstance(attention_mask, WindowMask):
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **arguments)
    key, value = (one_for_each_query(heads, query) for heads in (key, value))
    if need_weights:
        mask = attention_mask.pairs(query.shape[2]) if isinstance(attention_mask, WindowMask) else attention_mask
        is_causal = mask is None and is_causal_without_mask(module, arguments.get("is_causal"))
        if is_causal and query.shape[2] > 1:  # one query follows its cache; several, whose cache is empty, begin it
            mask = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=key.device).tril()
        if mask is not None and mask.dtype == torch.bool:  # True where visible
            mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, torch.finfo(query.dtype).min)
        return eager_attention_forward(module, query, key, value, mask, scaling, dropout)
    bias, window, blind = cast(WindowMask, attention_mask)
    tokens = Neighbours(key, value, window, bias=bias)
    no_slots = key[:, :, :0]
    context = choose(query).attention(scaled(query, scaling), no_slots, no_slots, None, tokens, dropout=dropout)
    if blind is not None:
        context = context.masked_fill(blind[:, None, :, None], 0.0)
    return context.transpose(1, 2).contiguous(), None


def use_exact_windows(model: PreTrainedModel) -> bool:
    """Switch a model from `sdpa` to exact windows, if it has layers with a window, and log it; whether it was switched.

    Linearised models have them already.
    """
    windows = [
        window
        for module in model.modules()
        for window in (getattr(module, "sliding_window", None), window_of_configuration(module))
    ]
    if isinstance(model, LinearModel) or not any(isinstance(window, int) and window > 0 for window in windows):
        return False
    kind, now = type(model).__name__, attention_implementation(model)
    if now not in ("sdpa", IMPLEMENTATION):
        logger.warning("%s: layers with a sliding window stay at %s; those of sdpa run in blocks", kind, now)
        return False
    model.set_attn_implementation(IMPLEMENTATION)
    logger.info("%s: layers with a sliding window run in blocks, with the same outputs (%s)", kind, IMPLEMENTATION)
    return True


def scaled(query: Tensor, scaling: float | None) -> Tensor:
    """Queries whose scores with the scale 1/√head_dim are those with another one."""
    head_dim = query.shape[-1]
    return query if scaling in (None, head_dim**-0.5) else query * (scaling * head_dim**0.5)


def one_for_each_query(
    heads: Float[Tensor, "batch key_heads seq_len head_dim"], query: Float[Tensor, "batch heads query_len head_dim"]
) -> Float[Tensor, "batch heads seq_len head_dim"]:
    """Repeat keys or values of grouped-query attention for each query head; others are returned without a copy."""
    repeats = query.shape[1] // heads.shape[1]
    return heads if repeats == 1 else heads.repeat_interleave(repeats, dim=1)


AttentionInterface.register(IMPLEMENTATION, window_attention)
AttentionMaskInterface.register(IMPLEMENTATION, window_mask)
