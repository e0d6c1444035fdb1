"""The encoder: layers of Linformer attention and feed-forward; with `attention="full"`, those of a Transformer.

Axes: batch, seq_len (n), embed (hidden_size), heads, slots (projected_dim, or seq_len with full attention).
"""

from __future__ import annotations

import functools
from typing import TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from transformers import initialization as init
from transformers.activations import ACT2FN, GELUActivation
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput

from linformer_kit.models.configuration import LinformerConfig
from linformer_kit.operator import kernels
from linformer_kit.operator.attention import LinformerAttention, Projects
from linformer_kit.operator.hooks import is_replaced, may_need_whole
from linformer_kit.operator.padding import Padding, zero_padding
from linformer_kit.operator.projections import SequenceProjection, build_projection
from linformer_kit.operator.slots import Slots

Part = TypeVar("Part", bound=nn.Module)


class LocalConvolution(nn.Module):
    """Depthwise convolution over neighbours: y_t = Σ_j w_j ⊙ x_(t+j), j from -⌊w/2⌋ to ⌊w/2⌋, nothing beyond the ends.

    Not in the paper. `weight` is `[embed, width]`; there is no bias.

    Args:
        embed_dim: Width of inputs and output.
        width: w, the kernel size in tokens, an odd number.
    """

    def __init__(self, embed_dim: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(embed_dim, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise uniformly with variance 1/(3w), as torch's convolutions."""
        init.uniform_(self.weight, -(self.weight.shape[1] ** -0.5), self.weight.shape[1] ** -0.5)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, width={self.weight.shape[1]}"

    def forward(
        self,
        hidden: Float[Tensor, "batch seq_len embed"],
        padding: Padding | None,
        rows: slice | None = None,
    ) -> Float[Tensor, "batch rows embed"]:
        """Convolve over the real tokens; padding may be anywhere.

        Args:
            hidden: Inputs.
            padding: Padding of the inputs; None: all tokens are real.
            rows: Positions to compute, only for right-padded inputs; None: all.
        """
        if padding is not None and padding.order is not None:
            return padding.put_back(self(padding.real_first(hidden), padding.reordered()))
        embed, width = self.weight.shape
        reach = width // 2
        first = 0
        if rows is not None:
            first = max(0, rows.start - reach)
            hidden = hidden[:, first : rows.stop + reach]
        if padding is not None:
            hidden = zero_padding(hidden, padding.mask[:, first : first + hidden.shape[1]])
        # As an image of one row with channels last, the only layout that is fast on CPUs.
        image = hidden.transpose(1, 2)[:, :, None]
        weight = self.weight[:, None, None]
        convolved = kernels.widened(F.conv2d, image, weight, padding=(0, reach), groups=embed)[:, :, 0].transpose(1, 2)
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
            sliding_window=config.sliding_window,
            global_tokens=config.global_tokens,
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
        padding: Padding | None,
        projection: Projects | None,
        output_attentions: bool = False,
        *,
        overwrite: bool = False,
    ) -> tuple[Float[Tensor, "batch seq_len embed"], Float[Tensor, "batch heads seq_len slots"] | None]:
        """Run the layer; with `overwrite` the result may be written into `hidden`."""
        inputs = self.self_attn_layer_norm(hidden) if self.norm_first else hidden
        if not output_attentions and self._runs_in_blocks(hidden, padding):
            slots = self.self_attn.project(inputs, inputs, padding, projection=projection)
            return self._attend_in_blocks(hidden, inputs, padding, slots, overwrite), None
        attended, weights = self.self_attn(
            inputs, inputs, inputs, padding, need_weights=output_attentions, projection=projection
        )
        if self.local_convolution is not None:
            attended = attended + self.local_convolution(inputs, padding)
        return self._feed_forward(hidden, attended), weights

    def _runs_in_blocks(self, hidden: Tensor, padding: Padding | None) -> bool:
        """Whether queries run block by block: not if their neighbours are tokens that must be reordered first."""
        if type(self.self_attn) is not LinformerAttention:
            return False
        alone = self.local_convolution is None and not self.self_attn.sliding_window
        in_place = alone or padding is None or padding.order is None
        return in_place and kernels.runs_in_blocks(self, hidden, self.widest)

    def _attend_in_blocks(
        self, hidden: Tensor, inputs: Tensor, padding: Padding | None, slots: list[Slots], overwrite: bool
    ) -> Tensor:
        """Run everything after the projection block by block: given the slots, tokens are independent."""
        slots = [group.arranged() for group in slots]
        # A convolution reads inputs of the previous block.
        keeps = inputs is hidden and self.local_convolution is not None
        output = hidden if overwrite and not keeps else torch.empty_like(hidden)
        batch, seq_len, _ = hidden.shape
        for block in kernels.blocks(batch, seq_len, kernels.block_tokens(self.widest)):
            attended, _ = self.self_attn.attend(inputs[block], [group.of_block(*block) for group in slots])
            if self.local_convolution is not None:
                of_block = None if padding is None else padding.of_samples(block[0])
                attended = attended + self.local_convolution(inputs[block[0]], of_block, block[1])
            output[block] = self._feed_forward(hidden[block], attended)
        return output

    def _feed_forward(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """Run everything after attention; tokens are independent here."""
        hidden = hidden + self.dropout(attended)
        if not self.norm_first:
            hidden = self.self_attn_layer_norm(hidden)
        inputs = self.final_layer_norm(hidden) if self.norm_first else hidden
        if type(self.activation) is GELUActivation and not is_replaced(self.activation):
            transformed = kernels.apply_feed_forward(self.fc1, self.fc2, inputs)
        else:
            transformed = kernels.apply_linear(self.fc2, self.activation(kernels.apply_linear(self.fc1, inputs)))
        hidden = hidden + self.dropout(transformed)
        return hidden if self.norm_first else self.final_layer_norm(hidden)


class LinformerEncoder(nn.Module):
    """The layers; with layerwise sharing also their shared projection, with `norm_first` also a final LayerNorm."""

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__()
        self.linear = config.attention == "linformer"
        self.needs_order = self.linear or config.local_convolution > 0  # whether real tokens must come first
        layerwise = self.linear and config.sharing == "layerwise"
        dims = [config.projected_dim_of(layer) if self.linear else None for layer in range(config.num_hidden_layers)]
        # Owned here and passed to the layers, so that the shared matrix is saved, counted and trained once.
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
        """The projection of each layer: its own, or the shared one."""
        return [_first(SequenceProjection, self.projection or attention) for attention in self.attentions]

    def forward(
        self,
        hidden: Float[Tensor, "batch seq_len embed"],
        padding: Padding | None,
        *,
        output_attentions: bool,
        output_hidden_states: bool,
        overwrite: bool = False,
    ) -> BaseModelOutput:
        """Run all layers; with `overwrite` the memory of `hidden` is reused for their outputs, and its values are lost.

        Returned hidden states and weights are the tensors passed between layers, so their gradients can be retained.
        """
        # Move real tokens first once for all layers, and back at the end. If layers have hooks or foreign modules, or
        # their outputs are returned, each layer reorders for itself, so that these see the original order.
        reorders = padding is not None and padding.order is not None and not (output_hidden_states or output_attentions)
        moved = padding if reorders and not any(map(may_need_whole, self.layers.modules())) else None
        if moved is not None:
            hidden, padding = moved.real_first(hidden), moved.reordered()
        hidden_states, attentions = [hidden] if output_hidden_states else [], []
        own = all(isinstance(layer, LinformerLayer) for layer in self.layers)
        overwrite = overwrite and not output_hidden_states and own
        in_place = {"overwrite": True} if overwrite else {}  # foreign layers may lack this argument
        # A function, because hooks that place a layer on a device (accelerate's) move every module among its arguments.
        projection = None if self.projection is None else functools.partial(self.projection)
        for layer in self.layers:
            hidden, weights = layer(hidden, padding, projection, output_attentions, **in_place)
            if output_hidden_states:
                hidden_states.append(hidden)
            if output_attentions:
                attentions.append(weights)
        if self.layer_norm is not None:
            hidden = self._normalise(hidden, overwrite)
            if output_hidden_states:
                hidden_states[-1] = hidden
        if moved is not None:
            hidden = moved.put_back(hidden)
        return BaseModelOutput(
            last_hidden_state=hidden,
            hidden_states=tuple(hidden_states) if output_hidden_states else None,
            attentions=tuple(attentions) if output_attentions else None,
        )

    def _normalise(self, hidden: Tensor, overwrite: bool) -> Tensor:
        """Apply the final LayerNorm, in-place if its input is not needed any more."""
        assert self.layer_norm is not None
        batch, seq_len, embed = hidden.shape
        if not overwrite:
            return self.layer_norm(hidden)
        for block in kernels.blocks(batch, seq_len, kernels.block_tokens(embed)):
            hidden[block] = self.layer_norm(hidden[block])
        return hidden


def _first(kind: type[Part], module: nn.Module) -> Part | None:
    """The module itself or the first of this class inside it: adapters and compilation wrap modules."""
    return next((part for part in module.modules() if isinstance(part, kind)), None)
