"""`LinformerAttention`: the operator in the place of `torch.nn.MultiheadAttention`, with its masks, layouts, weights.

`attention` has the equation; this makes every call one with right-padded batches, and puts the result back. Axes as in
`slots`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from linformer_cli.errors import InputError
from linformer_kit.operator import checks
from linformer_kit.operator.attention import ProjectedAttention
from linformer_kit.operator.conditions import has_values, require_in_trace
from linformer_kit.operator.padding import put_back, right_padded, take_positions
from linformer_kit.operator.projections import PROJECTIONS, FullAttention, SequenceProjection, build_projection
from linformer_kit.operator.slots import Order

# Values of an additive mask up to this one mean padding: -1e4, -1e9, the minimum of the dtype, or -inf.
_HIDES = -1e3
_FUSED = ("in_proj_weight", "in_proj_bias", "q_proj_weight", "k_proj_weight", "v_proj_weight")


class NotFused:
    """A value of `in_proj_weight` that makes torch's encoder call the attention instead of its fused kernel."""

    @classmethod
    def __torch_function__(cls, *_: object) -> None:
        raise TypeError("LinformerAttention has no fused weights")


class LinformerAttention(ProjectedAttention):
    """Multi-head attention with linear complexity.

    head_i = softmax(Q·W_i^Q·(E_i·K·W_i^K)ᵀ/√d)·F_i·V·W_i^V, and the output is Concat(head_1 … head_h)·W_O:
    equation 7 of Wang et al. 2020. Time and memory are n·k instead of n².

    In the paper's letters: `embed_dim` d_m, `num_heads` h, `max_seq_len` n, `projected_dim` k; `projection` holds E
    and F.

    Args:
        embed_dim: Width of inputs and output.
        num_heads: Number of heads; divides embed_dim.
        max_seq_len: Longest sequence of keys. Required if `projection` is a name, except `dynamic`, which has none.
        projected_dim: Number of slots, at most max_seq_len, or a list with one number per head. Required if
            `projection` is a name; with a module, at most its number of slots.
        sharing: `none`, `headwise` (the default), `key_value` or `layerwise`. For `layerwise`, build one projection
            module and pass it to every layer. With a module, sharing, projection_initializer and shorter_input must
            equal those of the module, if given.
        projection: Name of a projection (`operator.projections.PROJECTIONS`), or a module, which may be shared with
            other layers, or None: full attention (equation 2).
        projection_initializer: Initialisation of E and F of projection `linear` (`operator.projections.starts`),
            `shifted_pooling` by default.
        shorter_input: What keys shorter than max_seq_len use: the first columns of E and the first windows (`prefix`,
            the default), or E and windows resampled to their length (`stretch`).
        dropout: Dropout on the context mapping during training.
        bias: Whether the four linear maps have biases.
        bias_order: `before_projection`, E·(X·W + 1·b), or `after_projection`, E·(X·W) + 1·b, as fairseq does.
        sliding_window: w, the number of tokens that each query attends to exactly, its own included, in one softmax
            with the slots: the real tokens from ⌊w/2⌋ before it to ⌊(w - 1)/2⌋ after it; 0: none, as in the paper.
            Queries must then be those of the same positions as the keys. A slot of a window of tokens counts only for
            those of them that the query does not see. Full attention is unchanged.
        global_tokens: g, the number of tokens at the start of a text that every query attends to exactly, as slots of
            their own before the k others, which hold the rest of the text; 0: none, as in the paper. Pretrained
            encoders give much weight to their first token. Full attention is unchanged.
        batch_first: Whether inputs and output are `[batch, length, embed_dim]` and not `[length, batch, embed_dim]`.
            True by default, unlike torch's. As a replacement of a `torch.nn.MultiheadAttention` it must have the same
            value; torch's Transformer layers have False by default.

    `load_state_dict` also accepts the state dict of a `torch.nn.MultiheadAttention`; E and F then stay unchanged.

    Raises:
        InputError: a ValueError with the name of the argument, the expected and the given value.
    """

    # Attributes that torch's Transformer layers check before they use their fused path, which would skip this module.
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
        sliding_window: int = 0,
        global_tokens: int = 0,
        batch_first: bool = True,
    ) -> None:
        checks.check_sizes(embed_dim, num_heads, dropout, bias_order)
        checks.check_count("sliding_window", sliding_window)
        checks.check_count("global_tokens", global_tokens)
        if isinstance(projection, str):
            _check_lengths(projection, max_seq_len, projected_dim)
            projection = build_projection(
                projection,
                seq_len=max_seq_len,
                projected_dim=cast(int, projected_dim),
                num_heads=num_heads,
                head_dim=embed_dim // num_heads,
                sharing=sharing,
                shorter_input=shorter_input,
                initializer=projection_initializer,
            )
            projected_dim = None
        elif projection is None:
            projection, projected_dim = FullAttention(num_heads), None
        else:
            checks.check_module(projection, max_seq_len, sharing, shorter_input, projection_initializer)
            projection.checked_slots(projected_dim, num_heads)
        super().__init__(
            embed_dim,
            num_heads,
            projection,
            projected_dim,
            dropout=dropout,
            bias=bias,
            bias_order=bias_order,
            sliding_window=sliding_window,
            global_tokens=global_tokens,
        )
        self.batch_first = batch_first

    def forward(  # type: ignore[override]  # the arguments of nn.MultiheadAttention
        self,
        query: Float[Tensor, "*queries embed"],
        key: Float[Tensor, "*keys embed"],
        value: Float[Tensor, "*keys embed"],
        key_padding_mask: Shaped[Tensor, "*batch seq_len"] | None = None,
        need_weights: bool = False,
        attn_mask: None = None,
        average_attn_weights: bool = False,
        is_causal: bool = False,
    ) -> tuple[Float[Tensor, "*queries embed"], Float[Tensor, "*weights query_len slots"] | None]:
        """Compute attention.

        Args:
            query: Input of the queries, `[batch, query_len, embed_dim]`, with batch_first False
                `[query_len, batch, embed_dim]`, or one sequence, `[query_len, embed_dim]`.
            key: Input of the keys, likewise.
            value: Input of the values, with the shape of key.
            key_padding_mask: `[batch, seq_len]`, or `[seq_len]` for one sequence: bool, True where key and value are
                padding, or float, 0 at real tokens and -inf (or at most -1000) at padding, as in
                `torch.nn.MultiheadAttention`. Values at padding, including NaN, reach no slot and no gradient, and the
                output depends on the real keys only, wherever padding is.
            need_weights: Whether to return the context mapping P̄; False by default, unlike torch's.
            attn_mask: Must be None; an argument so that callers that pass one get a clear error.
            average_attn_weights: Whether P̄ is the mean over heads; False by default, unlike torch's.
            is_causal: Must be False, for the same reason as attn_mask.

        Returns:
            The output, with the shape of query, and P̄, `[batch, heads, query_len, projected_dim]` (`[…, seq_len]` with
            full attention; without the batch axis for one sequence, without the heads axis if averaged), or None. If
            heads differ in k, P̄ is padded with zeros to the largest; if a short text fills fewer windows, there are
            fewer slots. The columns of global tokens come first; with a sliding window, w columns follow, for the
            neighbours of each query from left to right; they are 0 where every token of a text has a slot of its own.

        Raises:
            InputError: for wrong shapes, a sequence longer than max_seq_len, and any mask over pairs of positions: each
                slot mixes all positions, so such a mask over slots would leak what it should hide.
        """
        checks.reject_masks_over_pairs(attn_mask, is_causal)
        checks.check_dimensions(query, key, value)
        is_single, is_transposed = query.dim() == 2, query.dim() == 3 and not self.batch_first

        def batch_first(sequence: Tensor) -> Tensor:
            return sequence[None] if is_single else sequence.transpose(0, 1) if is_transposed else sequence

        query, key, value = _each_once(batch_first, query, key, value)
        mask = key_padding_mask[None] if is_single and isinstance(key_padding_mask, Tensor) else key_padding_mask
        query, key, value, lengths, order = self._right_padded(query, key, value, mask)
        output, weights = super().forward(query, key, value, lengths, need_weights, order)
        if order is not None and order.queries:
            output = put_back(output, order.positions)
        if weights is not None and average_attn_weights:
            weights = weights.mean(dim=1)
        if is_single:
            return output[0], None if weights is None else weights[0]
        return output.transpose(0, 1) if is_transposed else output, weights

    def _right_padded(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Order | None]:
        """The checked inputs, real tokens first and zeros at padding; the lengths; and where the tokens stood.

        Identical tensors stay identical, so that work is done once.
        """
        checks.check_keys(key, value, self.embed_dim)
        checks.check_query(query, key, self.embed_dim)
        is_windowed = self.sliding_window > 0 and not self.is_full
        if is_windowed:
            checks.check_as_many_queries(query.shape[1], key.shape[1])
        if mask is None:
            return query, key, value, None, None
        if isinstance(mask, Tensor) and mask.is_floating_point():
            mask = padding_from_scores("key_padding_mask", mask)
        checks.check_padding_mask(mask, key)
        # Before anything reads padding: else the backward pass would compute zero times NaN.
        zero = functools.partial(Tensor.masked_fill, mask=mask[..., None], value=0.0)
        is_key = query is key  # other queries may be of another length
        key, value = _each_once(zero, key, value)
        query = key if is_key else query
        positions, lengths = right_padded(mask)
        if positions is None:
            return query, key, value, lengths, None
        move = functools.partial(take_positions, positions=positions)
        if is_windowed:
            query, key, value = _each_once(move, query, key, value)
        else:
            key, value = _each_once(move, key, value)
        return query, key, value, lengths, Order(positions, queries=is_windowed, columns=self.is_full)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        split_fused_weights(state_dict, prefix, self)
        super()._load_from_state_dict(state_dict, prefix, *arguments)


