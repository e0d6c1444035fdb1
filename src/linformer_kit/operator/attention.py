"""`LinformerAttention`: multi-head attention over k projected slots, a drop-in for `torch.nn.MultiheadAttention`.

The same equation as plain code, one head at a time, is `reference.linformer_attention_reference`. Axes as in `slots`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from linformer_cli.errors import InputError
from linformer_kit.operator import checks, kernels
from linformer_kit.operator.drop_in import (
    Layout,
    NotFused,
    padding_from_scores,
    register_layout_check,
    split_fused_weights,
)
from linformer_kit.operator.neighbours import Neighbours
from linformer_kit.operator.padding import Padding
from linformer_kit.operator.projections import (
    PROJECTIONS,
    HeadGroups,
    HeadMap,
    Inputs,
    Piece,
    SequenceProjection,
    build_projection,
)
from linformer_kit.operator.projections.sizes import slots_by_head
from linformer_kit.operator.slots import Slots, attend_slots, merge_heads, split_heads
from linformer_kit.operator.values import is_exporting, refuse_old_exporter

# A projection, or a function that calls one.
Projects = SequenceProjection | Callable[[Inputs, HeadGroups | None], list[Slots]]


class LinformerAttention(nn.Module):
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
            other layers, or None: full attention (equation 2), unless a projection is passed to `forward`.
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

    piece: Piece | None = None  # None: this process has the whole sequence

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
        super().__init__()
        checks.check_sizes(embed_dim, num_heads, dropout, bias_order)
        checks.check_count("sliding_window", sliding_window)
        checks.check_count("global_tokens", global_tokens)
        if isinstance(projection, str):
            bounded = projection not in PROJECTIONS or PROJECTIONS[projection].bounded
            if projected_dim is None and not bounded:
                raise InputError("projected_dim: expected a number, got None")
            if projected_dim is None or (max_seq_len is None and bounded):
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
            checks.check_module(projection, max_seq_len, sharing, shorter_input, projection_initializer)
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
        self.projected_dim = projected_dim
        self.sliding_window = sliding_window
        self.global_tokens = global_tokens

    @property
    def projected_dim(self) -> int | Sequence[int] | None:
        """k, or a list with the k of each head if they differ; None with full attention.

        Set it to run with fewer slots than the projection has; set None to use all of them again.
        """
        if self._fewer_slots is not None or self.projection is None:
            return self._fewer_slots
        return self.projection.projected_dim if self.projection.uniform else list(self.projection.head_dims)

    @projected_dim.setter
    def projected_dim(self, projected_dim: int | Sequence[int] | None) -> None:
        groups = None
        if projected_dim is not None:
            # A projection of the caller, or one wrapped by an adapter, checks the number at each call.
            own = self.projection
            by_head = own.fewer_slots if isinstance(own, SequenceProjection) else slots_by_head
            groups = HeadGroups.of(by_head(projected_dim, self.num_heads))
        # The groups are computed here and not at each call; None: those of the projection.
        self._fewer_slots: int | Sequence[int] | None = projected_dim
        self.groups: HeadGroups | None = groups

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        split_fused_weights(state_dict, prefix, self)
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def extra_repr(self) -> str:
        parts = [f"{self.embed_dim}, num_heads={self.num_heads}, bias_order={self.bias_order}"]
        parts += [f"{name}={value}" for name in ("sliding_window", "global_tokens") if (value := getattr(self, name))]
        return ", ".join(parts)

    def forward(
        self,
        query: Float[Tensor, "*queries embed"],
        key: Float[Tensor, "*keys embed"],
        value: Float[Tensor, "*keys embed"],
        key_padding_mask: Shaped[Tensor, "*batch seq_len"] | Padding | None = None,
        need_weights: bool = False,
        attn_mask: None = None,
        average_attn_weights: bool = False,
        is_causal: bool = False,
        *,
        projection: Projects | None = None,
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
                output depends on the real keys only, wherever padding is. Also accepts the `Padding` that a model
                creates once for all layers, which is not checked again.
            need_weights: Whether to return the context mapping P̄; False by default, unlike torch's.
            attn_mask: Must be None; an argument so that callers that pass one get a clear error.
            average_attn_weights: Whether P̄ is the mean over heads; False by default, unlike torch's.
            is_causal: Must be False, for the same reason as attn_mask.
            projection: E and F for this call instead of the module's own, or a function that calls them: an encoder
                uses it to share one projection over all layers.

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
        checks.refuse_masks_over_pairs(attn_mask, is_causal)
        layout = Layout.of(query, key, value, batch_first=self.batch_first)
        query, key, value = layout.to_batch_first(query, key, value)
        projects = self._projects(projection)
        inputs = self._inputs(key, value, layout.to_batch(key_padding_mask), projects)
        checks.check_query(query, inputs.key, self.embed_dim)
        windowed = self.sliding_window > 0 and projects is not tokens_as_slots
        if windowed:
            checks.check_as_many_queries(query.shape[1], inputs.key.shape[1])
        slots = self._slots(projects, inputs)
        output, weights = self.attend(inputs.key if query is key else query, slots, need_weights)
        if weights is not None and windowed and slots[0].neighbours is None:  # every token is a slot
            weights = F.pad(weights, (0, self.sliding_window))
        if weights is not None and average_attn_weights:
            weights = weights.mean(dim=1)
        return layout.of_output(output), layout.of_batch(weights)

    def project(
        self,
        key: Float[Tensor, "batch seq_len embed"],
        value: Float[Tensor, "batch seq_len embed"],
        key_padding_mask: Shaped[Tensor, "batch seq_len"] | Padding | None = None,
        *,
        projection: Projects | None = None,
    ) -> list[Slots]:
        """The first half of `forward`: the projected keys E·K·W_K and values F·V·W_V that all queries share.

        Args and errors as for `forward`, but the batch always comes first.

        Returns:
            One entry for each group of heads with the same number of slots, for `attend`; with a sliding window also
            the keys and values of all tokens.
        """
        projects = self._projects(projection)
        inputs = self._inputs(key, value, key_padding_mask, projects)
        return self._slots(projects, inputs)

    def attend(
        self, query: Float[Tensor, "batch query_len embed"], slots: list[Slots], need_weights: bool = False
    ) -> tuple[Float[Tensor, "batch query_len embed"], Float[Tensor, "batch heads query_len slots"] | None]:
        """The second half of `forward`: softmax(Q·W_Q·slotsᵀ/√d) over the slots for each query, and W_O.

        Args:
            query: Input of the queries, the batch first; with a sliding window those of all positions of the keys.
            slots: Return value of `project` for the same sequences.
            need_weights: Whether to return the context mapping P̄.

        Returns:
            As `forward`, the batch first.
        """
        near = slots[0].neighbours
        if near is not None:
            checks.check_as_many_queries(query.shape[1], near.query_len)
            query = near.ordered(query)
        heads = split_heads(kernels.apply_linear(self.q_proj, query), self.num_heads)
        dropout = self.dropout if self.training else 0.0
        context, weights = attend_slots(heads, slots, dropout=dropout, need_weights=need_weights)
        output = kernels.apply_linear(self.out_proj, merge_heads(context))
        return output if near is None else near.put_back(output), weights

    def _slots(self, projects: Projects, inputs: Inputs) -> list[Slots]:
        return project(
            projects,
            inputs,
            self.groups,
            sliding_window=self.sliding_window,
            global_tokens=self.global_tokens,
            piece=self.piece,
        )

    def _projects(self, projection: Projects | None) -> Projects:
        """The projection to use: that of this call, the module's own, or `tokens_as_slots` (full attention)."""
        projection = self.projection if projection is None else projection
        return tokens_as_slots if projection is None else projection

    def _inputs(self, key: Tensor, value: Tensor, mask: Tensor | Padding | None, projects: Projects) -> Inputs:
        """Check the arguments of a call and build the inputs of the projection, with zeros at padding.

        Padding is zeroed before anything reads it: otherwise the backward pass would compute zero times NaN.
        """
        if isinstance(mask, Tensor) and mask.is_floating_point():
            mask = padding_from_scores("key_padding_mask", mask)
        checks.check_keys(key, value, self.embed_dim)
        if isinstance(mask, Padding) or mask is None:
            padding = mask
        else:
            checks.check_padding_mask(mask, key)
            full = projects is tokens_as_slots
            padding = Padding.of(mask, ordered=False) if full else Padding.sorted(mask)
        if padding is not None:
            tied = value is key
            key = padding.zero(key)
            value = key if tied else padding.zero(value)
        key_map, value_map = (HeadMap(linear, self.num_heads, self.bias_order) for linear in (self.k_proj, self.v_proj))
        return Inputs(key, value, key_map, value_map, padding)


