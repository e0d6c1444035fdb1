"""The encoder: layers of Linformer attention and feed-forward; with `attention="full"`, those of a Transformer.

Axes: batch, seq_len (n), embed (hidden_size), heads, slots (projected_dim, or seq_len with full attention).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from transformers import initialization as init
from transformers.activations import ACT2FN, GELUActivation
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput

from linformer_kit.models.configuration import LinformerConfig
from linformer_kit.operator.attention import ProjectedAttention
from linformer_kit.operator.conditions import has_hooks, may_need_whole
from linformer_kit.operator.kernels import Kernels, choose
from linformer_kit.operator.padding import put_back, put_back_weights, zero_padding
from linformer_kit.operator.projections import (
    FullAttention,
    SequenceProjection,
    SharedProjection,
    build_projection,
    inside,
)

_BLOCK_TOKENS = 512  # per thread; with fewer, reading the weights takes longer than the products
_LEAST_TOKENS = 4096  # with smaller blocks, the slowest core is waited for more often
_BLOCK_ELEMENTS = 3 << 19  # elements of the widest activation of a block that fit in the cache with the others


class LocalConvolution(nn.Module):
    """Depthwise convolution over neighbours: y_t = Σ_j w_j ⊙ x_(t+j), j from -⌊w/2⌋ to ⌊w/2⌋, nothing beyond the ends.

    Not in the paper. `weight` is `[embed, width]` with an odd width w in tokens; there is no bias.
    """

    def __init__(self, embed_dim: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(embed_dim, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise uniformly with variance 1/(3w), as torch's convolutions."""
        init.uniform_(self.weight, -(self.weight.shape[1] ** -0.5), self.weight.shape[1] ** -0.5)

    def forward(
        self, hidden: Float[Tensor, "batch seq_len embed"], lengths: Int[Tensor, " batch"] | None, kernels: Kernels
    ) -> Float[Tensor, "batch seq_len embed"]:
        """Convolve over the real tokens of right-padded sequences; `lengths` is their number (None: all)."""
        embed, width = self.weight.shape
        # As an image of one row with channels last, the only layout that is fast on CPUs.
        image = zero_padding(hidden, lengths).transpose(1, 2)[:, :, None]
        weight = self.weight[:, None, None]
        return kernels.widened(F.conv2d, image, weight, padding=(0, width // 2), groups=embed)[:, :, 0].transpose(1, 2)


class LinformerLayer(GradientCheckpointingLayer):
    """Attention and feed-forward, each with residual and LayerNorm.

    After the residual (post-norm, as in RoBERTa), y = LN(x + f(x)); with `norm_first` before the function (pre-norm),
    y = x + f(LN(x)).
    """

    def __init__(
        self,
        config: LinformerConfig,
        projection: SequenceProjection | SharedProjection,
        projected_dim: int | list[int] | None = None,
    ) -> None:
        super().__init__()
        self.self_attn = ProjectedAttention(
            config.hidden_size,
            config.num_attention_heads,
            projection,
            projected_dim,
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
        lengths: Int[Tensor, " batch"] | None,
        output_attentions: bool = False,
        kernels: Kernels | None = None,
        in_blocks: bool = False,
    ) -> tuple[Float[Tensor, "batch seq_len embed"], Float[Tensor, "batch heads seq_len slots"] | None]:
        """The output of right-padded sequences, and P̄ or None.

        In blocks of tokens, which are independent given the slots, the output overwrites `hidden`, and there is no P̄.
        """
        kernels = choose(hidden, kernels)
        inputs = self.self_attn_layer_norm(hidden) if self.norm_first else hidden
        keys = zero_padding(inputs, lengths)
        local = None if self.local_convolution is None else self.local_convolution(inputs, lengths, kernels)
        if not in_blocks:
            attended, weights = self.self_attn(inputs, keys, None, lengths, output_attentions, kernels)
            return self._feed_forward(hidden, attended, local, kernels), weights
        slots = self.self_attn.project(keys, None, lengths, kernels)
        for block in token_blocks(hidden, self.widest):
            attended, _ = self.self_attn.attend(inputs[block], slots.of_block(*block), kernels)
            hidden[block] = self._feed_forward(
                hidden[block], attended, None if local is None else local[block], kernels
            )
        return hidden, None

    def _feed_forward(self, hidden: Tensor, attended: Tensor, local: Tensor | None, kernels: Kernels) -> Tensor:
        """Run everything after attention and local convolution; tokens are independent here."""
        attended = attended if local is None else attended + local
        hidden = hidden + self.dropout(attended)
        if not self.norm_first:
            hidden = self.self_attn_layer_norm(hidden)
        inputs = self.final_layer_norm(hidden) if self.norm_first else hidden
        if type(self.activation) is GELUActivation and not kernels.calls_modules and not has_hooks(self.activation):
            transformed = kernels.feed_forward(self.fc1, self.fc2, inputs)
        else:
            transformed = kernels.apply_linear(self.fc2, self.activation(kernels.apply_linear(self.fc1, inputs)))
        hidden = hidden + self.dropout(transformed)
        return hidden if self.norm_first else self.final_layer_norm(hidden)


class LinformerLayers(nn.Module):
    """The layers; with layerwise sharing also their shared projection, with `norm_first` also a final LayerNorm."""

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__()
        self.is_full = config.attention == "full"
        dims = [config.projected_dim_of(layer) for layer in range(config.num_hidden_layers)]
        # Here and not in a layer, so that the shared matrix is saved, counted and trained once.
        self.projection: SequenceProjection | None = None
        if self.is_full:
            layers = [LinformerLayer(config, FullAttention(config.num_attention_heads)) for _ in dims]
        elif config.sharing == "layerwise":
            self.projection = _projection(config, config.largest_projected_dim)
            layers = [LinformerLayer(config, SharedProjection(self), k) for k in dims]
        else:
            layers = [LinformerLayer(config, _projection(config, k)) for k in dims]
        self.layers = nn.ModuleList(layers)
        has_norm = config.norm_first and config.final_norm
        self.layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps) if has_norm else None

    @property
    def projections(self) -> list[SequenceProjection]:
        """The projection of each layer: its own, or the shared one."""
        return [inside(self.projection or layer) for layer in self.layers]

    def forward(
        self,
        hidden: Float[Tensor, "batch seq_len embed"],
        lengths: Int[Tensor, " batch"] | None = None,
        order: Int[Tensor, "batch seq_len"] | None = None,
        *,
        output_attentions: bool = False,
        output_hidden_states: bool = False,
        kernels: Kernels | None = None,
        in_blocks: bool = False,
    ) -> BaseModelOutput:
        """Run all layers on right-padded sequences.

        With right padding, returned hidden states and weights are on the path between layers, so that their gradients
        can be retained; with other padding they are copies in the caller's order.

        Args:
            hidden: Embeddings.
            lengths: Number of real tokens of each sequence; None: all.
            order: The order of `right_padded` that the tokens have; what is returned is put back into the caller's.
            output_attentions: Whether to return P̄ of all layers.
            output_hidden_states: Whether to return the embeddings and the output of each layer.
            kernels: Those of this forward pass; None: they are chosen here.
            in_blocks: Whether to compute in blocks of tokens, in the memory of `hidden` (`runs_in_blocks`).
        """
        states: list[Tensor] = []
        attentions: list[Tensor] = []
        kernels = choose(hidden, kernels)
        for layer in self.layers:
            if output_hidden_states:
                states.append(put_back(hidden, order))
            hidden, weights = layer(hidden, lengths, output_attentions, kernels, in_blocks)
            if weights is not None:
                attentions.append(put_back_weights(weights, order, columns=self.is_full))
        if self.layer_norm is not None and not in_blocks:
            hidden = self.layer_norm(hidden)
        elif self.layer_norm is not None:
            for block in token_blocks(hidden, hidden.shape[-1]):
                hidden[block] = self.layer_norm(hidden[block])
        last = put_back(hidden, order)
        return BaseModelOutput(
            last,
            (*states, last) if output_hidden_states else None,
            tuple(attentions) if output_attentions else None,
        )


def runs_in_blocks(
    module: nn.Module, tokens: Shaped[Tensor, "batch seq_len *embed"], width: int, kernels: Kernels
) -> bool:
    """Whether a token-wise module should run block by block.

    True for large inputs in inference on a CPU: there the activations of a block stay in the cache, and only one block
    needs memory. False in training mode, with hooks or foreign classes in the module, or with mixed dtypes.

    Args:
        module: The module.
        tokens: Its input, ids or hidden states.
        width: Width of its widest activation.
        kernels: Those of this forward pass.
    """
    if (
        kernels.device != "cpu"
        or kernels.calls_modules
        or kernels.autocast is not None
        or torch.is_grad_enabled()
        or tokens.shape[:2].numel() <= _block_tokens(width)
    ):
        return False
    dtypes = {parameter.dtype for parameter in module.parameters()}
    dtypes |= {tokens.dtype} if tokens.is_floating_point() else set()
    return len(dtypes) == 1 and not any(
        part.training or (part is not module and may_need_whole(part)) for part in module.modules()
    )


def _block_tokens(width: int) -> int:
    """Tokens in a block whose widest activation has this width."""
    return max(_LEAST_TOKENS, _BLOCK_TOKENS * torch.get_num_threads(), _BLOCK_ELEMENTS // width)


def token_blocks(tokens: Shaped[Tensor, "batch seq_len *embed"], width: int) -> Iterator[tuple[slice, slice]]:
    """Samples and positions of blocks of tokens of about equal sizes, small enough for activations of this width.

    A block is a part of one sequence, or several whole ones.
    """
    (batch, length), most = tokens.shape[:2], _block_tokens(width)
    samples = max(1, most // max(1, length))
    parts = -(-length // most)
    for start in range(0, batch, samples):
        for part in range(parts):
            yield slice(start, start + samples), slice(part * length // parts, (part + 1) * length // parts)


def _projection(config: LinformerConfig, projected_dim: int | list[int]) -> SequenceProjection:
    return build_projection(
        config,
        seq_len=config.max_position_embeddings,
        projected_dim=projected_dim,
        num_heads=config.num_attention_heads,
        head_dim=config.hidden_size // config.num_attention_heads,
    )
