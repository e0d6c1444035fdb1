"""The encoder: layers of Linformer attention and feed-forward; with `attention="full"`, those of a Transformer.

Axes: batch, seq_len (n), embed (hidden_size), heads, slots (projected_dim, or seq_len with full attention).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from transformers import initialization as init
from transformers.activations import ACT2FN, GELUActivation
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput

from linformer_kit.models.cache import LayerCache, LinformerCache
from linformer_kit.models.configuration import LinformerConfig
from linformer_kit.operator.attention import ProjectedAttention
from linformer_kit.operator.conditions import has_hooks, may_need_whole
from linformer_kit.operator.kernels import Kernels
from linformer_kit.operator.padding import put_back, put_back_weights, take_block, zero_padding
from linformer_kit.operator.projections import (
    FullAttention,
    SequenceProjection,
    SharedProjection,
    bind_replica,
    build_projection,
    inside,
)
from linformer_kit.operator.slots import ForwardPass
from linformer_kit.operator.window import Window

_BLOCK_TOKENS = 512  # per thread; with fewer, reading the weights takes longer than the products
_LEAST_TOKENS = 4096  # with smaller blocks, the slowest core is waited for more often
_BLOCK_ELEMENTS = 3 << 19  # elements of the widest activation of a block that fit in the cache with the others


class LocalConvolution(nn.Module):
    """Depthwise convolution over neighbours: y_t = Σ_j w_j ⊙ x_(t+j), j from -⌊w/2⌋ to ⌊w/2⌋, nothing beyond the ends.

    Not in the paper. `weight` is `[embed, width]` with an odd width w in tokens; there is no bias. If it is `causal`, j
    is from -(w - 1) to 0.
    """

    def __init__(self, embed_dim: int, width: int, *, causal: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(embed_dim, width))
        self.before = Window(width, causal).before
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise uniformly with variance 1/(3w), as torch's convolutions."""
        init.uniform_(self.weight, -(self.weight.shape[1] ** -0.5), self.weight.shape[1] ** -0.5)

    def forward(
        self,
        hidden: Float[Tensor, "batch seq_len embed"],
        forward_pass: ForwardPass,
        past: Float[Tensor, "batch before embed"] | None = None,
    ) -> Float[Tensor, "batch seq_len embed"]:
        """Convolve over the real tokens of right-padded sequences, and those `past` before them."""
        hidden = zero_padding(hidden, forward_pass.lengths)
        length, hidden = hidden.shape[1], hidden if past is None else torch.cat([past, hidden], dim=1)
        first = hidden.shape[1] - length
        # As an image of one row with channels last, the only layout that is fast on CPUs.
        image, weight = hidden.transpose(1, 2)[:, :, None], self.weight[:, None, None]
        mixed = forward_pass.kernels.widened(F.conv2d, image, weight, padding=(0, self.before), groups=len(weight))
        return mixed[:, :, 0, first : first + length].transpose(1, 2)


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
            causal=config.causal,
        )
        self.self_attn_layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        width = config.local_convolution
        self.local_convolution = LocalConvolution(config.hidden_size, width, causal=config.causal) if width else None
        self.fc1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size)
        self.final_layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.activation = ACT2FN[config.hidden_act]
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.norm_first = config.norm_first
        self.is_full = isinstance(projection, FullAttention)

    def forward(
        self,
        hidden: Float[Tensor, "batch seq_len embed"],
        forward_pass: ForwardPass | None = None,
        output_attentions: bool = False,
        past_key_values: LayerCache | None = None,
    ) -> tuple[Float[Tensor, "batch seq_len embed"], Float[Tensor, "batch heads seq_len slots"] | None]:
        """The output of right-padded sequences, and P̄ or None.

        `past_key_values` has the tokens before, and keeps these. In blocks of tokens, which are independent given the
        slots, the output overwrites `hidden`, and there is no P̄.
        """
        forward_pass = ForwardPass.of(hidden, forward_pass)
        inputs = self.self_attn_layer_norm(hidden) if self.norm_first else hidden
        keys = zero_padding(inputs, forward_pass.lengths)
        past, convolution = past_key_values, self.local_convolution
        slots = None if past is None else past.next_slots(self.self_attn, keys, forward_pass)
        before = (
            None if past is None or convolution is None else past.inputs_before(keys, forward_pass, convolution.before)
        )
        local = None if convolution is None else convolution(inputs, forward_pass, before)
        if not forward_pass.blocks:
            attended, weights = self.self_attn(inputs, keys, None, forward_pass, output_attentions, slots)
            return self._feed_forward(hidden, attended, local, forward_pass.kernels), weights
        slots = self.self_attn.project(keys, None, forward_pass) if slots is None else slots
        for block in forward_pass.blocks:
            attended, _ = self.self_attn.attend(inputs[block], slots.block(*block), forward_pass.kernels)
            hidden[block] = self._feed_forward(hidden[block], attended, take_block(local, *block), forward_pass.kernels)
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
        # Here and not in a layer, so that the shared matrix is saved, counted and trained once.
        self.projection: SequenceProjection | None = None
        if config.sharing == "layerwise" and config.has_slots:
            self.projection = _projection(config, config.largest_projected_dim)
        self.layers = nn.ModuleList(self._layer(config, layer) for layer in range(config.num_hidden_layers))
        has_norm = config.norm_first and config.final_norm
        self.layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps) if has_norm else None

    def _layer(self, config: LinformerConfig, layer: int) -> LinformerLayer:
        k = config.projected_dim_of(layer)
        if config.is_full(layer):
            return LinformerLayer(config, FullAttention(config.num_attention_heads))
        if self.projection is not None:
            return LinformerLayer(config, SharedProjection(self), k)
        return LinformerLayer(config, _projection(config, k))

    @property
    def projections(self) -> list[SequenceProjection]:
        """The projection of each layer: its own, or the shared one."""
        return [inside(layer if layer.is_full else self.projection or layer) for layer in self.layers]

    def forward(
        self,
        hidden: Float[Tensor, "batch seq_len embed"],
        forward_pass: ForwardPass | None = None,
        order: Int[Tensor, "batch seq_len"] | None = None,
        *,
        output_attentions: bool = False,
        output_hidden_states: bool = False,
        past_key_values: LinformerCache | None = None,
    ) -> BaseModelOutput:
        """Run all layers on right-padded sequences.

        With right padding, returned hidden states and weights are on the path between layers, so that their gradients
        can be retained; with other padding they are copies in the caller's order.

        Args:
            hidden: Embeddings; with blocks the layers compute in their memory.
            forward_pass: The forward pass; None: of the encoder alone, without padding.
            order: The order of `right_padded` that the tokens have; what is returned is put back into the caller's.
            output_attentions: Whether to return P̄ of all layers.
            output_hidden_states: Whether to return the embeddings and the output of each layer.
            past_key_values: The tokens before, where these are kept too.
        """
        states: list[Tensor] = []
        attentions: list[Tensor] = []
        forward_pass = ForwardPass.of(hidden, forward_pass)
        if self.projection is not None:
            bind_replica(self)
        for number, layer in enumerate(self.layers):
            if output_hidden_states:
                states.append(put_back(hidden, order))
            past = None if past_key_values is None else past_key_values.layers[number]
            hidden, weights = layer(hidden, forward_pass, output_attentions, past_key_values=past)
            if weights is not None:
                attentions.append(put_back_weights(weights, order, columns=bool(layer.is_full)))
        if self.layer_norm is not None:
            for block in forward_pass.blocks:
                hidden[block] = self.layer_norm(hidden[block])
            hidden = hidden if forward_pass.blocks else self.layer_norm(hidden)
        last = put_back(hidden, order)
        return BaseModelOutput(
            last,
            (*states, last) if output_hidden_states else None,
            tuple(attentions) if output_attentions else None,
        )


