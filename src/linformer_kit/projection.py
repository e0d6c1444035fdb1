"""The maps of n positions to k slots, and how layers and heads share them (section 4 of the paper).

A projection is a module called with the *inputs* of keys and values and with the linear maps W_K and W_V, because the
order of the multiplications is its own business: E·(X·W) and (E·X)·W are the same number at very different cost.
A new projection is a new class here and a new line in `PROJECTIONS`.

Axes as in `functional`.
"""

from __future__ import annotations

from typing import Any, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from linformer_kit.errors import InputError
from linformer_kit.functional import pooling_matrix, split_heads, zero_padding
from linformer_kit.settings import BiasOrder, Sharing

SHARINGS = get_args(Sharing)
BIAS_ORDERS = get_args(BiasOrder)


class LinearProjection(nn.Module):
    """Learned E and F: each slot is a weighted sum of all positions (equation 7).

    Args:
        seq_len: n, the longest sequence; a shorter one uses the first columns.
        projected_dim: k, the number of slots; at most seq_len.
        num_heads: h.
        sharing: `none`: E and F for each head; `headwise`: E and F for all heads; `key_value` and `layerwise`: one
            matrix, E = F. With `layerwise` the same module serves every layer; its owner passes it on.

    The parameters are `key_projection` (E) and, where it is not E itself, `value_projection` (F), each
    `[projected_dim, seq_len]`, with the heads in front for `none`. They start as scaled mean pooling
    (`functional.pooling_matrix`).

    Raises:
        InputError: for a projected_dim outside 1 … seq_len or an unknown sharing.
    """

    def __init__(self, seq_len: int, projected_dim: int, *, num_heads: int, sharing: str = "headwise") -> None:
        super().__init__()
        if not isinstance(projected_dim, int) or not 1 <= projected_dim <= seq_len:
            raise InputError(f"projected_dim: expected 1 to {seq_len} (the longest sequence), got {projected_dim!r}")
        if sharing not in SHARINGS:
            raise InputError(f"sharing: expected one of {', '.join(SHARINGS)}, got {sharing!r}")
        self.seq_len = seq_len
        self.projected_dim = projected_dim
        shape = (num_heads, projected_dim, seq_len) if sharing == "none" else (projected_dim, seq_len)
        self.key_projection = nn.Parameter(torch.empty(shape))
        if sharing in ("key_value", "layerwise"):
            self.register_parameter("value_projection", None)
        else:
            self.value_projection = nn.Parameter(torch.empty(shape))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Start E and F as mean pooling scaled to keep the variance."""
        for parameter in self.parameters():
            parameter.copy_(self.initial_matrix())

    def initial_matrix(self) -> Float[Tensor, "projected seq_len"]:
        """The start of every matrix."""
        return pooling_matrix(self.projected_dim, self.seq_len)

    def matrix_count(self) -> int:
        """Number of n → k matrices in here, as section 4 of the paper counts them."""
        return sum(parameter.shape[0] if parameter.dim() == 3 else 1 for parameter in self.parameters())

    def extra_repr(self) -> str:
        return f"{self.seq_len} -> {self.projected_dim}, matrices={self.matrix_count()}"

    def forward(
        self,
        key: Float[Tensor, "batch seq_len embed"],
        value: Float[Tensor, "batch seq_len embed"],
        key_map: nn.Linear,
        value_map: nn.Linear,
        *,
        num_heads: int,
        padding_mask: Bool[Tensor, "batch seq_len"] | None = None,
        bias_order: str = "before_projection",
    ) -> tuple[Float[Tensor, "batch heads projected head_dim"], Float[Tensor, "batch heads projected head_dim"]]:
        """Projected keys E·(K·W_K) and values F·(V·W_V), heads split.

        Args:
            key: Input of the keys, zero where `padding_mask` is True.
            value: Input of the values, likewise.
            key_map: W_K and b_K.
            value_map: W_V and b_V.
            num_heads: h.
            padding_mask: True where padded.
            bias_order: `before_projection` or `after_projection`.

        Raises:
            InputError: if the sequence is longer than seq_len.
        """
        length = key.shape[1]
        # An exported program serves many lengths, so nothing in it may depend on the one that it was traced with.
        exporting = torch.compiler.is_exporting()
        if not exporting and length > self.seq_len:
            raise InputError(f"sequence length: expected at most {self.seq_len}, got {length}")
        key_matrix = _first_columns(self.key_projection, length)
        tied = self.value_projection is None
        value_matrix = key_matrix if tied else _first_columns(self.value_projection, length)
        options: dict[str, Any] = {"num_heads": num_heads, "padding_mask": padding_mask, "bias_order": bias_order}
        # Fewer rows for W is the cheap order. It needs one matrix for all heads, and it is cheap only if k < n.
        if key_matrix.dim() == 3 or (not exporting and length <= self.projected_dim):
            return (
                _map_then_project(key, key_matrix, key_map, **options),
                _map_then_project(value, value_matrix, value_map, **options),
            )
        compressed_key = key_matrix @ key
        compressed_value = compressed_key if tied and value is key else value_matrix @ value
        return (
            _map_compressed(compressed_key, key_matrix, key_map, **options),
            _map_compressed(compressed_value, value_matrix, value_map, **options),
        )


def _first_columns(matrix: Tensor, length: int) -> Tensor:
    if torch.compiler.is_exporting():  # a slice would tell the full length from shorter ones
        return matrix.index_select(-1, torch.arange(length, device=matrix.device))
    return matrix[..., :length]


def _map_then_project(
    inputs: Tensor, matrix: Tensor, linear: nn.Linear, *, num_heads: int, padding_mask: Tensor | None, bias_order: str
) -> Tensor:
    """The order of the paper: E·(X·W + m·b), or E·(X·W) + 1·b, with m 1 on real tokens and 0 on padding."""
    if bias_order == "after_projection":
        slots = matrix @ split_heads(nn.functional.linear(inputs, linear.weight), num_heads)
        return slots if linear.bias is None else slots + linear.bias.to(slots.dtype).view(num_heads, 1, -1)
    mapped = linear(inputs)
    if linear.bias is not None:
        mapped = zero_padding(mapped, padding_mask)
    return matrix @ split_heads(mapped, num_heads)


def _map_compressed(
    compressed: Tensor,
    matrix: Tensor,
    linear: nn.Linear,
    *,
    num_heads: int,
    padding_mask: Tensor | None,
    bias_order: str,
) -> Tensor:
    """The same number from E·X: (E·X)·W + (E·m)⊗b, or (E·X)·W + 1⊗b; W is applied to k rows instead of n."""
    if bias_order == "after_projection" or linear.bias is None:
        return split_heads(linear(compressed), num_heads)
    mapped = nn.functional.linear(compressed, linear.weight)
    row_sums = matrix.sum(dim=-1) if padding_mask is None else (~padding_mask).to(matrix.dtype) @ matrix.T
    bias = row_sums[..., None] * linear.bias
    return split_heads(mapped + bias.to(mapped.dtype), num_heads)


PROJECTIONS = {"linear": LinearProjection}


def build_projection(name: str, *, seq_len: int, projected_dim: int, num_heads: int, sharing: str) -> LinearProjection:
    """The projection of that name.

    Raises:
        InputError: for an unknown name, and what the projection itself refuses.
    """
    if name not in PROJECTIONS:
        raise InputError(f"projection: expected one of {', '.join(PROJECTIONS)}, got {name!r}")
    return PROJECTIONS[name](seq_len, projected_dim, num_heads=num_heads, sharing=sharing)
