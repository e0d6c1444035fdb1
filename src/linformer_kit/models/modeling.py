"""RoBERTa's architecture with Linformer attention, as transformers expects models to be.

`LinformerModel` is embeddings and `encoder`; `heads` has the models for tasks.
With `attention="full"` in the configuration the same classes are the Transformer that Linformer is compared with.

Axes: batch, seq_len (n), embed (hidden_size), heads, slots (projected_dim, or seq_len with full attention), vocab.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.utils.generic import can_return_tuple

from linformer_kit.errors import InputError
from linformer_kit.models.configuration import LinformerConfig, check_projected_dim
from linformer_kit.models.encoder import LinformerEncoder, LocalConvolution
from linformer_kit.models.saved_lengths import LengthCheckedModel
from linformer_kit.operator import kernels
from linformer_kit.operator.attention import LinformerAttention
from linformer_kit.operator.hooks import may_need_whole
from linformer_kit.operator.padding import Padding, zero_padding
from linformer_kit.operator.projections import SequenceProjection, check_resize, each_dim, more_windows
from linformer_kit.operator.projections.resampling import resize_positions
from linformer_kit.operator.values import has_values, require_in_trace, values_are_cheap
from linformer_kit.settings import ResizeMode


class LinformerEmbeddings(nn.Module):
    """Words, positions and, where the configuration has them, token types; then LayerNorm and dropout."""

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        rows = config.max_position_embeddings + config.position_offset
        self.position_embeddings = nn.Embedding(rows, config.hidden_size)
        self.position_offset = config.position_offset
        if config.type_vocab_size:
            self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(
        self,
        inputs_embeds: Float[Tensor, "batch seq_len embed"],
        position_ids: Int[Tensor, "batch_or_1 seq_len"],
        token_type_ids: Int[Tensor, "batch seq_len"] | None,
        *,
        overwrite: bool = False,
    ) -> Float[Tensor, "batch seq_len embed"]:
        if hasattr(self, "token_type_embeddings") and token_type_ids is None:
            token_type_ids = torch.zeros(inputs_embeds.shape[:2], dtype=torch.long, device=inputs_embeds.device)
        batch, seq_len, embed = inputs_embeds.shape
        if not kernels.runs_in_blocks(self, inputs_embeds, embed):
            return self._embed(inputs_embeds, position_ids, token_type_ids)
        embeddings = inputs_embeds if overwrite else torch.empty_like(inputs_embeds)
        for block in kernels.blocks(batch, seq_len, kernels.block_tokens(embed)):
            embeddings[block] = self._embed(
                inputs_embeds[block],
                position_ids.expand(batch, -1)[block],
                None if token_type_ids is None else token_type_ids[block],
            )
        return embeddings

    def _embed(self, inputs_embeds: Tensor, position_ids: Tensor, token_type_ids: Tensor | None) -> Tensor:
        embeddings = inputs_embeds + self.position_embeddings(position_ids + self.position_offset)
        if token_type_ids is not None:
            embeddings = embeddings + self.token_type_embeddings(token_type_ids)
        return self.dropout(self.layer_norm(embeddings))

    def resize_positions(self, seq_len: int, mode: str) -> None:
        """Repeat the positions periodically up to seq_len (`extend`), or stretch them over it (`interpolate`)."""
        old = self.position_embeddings.weight
        unused, positions = old[: self.position_offset], old[self.position_offset :]
        resized = resize_positions(positions, seq_len, mode)
        self.position_embeddings = nn.Embedding.from_pretrained(
            torch.cat([unused, resized]), freeze=not old.requires_grad
        )


def check_position_table(model: LinformerPreTrainedModel) -> None:
    """Refuse a table of positions that something stands in for: its rows could not be taken apart.

    Raises:
        InputError: for anything but a plain embedding.
    """
    table = model.base_model.embeddings.position_embeddings
    if type(table) is not nn.Embedding:
        raise InputError(
            f"position_embeddings: expected a plain nn.Embedding, got {type(table).__name__}; merge adapters first"
        )


def start_projection(projection: SequenceProjection) -> None:
    """Start E and F anew, but for what has been loaded."""
    for name, value in projection.initial_values().items():
        init.copy_(getattr(projection, name), value)


class LinformerPreTrainedModel(LengthCheckedModel):
    """Initialisation, saving and loading, and what all Linformer models can do."""

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
        if isinstance(module, SequenceProjection):
            start_projection(module)
        if isinstance(module, LocalConvolution):
            module.reset_parameters()
        lecun_normal = self.config.linear_initializer == "lecun_normal"
        if lecun_normal and isinstance(module, nn.Linear) and module is not self.get_output_embeddings():
            init.normal_(module.weight, std=module.in_features**-0.5)

    def save_pretrained(self, save_directory: str | os.PathLike[str], *arguments: Any, **named: Any) -> None:
        """As of transformers.

        Raises:
            InputError: for a model that `SequenceParallel` has split, without the whole one's `state_dict`.
        """
        given = arguments[1] if len(arguments) > 1 else named.get("state_dict")
        for name, module in self.named_modules():
            if isinstance(module, SequenceProjection) and module.piece is not None:
                names = [f"{name}.{own}" for own in module.state_dict()]
                if given is None or any(given[own].shape[-1] != module.seq_len for own in names if own in given):
                    got = "None" if given is None else f"a piece of {name}"
                    raise InputError(
                        "state_dict: expected SequenceParallel.full_state_dict(), because each process has a piece of "
                        f"the model, got {got}"
                    )
        super().save_pretrained(save_directory, *arguments, **named)

    def projection_matrix_count(self) -> int:
        """Number of n → k matrices: 2·h·L, 2·L, L or 1 by sharing (section 4 of the paper); 0 with full attention."""
        return sum(module.matrix_count() for module in self.modules() if isinstance(module, SequenceProjection))

    def set_projected_dim(self, projected_dim: int | list[int] | list[list[int]] | None = None) -> None:
        """Run with fewer slots than the model was made with; a call then costs what the smaller number costs.

        Learned and random projections use the first rows of their matrices, pooling makes new windows. The weights
        stay whole: they are saved as they were, and setting the number back gives the same outputs bit for bit.

        Args:
            projected_dim: k for all layers, for each, or for each head of each; None: as the model was made. A single
                number is for the layers and heads that have more; those that have fewer keep what they have.

        Raises:
            InputError: for more slots than the model was made with, for convolutions, whose kernel is tied to k, or
                with full attention.
        """
        encoder = self._linear_encoder("set_projected_dim")
        heads = self.config.num_attention_heads
        wanted: Any = self.config.projected_dim if projected_dim is None else projected_dim
        check_projected_dim(self.config, wanted)
        if isinstance(wanted, int) and wanted <= self.config.largest_projected_dim:
            wanted = each_dim(self.config.projected_dim, lambda made: min(made, wanted))
        dims: list[Any] = wanted if isinstance(wanted, list) else [wanted] * len(encoder.layers)
        for index, (projection, dim) in enumerate(zip(encoder.projections, dims, strict=True)):
            made, slots = _by_head(self.config.projected_dim_of(index), heads), _by_head(dim, heads)
            if any(new > old for new, old in zip(slots, made, strict=True)):
                raise InputError(f"projected_dim: expected at most {made} by head in layer {index}, got {slots}")
            assert projection is not None
            projection.fewer_slots(dim, heads)
        for layer, dim in zip(encoder.layers, dims, strict=True):
            for module in layer.modules():  # adapters keep copies of a module that they train
                if isinstance(module, LinformerAttention):
                    module.projected_dim = dim

    @torch.no_grad()
    def resize_sequence_length(self, seq_len: int, *, mode: ResizeMode = "extend") -> None:
        """Change the longest sequence, in place; `config.max_position_embeddings` follows.

        Args:
            seq_len: The new n in tokens.
            mode: `extend` keeps the columns of E and F and the positions, and repeats them periodically beyond: texts
                of up to the old length give the same outputs bit for bit. Windows of pooling and convolution keep
                their size and become more, and `config.projected_dim` follows; a random matrix gets new columns.
                `interpolate` stretches E and F, whose row sums stay, kernels and positions over the new length, longer
                or shorter; windows grow or shrink. Texts of the old length give other outputs.

        A number of slots set by `set_projected_dim` is forgotten. E, F and the positions become new parameters, so make
        an optimizer afterwards; and models that share this model's configuration object are not resized with it. The
        `model_max_length` of a tokenizer beside the model is its owner's to set: until then it cuts texts as before,
        which loading the two says.

        Raises:
            InputError: for a length under the old one with `extend`, or under the number of slots with `interpolate`;
                where whole windows do not tile it; for `extend` with shorter_input `stretch`. Nothing is changed then.
        """
        config = self.config
        projections = [module for module in self.modules() if isinstance(module, SequenceProjection)]
        check_position_table(self)
        if not projections:
            check_resize(config.max_position_embeddings, seq_len, mode)
        for projection in projections:
            projection.check_resize(seq_len, mode)
        if mode == "extend" and any(projection.windowed for projection in projections):
            old = config.max_position_embeddings
            config.projected_dim = each_dim(config.projected_dim, lambda k: more_windows(k, old, seq_len))
        for projection in projections:
            projection.resize(seq_len, mode)
        self.base_model.embeddings.resize_positions(seq_len, mode)
        config.max_position_embeddings = seq_len
        if projections:
            self.set_projected_dim()

    def _linear_encoder(self, method: str) -> LinformerEncoder:
        if self.config.attention == "full":
            raise InputError(f"{method}: expected a model with attention linformer, got full")
        return self.base_model.encoder


class LinformerModel(LinformerPreTrainedModel):
    """Embeddings and encoder: token ids to hidden states.

    Args:
        config: The architecture.
        add_pooling_layer: Whether to make the pooler that `config.pooler` asks for; models with a head do not.

    Raises (all models):
        InputError: a ValueError that names the argument, what was expected and what was got.
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
        """Encode.

        Args:
            input_ids: Tokens; or give inputs_embeds.
            attention_mask: 1 on real tokens, 0 on padding; None if all are real.
            token_type_ids: From 0 to type_vocab_size - 1; with a type_vocab_size of 0 only zeros, which change nothing.
            position_ids: From 0; default: the count of real tokens before, so padding does not shift positions.
            inputs_embeds: Word embeddings instead of input_ids.
            output_attentions: Also return the context mappings P̄ of all layers, `[batch, heads, seq_len, slots]`.
            output_hidden_states: Also return the embeddings and the output of each layer.

        Returns:
            `last_hidden_state`, `[batch, seq_len, hidden_size]`, and what was asked for; with a pooler,
            `pooler_output`, `[batch, hidden_size]`. What stands at padded positions is not defined.
        """
        _check_inputs(self.config, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        own = inputs_embeds is None and type(self.embeddings.word_embeddings) is nn.Embedding
        if inputs_embeds is None:
            inputs_embeds = self.embeddings.word_embeddings(input_ids)
        overwrite = self._may_overwrite(inputs_embeds)
        padding_mask = None if attention_mask is None else attention_mask == 0
        if position_ids is None:
            position_ids = _position_ids(padding_mask, inputs_embeds)
        # A NaN in padding would pass through residuals into the gradients of shared weights.
        inputs_embeds = zero_padding(inputs_embeds, padding_mask)
        padding = None if padding_mask is None else Padding.of(padding_mask, ordered=self.encoder.needs_order)
        in_place = {"overwrite": True} if own and overwrite else {}
        if not self.config.type_vocab_size:
            token_type_ids = None
        hidden = self.embeddings(inputs_embeds, position_ids, token_type_ids, **in_place)
        del inputs_embeds  # here and in the caller of the encoder no name may keep its memory
        encoded = self.encoder(
            hidden,
            padding,
            output_attentions=self.config.output_attentions if output_attentions is None else output_attentions,
            output_hidden_states=(
                self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
            ),
            overwrite=overwrite,
        )
        pooled = None
        if self.pooler is not None:
            pooled = torch.tanh(self.pooler(first_token(encoded.last_hidden_state, attention_mask)))
        return BaseModelOutputWithPooling(**encoded, pooler_output=pooled)

    def _may_overwrite(self, hidden: Tensor) -> bool:
        """Whether nobody else can hold what one part of the model passes on to the next."""
        return (
            kernels.is_large(hidden, self.config.intermediate_size)
            and type(self.embeddings) is LinformerEmbeddings
            and not any(may_need_whole(module) for module in self.modules() if module is not self)
        )


def first_token(
    hidden: Float[Tensor, "batch seq_len embed"], attention_mask: Tensor | None
) -> Float[Tensor, "batch embed"]:
    """The hidden state of the first real token: padding may stand on the left."""
    if attention_mask is None:
        return hidden[:, 0]
    positions = (attention_mask != 0).int().argmax(dim=1)
    return hidden[torch.arange(hidden.shape[0], device=hidden.device), positions]


def _by_head(dim: int | list[int], num_heads: int) -> list[int]:
    return dim if isinstance(dim, list) else [dim] * num_heads


def _position_ids(padding_mask: Tensor | None, inputs_embeds: Tensor) -> Tensor:
    """0, 1, 2, … over the real tokens; padding takes the position of the token before it."""
    if padding_mask is None:
        return torch.arange(inputs_embeds.shape[1], device=inputs_embeds.device)[None]
    return ((~padding_mask).long().cumsum(dim=1) - 1).clamp(min=0)


def _check_inputs(
    config: LinformerConfig,
    input_ids: Tensor | None,
    attention_mask: Tensor | None,
    token_type_ids: Tensor | None,
    position_ids: Tensor | None,
    inputs_embeds: Tensor | None,
) -> None:
    if input_ids is not None and inputs_embeds is not None:
        raise InputError("input_ids, inputs_embeds: expected exactly one of them, got both")
    if input_ids is not None:
        shape = input_ids.shape
    elif inputs_embeds is not None:
        shape = inputs_embeds.shape[:-1]
    else:
        raise InputError("input_ids, inputs_embeds: expected exactly one of them, got neither")
    if len(shape) != 2:
        raise InputError(f"input_ids, inputs_embeds: expected batch and sequence before all else, got {list(shape)}")
    if inputs_embeds is not None and (
        not inputs_embeds.is_floating_point() or inputs_embeds.shape[-1] != config.hidden_size
    ):
        raise InputError(
            f"inputs_embeds: expected {[*shape, config.hidden_size]} of floating point, "
            f"got {list(inputs_embeds.shape)} of {inputs_embeds.dtype}"
        )
    if not torch.compiler.is_exporting() and shape[1] > config.max_position_embeddings:
        raise InputError(
            "sequence length: expected at most max_position_embeddings "
            f"{config.max_position_embeddings}, got {shape[1]}"
        )
    if attention_mask is not None:
        check_mask(attention_mask, shape)
    if token_type_ids is not None:
        _check_token_types(token_type_ids, config.type_vocab_size)
    for name, ids in (("input_ids", input_ids), ("token_type_ids", token_type_ids), ("position_ids", position_ids)):
        if ids is not None:
            check_integers(name, ids, (1, shape[1]) if name == "position_ids" and len(ids) == 1 else shape)
    check_ids("input_ids", input_ids, config.vocab_size)
    check_ids("position_ids", position_ids, config.max_position_embeddings)


def _check_token_types(token_type_ids: Tensor, type_vocab_size: int) -> None:
    """Refuse types that the model does not tell apart; without a table of them it takes 0, as tokenizers write it."""
    if type_vocab_size:
        check_ids("token_type_ids", token_type_ids, type_vocab_size)
    # Also on an accelerator: nothing else would fail there, and a second text would be read as part of the first.
    elif not has_values(token_type_ids):
        require_in_trace((token_type_ids == 0).all(), "token_type_ids: expected only 0 because type_vocab_size is 0")
    elif (token_type_ids != 0).any():
        raise InputError("token_type_ids: expected None or only 0 because type_vocab_size is 0, got other types")


def check_mask(attention_mask: Tensor, shape: Sequence[int]) -> None:
    """Refuse another shape, and in floating point a mask that is added to scores, which has 0 on real tokens."""
    if attention_mask.shape != tuple(shape):
        raise InputError(
            f"attention_mask: expected {list(shape)}, 1 on real tokens and 0 on padding, "
            f"got {list(attention_mask.shape)}"
        )
    # Also on an accelerator: floating point is rare, and a mask that is read the wrong way round gives no error later.
    if not attention_mask.is_floating_point() or not attention_mask.numel():
        return
    if not has_values(attention_mask):
        fits = ((attention_mask == 0) | (attention_mask == 1)).all() & attention_mask.any()
        require_in_trace(fits, "attention_mask: expected 1 on real tokens and 0 on padding in floating point")
    else:
        others = attention_mask[(attention_mask != 0) & (attention_mask != 1)]
        if len(others) or not attention_mask.any():  # added to scores, a mask of zeros hides nothing
            raise InputError(
                "attention_mask: expected 1 on real tokens and 0 on padding in floating point, "
                f"got {f'{others[0].item():g}' if len(others) else 'only 0'}"
            )


def check_integers(name: str, ids: Tensor, shape: Sequence[int]) -> None:
    if ids.dtype not in (torch.int32, torch.int64) or ids.shape != tuple(shape):
        raise InputError(
            f"{name}: expected {list(shape)} of torch.int64 or torch.int32, got {list(ids.shape)} of {ids.dtype}"
        )


def check_ids(name: str, ids: Tensor | None, limit: int, *, ignored: int | None = None) -> None:
    """Range of ids, where looking costs nothing; an accelerator has a check of its own."""
    if ids is None or not values_are_cheap(ids):
        return
    ids = ids if ignored is None else ids[ids != ignored]
    if ids.numel() == 0:
        return
    low, high = ids.min().item(), ids.max().item()
    if low < 0 or high >= limit:
        raise InputError(f"{name}: expected ids from 0 to {limit - 1}, got {low if low < 0 else high}")