def token_blocks(
    module: nn.Module, tokens: Shaped[Tensor, "batch seq_len *embed"], width: int, kernels: Kernels
) -> Sequence[tuple[slice, slice]]:
    """Samples and rows of the blocks of tokens in which a token-wise module should run; none: all tokens at once.

    There are blocks for large inputs in inference on a CPU: there the activations of a block stay in the cache, and
    only one block needs memory. There are none in training mode, with hooks or foreign classes in the module, or with
    mixed dtypes. Blocks have about equal sizes; each is a part of one sequence, or several whole ones.

    Args:
        module: The module.
        tokens: Its input, ids or hidden states.
        width: Width of its widest activation.
        kernels: Those of this forward pass.
    """
    if kernels.device != "cpu" or kernels.calls_modules or kernels.autocast is not None or torch.is_grad_enabled():
        return ()
    batch, length = tokens.shape[:2]
    most = max(_LEAST_TOKENS, _BLOCK_TOKENS * torch.get_num_threads(), _BLOCK_ELEMENTS // width)
    if batch * length <= most:
        return ()
    dtypes = {parameter.dtype for parameter in module.parameters()}
    dtypes |= {tokens.dtype} if tokens.is_floating_point() else set()
    need_whole = (part.training or (part is not module and may_need_whole(part)) for part in module.modules())
    if len(dtypes) > 1 or any(need_whole):
        return ()
    samples, parts = max(1, most // length), -(-length // most)
    edges = [part * length // parts for part in range(parts + 1)]
    groups = [slice(start, start + samples) for start in range(0, batch, samples)]
    return [(group, slice(*rows)) for group in groups for rows in itertools.pairwise(edges)]


def _projection(config: LinformerConfig, projected_dim: int | list[int]) -> SequenceProjection:
    n, heads = config.max_position_embeddings, config.num_attention_heads
    return build_projection(config, n, projected_dim, heads, config.hidden_size // heads)
