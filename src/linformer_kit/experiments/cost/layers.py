"""Encoder layers that no library provides as a module: recurrent and sparse.

Axes: batch, seq_len (n), embed (width), heads, head_dim.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from linformer_kit.errors import InputError

_FLEX_BLOCK = 128  # tokens; FlexAttention skips whole blocks of this many queries and keys


class EncoderLayer(nn.Module):
    """A layer like RoBERTa's with any map that mixes tokens: mixer and feed-forward, each with residual and LayerNorm.

    Args:
        mixer: The map, `[batch, seq_len, embed]` to the same.
        width: Width of the hidden states.
        intermediate_size: Width of the feed-forward part.
    """

    def __init__(self, mixer: nn.Module, width: int, intermediate_size: int) -> None:
        super().__init__()
        self.mixer = mixer
        self.mixer_norm = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, intermediate_size)
        self.fc2 = nn.Linear(intermediate_size, width)
        self.final_norm = nn.LayerNorm(width)

    def forward(self, hidden: Float[Tensor, "batch seq_len embed"]) -> Float[Tensor, "batch seq_len embed"]:
        hidden = self.mixer_norm(hidden + self.mixer(hidden))
        return self.final_norm(hidden + self.fc2(F.gelu(self.fc1(hidden))))


class Called(nn.Module):
    """Wraps a module of a library as a map of hidden states.

    Args:
        module: The module.
        call: Function that calls it: the module and hidden states to hidden states.
    """

    def __init__(self, module: nn.Module, call: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.module = module
        self.call = call

    def forward(self, hidden: Float[Tensor, "batch seq_len embed"]) -> Float[Tensor, "batch seq_len embed"]:
        return self.call(self.module, hidden)


def bidirectional_lstm(width: int) -> Called:
    """`torch.nn.LSTM` with half of the width in each direction, so that each token depends on the whole text.

    Raises:
        InputError: for an odd width.
    """
    if width % 2:
        raise InputError(f"hidden_size: expected an even number, half for each direction, got {width}")
    lstm = nn.LSTM(width, width // 2, batch_first=True, bidirectional=True)
    return Called(lstm, lambda module, hidden: module(hidden)[0])


class StridedAttention(nn.Module):
    """The strided pattern of the Sparse Transformer (Child et al. 2019, section 4.2), bidirectional.

    The first half of the heads attends to tokens less than a stride away; the others to those at multiples of the
    stride. The latter sort the tokens by their remainder modulo the stride, so that attended tokens form blocks:
    FlexAttention skips blocks, not single tokens.

    Args:
        width: Width of the hidden states.
        num_heads: Two or more; must divide width.
        seq_len: n, the only length that it supports.
        device: Device that it will run on.

    Raises:
        InputError: for a length that is not a multiple of the stride and of FlexAttention's blocks.
    """

    def __init__(self, width: int, num_heads: int, seq_len: int, *, device: str) -> None:
        super().__init__()
        self.stride = stride_of(seq_len)
        self.num_heads = num_heads
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        # Uncompiled, it would materialise n × n; fullgraph raises an error instead.
        self.attend = torch.compile(flex_attention, dynamic=False, fullgraph=True)
        self.block_mask = strided_block_mask(seq_len, self.stride, num_heads, device)

    def forward(self, hidden: Float[Tensor, "batch seq_len embed"]) -> Float[Tensor, "batch seq_len embed"]:
        query, key, value = (
            self._half_by_remainder(project(hidden).unflatten(-1, (self.num_heads, -1)).transpose(1, 2))
            for project in (self.query, self.key, self.value)
        )
        attended = self.attend(query, key, value, block_mask=self.block_mask)
        near, far = attended.split(self._halves(), dim=1)
        attended = torch.cat([near, transposed(far, self.stride)], dim=1)
        return self.output(attended.transpose(1, 2).flatten(2))

    def _half_by_remainder(
        self, heads: Float[Tensor, "batch heads seq_len head_dim"]
    ) -> Float[Tensor, "batch heads seq_len head_dim"]:
        near, far = heads.split(self._halves(), dim=1)
        return torch.cat([near, transposed(far, heads.shape[2] // self.stride)], dim=1)

    def _halves(self) -> list[int]:
        return [self.num_heads // 2, self.num_heads - self.num_heads // 2]


def stride_of(seq_len: int) -> int:
    """The power of two nearest to √n.

    Raises:
        InputError: for a length that is not a multiple of it and of FlexAttention's blocks.
    """
    stride = 2 ** round(math.log2(seq_len) / 2)
    if seq_len % max(stride, _FLEX_BLOCK):
        raise InputError(f"n: expected a multiple of {max(stride, _FLEX_BLOCK)} for the strided pattern, got {seq_len}")
    return stride


def transposed(
    heads: Float[Tensor, "batch heads seq_len head_dim"], rows: int
) -> Float[Tensor, "batch heads seq_len head_dim"]:
    """Reorder tokens: write them into `rows` rows and read them by columns."""
    return heads.unflatten(2, (rows, -1)).transpose(2, 3).flatten(2, 3)


def strided_block_mask(seq_len: int, stride: int, num_heads: int, device: str) -> BlockMask:
    """The block mask of the strided pattern for FlexAttention.

    Computed from the corners of the blocks: `create_block_mask` would make an n × n mask for every head.
    """
    column = seq_len // stride
    first_far = num_heads // 2

    def attends(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return torch.where(head < first_far, (query - key).abs() < stride, query // column == key // column)

    blocks = torch.arange(seq_len // _FLEX_BLOCK, device=device)
    apart = (blocks[:, None] - blocks).abs() * _FLEX_BLOCK
    first, last = blocks * _FLEX_BLOCK // column, (blocks * _FLEX_BLOCK + _FLEX_BLOCK - 1) // column
    some = torch.stack(
        [apart - _FLEX_BLOCK + 1 < stride, (first[:, None] <= last) & (first <= last[:, None])],
    )
    whole = torch.stack(
        [apart + _FLEX_BLOCK - 1 < stride, (first[:, None] == last) & (first == last[:, None])],
    )
    far = (torch.arange(num_heads, device=device) >= first_far).long()
    some, whole = some[far][None], whole[far][None]
    return BlockMask.from_kv_blocks(
        *_numbered(some & ~whole), *_numbered(whole), BLOCK_SIZE=_FLEX_BLOCK, mask_mod=attends
    )


def _numbered(
    blocks: Bool[Tensor, "1 heads query_blocks key_blocks"],
) -> tuple[Int[Tensor, "1 heads query_blocks"], Int[Tensor, "1 heads query_blocks key_blocks"]]:
    """Number of blocks set in each row, and the indices of the blocks, those set first."""
    return blocks.sum(-1, dtype=torch.int32), blocks.int().argsort(dim=-1, descending=True, stable=True).int()