def _check_lengths(projection: str, max_seq_len: int | None, projected_dim: Any) -> None:
    """Reject a missing n or k of a projection by name."""
    bounded = projection not in PROJECTIONS or PROJECTIONS[projection].bounded
    if projected_dim is None and not bounded:
        raise InputError("projected_dim: expected a number, got None")
    if projected_dim is None or (max_seq_len is None and bounded):
        raise InputError("max_seq_len and projected_dim: expected a number each, got None")


def _each_once(change: Callable[[Tensor], Tensor], *tensors: Tensor) -> list[Tensor]:
    """Change tensors; those that are the same object are changed once, and stay the same."""
    changed: dict[int, Tensor] = {}
    for tensor in tensors:
        if id(tensor) not in changed:
            changed[id(tensor)] = change(tensor)
    return [changed[id(tensor)] for tensor in tensors]


def padding_from_scores(name: str, mask: Float[Tensor, "*shape"]) -> Bool[Tensor, "*shape"]:
    """Convert an additive mask, 0 at real tokens and -1000 or less at padding, to a padding mask, True where padded.

    Raises:
        InputError: for other numbers, which would hide tokens partly.
    """
    message = (
        f"{name}: expected bool, or floating point of 0 at real tokens and -inf (or at most -1000) at padding, "
        "got other numbers"
    )
    fits = ((mask == 0) | (mask <= _HIDES)).all()
    if not has_values(mask):
        require_in_trace(fits, message)
    elif not fits:
        raise InputError(message)
    return mask != 0


