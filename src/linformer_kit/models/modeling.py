"""RoBERTa's architecture with Linformer attention, as transformers models.

`LinformerModel` is `embeddings` and `encoder`; `heads` has the models for tasks, `inputs` the checks of their inputs.
With `attention="full"` in the configuration, the same classes are the Transformer baseline.

Axes: batch, seq_len (n), embed (hidden_size), heads, slots (projected_dim, or seq_len with full attention), vocab.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.utils.generic import can_return_tuple

from linformer_cli.errors import InputError
from linformer_kit.models.base import LinearModel
from linformer_kit.models.configuration import LinformerConfig, check_projected_dim
from linformer_kit.models.embeddings import LinformerEmbeddings, first_token
from linformer_kit.models.encoder import LinformerEncoder, LocalConvolution
from linformer_kit.models.inputs import check_inputs
from linformer_kit.operator import kernels
from linformer_kit.operator.attention import ProjectedAttention
from linformer_kit.operator.padding import of_samples, right_padded, take_positions, zero_padding
from linformer_kit.operator.projections import SequenceProjection, each_dim
from linformer_kit.operator.projections.sizes import slots_by_head


class LinformerPreTrainedModel(LinearModel):
    """Base class of all Linformer models: initialisation, saving and loading, resizing."""

    config: LinformerConfig
    config_class = LinformerConfig
    base_model_prefix = "linformer"
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = True
    _no_split_modules = ["LinformerEmbeddings", "LinformerLayer"]
    _supports_sdpa = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, LocalConvolution):
            module.reset_parameters()
        lecun_normal = self.config.linear_initializer == "lecun_normal"
        if lecun_normal and isinstance(module, nn.Linear) and module is not self.get_output_embeddings():
            init.normal_(module.weight, std=module.in_features**-0.5)

    def save_pretrained(self, save_directory: str | os.PathLike[str], *arguments: Any, **named: Any) -> None:
        """As in transformers.

        Raises:
            InputError: for a model split by `SequenceParallel`, without the `state_dict` of the whole model.
        """
        given = arguments[1] if len(arguments) > 1 else named.get("state_dict")
        for name, module in self.named_modules():
            if isinstance(module, SequenceProjection) and module.piece is not None:
                names = [f"{name}.{own}" for own in module.of_positions()]
                if given is None or any(given[own].shape[-1] != module.seq_len for own in names if own in given):
                    got = "None" if given is None else f"a piece of {name}"
                    raise InputError(
                        "state_dict: expected SequenceParallel.full_state_dict(), because each process has a piece of "
                        f"the model, got {got}"
                    )
        super().save_pretrained(save_directory, *arguments, **named)

    def set_projected_dim(self, projected_dim: int | list[int] | list[list[int]] | None = None) -> None:
        """Run with fewer slots than the model was built with, at the cost of the smaller number.

        Learned and random projections use the first rows of their matrices, pooling uses fewer and larger windows. The
        weights are unchanged: they are saved as before, and resetting the number gives the same outputs bit for bit.

        Args:
            projected_dim: k for all layers, for each, or for each head of each; None: the model's own k. A single
                number applies to layers and heads with a larger k; those with a smaller one keep it.

        Raises:
            InputError: for more slots than the model was built with, for convolutions, whose kernel is tied to k, or
                with full attention.
        """
        if self.config.attention == "full":
            raise InputError("set_projected_dim: expected a model with attention linformer, got full")
        encoder, heads = self.base_model.encoder, self.config.num_attention_heads
        wanted: Any = self.config.projected_dim if projected_dim is None else projected_dim
        check_projected_dim(self.config, wanted)
        if isinstance(wanted, int) and wanted <= self.config.largest_projected_dim:
            wanted = each_dim(self.config.projected_dim, lambda made: min(made, wanted))
        dims: list[Any] = wanted if isinstance(wanted, list) else [wanted] * len(encoder.layers)
        for index, (projection, dim) in enumerate(zip(encoder.projections, dims, strict=True)):
            made, slots = ([*slots_by_head(each, heads)] for each in (self.config.projected_dim_of(index), dim))
            if any(new > old for new, old in zip(slots, made, strict=True)):
                raise InputError(f"projected_dim: expected at most {made} by head in layer {index}, got {slots}")
            assert projection is not None
            projection.checked_slots(dim, heads)
        for layer, dim in zip(encoder.layers, dims, strict=True):
            for module in layer.modules():  # adapters keep copies of a module that they train
                if isinstance(module, ProjectedAttention):
                    module.projected_dim = dim

    def _record_size(self, seq_len: int, projected_dim: Any) -> None:
        super()._record_size(seq_len, projected_dim)
        if self.config.attention == "linformer":
            self.set_projected_dim()


class Inputs(NamedTuple):
    """Arguments of a forward pass with an entry for each token."""

    input_ids: Tensor | None
    inputs_embeds: Tensor | None
    position_ids: Tensor | None  # None: 0, 1, 2, …; the batch may be 1, for every sequence
    token_type_ids: Tensor | None

    @property
    def tokens(self) -> Tensor:
        """Ids or embeddings."""
        return cast(Tensor, self.input_ids if self.inputs_embeds is None else self.inputs_embeds)

    def in_order(self, order: Int[Tensor, "batch seq_len"]) -> Inputs:
        """The tokens in an order of `right_padded`."""
        batch = order.shape[0]
        wholes = (None if each is None else each.expand(batch, *each.shape[1:]) for each in self)
        return Inputs(*(None if each is None else take_positions(each, order) for each in wholes))

    def of_block(self, samples: slice, rows: slice) -> Inputs:
        """Some of the tokens."""
        parts = (of_samples(each, samples) for each in self)
        return Inputs(*(None if part is None else part[:, rows] for part in parts))


class LinformerModel(LinformerPreTrainedModel):
    """Embeddings and encoder: maps token ids to hidden states.

    Args:
        config: The architecture.
        add_pooling_layer: Whether to add the pooler if `config.pooler` is true; models with a head do not.

    Raises (all models):
        InputError: a ValueError with the name of the argument, the expected and the given value.
    """

    def __init__(self, config: LinformerConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config)
        self.embeddings = LinformerEmbeddings(config)
        self.encoder = LinformerEncoder(config)
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size) if config.pooler and add_pooling_layer else None
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.embeddings.word_embeddings = value

    @can_return_tuple
    def forward(
        self,
        input_ids: Int[Tensor, "batch seq_len"] | None = None,
        attention_mask: Shaped[Tensor, "batch seq_len"] | None = None,
        token_type_ids: Int[Tensor, "batch seq_len"] | None = None,
        position_ids: Int[Tensor, "batch_or_1 seq_len"] | None = None,
        inputs_embeds: Float[Tensor, "batch seq_len embed"] | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> BaseModelOutputWithPooling:
        """Encode sequences.

        Args:
            input_ids: Token ids; exactly one of input_ids and inputs_embeds is needed.
            attention_mask: 1 on real tokens, 0 on padding; None if all are real.
            token_type_ids: From 0 to type_vocab_size - 1; with type_vocab_size 0 only zeros, which have no effect.
            position_ids: From 0; default: the number of preceding real tokens, so padding does not shift positions.
            inputs_embeds: Word embeddings instead of input_ids.
            output_attentions: Also return the context mappings P̄ of all layers, `[batch, heads, seq_len, slots]`.
            output_hidden_states: Also return the embeddings and the output of each layer.

        Returns:
            `last_hidden_state`, `[batch, seq_len, hidden_size]`, and the requested outputs; with a pooler,
            `pooler_output`, `[batch, hidden_size]`. Values at padded positions are undefined.
        """
        check_inputs(self.config, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        if output_attentions is None:
            output_attentions = self.config.output_attentions
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        inputs = Inputs(input_ids, inputs_embeds, position_ids, token_type_ids if self.config.type_vocab_size else None)
        order, lengths = (None, None) if attention_mask is None else right_padded(attention_mask == 0)
        if order is not None:  # behind this door every sequence is right-padded
            inputs = inputs.in_order(order)
        tokens = inputs.tokens
        in_blocks = not output_attentions and kernels.runs_in_blocks(self, tokens, self.config.intermediate_size)
        hidden = self._embed_in_blocks(inputs, lengths) if in_blocks else self._embed(inputs, lengths)
        del inputs, tokens, inputs_embeds  # references would keep their memory during the encoder's call
        encoded = self.encoder(
            hidden,
            lengths,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            in_blocks=in_blocks,
            order=order,
        )
        pooled = None
        if self.pooler is not None:
            pooled = torch.tanh(self.pooler(first_token(encoded.last_hidden_state, attention_mask)))
        return BaseModelOutputWithPooling(**encoded, pooler_output=pooled)

    def _embed(self, inputs: Inputs, lengths: Tensor | None) -> Float[Tensor, "batch seq_len embed"]:
        words, positions = inputs.inputs_embeds, inputs.position_ids
        if words is None:
            words = self.embeddings.word_embeddings(inputs.input_ids)
        if positions is None:
            positions = torch.arange(words.shape[1], device=words.device)[None]
        # A NaN in padding would reach the gradients of shared weights through residuals.
        return self.embeddings(zero_padding(words, lengths), positions, inputs.token_type_ids)

    def _embed_in_blocks(self, inputs: Inputs, lengths: Tensor | None) -> Float[Tensor, "batch seq_len embed"]:
        """`_embed` in blocks of tokens, in inference."""
        batch, seq_len = inputs.tokens.shape[:2]
        if inputs.position_ids is None:
            inputs = inputs._replace(position_ids=torch.arange(seq_len)[None])
        hidden = torch.empty(batch, seq_len, self.config.hidden_size, dtype=self.dtype)
        for samples, rows in kernels.blocks(batch, seq_len, kernels.block_tokens(self.config.hidden_size)):
            of_block = None if lengths is None else lengths[samples] - rows.start
            hidden[samples, rows] = self._embed(inputs.of_block(samples, rows), of_block)
        return hidden
