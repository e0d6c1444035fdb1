"""The encoder: layers of Linformer attention and feed-forward; with `attention="full"`, those of a Transformer.

Axes: batch, seq_len (n), embed (hidden_size), heads, slots (projected_dim, or seq_len with full attention).
"""

from __future__ import annotations

import functools
from typing import TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import initialization as init
from transformers.activations import ACT2FN, GELUActivation
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput

from linformer_kit.models.configuration import LinformerConfig
from linformer_kit.operator.attention import LinformerAttention, Projects
from linformer_kit.operator.functional import real_tokens_first, take_positions, zero_padding
from linformer_kit.operator.kernels import (
    apply_linear,
    block_tokens,
    blocks,
    is_replaced,
    may_need_whole,
    runs_in_blocks,
)
from linformer_kit.operator.projections import SequenceProjection, build_projection
from linformer_kit.operator.values import values_are_cheap

Part = TypeVar("Part", bound=nn.Module)


class LocalConvolution(nn.Module):
    """Depthwise convolution over neighbours: y_t = Σ_j w_j ⊙ x_(t+j), j from -⌊w/2⌋ to ⌊w/2⌋, nothing beyond the ends.

    Not in the paper. `weight` is `[embed, width]`; there is no bias.

    Args:
        embed_dim: Width of inputs and output.
        width: w, tokens that an output sees, an odd number.
    """

    def __init__(self, embed_dim: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(embed_dim, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform with variance 1/(3w), as torch's convolutions."""
        init.uniform_(self.weight, -(self.weight.shape[1] ** -0.5), self.weight.shape[1] ** -0.5)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, width={self.weight.shape[1]}"

    def forward(
        self,
        hidden: Float[Tensor, "batch seq_len embed"],
        lengths: Int[Tensor, " batch"] | None,
        rows: slice | None = None,
    ) -> Float[Tensor, "batch rows embed"]:
        """Convolve.

        Args:
            hidden: Inputs, padded on the right only.
            lengths: Real tokens in each sequence, beyond which nothing is seen; None: all are real.
            rows: Positions that are wanted; None: all.
        """
        embed, width = self.weight.shape
        reach = width // 2
        first = 0
        if rows is not None:
            first = max(0, rows.start - reach)
            hidden = hidden[:, first : rows.stop + reach]
        if lengths is not None:
            positions = torch.arange(first, first + hidden.shape[1], device=hidden.device)
            hidden = zero_padding(hidden, positions >= lengths[:, None])
        # As an image of one line whose channels stand last, the one layout that is fast on CPUs.
        image = hidden.transpose(1, 2)[:, :, None]
        convolved = F.conv2d(image, self.weight[:, None, None], padding=(0, reach), groups=embed)[:, :, 0].transpose(
            1, 2
        )
        return convolved if rows is None else convolved[:, rows.start - first : rows.stop - first]


class LinformerLayer(GradientCheckpointingLayer):
    """Attention and feed-forward, each with residual and LayerNorm.

    After the residual (post-norm, as in RoBERTa), y = LN(x + f(x)); with `norm_first` before the function (pre-norm),
    y = x + f(LN(x)).
    """

    def __init__(
        self, config: LinformerConfig, projected_dim: int | list[int] | None, *, owns_projection: bool
    ) -> None:
        super().__init__()
        self.self_attn = LinformerAttention(
            config.hidden_size,
            config.num_attention_heads,
            config.max_position_embeddings,
            projected_dim,
            sharing=config.sharing,
            projection=config.projection if owns_projection else None,
            projection_initializer=config.projection_initializer,
            shorter_input=config.shorter_input,
            dropout=config.attention_probs_dropout_prob,
            bias_order=config.bias_order,
        )
        self.self_attn_layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        width = config.local_convolution
        self.local_convolution = LocalConvolution(config.hidden_size, width) if width else None
        self.fc1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size)
        self.final_layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.activation = ACT2FN[config.hidden_act]
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.widest = config.intermediate_size
        self.norm_first = config.norm_first

    def forward(
        self,
        hidden: Float[Tensor, "batch seq_len embed"],
        padding_mask: Bool[Tensor, "batch seq_len"] | None,
        lengths: Int[Tensor, " batch"] | None,
        projection: Projects | None,
        output_attentions: bool = False,
        *,
        overwrite: bool = False,
    ) -> tuple[Float[Tensor, "batch seq_len embed"], Float[Tensor, "batch heads seq_len slots"] | None]:
        """One layer; with `overwrite` its result may take the place of `hidden`."""
        own = type(self.self_attn) is LinformerAttention
        in_place = padding_mask is None or self.local_convolution is None  # no neighbours but those in memory
        if own and in_place and not output_attentions and runs_in_blocks(self, hidden, self.widest):
            return self._forward_in_blocks(hidden, padding_mask, lengths, projection, overwrite), None
        inputs = self.self_attn_layer_norm(hidden) if self.norm_first else hidden
        attended, weights = self.self_attn(
            inputs,
            inputs,
            inputs,
            padding_mask,
            need_weights=output_attentions,
            key_lengths=lengths,
            projection=projection,
        )
        if self.local_convolution is not None:
            attended = attended + self._convolve(inputs, padding_mask, lengths)
        return self._feed_forward(hidden, attended), weights

    def _convolve(self, inputs: Tensor, padding_mask: Tensor | None, lengths: Tensor | None) -> Tensor:
        """The convolution over real neighbours, wherever padding stands."""
        assert self.local_convolution is not None
        if padding_mask is None:
            return self.local_convolution(inputs, lengths)
        order = real_tokens_first(padding_mask)
        convolved = self.local_convolution(take_positions(inputs, order), (~padding_mask).sum(dim=1))
        return take_positions(convolved, order.argsort(dim=1))

    def _forward_in_blocks(
        self,
        hidden: Tensor,
        padding_mask: Tensor | None,
        lengths: Tensor | None,
        projection: Projects | None,
        overwrite: bool,
    ) -> Tensor:
        """The same: once the slots are there, no token needs another one."""
        inputs = self.self_attn_layer_norm(hidden) if self.norm_first else hidden
        slots = self.self_attn.project(inputs, inputs, padding_mask, key_lengths=lengths, projection=projection)
        slots = [group.arranged() for group in slots]
        # A convolution looks back at inputs of the block before.
        keeps = inputs is hidden and self.local_convolution is not None
        output = hidden if overwrite and not keeps else torch.empty_like(hidden)
        batch, seq_len, _ = hidden.shape
        for block in blocks(batch, seq_len, block_tokens(self.widest)):
            attended, _ = self.self_attn.attend(inputs[block], [group.of_samples(block[0]) for group in slots])
            if self.local_convolution is not None:
                of_block = None if lengths is None else lengths[block[0]]
                attended = attended + self.local_convolution(inputs[block[0]], of_block, block[1])
            output[block] = self._feed_forward(hidden[block], attended)
        return output

    def _feed_forward(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """What follows attention, token by token."""
        hidden = hidden + self.dropout(attended)
        if not self.norm_first:
            hidden = self.self_attn_layer_norm(hidden)
        inputs = self.final_layer_norm(hidden) if self.norm_first else hidden
        if type(self.activation) is GELUActivation and not is_replaced(self.activation):
            activated = apply_linear(self.fc1, inputs, gelu=True)
        else:
            activated = self.activation(apply_linear(self.fc1, inputs))
        hidden = hidden + self.dropout(apply_linear(self.fc2, activated))
        return hidden if self.norm_first else self.final_layer_norm(hidden)


class LinformerEncoder(nn.Module):
    """The layers, with layerwise sharing the one projection that they all use, with `norm_first` a last LayerNorm."""

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__()
        self.linear = config.attention == "linformer"
        self.orders = self.linear or config.local_convolution > 0  # whether it matters where padding stands
        layerwise = self.linear and config.sharing == "layerwise"
        dims = [config.projected_dim_of(layer) if self.linear else None for layer in range(config.num_hidden_layers)]
        # Owned here and passed down, so that the one matrix is saved, counted and trained once.
        self.projection: SequenceProjection | None = (
            build_projection(
                config.projection,
                seq_len=config.max_position_embeddings,
                projected_dim=config.largest_projected_dim,
                num_heads=config.num_attention_heads,
                head_dim=config.hidden_size // config.num_attention_heads,
                sharing=config.sharing,
                shorter_input=config.shorter_input,
                initializer=config.projection_initializer,
            )
            if layerwise
            else None
        )
        self.layers = nn.ModuleList(
            LinformerLayer(config, k, owns_projection=self.linear and not layerwise) for k in dims
        )
        self.layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps) if config.norm_first else None

    @property
    def attentions(self) -> list[LinformerAttention]:
        """The attention of each layer."""
        return [found for layer in self.layers if (found := _first(LinformerAttention, layer)) is not None]

    @property
    def projections(self) -> list[SequenceProjection | None]:
        """What each layer projects with: its own, or the one of all."""
        return [_first(SequenceProjection, self.projection or attention) for attention in self.attentions]

    def forward(
        self,
        hidden: Float[Tensor, "batch seq_len embed"],
        padding_mask: Bool[Tensor, "batch seq_len"] | None,
        *,
        output_attentions: bool,
        output_hidden_states: bool,
        overwrite: bool = False,
    ) -> BaseModelOutput:
        """All layers; with `overwrite`, `hidden` may be lost, and without gradients its memory serves them all.

        The hidden states and weights returned are those that the layers pass on, so that gradients can be retained.
        """
        lengths = order = None
        if padding_mask is not None and self.orders:
            if _is_right_padded(padding_mask):
                lengths, padding_mask = (~padding_mask).sum(dim=1), None
            elif not (output_hidden_states or output_attentions or any(map(may_need_whole, self.layers.modules()))):
                # Once for all layers: real tokens first, and back at the end. Else each layer sorts for itself, so that
                # hooks and modules from elsewhere get tokens where they stand.
                order, lengths = real_tokens_first(padding_mask), (~padding_mask).sum(dim=1)
                hidden, padding_mask = take_positions(hidden, order), None
        hidden_states, attentions = [hidden] if output_hidden_states else [], []
        own = all(isinstance(layer, LinformerLayer) for layer in self.layers)
        overwrite = overwrite and not output_hidden_states and own
        in_place = {"overwrite": True} if overwrite else {}  # layers that others have put here need not know it
        # A function, because hooks that place a layer on a device (accelerate's) move every module among its arguments.
        projection = None if self.projection is None else functools.partial(self.projection)
        for layer in self.layers:
            hidden, weights = layer(hidden, padding_mask, lengths, projection, output_attentions, **in_place)
            if output_hidden_states:
                hidden_states.append(hidden)
            if output_attentions:
                attentions.append(weights)
        if self.layer_norm is not None:
            hidden = self._normalise(hidden, overwrite)
            if output_hidden_states:
                hidden_states[-1] = hidden
        if order is not None:
            hidden = take_positions(hidden, order.argsort(dim=1))
        return BaseModelOutput(
            last_hidden_state=hidden,
            hidden_states=tuple(hidden_states) if output_hidden_states else None,
            attentions=tuple(attentions) if output_attentions else None,
        )

    def _normalise(self, hidden: Tensor, overwrite: bool) -> Tensor:
        """The last LayerNorm, in place where nobody needs its input any more."""
        assert self.layer_norm is not None
        batch, seq_len, embed = hidden.shape
        if not overwrite:
            return self.layer_norm(hidden)
        for block in blocks(batch, seq_len, block_tokens(embed)):
            hidden[block] = self.layer_norm(hidden[block])
        return hidden


def _first(kind: type[Part], module: nn.Module) -> Part | None:
    """The module itself or the first such one within: adapters and compilation wrap it."""
    return next((part for part in module.modules() if isinstance(part, kind)), None)


def _is_right_padded(padding_mask: Bool[Tensor, "batch seq_len"]) -> bool:
    """Whether no real token follows padding; False where looking has a cost: on accelerators and in traces."""
    return values_are_cheap(padding_mask) and bool((padding_mask[:, 1:] >= padding_mask[:, :-1]).all())