def split_fused_weights(state_dict: dict[str, Any], prefix: str, attention: nn.Module) -> None:
    """Rename the entries of an `nn.MultiheadAttention` in a state dict, in-place, to those of `LinformerAttention`.

    It has no E and F, so those of the module are kept.

    Args:
        state_dict: The state dict to load.
        prefix: Prefix of the attention's entries.
        attention: The module to load into.
    """
    given = {name: state_dict.pop(prefix + name) for name in _FUSED if prefix + name in state_dict}
    if not given:
        return
    if "in_proj_weight" in given:
        weights = given["in_proj_weight"].chunk(3)
    else:
        weights = tuple(given[f"{map_}_proj_weight"] for map_ in "qkv" if f"{map_}_proj_weight" in given)
    biases = given["in_proj_bias"].chunk(3) if given.get("in_proj_bias") is not None else ()
    for kind, parts in (("weight", weights), ("bias", biases)):
        for map_, part in zip("qkv", parts, strict=False):
            state_dict[f"{prefix}{map_}_proj.{kind}"] = part
    for name, tensor in attention.state_dict().items():
        if name.startswith("projection.") and not tensor.is_meta:
            state_dict.setdefault(prefix + name, tensor)


def reject_other_layout(container: nn.Module, name: str, attention: Any) -> None:
    """Reject an attention that replaces torch's but has another `batch_first`.

    No other check would find this error: the shapes fit, and samples would be mixed as if they were positions.

    Raises:
        InputError: with the required layout.
    """
    replaced = container._modules.get(name)
    if getattr(replaced, "batch_first", attention.batch_first) != attention.batch_first:
        raise InputError(
            f"{name}: expected batch_first={not attention.batch_first}, as the attention that it replaces in "
            f"{type(container).__name__}, got {attention.batch_first}: create both with the same batch_first"
        )


def register_layout_check(kind: type[nn.Module]) -> None:
    """Run `reject_other_layout` on every assignment of a module of this class to an attribute of another module."""

    def check(container: nn.Module, name: str, submodule: nn.Module | None) -> None:
        submodule = getattr(submodule, "_orig_mod", submodule)  # the module wrapped by `torch.compile`
        if isinstance(submodule, kind):
            reject_other_layout(container, name, submodule)

    torch.nn.modules.module.register_module_module_registration_hook(check)


register_layout_check(LinformerAttention)