def project(
    projects: Projects,
    inputs: Inputs,
    groups: HeadGroups | None = None,
    *,
    sliding_window: int = 0,
    global_tokens: int = 0,
    piece: Piece | None = None,
) -> list[Slots]:
    """Slots and, with a sliding window or global tokens, the tokens themselves; full attention has these anyway.

    If every token of a short text has a slot of its own, this is full attention.

    Args:
        projects: E and F.
        inputs: Keys and values.
        groups: Heads by number of slots; None: those of the projection.
        sliding_window: w, the number of tokens that each query sees.
        global_tokens: g, the number of tokens at the start that all queries see.
        piece: The piece of the sequence that `inputs` are; None: they are whole.

    Returns:
        One entry for each group of heads.
    """
    refuse_old_exporter()
    if projects is tokens_as_slots or not (sliding_window or global_tokens):
        return projects(inputs, groups)
    padding = inputs.padding
    # The projection shared by all layers of a model comes as a function that calls it (`LinformerEncoder.forward`).
    module = projects.func if isinstance(projects, functools.partial) else projects
    inputs, query_len = inputs.in_order(), inputs.key.shape[1]
    if global_tokens and is_exporting():  # the program must run for a text of fewer tokens
        inputs = inputs.padded(global_tokens)
    rest = inputs.key.shape[1] - global_tokens
    keeps = isinstance(module, SequenceProjection) and module.keeps_tokens(rest, groups)
    if not is_exporting() and (rest <= 0 or keeps):
        return tokens_as_slots(inputs)
    seen = inputs if sliding_window else inputs.first(global_tokens)
    key = seen.key_map.tokens(seen.key, seen.mask)
    value = seen.value_map.tokens(seen.value, seen.mask)
    slots = projects(inputs.after(global_tokens), groups)
    if global_tokens:
        first = (key[:, :, :global_tokens], value[:, :, :global_tokens])
        slots = [group.after_tokens(*first, inputs.lengths) for group in slots]
    if not sliding_window:
        return slots
    near = Neighbours(key, value, sliding_window, padding, key_lengths=inputs.lengths, query_len=query_len)
    if piece is not None:
        near = near.around(piece.exchange, piece.positions.start)
    return [group.with_neighbours(near) for group in slots]


def tokens_as_slots(inputs: Inputs, _: HeadGroups | None = None) -> list[Slots]:
    """Full attention (equation 2) as a projection: each token is its own slot, E = F = identity."""
    pairs = ((inputs.key, inputs.key_map), (inputs.value, inputs.value_map))
    key, value = (split_heads(head_map.mapped_tokens(hidden), head_map.num_heads) for hidden, head_map in pairs)
    return [Slots(key, value, inputs.mask, None, projected=False)]


register_layout_check(LinformerAttention)
