"""`LinformerAttention`: multi-head attention over k projected slots, a drop-in for `torch.nn.MultiheadAttention`.

Axes as in `functional`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from linformer_kit.errors import InputError
from linformer_kit.operator import functional
from linformer_kit.operator.drop_in import (
    Layout,
    NotFused,
    padding_from_scores,
    register_layout_check,
    split_fused_weights,
)
from linformer_kit.operator.kernels import apply_linear
from linformer_kit.operator.projections import BIAS_ORDERS, HeadMap, SequenceProjection, Slots, build_projection
from linformer_kit.operator.values import values_are_cheap

# A projection, or a function that calls one.
Projects = SequenceProjection | Callable[..., list[Slots]]


class LinformerAttention(nn.Module):
    """Multi-head attention with linear complexity.

    head_i = softmax(Q·W_i^Q·(E_i·K·W_i^K)ᵀ/√d)·F_i·V·W_i^V, and the output is Concat(head_1 … head_h)·W_O:
    equation 7 of Wang et al. 2020. Time and memory are n·k instead of n².

    In the paper's letters: `embed_dim` d_m, `num_heads` h, `max_seq_len` n, `projected_dim` k; `projection` holds E
    and F.

    Args:
        embed_dim: Width of inputs and output.
        num_heads: Number of heads; divides embed_dim.
        max_seq_len: Longest sequence of keys. Needed where `projection` is a name.
        projected_dim: Number of slots, at most max_seq_len, or a list of one for each head; a head then attends to its
            own number only. Needed where `projection` is a name; with a module, fewer slots than it has.
        sharing: `none`, `headwise` (the default), `key_value` or `layerwise`. For `layerwise` build one projection
            module and pass it to every layer; beside a module, this, projection_initializer and shorter_input must be
            as the module has them, if given.
        projection: Name of a projection (`projection.PROJECTIONS`), or a module, which may be shared with other layers,
            or None: full attention (equation 2), unless `forward` is given a projection.
        projection_initializer: How E and F of projection `linear` start (`projection.starts`), `shifted_pooling` by
            default.
        shorter_input: What keys shorter than max_seq_len use: the first columns of E and the first windows (`prefix`,
            the default), or E and windows resampled to their length (`stretch`).
        dropout: Dropout on the context mapping while training.
        bias: Whether the four linear maps have biases.
        bias_order: `before_projection`, E·(X·W + 1·b), or `after_projection`, E·(X·W) + 1·b, as fairseq does.
        batch_first: Whether inputs and output are `[batch, length, embed_dim]` and not `[length, batch, embed_dim]`.
            Unlike torch's, True by default. Put in the place of a `torch.nn.MultiheadAttention` it must be as that has
            it; torch's Transformer layers have False by default.

    `load_state_dict` takes that of a `torch.nn.MultiheadAttention` too; E and F stay as they are.

    Raises:
        InputError: a ValueError that names the argument, what was expected and what was got.
    """

    # What torch's Transformer layers ask of their attention before they take a fused path of their own: not here.
    in_proj_bias = None
    in_proj_weight = NotFused()
    _qkv_same_embed_dim = False

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        max_seq_len: int | None = None,
        projected_dim: int | Sequence[int] | None = None,
        *,
        sharing: str | None = None,
        projection: str | SequenceProjection | None = "linear",
        projection_initializer: str | None = None,
        shorter_input: str | None = None,
        dropout: float = 0.0,
        bias: bool = True,
        bias_order: str = "before_projection",
        batch_first: bool = True,
    ) -> None:
        super().__init__()
        if not isinstance(embed_dim, int) or embed_dim < 1:
            raise InputError(f"embed_dim: expected a positive integer, got {embed_dim!r}")
        if not isinstance(num_heads, int) or num_heads < 1 or embed_dim % num_heads:
            raise InputError(f"num_heads: expected a divisor of embed_dim {embed_dim}, got {num_heads!r}")
        if not isinstance(dropout, (int, float)) or not 0 <= dropout < 1:
            raise InputError(f"dropout: expected a number from 0 up to but not 1, got {dropout!r}")
        if bias_order not in BIAS_ORDERS:
            raise InputError(f"bias_order: expected one of {', '.join(BIAS_ORDERS)}, got {bias_order!r}")
        if isinstance(projection, str):
            if max_seq_len is None or projected_dim is None:
                raise InputError("max_seq_len and projected_dim: expected a number each, got None")
            projection = build_projection(
                projection,
                seq_len=max_seq_len,
                projected_dim=projected_dim,
                num_heads=num_heads,
                head_dim=embed_dim // num_heads,
                sharing=sharing,
                shorter_input=shorter_input,
                initializer=projection_initializer,
            )
            projected_dim = None
        elif projection is not None:
            _check_module(projection, max_seq_len, sharing, shorter_input, projection_initializer)
            projection.fewer_slots(projected_dim, num_heads)
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.dropout = dropout
        self.bias_order = bias_order
        self.batch_first = batch_first
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.k_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.v_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.projection = projection
        self._fewer_slots = projected_dim  # than the projection has; None: all of them

    @property
    def projected_dim(self) -> int | Sequence[int] | None:
        """k, or a list of that of each head where they differ; None with full attention.

        Setting it to fewer slots than the projection has makes them do; None gives all of them back.
        """
        if self._fewer_slots is not None or self.projection is None:
            return self._fewer_slots
        return self.projection.projected_dim if self.projection.uniform else list(self.projection.head_dims)

    @projected_dim.setter
    def projected_dim(self, projected_dim: int | Sequence[int] | None) -> None:
        self._fewer_slots = projected_dim

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        split_fused_weights(state_dict, prefix, self)
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def extra_repr(self) -> str:
        return f"{self.embed_dim}, num_heads={self.num_heads}, bias_order={self.bias_order}"

    def forward(
        self,
        query: Float[Tensor, "*queries embed"],
        key: Float[Tensor, "*keys embed"],
        value: Float[Tensor, "*keys embed"],
        key_padding_mask: Shaped[Tensor, "*batch seq_len"] | None = None,
        need_weights: bool = False,
        attn_mask: None = None,
        average_attn_weights: bool = False,
        is_causal: bool = False,
        *,
        key_lengths: Int[Tensor, " batch"] | None = None,
        projection: Projects | None = None,
    ) -> tuple[Float[Tensor, "*queries embed"], Float[Tensor, "*weights query_len slots"] | None]:
        """Attend.

        Args:
            query: Input of the queries, `[batch, query_len, embed_dim]`, with batch_first False
                `[query_len, batch, embed_dim]`, or one sequence, `[query_len, embed_dim]`.
            key: Input of the keys, likewise.
            value: Input of the values, of the shape of key.
            key_padding_mask: `[batch, seq_len]`, or `[seq_len]` of one sequence: True where key and value are padding,
                or of floating point, 0 at real tokens and -inf (or at most -1000) at padding, as in
                `torch.nn.MultiheadAttention`. What stands there reaches no slot and no gradient, a NaN neither, and
                the output is that of the real keys alone, wherever padding stands.
            need_weights: Whether to return the context mapping P̄; False by default, unlike torch's.
            attn_mask: Must be None; here so that modules that pass one get a clear answer.
            average_attn_weights: Whether P̄ is the mean over heads; False by default, unlike torch's.
            is_causal: Must be False, as attn_mask.
            key_lengths: Real tokens at the start of each sequence of keys, instead of key_padding_mask where all
                padding is on the right.
            projection: E and F for this call instead of the module's own, or a function that calls them: how an
                encoder shares one over all layers.

        Returns:
            The output, of the shape of query, and P̄, `[batch, heads, query_len, projected_dim]` (`[…, seq_len]` with
            full attention; of one sequence without the first axis, averaged without that of heads), or None. Where
            heads differ in k, P̄ is filled up with zeros to the largest; where a short text fills fewer windows, there
            are fewer slots.

        Raises:
            InputError: for shapes that do not fit, a sequence longer than max_seq_len, and any mask over pairs of
                positions: each slot mixes all positions, so such a mask over slots would leak what it should hide.
        """
        if attn_mask is not None or is_causal:
            raise InputError(
                f"{'is_causal: expected False' if attn_mask is None else 'attn_mask: expected None'}: each slot mixes "
                "all positions, so a mask over pairs of them would leak what it hides; for padding use key_padding_mask"
            )
        if len({tensor.dim() for tensor in (query, key, value)}) > 1:
            got = ", ".join(str(list(tensor.shape)) for tensor in (query, key, value))
            raise InputError(f"query, key, value: expected all with a batch or all without, got {got}")
        layout = Layout(batch_first=self.batch_first, batched=query.dim() != 2)
        query, key, value = layout.to_batch_first(query, key, value)
        if key_padding_mask is not None and not layout.batched:
            key_padding_mask = key_padding_mask[None]
        keys = self._keys(key, value, key_padding_mask, key_lengths)
        self._check_width("query", query)
        if query.shape[0] != key.shape[0]:
            raise InputError(f"query, key: expected one batch size, got {list(query.shape)} and {list(key.shape)}")
        slots = self._project(keys, projection)
        output, weights = self.attend(keys.key if query is key else query, slots, need_weights)
        if weights is not None and average_attn_weights:
            weights = weights.mean(dim=1)
        return layout.of_output(output), layout.of_batch(weights)

    def project(
        self,
        key: Float[Tensor, "batch seq_len embed"],
        value: Float[Tensor, "batch seq_len embed"],
        key_padding_mask: Bool[Tensor, "batch seq_len"] | None = None,
        *,
        key_lengths: Int[Tensor, " batch"] | None = None,
        projection: Projects | None = None,
    ) -> list[Slots]:
        """The first half of `forward`: the projected keys and values that all queries share.

        Args and errors as there, but the batch always comes first.

        Returns:
            One entry for each group of heads with one number of slots, for `attend`.
        """
        return self._project(self._keys(key, value, key_padding_mask, key_lengths), projection)

    def attend(
        self, query: Float[Tensor, "batch query_len embed"], slots: list[Slots], need_weights: bool = False
    ) -> tuple[Float[Tensor, "batch query_len embed"], Float[Tensor, "batch heads query_len slots"] | None]:
        """The second half of `forward`: each query attends to the slots, independently of all other queries.

        Args:
            query: Input of the queries, the batch first.
            slots: What `project` returned for the same sequences.
            need_weights: Whether to return the context mapping P̄.

        Returns:
            As `forward`, the batch first.
        """
        heads = functional.split_heads(apply_linear(self.q_proj, query), self.num_heads)
        dropout = self.dropout if self.training else 0.0
        context, weights = attend_slots(heads, slots, dropout=dropout, need_weights=need_weights)
        return apply_linear(self.out_proj, functional.merge_heads(context)), weights

    def _keys(self, key: Tensor, value: Tensor, key_padding_mask: Tensor | None, key_lengths: Tensor | None) -> _Keys:
        """Keys and values checked, and zero where padded: selected once, since what reads them needs it in the backward
        pass as well, where zero times NaN would be NaN."""
        if key_padding_mask is not None and key_padding_mask.is_floating_point():
            key_padding_mask = padding_from_scores("key_padding_mask", key_padding_mask)
        self._check_keys(key, value, key_padding_mask)
        padding_mask = key_padding_mask
        if key_lengths is not None:
            _check_lengths(key_lengths, key, key_padding_mask)
            key_lengths = key_lengths.clamp(0, key.shape[1])
            padding_mask = functional.padding_after(key_lengths, key.shape[1])
        clean_key = functional.zero_padding(key, padding_mask)
        clean_value = clean_key if value is key else functional.zero_padding(value, padding_mask)
        return _Keys(clean_key, clean_value, padding_mask, key_lengths)

    def _project(self, keys: _Keys, projection: Projects | None) -> list[Slots]:
        key, value, padding_mask, lengths = keys
        projection = self.projection if projection is None else projection
        if projection is None:
            k = functional.split_heads(apply_linear(self.k_proj, key), self.num_heads)
            v = functional.split_heads(apply_linear(self.v_proj, value), self.num_heads)
            return [Slots(k, v, padding_mask, None, projected=False)]
        return project_tokens(
            projection,
            key,
            value,
            HeadMap(self.k_proj, self.num_heads, self.bias_order),
            HeadMap(self.v_proj, self.num_heads, self.bias_order),
            padding_mask=padding_mask,
            lengths=lengths,
            projected_dim=self._fewer_slots,
        )

    def _check_keys(self, key: Tensor, value: Tensor, key_padding_mask: Tensor | None) -> None:
        self._check_width("key", key)
        self._check_width("value", value)
        if key.shape != value.shape:
            raise InputError(
                f"key, value: expected one batch size and one length, got {list(key.shape)} and {list(value.shape)}"
            )
        if not torch.compiler.is_exporting() and key.shape[1] == 0:
            raise InputError("key: expected at least one position, got none")
        if key_padding_mask is not None and (
            key_padding_mask.dtype != torch.bool or key_padding_mask.shape != key.shape[:2]
        ):
            raise InputError(
                f"key_padding_mask: expected bool {list(key.shape[:2])}, True where padded, "
                f"got {key_padding_mask.dtype} {list(key_padding_mask.shape)}"
            )

    def _check_width(self, name: str, tensor: Tensor) -> None:
        if tensor.dim() != 3 or tensor.shape[-1] != self.embed_dim:
            raise InputError(f"{name}: expected [batch, length, {self.embed_dim}], got {list(tensor.shape)}")


class _Keys(NamedTuple):
    """Keys and values as they go into the projection: zero where padded."""

    key: Tensor
    value: Tensor
    padding_mask: Tensor | None
    lengths: Tensor | None  # real tokens in each sequence where all padding is on the right


def project_tokens(
    projection: Projects,
    key: Float[Tensor, "batch seq_len embed"],
    value: Float[Tensor, "batch seq_len embed"],
    key_map: HeadMap,
    value_map: HeadMap,
    *,
    padding_mask: Bool[Tensor, "batch seq_len"] | None,
    lengths: Int[Tensor, " batch"] | None = None,
    projected_dim: int | Sequence[int] | None = None,
) -> list[Slots]:
    """A projection of tokens whose padding, where it is not on the right already, is brought there.

    Args:
        projection: E and F.
        key: Input of the keys, zero where padded.
        value: Input of the values, likewise.
        key_map: W_K.
        value_map: W_V.
        padding_mask: True where padded; None: all tokens are real.
        lengths: Real tokens at the start of each sequence; None: padding stands anywhere.
        projected_dim: As for the projection.
    """
    if padding_mask is not None and lengths is None:
        # Maps that see every token see it where it stands.
        key, key_map = key_map.in_order(key, padding_mask)
        value, value_map = value_map.in_order(value, padding_mask)
        lengths = (~padding_mask).sum(dim=1)
        order = functional.real_tokens_first(padding_mask)
        tied = value is key
        key = functional.take_positions(key, order)
        value = key if tied else functional.take_positions(value, order)
    return projection(key, value, key_map, value_map, lengths=lengths, projected_dim=projected_dim)


def attend_slots(
    query: Float[Tensor, "batch heads query_len head_dim"],
    groups: list[Slots],
    *,
    dropout: float = 0.0,
    need_weights: bool = False,
) -> tuple[Float[Tensor, "batch heads query_len head_dim"], Float[Tensor, "batch heads query_len slots"] | None]:
    """Attention of each group of heads over its slots, heads back in their order, and P̄ where it is asked for.

    P̄ is without dropout, and the output is computed from the tensor that is returned, so that it has gradients.
    """
    if need_weights and len(groups) > 1:
        return _attend_with_weights(query, groups, dropout)
    parts = [
        functional.scaled_dot_product_attention(
            query if group.heads is None else query[:, group.heads],
            group.key,
            group.value,
            group.empty,
            dropout=dropout,
            need_weights=need_weights,
            slots=group.projected,
        )
        for group in groups
    ]
    if len(parts) == 1:
        return parts[0]
    return torch.cat([part for part, _ in parts], dim=1)[:, _order_of_heads(groups, query.shape[1])], None


def _attend_with_weights(query: Tensor, groups: list[Slots], dropout: float) -> tuple[Tensor, Tensor]:
    """The same for heads with unequal numbers of slots: one P̄, filled up with zeros, and then its products."""
    most = groups[0].key.shape[2]
    mappings = [functional.context_mapping(query[:, group.heads], group.key, group.empty) for group in groups]
    padded = [nn.functional.pad(mapping, (0, most - mapping.shape[-1])) for mapping in mappings]
    order = _order_of_heads(groups, query.shape[1])
    weights = torch.cat(padded, dim=1)[:, order]
    dropped = nn.functional.dropout(weights, dropout)
    parts = [dropped[:, group.heads, :, : group.key.shape[2]] @ group.value for group in groups]
    return torch.cat(parts, dim=1)[:, order], weights


def _order_of_heads(groups: list[Slots], num_heads: int) -> list[int]:
    """Where each head stands among the groups."""
    grouped = [head for group in groups for head in group.heads or ()]
    return [grouped.index(head) for head in range(num_heads)]


def _check_module(
    projection: SequenceProjection,
    max_seq_len: int | None,
    sharing: str | None,
    shorter_input: str | None,
    initializer: str | None,
) -> None:
    """Refuse arguments that contradict the module that was given; None says nothing."""
    if not isinstance(projection, SequenceProjection):
        raise InputError(f"projection: expected a name, a projection module or None, got {type(projection).__name__}")
    for name, value, own in (
        ("max_seq_len", max_seq_len, projection.seq_len),
        ("sharing", sharing, projection.sharing),
        ("shorter_input", shorter_input, projection.shorter_input),
        ("projection_initializer", initializer, getattr(projection, "initializer", None)),
    ):
        if value not in (None, own):
            raise InputError(f"{name}: expected {own!r}, as the projection has, got {value!r}")


def _check_lengths(lengths: Tensor, key: Tensor, key_padding_mask: Tensor | None) -> None:
    if key_padding_mask is not None:
        raise InputError("key_padding_mask, key_lengths: expected at most one of them, got both")
    batch, seq_len, _ = key.shape
    if not isinstance(lengths, Tensor) or lengths.dtype not in (torch.int32, torch.int64) or lengths.shape != (batch,):
        got = f"{list(lengths.shape)} of {lengths.dtype}" if isinstance(lengths, Tensor) else repr(lengths)
        raise InputError(f"key_lengths: expected [{batch}] of torch.int64 or torch.int32, got {got}")
    if lengths.device != key.device:
        raise InputError(f"key_lengths: expected a tensor on {key.device}, got one on {lengths.device}")
    if batch and values_are_cheap(lengths):
        low, high = lengths.min().item(), lengths.max().item()
        if low < 0 or high > seq_len:
            raise InputError(f"key_lengths: expected 0 to {seq_len}, got {low if low < 0 else high}")


register_layout_check(LinformerAttention)
