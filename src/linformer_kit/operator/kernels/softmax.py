"""Attention over few columns: the slots, and the neighbours of each query, part by part of the rows.

A part is one call of torch's attention, or two batched products with a softmax between them. With a sliding window its
rows are cut into blocks, whose columns are the slots and all tokens that any of the block's rows sees. In training each
part is computed again in the backward pass, so that no P̄ is kept. Few large calls, because each operation waits for
the slowest core, which costs most where other processes use the cores too.

Products gain a quarter of a layer on AVX-512 with bfloat16, whose instructions flash attention does not use; parts with
neighbours gain up to 1.4 times on AVX2 in float32, and 2.6 times in a MiniLM on a GPU, where the plain operations keep
the scores (docs/speed.md). The plain operation is `F.scaled_dot_product_attention` of all rows at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from linformer_kit.operator.conditions import needs_gradient
from linformer_kit.operator.neighbours import Blocks, Neighbours
from linformer_kit.operator.padding import take_block

_SCORES = 3 << 20  # elements of P̄ of one part by products
_COLUMNS = 6 << 20  # elements of the keys of one part by flash attention; larger tensors get new memory each time
_COLUMNS_ON_GPU = 1 << 28


def attend_in_parts(
    tensors: Sequence[Tensor],
    mask: Tensor | None,
    neighbours: Neighbours | None,
    *,
    dropout: float,
    by_products: bool,
    wide: bool,
) -> Float[Tensor, "batch heads query_len head_dim"]:
    """`Kernels.attention` part by part of the rows.

    By products, scores are rounded to bfloat16 before the softmax, as in eager attention; flash attention keeps them
    in float32.

    Args:
        tensors: Queries, keys and values of the slots, and keys and values of the neighbours if there are any.
        mask: True where a slot may be attended to.
        neighbours: The tokens that queries see besides.
        dropout: Dropout on the weights.
        by_products: Whether parts are batched products, and not torch's attention.
        wide: Whether to compute in float32 and round once.
    """
    query = tensors[0]
    samples, rows = _part_size(query, tensors[1].shape[2], neighbours, by_products)
    function = _products if by_products else F.scaled_dot_product_attention
    # Flash attention takes a bias in float32 on a CPU; on a GPU, as products, it wants the format of the queries.
    wide_bias = query.device.type == "cpu" and not by_products
    dtype = torch.float32 if wide and neighbours is not None else query.dtype
    attend = functools.partial(_attend, functools.partial(function, dropout_p=dropout), dtype, wide_bias)
    if needs_gradient(*tensors):
        attend = functools.partial(checkpoint, attend, use_reentrant=False, preserve_rng_state=dropout > 0)
    contexts = []
    # Split, not sliced: in the backward pass each slice becomes a tensor of the whole size.
    for group, (queries, keys, values, *tokens) in enumerate(
        zip(*(each.split(samples) for each in tensors), strict=True)
    ):
        here = slice(group * samples, (group + 1) * samples)
        group_contexts, parts = [], queries.split(rows, dim=2)
        if len(parts) > 1 and needs_gradient(keys, values):  # gradients of all parts are summed in float32
            keys, values = (each.to(torch.promote_types(each.dtype, torch.float32)) for each in (keys, values))
        for part, rows_of_part in enumerate(parts):
            near = neighbours and neighbours.block(here, slice(part * rows, (part + 1) * rows))
            near = near and near._replace(key=tokens[0], value=tokens[1])
            group_contexts.append(attend(rows_of_part, keys, values, take_block(mask, here), near))
        contexts.append(group_contexts[0] if len(group_contexts) == 1 else torch.cat(group_contexts, dim=1))
    return torch.cat(contexts).transpose(1, 2)


def _part_size(query: Tensor, slots: int, neighbours: Neighbours | None, by_products: bool) -> tuple[int, int]:
    """Samples and rows of a part: one of the two is 1 or all; with neighbours, rows of whole blocks."""
    _, heads, length, head_dim = query.shape
    block_rows, columns = (1, slots) if neighbours is None else neighbours.window.block_size(length, slots)
    keys = _COLUMNS if query.device.type == "cpu" else _COLUMNS_ON_GPU
    most = (_SCORES if by_products else keys * block_rows // head_dim) // (heads * columns)
    parts = -(-length // max(block_rows, most))
    rows = -(-length // max(1, parts) // block_rows) * block_rows
    return max(1, most // max(1, length)), max(1, rows)


def _attend(
    function: Callable[..., Tensor],
    dtype: torch.dtype,
    wide_bias: bool,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    neighbours: Neighbours | None,
) -> Tensor:
    """The context of a part, `[samples, rows, heads, head_dim]`, by a function with the arguments of SDPA, in a format.

    With neighbours, each block of rows has its own columns: the slots, and the tokens that its rows see.
    """
    given = query.dtype
    query, key, value = (each.to(dtype) for each in (query, key, value))
    if neighbours is None:
        return function(query, key, value, mask).transpose(1, 2)
    neighbours = neighbours._replace(key=neighbours.key.to(dtype), value=neighbours.value.to(dtype))
    bias_dtype = torch.promote_types(dtype, torch.float32) if wide_bias else dtype
    blocks = Blocks.of(query, key, value, mask, neighbours, bias_dtype)
    return blocks.joined(function(blocks.query, blocks.key, blocks.value, blocks.bias)).to(given)


def _products(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout_p: float) -> Tensor:
    """`F.scaled_dot_product_attention` as two products with a softmax between them."""
    scale = query.shape[-1] ** -0.5
    is_longer = query.shape[2] > key.shape[2]  # the smaller of both is scaled
    query, key = (query, key * scale) if is_longer else (query * scale, key)
    scores = torch.matmul(query, key.transpose(2, 3))
    if mask is not None:
        scores = scores.masked_fill_(~mask, -torch.inf) if mask.dtype == torch.bool else scores.add_(mask)
    return F.dropout(scores.softmax(dim=-1), dropout_p) @ value
