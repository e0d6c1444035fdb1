"""The geometry of a sliding window: which tokens a query sees around its own, and how queries are cut into blocks.

Query t sees the real tokens from ⌊w/2⌋ before it to ⌊(w - 1)/2⌋ after it, itself included; padding sees none. In causal
attention it sees the w - 1 tokens before it and itself. With w 5, of tokens 0 … 6:

    query 3           0 1 2 3 4 5 6          causal     0 1 2 3 4 5 6
                        └───────┘                       └─────┘

Every sequence is right-padded. Keys and values are in `neighbours`. Axes as in `slots`; `rows` are the queries of a
block, `seen` the tokens that any of them sees, at least rows + w - 1.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from linformer_kit.operator.padding import take_block

_ROWS = 128  # of a block; all of them are multiplied with rows + w - 1 tokens; without slots half as many
_MOST_ROWS = 512  # with wide windows
_ALIGNED = 32  # columns: products and softmax of P̄ take 1.5 times as long with other numbers


class Window(NamedTuple):
    """Which tokens the queries of some sequences see around their own."""

    width: int  # w; 0: none
    is_causal: bool = False  # queries see the w - 1 tokens before their own
    first: int = 0  # index of the first query's own token, if queries are only some of the tokens
    lengths: Int[Tensor, " batch"] | None = None  # number of real tokens of each sequence; None: all
    starts: Int[Tensor, " batch"] | None = None  # index of the first token of each text; None: 0

    @property
    def before(self) -> int:
        """The number of tokens that a query sees before its own."""
        return self.width - 1 if self.is_causal else self.width // 2

    def seen_by(
        self, positions: Int[Tensor, "*rows"], seq_len: int
    ) -> tuple[Int[Tensor, "batch_or_1 ..."], Int[Tensor, "batch_or_1 ..."]]:
        """The first token that the query at each position sees, and the one after the last, of seq_len tokens."""
        limits = torch.full((1,), seq_len, device=positions.device) if self.lengths is None else self.lengths
        limits = limits.view(-1, *[1] * positions.dim())
        first = (positions - self.before).clamp(min=0).expand(limits.shape[0], *positions.shape)
        first = first if self.starts is None else torch.maximum(first, self.starts.view_as(limits))
        after = torch.minimum(positions + self.width - self.before, limits)
        return first, torch.where(positions < limits, after, first)

    def block(self, samples: slice, rows: slice) -> Window:
        """The window of some of the queries, in some of the sequences."""
        lengths, starts = take_block(self.lengths, samples), take_block(self.starts, samples)
        return self._replace(first=self.first + rows.start, lengths=lengths, starts=starts)

    def block_size(self, queries: int, slots: int) -> tuple[int, int]:
        """The number of rows of a block, and of its columns: the slots and the tokens that its rows see."""
        rows = (
            max(_ROWS, min(self.width, _MOST_ROWS)) if slots else max(-(-_ROWS // 2), min(self.width // 2, _MOST_ROWS))
        )
        if not torch.compiler.is_compiling():
            rows = max(1, min(rows, queries))
        return rows, (slots + rows + self.width - 2 + _ALIGNED) // _ALIGNED * _ALIGNED


def block_count(queries: int, rows: int) -> int:
    """The number of blocks of a sequence."""
    # A traced program must not depend on the length: always several blocks; and ONNX rounds towards zero.
    return (queries + 2 * rows - 1) // rows if torch.compiler.is_compiling() else -(-queries // rows)


def not_later(
    query: Float[Tensor, "batch heads query_len head_dim"], key: Float[Tensor, "batch heads keys head_dim"]
) -> Bool[Tensor, "query_len keys"]:
    """True where a key is not after the query, of queries that are those of the last keys."""
    queries, keys = query.shape[2], key.shape[2]
    return torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril(keys - queries)


def as_bias(visible: Bool[Tensor, "*shape"], dtype: torch.dtype) -> Float[Tensor, "*shape"]:
    """What is added to scores: -inf where nothing is to be seen."""
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill(~visible, -math.inf)


def log_unseen(
    low: Int[Tensor, "*#shape"],
    high: Int[Tensor, "*#shape"],
    first: Int[Tensor, "*#shape"],
    after: Int[Tensor, "*#shape"],
    *,
    dtype: torch.dtype,
) -> Float[Tensor, ...]:
    """The logarithm of the share of the tokens from `low` to `high` that are not from `first` to `after`.

    So each token counts once: as a neighbour, or in its slot. Zero where there is no token.
    """
    both = (torch.minimum(high, after) - torch.maximum(low, first)).clamp(min=0)
    wide = torch.promote_types(dtype, torch.float32)
    count = (high - low).clamp(min=1)
    return ((count - both).to(wide).log() - count.to(wide).log()).to(dtype)
