"""`LinformerAttention`: the operator in the place of `torch.nn.MultiheadAttention`, with its masks, layouts, weights.

`attention` has the equation; this makes every call one with right-padded batches, and puts the result back. Axes as in
`slots`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast, get_args

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from linformer_cli.errors import InputError, check_choice, check_input, renamed
from linformer_cli.settings import BiasOrder, SlotSettings
from linformer_cli.settings.declare import LONGEST
from linformer_kit.operator.attention import ProjectedAttention, is_affine
from linformer_kit.operator.conditions import check_tensors, check_vectors, described, reject_old_exporter, require
from linformer_kit.operator.kernels import choose
from linformer_kit.operator.padding import put_back, put_back_weights, right_padded, take_positions
from linformer_kit.operator.projections import FullAttention, SequenceProjection, build_projection
from linformer_kit.operator.projections.sizes import check_positive, is_integer
from linformer_kit.operator.slots import ForwardPass

# Values of an additive mask up to this one mean padding: -1e4, -1e9, the minimum of the dtype, or -inf.
_HIDES = -1e3


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
        max_seq_len: Longest sequence of keys. Required if `projection` is a name, unless sequences may have any
            length with it, as with `dynamic`.
        projected_dim: Number of slots, at most max_seq_len, or a list with one number per head. Required if
            `projection` is a name; with a module, at most its number of slots.
        sharing: `none`, `headwise` (the default), `key_value` or `layerwise`. For `layerwise`, build one projection
            module and pass it to every layer.
        projection: Name of a projection (`operator.projections.PROJECTIONS`), or a module, which may be shared with
            other layers and has its own max_seq_len, sharing, projection_initializer and shorter_input, or None: full
            attention (equation 2), which has none of them and no projected_dim.
        projection_initializer: Initialisation of E and F of projection `linear` (`operator.projections.matrices`), and
            of no other; `shifted_pooling` by default.
        shorter_input: What keys shorter than max_seq_len use: the first columns of E and the first windows (`prefix`,
            the default), or windows that tile them (`stretch`).
        dropout: Dropout on the context mapping during training.
        bias: Whether the four linear maps have biases.
        bias_order: `before_projection`, E·(X·W + 1·b), or `after_projection`, (E·X)·W + 1·b, as fairseq does; E and F
            must then be linear, and the same for all heads.
        sliding_window: w, the number of tokens that each query attends to exactly, its own included, in one softmax
            with the slots: the real tokens from ⌊w/2⌋ before it to ⌊(w - 1)/2⌋ after it; 0: none, as in the paper.
            Queries must then be those of the same positions as the keys. A slot of a window of tokens counts only for
            those of them that the query does not see. Full attention is unchanged.
        global_tokens: g, the number of tokens at the start of a text that every query attends to exactly, as slots of
            their own before the k others, which hold the rest of the text; 0: none, as in the paper. Pretrained
            encoders give much weight to their first token. Full attention is unchanged.
        causal: Whether each query sees no later token: of the sliding window the query's own token and the w - 1 before
            it, and only slots and global tokens that are complete at the query. Slots must be windows of tokens
            (`mean_pool`, `max_pool`, `conv`; shorter_input `prefix`), w at least ⌈n/k⌉, so that each earlier token is
            seen exactly or in a slot. Queries must be those of the same positions as the keys.
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
        causal: bool = False,
        batch_first: bool = True,
    ) -> None:
        _check_sizes(embed_dim, num_heads, dropout, bias_order, sliding_window, global_tokens)
        for name, flag in (("bias", bias), ("causal", causal), ("batch_first", batch_first)):
            check_input(isinstance(flag, bool), name, "True or False", flag)
        own = {"sharing": sharing, "shorter_input": shorter_input, "projection_initializer": projection_initializer}
        slots: dict[str, Any] = {name: value for name, value in own.items() if value is not None}
        if isinstance(projection, str):
            with renamed("seq_len", "max_seq_len"):
                settings, head_dim = SlotSettings(projection=cast(Any, projection), **slots), embed_dim // num_heads
                projection = build_projection(settings, max_seq_len, projected_dim, num_heads, head_dim)
            is_used = settings.projection == "linear" or projection_initializer is None
            check_input(is_used, "projection_initializer", "None without projection linear", projection_initializer)
            projected_dim = None
        else:
            projection = FullAttention(num_heads) if projection is None else projection
            is_module, kind = isinstance(projection, SequenceProjection), type(projection).__name__
            check_input(is_module, "projection", "a name, a projection module or None", kind)
            is_full = isinstance(projection, FullAttention)
            reason = "full attention has none" if is_full else "the projection module has its own"
            sizes = {"max_seq_len": max_seq_len} | ({"projected_dim": projected_dim} if is_full else {})
            for name, value in (sizes | slots).items():
                check_input(value is None, name, f"None, since {reason}", value)
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
            causal=causal,
        )
        self.batch_first = batch_first

    def forward(  # type: ignore[override]  # the arguments of nn.MultiheadAttention
        self,
        query: Float[Tensor, "*queries embed"],
        key: Float[Tensor, "*keys embed"],
        value: Float[Tensor, "*keys embed"],
        key_padding_mask: Shaped[Tensor, "*batch seq_len"] | None = None,
        need_weights: bool = False,
        attn_mask: Shaped[Tensor, "query_len seq_len"] | None = None,
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
            attn_mask: Must be None, or with `causal` the mask of later tokens, `[query_len, seq_len]`: bool, True above
                the diagonal, or float, -inf there and else 0. It has no effect, since the layer hides them itself.
            average_attn_weights: Whether P̄ is the mean over heads; False by default, unlike torch's.
            is_causal: Must be False without `causal`. It has no effect.

        Returns:
            The output, with the shape of query, and P̄, `[batch, heads, query_len, projected_dim]` (`[…, seq_len]` with
            full attention; without the batch axis for one sequence, without the heads axis if averaged), or None. If
            heads differ in k, P̄ is padded with zeros to the largest; if a short text fills fewer windows, there are
            fewer slots. The columns of global tokens come first; with a sliding window, w columns follow, for the
            neighbours of each query from left to right; they are 0 where every token of a text has a slot of its own.
            Outputs at padding are undefined.

        Raises:
            InputError: for wrong shapes, a sequence longer than max_seq_len, and any other mask over pairs of
                positions: each slot mixes several, so such a mask over slots would leak what it should hide.
        """
        if not self.causal and (attn_mask is not None or is_causal):
            raise InputError(
                f"{'is_causal: expected False' if attn_mask is None else 'attn_mask: expected None'}: each slot mixes "
                "several positions, so a mask over pairs of them would leak what it hides; for padding use "
                "key_padding_mask, and to hide later tokens causal=True"
            )
        reject_old_exporter()
        check_tensors(query=query, key=key, value=value, key_padding_mask=key_padding_mask, attn_mask=attn_mask)
        is_single, is_transposed = query.dim() == 2, query.dim() == 3 and not self.batch_first

        def batch_first(sequence: Tensor) -> Tensor:
            return sequence[None] if is_single else sequence.transpose(0, 1) if is_transposed else sequence

        # Whether they are the same tensor is asked here only; from here on None is the input of the keys.
        queries, values = None if query is key else batch_first(query), None if value is key else batch_first(value)
        mask = key_padding_mask[None] if is_single and isinstance(key_padding_mask, Tensor) else key_padding_mask
        query, key, values, lengths, order = self._right_padded(queries, batch_first(key), values, mask)
        if attn_mask is not None:
            _check_later_hidden(attn_mask, key.shape[1])
        output, weights = super().forward(query, key, values, ForwardPass(choose(key), lengths), need_weights)
        if self._moves_queries:
            output = put_back(output, order)
        if weights is not None:
            weights = put_back_weights(weights, order, queries=self._moves_queries, columns=self.is_full)
            weights = weights.mean(dim=1) if average_attn_weights else weights
        if is_single:
            return output[0], None if weights is None else weights[0]
        return output.transpose(0, 1) if is_transposed else output, weights

    def _right_padded(
        self, query: Tensor | None, key: Tensor, value: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:
        """The checked inputs, real tokens first and zeros at padding; the lengths; and the order (`right_padded`).

        Queries and values of None are those of the keys.
        """
        self._check_inputs(key if query is None else query, key, key if value is None else value)
        if mask is None:
            return key if query is None else query, key, value, None, None
        shape, is_scores = list(key.shape[:2]), mask.is_floating_point()
        fits = (is_scores or mask.dtype == torch.bool) and list(mask.shape) == shape
        check_input(fits, "key_padding_mask", f"bool {shape}, True where padded", described(mask))
        real = real_from_scores("key_padding_mask", mask) if is_scores else ~mask
        order, lengths = right_padded(real)

        def ordered(sequence: Tensor) -> Tensor:
            return sequence if order is None else take_positions(sequence, order)

        # Before anything reads padding: else the backward pass would compute zero times NaN.
        keys = key.masked_fill(~real[..., None], 0.0)
        key, value = ordered(keys), None if value is None else ordered(value.masked_fill(~real[..., None], 0.0))
        if self._moves_queries:
            query = key if query is None else ordered(query)
        return keys if query is None else query, key, value, lengths, order

    @property
    def _moves_queries(self) -> bool:
        """Whether queries are tokens of the keys, and moved with them: with neighbours, and in causal attention."""
        return self.causal or (self.sliding_window > 0 and not self.is_full)

    def _check_inputs(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        """Reject shapes that do not fit the layer or each other."""
        inputs = {"query": (query, self.q_proj), "key": (key, self.k_proj), "value": (value, self.v_proj)}
        for name, (each, linear) in inputs.items():  # another map than torch's may convert its input
            check_vectors(name, each, self.embed_dim, linear.weight if is_affine(linear) else each)
        shapes = [list(tensor.shape) for tensor in (query, key, value)]
        fits = key.shape == value.shape and query.shape[0] == key.shape[0]
        check_input(fits, "query, key, value", "one batch size, and one length of key and value", shapes)
        has_positions = torch.compiler.is_exporting() or key.shape[1] > 0
        check_input(has_positions, "key", "at least one position", 0)
        fits = not self._moves_queries or query.shape[1] == key.shape[1]
        kind = "causal" if self.causal else "sliding_window"
        check_input(fits, "query, key", f"one length with {kind}", (query.shape[1], key.shape[1]))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        if prefix + "in_proj_weight" in state_dict:  # of an `nn.MultiheadAttention`, without E and F: ours are kept
            for kind in ("weight", "bias"):
                fused = state_dict.pop(f"{prefix}in_proj_{kind}", None)
                for name, part in zip("qkv", () if fused is None else fused.chunk(3), strict=False):
                    state_dict[f"{prefix}{name}_proj.{kind}"] = part
            for name, tensor in cast(nn.Module, self.projection).state_dict(prefix=f"{prefix}projection.").items():
                if not tensor.is_meta:
                    state_dict[name] = tensor
        super()._load_from_state_dict(state_dict, prefix, *arguments)


def _check_sizes(
    embed_dim: int,
    num_heads: int,
    dropout: float,
    bias_order: str,
    sliding_window: int,
    global_tokens: int,
) -> None:
    check_positive("embed_dim", embed_dim)
    is_divisor = is_integer(num_heads) and num_heads > 0 and embed_dim % num_heads == 0
    check_input(is_divisor, "num_heads", f"a divisor of embed_dim {embed_dim}", num_heads)
    is_rate = isinstance(dropout, (int, float)) and 0 <= dropout < 1
    check_input(is_rate, "dropout", "a number from 0 up to but not 1", dropout)
    check_choice("bias_order", bias_order, get_args(BiasOrder))
    for name, count in (("sliding_window", sliding_window), ("global_tokens", global_tokens)):
        is_count = is_integer(count) and 0 <= count <= LONGEST
        check_input(is_count, name, f"an integer from 0 to {LONGEST:,}", count)


def real_from_scores(name: str, mask: Float[Tensor, "*shape"]) -> Bool[Tensor, "*shape"]:
    """Convert an additive mask, 0 at real tokens and -1000 or less at padding, to one that is True for a token.

    Raises:
        InputError: for other numbers, which would hide tokens partly.
    """
    message = (
        f"{name}: expected bool, or floating point of 0 at real tokens and -inf (or at most -1000) at padding, "
        "got other numbers"
    )
    require(((mask == 0) | (mask <= _HIDES)).all(), message)
    return mask == 0


def _check_later_hidden(mask: Tensor, length: int) -> None:
    """Reject a mask over pairs of positions that hides other tokens than the later ones, or not all of these."""
    expected = (
        "attn_mask: expected None, or a bool or float mask of [{0}, {0}] that hides all later tokens and no others"
    )
    if mask.shape != (length, length) or not (mask.is_floating_point() or mask.dtype == torch.bool):
        raise InputError(f"{expected.format(length)}, got {described(mask)}")
    hidden = mask <= _HIDES if mask.is_floating_point() else mask
    later = torch.ones_like(mask, dtype=torch.bool).triu(1)
    require(((hidden == later) & ((mask != 0) == later)).all(), f"{expected.format(length)}, got another one")


def _check_layout(container: nn.Module, name: str, module: nn.Module | None) -> None:
    """Reject an attention that replaces torch's but has another `batch_first`.

    No other check would find this error: the shapes fit, and samples would be mixed as if they were positions.
    """
    attention = getattr(module, "_orig_mod", module)  # the module wrapped by `torch.compile`
    expected = getattr(container._modules.get(name), "batch_first", None)
    if isinstance(attention, LinformerAttention) and expected not in (None, attention.batch_first):
        raise InputError(
            f"{name}: expected batch_first={expected}, as the attention that it replaces in "
            f"{type(container).__name__}, got {attention.batch_first}: create both with the same batch_first"
        )


# Runs on every assignment of a module to an attribute of another module.
torch.nn.modules.module.register_module_module_registration_hook(_check_layout)
