"""RoBERTa's architecture with Linformer attention, as transformers models.

`LinformerModel` is the door, where inputs are checked and their real tokens are put first, embeddings, and `encoder`;
`LinformerEncoder` is the same without embeddings, and `heads` has the models for tasks. Behind the door every sequence
is right-padded, and layers know lengths only.
With `attention="full"` in the configuration, the same classes are the Transformer baseline.

Axes: batch, seq_len (n), embed (hidden_size), heads, slots (projected_dim, or seq_len with full attention), vocab.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPast
from transformers.utils.generic import can_return_tuple

from linformer_cli.errors import InputError, check_input
from linformer_kit.models.base import LinearModel, reject_packed
from linformer_kit.models.cache import LinformerCache, check_is_ours, given_cache
from linformer_kit.models.configuration import LinformerConfig, check_projected_dim
from linformer_kit.models.encoder import LinformerLayers, LocalConvolution, token_blocks
from linformer_kit.operator.attention import ProjectedAttention
from linformer_kit.operator.conditions import check_vectors, described, reject_old_exporter, require, values_are_cheap
from linformer_kit.operator.kernels import choose
from linformer_kit.operator.padding import is_right_padded, right_padded, take_block, take_positions, zero_padding
from linformer_kit.operator.projections.sizes import each_dim
from linformer_kit.operator.slots import ForwardPass


class LinformerPreTrainedModel(LinearModel):
    """Base class of all Linformer models: initialisation, saving and loading, resizing."""

    config: LinformerConfig
    config_class = LinformerConfig
    base_model_prefix = "linformer"
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = True
    _no_split_modules = ["LinformerEmbeddings", "LinformerLayer"]
    _supports_sdpa = True
    _input_embed_layer = "word_embeddings"

    @classmethod
    def from_pretrained(cls, *arguments: Any, output_loading_info: bool = False, **options: Any) -> Any:
        """As in transformers, but a folder of a `LinformerEncoder` raises an error: embeddings would be random."""
        model, loading = super().from_pretrained(*arguments, output_loading_info=True, **options)
        saved = model.config.architectures or ()
        if LinformerEncoder.__name__ in saved and not isinstance(model, LinformerEncoder):
            raise InputError(
                f"{model.name_or_path}: expected embeddings of words, got none; lk.LinformerEncoder loads it"
            )
        return (model, loading) if output_loading_info else model

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, LocalConvolution):
            module.reset_parameters()
        lecun_normal = self.config.linear_initializer == "lecun_normal"
        if lecun_normal and isinstance(module, nn.Linear) and module is not self.get_output_embeddings():
            init.normal_(module.weight, std=module.in_features**-0.5)

    def set_projected_dim(self, projected_dim: int | list[int] | list[list[int]] | None = None) -> None:
        """Run with fewer slots than the model was built with, at the cost of the smaller number.

        Learned and random projections use the first rows of their matrices, pooling uses fewer and larger windows. No
        weight changes: they are saved as before, and resetting the number gives the same outputs bit for bit.

        Args:
            projected_dim: k for all layers and heads that have more, or a list as in the configuration; None: the
                model's own k.

        Raises:
            InputError: for more slots than a projection has, for convolutions, whose kernel is tied to k, with full
                attention, or if windows become wider than the sliding window of causal attention.
        """
        config, encoder = self.config, self.base_model.encoder
        if not config.has_slots:
            raise InputError("set_projected_dim: expected a model with attention linformer, got full")
        wanted = each_dim(config.projected_dim if projected_dim is None else projected_dim)
        check_projected_dim(config, wanted)
        if isinstance(wanted, int) and wanted < config.largest_projected_dim:
            wanted = each_dim(config.projected_dim, lambda built: min(built, wanted))
        dims: list[Any] = wanted if isinstance(wanted, list) else [wanted] * len(encoder.layers)
        linear, projections = [layer for layer in range(len(dims)) if not config.is_full(layer)], encoder.projections
        for layer in linear:
            projections[layer].checked_slots(dims[layer], config.num_attention_heads)
        for layer in linear:
            for module in encoder.layers[layer].modules():  # adapters keep copies of a module that they train
                if isinstance(module, ProjectedAttention):
                    module.projected_dim = dims[layer]

    def _forward_pass(
        self, inputs: Inputs, output_attentions: bool | None, output_hidden_states: bool | None
    ) -> tuple[ForwardPass, dict[str, bool]]:
        """What all layers share, and whether they return P̄ and hidden states; None: as the configuration says."""
        attentions = self.config.output_attentions if output_attentions is None else output_attentions
        states = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        kernels, width = choose(inputs.tokens), self.config.intermediate_size
        blocks = () if attentions or states else token_blocks(self, inputs.tokens, width, kernels)
        shown = {"output_attentions": attentions, "output_hidden_states": states}
        return ForwardPass(kernels, inputs.lengths, blocks), shown

    def _layer_counts(self) -> tuple[int, int]:
        return len(self.base_model.encoder.layers), self.config.num_hidden_layers

    def _check_size(self, seq_len: int, projected_dim: Any) -> None:
        if self.config.has_slots:
            check_projected_dim(self.config, projected_dim, seq_len)

    def _record_size(self, seq_len: int, projected_dim: Any) -> None:
        super()._record_size(seq_len, projected_dim)
        if self.config.has_slots:
            self.set_projected_dim()


class Inputs(NamedTuple):
    """Right-padded arguments of a forward pass."""

    tokens: Tensor  # ids [batch, seq_len], or word embeddings [batch, seq_len, embed]
    position_ids: Int[Tensor, "batch_or_1 seq_len"]
    token_type_ids: Int[Tensor, "batch seq_len"] | None
    lengths: Int[Tensor, " batch"] | None  # number of real tokens; None: all
    order: Int[Tensor, "batch seq_len"] | None  # order of `padding.right_padded`; None: as the caller has them

    @property
    def finite(self) -> Float[Tensor, "batch seq_len embed"]:
        """A copy of embeddings with zeros for what is not finite in padding: shared weights would get its gradients."""
        return self.tokens.where(self.tokens.isfinite(), zero_padding(self.tokens, self.lengths))

    def block(self, samples: slice, rows: slice) -> Inputs:
        """Some of the tokens."""
        return Inputs(
            take_block(self.tokens, samples, rows),
            take_block(self.position_ids, samples, rows),
            take_block(self.token_type_ids, samples, rows),
            None if self.lengths is None else self.lengths[samples] - rows.start,
            None,
        )


def checked_inputs(
    model: LinformerPreTrainedModel,
    input_ids: Tensor | None,
    attention_mask: Tensor | None,
    token_type_ids: Tensor | None,
    position_ids: Tensor | None,
    inputs_embeds: Tensor | None,
    *,
    past: LinformerCache | None = None,
) -> Inputs:
    """Check the arguments of `LinformerModel.forward`, and put the real tokens of each sequence first.

    `past` has the tokens before these.

    Raises:
        InputError: for types, shapes and lengths that do not fit the model or each other, and ids out of range.
    """
    config = model.config
    if model.has_positions and (input_ids is None) == (inputs_embeds is None):
        raise InputError("input_ids, inputs_embeds: expected exactly one of them, got both or neither")
    tokens: Any = inputs_embeds if input_ids is None else input_ids
    may_read = isinstance(tokens, Tensor) and values_are_cheap(tokens)
    if input_ids is None:
        added = model.has_positions
        first = model.embeddings.word_embeddings if added else model.encoder.layers[0].self_attn_layer_norm
        check_vectors("inputs_embeds", tokens, config.hidden_size, first.weight, added=added)
    else:
        check_ids("input_ids", tokens, None, config.vocab_size, may_read)
    shape, columns = tokens.shape[:2], tokens.shape[1]
    if past is not None:
        check_input(config.causal, "use_cache, past_key_values", "none without causal", type(past).__name__)
        check_is_ours(past)
        attention_mask, columns = past.checked_mask(model, attention_mask, shape), past.columns + columns
    if not torch.compiler.is_exporting() and columns > config.max_position_embeddings:
        longest = f"max_position_embeddings {config.max_position_embeddings}"
        raise InputError(f"sequence length: expected at most {longest}, got {columns}")
    if not may_read:
        reject_old_exporter()
    if position_ids is not None:
        whole = (1, shape[1]) if isinstance(position_ids, Tensor) and position_ids.shape[:1] == (1,) else shape
        check_ids("position_ids", position_ids, whole, config.max_position_embeddings, may_read)
        reject_packed(position_ids, attention_mask)
    if token_type_ids is not None:
        check_ids("token_type_ids", token_type_ids, shape, config.type_vocab_size, may_read)
        if not config.type_vocab_size:
            # Tokenizers may return zeros; of other types, a second text would count as part of the first.
            require((token_type_ids == 0).all(), "token_type_ids: expected None or only 0 because type_vocab_size is 0")
            token_type_ids = None
    order = lengths = None
    if attention_mask is not None:
        check_mask(attention_mask, shape)
        real = attention_mask != 0
        order, lengths = right_padded(real, is_known=may_read and is_right_padded(real))
    if order is not None:
        tokens = take_positions(tokens, order)
        if token_type_ids is not None:
            token_type_ids = take_positions(token_type_ids, order)
        if position_ids is not None:
            position_ids = take_positions(position_ids.expand(order.shape), order)
    if position_ids is None:  # they count the real tokens
        position_ids = torch.arange(tokens.shape[1], device=tokens.device)[None]
        if past is not None and past.lengths is not None:
            position_ids = position_ids + past.lengths[:, None]
    return Inputs(tokens, position_ids, token_type_ids, lengths, order)


def check_ids(name: str, ids: Any, shape: Sequence[int] | None, limit: int, may_read: bool) -> None:
    """Check the shape of ids (None: any sequences), and that they are below a limit (0: none) if values may be read."""
    if not isinstance(ids, Tensor) or ids.dtype not in (torch.int64, torch.int32):
        raise InputError(f"{name}: expected a tensor of int64 or int32, got {described(ids)}")
    if ids.dim() != 2 if shape is None else ids.shape != tuple(shape):
        raise InputError(f"{name}: expected {list(shape) if shape else '[batch, sequence]'}, got {list(ids.shape)}")
    if may_read and limit and ids.numel():  # accelerators have their own check
        low, high = ids.min().item(), ids.max().item()
        if low < 0 or high >= limit:
            raise InputError(f"{name}: expected ids from 0 to {limit - 1}, got {low if low < 0 else high}")


def check_mask(attention_mask: Any, shape: Sequence[int]) -> None:
    """Check the shape of a mask; in floating point, as PEFT makes it, it must not be an additive one."""
    expected = f"attention_mask: expected {list(shape)}, 1 on real tokens and 0 on padding"
    if not isinstance(attention_mask, Tensor) or attention_mask.shape != tuple(shape):
        raise InputError(f"{expected}, got {described(attention_mask)}")
    if attention_mask.is_floating_point():
        is_binary = ((attention_mask == 0) | (attention_mask == 1)).all() & attention_mask.any()
        require(is_binary, f"{expected}, got other numbers or only 0 in {attention_mask.dtype}")


class LinformerEmbeddings(nn.Module):
    """Embeddings of words, positions and (if configured) token types, summed; then (likewise) LayerNorm; dropout."""

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        rows = config.max_position_embeddings + config.position_offset
        self.position_embeddings = nn.Embedding(rows, config.hidden_size)
        self.position_offset = config.position_offset
        if config.type_vocab_size:
            self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        has_norm = config.embedding_norm
        self.layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps) if has_norm else nn.Identity()
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, inputs: Inputs) -> Float[Tensor, "batch seq_len embed"]:
        words = self.word_embeddings(inputs.tokens) if inputs.tokens.dim() == 2 else inputs.finite
        embeddings = words + self.position_embeddings(inputs.position_ids + self.position_offset)
        if hasattr(self, "token_type_embeddings"):
            types = inputs.token_type_ids
            first = torch.zeros(words.shape[:2], dtype=torch.long, device=words.device)
            embeddings = embeddings + self.token_type_embeddings(first if types is None else types)
        return self.dropout(self.layer_norm(embeddings))

    def run_in_blocks(
        self, inputs: Inputs, blocks: Sequence[tuple[slice, slice]]
    ) -> Float[Tensor, "batch seq_len embed"]:
        """`forward` in blocks of tokens, in inference."""
        table = self.position_embeddings.weight
        hidden = table.new_empty(*inputs.tokens.shape[:2], table.shape[1])
        for block in blocks:
            hidden[block] = self(inputs.block(*block))
        return hidden


class LinformerEncoder(LinformerPreTrainedModel):
    """The layers without embeddings, for inputs that are vectors: patches, steps of a series, columns of a table.

    The caller maps inputs to `hidden_size`, by an `nn.Linear` or the like, and adds positions where their order counts.
    In the configuration `max_position_embeddings` is the longest input; fields of words have no effect.

    Example:
        >>> config = LinformerConfig(hidden_size=64, num_attention_heads=4, max_position_embeddings=2000)
        >>> hidden = LinformerEncoder(config)(inputs, attention_mask).last_hidden_state

    Raises:
        InputError: a ValueError with the name of the argument, the expected and the given value.
    """

    main_input_name = "inputs_embeds"
    has_positions = False
    card_use = "`linformer_kit.LinformerEncoder.from_pretrained` loads it."

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__(config)
        self.encoder = LinformerLayers(config)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        inputs_embeds: Float[Tensor, "batch seq_len embed"],
        attention_mask: Shaped[Tensor, "batch seq_len"] | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> BaseModelOutput:
        """Encode sequences of vectors.

        Args:
            inputs_embeds: Vectors, `[batch, seq_len, hidden_size]`, with seq_len up to max_position_embeddings.
            attention_mask: 1 on real vectors, 0 on padding, before, after or between them; None if all are real.
                Padding, NaN included, changes no output of a real vector and no gradient.
            output_attentions: As of `LinformerModel`.
            output_hidden_states: As of `LinformerModel`.

        Returns:
            As of `LinformerModel`.
        """
        inputs = checked_inputs(self, None, attention_mask, None, None, inputs_embeds)
        forward_pass, shown = self._forward_pass(inputs, output_attentions, output_hidden_states)
        return self.encoder(inputs.finite, forward_pass, inputs.order, **shown)


class LinformerModel(LinformerPreTrainedModel):
    """Embeddings and encoder: maps token ids to hidden states.

    Raises (all models):
        InputError: a ValueError with the name of the argument, the expected and the given value.
    """

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__(config)
        self.embeddings = LinformerEmbeddings(config)
        self.encoder = LinformerLayers(config)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Int[Tensor, "batch seq_len"] | None = None,
        attention_mask: Shaped[Tensor, "batch past_and_seq_len"] | None = None,
        token_type_ids: Int[Tensor, "batch seq_len"] | None = None,
        position_ids: Int[Tensor, "batch_or_1 seq_len"] | None = None,
        inputs_embeds: Float[Tensor, "batch seq_len embed"] | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        past_key_values: LinformerCache | None = None,
        use_cache: bool | None = None,
        cache: LinformerCache | None = None,
    ) -> BaseModelOutput | BaseModelOutputWithPast:
        """Encode sequences.

        Args:
            input_ids: Token ids; exactly one of input_ids and inputs_embeds is needed.
            attention_mask: 1 on real tokens, 0 on padding; None if all are real. With past_key_values it is that of the
                tokens before and of these.
            token_type_ids: From 0 to type_vocab_size - 1; with type_vocab_size 0 only zeros, which have no effect.
            position_ids: From 0; default: the number of preceding real tokens, so padding does not shift positions.
            inputs_embeds: Word embeddings instead of input_ids.
            output_attentions: Also return the context mappings P̄ of all layers, `[batch, heads, seq_len, slots]`.
            output_hidden_states: Also return the embeddings and the output of each layer.
            past_key_values: What an earlier call returned, of the tokens before these; these are kept there too. Causal
                models only.
            use_cache: Whether to return past_key_values where none are given; default: no.
            cache: Another name of past_key_values, that of transformers from 5.24 on.

        Returns:
            `last_hidden_state`, `[batch, seq_len, hidden_size]`, and the requested outputs. Values at padded positions
            are undefined.
        """
        cache = past_key_values if cache is None else given_cache(past_key_values, cache)
        cache = LinformerCache(self.config) if cache is None and use_cache else cache
        given = (self, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        inputs = checked_inputs(*given, past=cache)
        forward_pass, shown = self._forward_pass(inputs, output_attentions, output_hidden_states)
        order, blocks = inputs.order, forward_pass.blocks
        hidden = self.embeddings.run_in_blocks(inputs, blocks) if blocks else self.embeddings(inputs)
        del given, inputs, inputs_embeds  # they would keep their memory during the encoder's call
        if cache is None:
            return self.encoder(hidden, forward_pass, order, **shown)
        forward_pass = forward_pass._replace(before=cache.lengths)
        has_weights = shown["output_attentions"] and forward_pass.before is not None and hidden.shape[1] > 1
        if has_weights and any(layer.is_full for layer in self.encoder.layers):
            expected = "False for several tokens after past_key_values where a layer has full attention"
            raise InputError(f"output_attentions: expected {expected}, got True")
        encoded = self.encoder(hidden, forward_pass, order, **shown, past_key_values=cache)
        cache.count(hidden, forward_pass.lengths)
        return BaseModelOutputWithPast(encoded.last_hidden_state, cache, encoded.hidden_states, encoded.attentions)
