"""The models: RoBERTa's architecture with Linformer attention, as transformers expects models to be.

    LinformerModel                      embeddings and encoder
    LinformerForMaskedLM                the tied head of pretraining
    LinformerForSequenceClassification  classification and regression over the first token

With `attention="full"` in the configuration the same classes are the Transformer that Linformer is compared with.

Axes: batch, seq_len (n), embed (hidden_size), heads, slots (projected_dim, or seq_len with full attention), vocab.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    PreTrainedModel,
)
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput, MaskedLMOutput, SequenceClassifierOutput
from transformers.utils.generic import can_return_tuple

from linformer_kit.attention import LinformerAttention
from linformer_kit.configuration import LinformerConfig
from linformer_kit.errors import InputError
from linformer_kit.functional import zero_padding
from linformer_kit.projection import LinearProjection, build_projection
from linformer_kit.settings import IGNORED_LABEL


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
    ) -> Float[Tensor, "batch seq_len embed"]:
        embeddings = inputs_embeds + self.position_embeddings(position_ids + self.position_offset)
        if hasattr(self, "token_type_embeddings"):
            if token_type_ids is None:
                token_type_ids = torch.zeros(inputs_embeds.shape[:2], dtype=torch.long, device=inputs_embeds.device)
            embeddings = embeddings + self.token_type_embeddings(token_type_ids)
        return self.dropout(self.layer_norm(embeddings))


class LinformerLayer(GradientCheckpointingLayer):
    """Attention and feed-forward, each with residual and then LayerNorm (post-norm, as in RoBERTa)."""

    def __init__(self, config: LinformerConfig, *, owns_projection: bool) -> None:
        super().__init__()
        self.self_attn = LinformerAttention(
            config.hidden_size,
            config.num_attention_heads,
            config.max_position_embeddings,
            config.projected_dim,
            sharing=config.sharing,
            projection=config.projection if owns_projection else None,
            dropout=config.attention_probs_dropout_prob,
            bias_order=config.bias_order,
        )
        self.self_attn_layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.fc1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size)
        self.final_layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.activation = ACT2FN[config.hidden_act]
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(
        self,
        hidden: Float[Tensor, "batch seq_len embed"],
        padding_mask: Tensor | None,
        projection: nn.Module | None,
        output_attentions: bool = False,
    ) -> tuple[Float[Tensor, "batch seq_len embed"], Float[Tensor, "batch heads seq_len slots"] | None]:
        attended, weights = self.self_attn(
            hidden, hidden, hidden, padding_mask, need_weights=output_attentions, projection=projection
        )
        hidden = self.self_attn_layer_norm(hidden + self.dropout(attended))
        fed_forward = self.fc2(self.activation(self.fc1(hidden)))
        return self.final_layer_norm(hidden + self.dropout(fed_forward)), weights


class LinformerEncoder(nn.Module):
    """The layers, and with layerwise sharing the one projection that they all use."""

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__()
        linear = config.attention == "linformer"
        layerwise = linear and config.sharing == "layerwise"
        # Owned here and passed down, so that the one matrix is saved, counted and trained once.
        self.projection = (
            build_projection(
                config.projection,
                seq_len=config.max_position_embeddings,
                projected_dim=config.projected_dim,
                num_heads=config.num_attention_heads,
                sharing=config.sharing,
            )
            if layerwise
            else None
        )
        self.layers = nn.ModuleList(
            LinformerLayer(config, owns_projection=linear and not layerwise) for _ in range(config.num_hidden_layers)
        )

    def forward(
        self,
        hidden: Float[Tensor, "batch seq_len embed"],
        padding_mask: Tensor | None,
        *,
        output_attentions: bool,
        output_hidden_states: bool,
    ) -> BaseModelOutput:
        hidden_states, attentions = [hidden], []
        for layer in self.layers:
            hidden, weights = layer(hidden, padding_mask, self.projection, output_attentions)
            if output_hidden_states:
                hidden_states.append(hidden)
            if output_attentions:
                attentions.append(weights)
        return BaseModelOutput(
            last_hidden_state=hidden,
            hidden_states=tuple(hidden_states) if output_hidden_states else None,
            attentions=tuple(attentions) if output_attentions else None,
        )


class LinformerPreTrainedModel(PreTrainedModel):
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
        if isinstance(module, LinearProjection):
            for parameter in module.parameters(recurse=False):
                init.copy_(parameter, module.initial_matrix())
        lecun_normal = self.config.linear_initializer == "lecun_normal"
        if lecun_normal and isinstance(module, nn.Linear) and module is not self.get_output_embeddings():
            init.normal_(module.weight, std=module.in_features**-0.5)

    def projection_matrix_count(self) -> int:
        """Number of n → k matrices: 2·h·L, 2·L, L or 1 by sharing (section 4 of the paper); 0 with full attention."""
        return sum(module.matrix_count() for module in self.modules() if isinstance(module, LinearProjection))


class LinformerModel(LinformerPreTrainedModel):
    """Embeddings and encoder: token ids to hidden states.

    Raises (all models):
        InputError: a ValueError that names the argument, what was expected and what was got.
    """

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__(config)
        self.embeddings = LinformerEmbeddings(config)
        self.encoder = LinformerEncoder(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.embeddings.word_embeddings = value

    @can_return_tuple
    def forward(
        self,
        input_ids: Int[Tensor, "batch seq_len"] | None = None,
        attention_mask: Int[Tensor, "batch seq_len"] | None = None,
        token_type_ids: Int[Tensor, "batch seq_len"] | None = None,
        position_ids: Int[Tensor, "batch_or_1 seq_len"] | None = None,
        inputs_embeds: Float[Tensor, "batch seq_len embed"] | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> BaseModelOutput:
        """Encode.

        Args:
            input_ids: Tokens; or give inputs_embeds.
            attention_mask: 1 on real tokens, 0 on padding (integer or bool); None if all are real.
            token_type_ids: Only where the configuration has a type_vocab_size.
            position_ids: From 0; default: the count of real tokens before, so padding does not shift positions.
            inputs_embeds: Word embeddings instead of input_ids.
            output_attentions: Also return the context mappings P̄ of all layers, `[batch, heads, seq_len, slots]`.
            output_hidden_states: Also return the embeddings and the output of each layer.

        Returns:
            `last_hidden_state`, `[batch, seq_len, hidden_size]`, and what was asked for. What stands at padded
            positions is not defined.
        """
        _check_inputs(self.config, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        if inputs_embeds is None:
            inputs_embeds = self.embeddings.word_embeddings(input_ids)
        padding_mask = None if attention_mask is None else attention_mask == 0
        if position_ids is None:
            position_ids = _position_ids(padding_mask, inputs_embeds)
        # A NaN in padding would pass through residuals into the gradients of shared weights.
        inputs_embeds = zero_padding(inputs_embeds, padding_mask)
        hidden = self.embeddings(inputs_embeds, position_ids, token_type_ids)
        return self.encoder(
            hidden,
            padding_mask,
            output_attentions=self.config.output_attentions if output_attentions is None else output_attentions,
            output_hidden_states=(
                self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
            ),
        )


class LinformerLMHead(nn.Module):
    """Hidden states to logits over the vocabulary, as in RoBERTa; the decoder is tied to the word embeddings."""

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.activation = ACT2FN[config.hidden_act]

    def forward(self, hidden: Float[Tensor, "*tokens embed"]) -> Float[Tensor, "*tokens vocab"]:
        return self.decoder(self.layer_norm(self.activation(self.dense(hidden))))


class LinformerForMaskedLM(LinformerPreTrainedModel):
    """Masked language model.

    While training with labels, the head runs on the labelled tokens only, and `logits` are theirs, `[labelled, vocab]`;
    compiled or exported, and in evaluation, they are `[batch, seq_len, vocab]`. The loss is the same.
    """

    _tied_weights_keys = {"lm_head.decoder.weight": "linformer.embeddings.word_embeddings.weight"}

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__(config)
        self.linformer = LinformerModel(config)
        self.lm_head = LinformerLMHead(config)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        self.lm_head.decoder = new_embeddings

    @can_return_tuple
    def forward(
        self,
        input_ids: Int[Tensor, "batch seq_len"] | None = None,
        attention_mask: Int[Tensor, "batch seq_len"] | None = None,
        token_type_ids: Int[Tensor, "batch seq_len"] | None = None,
        position_ids: Int[Tensor, "batch_or_1 seq_len"] | None = None,
        inputs_embeds: Float[Tensor, "batch seq_len embed"] | None = None,
        labels: Int[Tensor, "batch seq_len"] | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> MaskedLMOutput:
        """Predict tokens. The arguments of `LinformerModel.forward`, and:

        Args:
            labels: The right tokens, -100 where there is nothing to predict.
            num_items_in_batch: Labelled tokens in all forward passes of one update; the loss is their mean, so that
                accumulated gradients equal those of the large batch. Default: those of this batch.
        """
        outputs = self.linformer(
            input_ids,
            attention_mask,
            token_type_ids,
            position_ids,
            inputs_embeds,
            output_attentions,
            output_hidden_states,
            return_dict=True,
        )
        hidden = outputs.last_hidden_state
        if labels is not None:
            _check_integers("labels", labels, hidden.shape[:2])
            _check_ids("labels", labels, self.config.vocab_size, ignored=IGNORED_LABEL)
            labels = labels.long()
        if labels is not None and self.training and not torch.compiler.is_compiling():
            selected = labels != IGNORED_LABEL
            hidden, labels = hidden[selected], labels[selected]
        logits = self.lm_head(hidden)
        loss = None
        if labels is not None:
            losses = F.cross_entropy(logits.flatten(0, -2).float(), labels.flatten(), reduction="none")
            loss = _mean_loss(losses, (labels != IGNORED_LABEL).sum(), num_items_in_batch)
        return MaskedLMOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class LinformerClassificationHead(nn.Module):
    """The hidden state of the first real token to logits over the labels, as in RoBERTa."""

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__()
        dropout = config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(dropout)
        self.out_proj = nn.Linear(config.hidden_size, config.num_labels)

    def forward(
        self, hidden: Float[Tensor, "batch seq_len embed"], attention_mask: Tensor | None = None
    ) -> Float[Tensor, "batch labels"]:
        if attention_mask is None:
            first = hidden[:, 0]
        else:  # padding may stand on the left
            positions = (attention_mask != 0).int().argmax(dim=1)
            first = hidden[torch.arange(hidden.shape[0], device=hidden.device), positions]
        return self.out_proj(self.dropout(torch.tanh(self.dense(self.dropout(first)))))


class LinformerForSequenceClassification(LinformerPreTrainedModel):
    """Classification (one label or several) or regression of whole sequences, by `config.problem_type`.

    Without a problem_type it follows from the labels, as everywhere in transformers: one output is regression, integer
    labels are classes, anything else is several labels at once.
    """

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        self.linformer = LinformerModel(config)
        self.classifier = LinformerClassificationHead(config)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Int[Tensor, "batch seq_len"] | None = None,
        attention_mask: Int[Tensor, "batch seq_len"] | None = None,
        token_type_ids: Int[Tensor, "batch seq_len"] | None = None,
        position_ids: Int[Tensor, "batch_or_1 seq_len"] | None = None,
        inputs_embeds: Float[Tensor, "batch seq_len embed"] | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> SequenceClassifierOutput:
        """Classify. The arguments of `LinformerModel.forward`, and:

        Args:
            labels: Class ids `[batch]`, or targets `[batch, num_labels]` (`[batch]` for one regression output).
            num_items_in_batch: Labels in all forward passes of one update; see `LinformerForMaskedLM`.
        """
        outputs = self.linformer(
            input_ids,
            attention_mask,
            token_type_ids,
            position_ids,
            inputs_embeds,
            output_attentions,
            output_hidden_states,
            return_dict=True,
        )
        logits = self.classifier(outputs.last_hidden_state, attention_mask)
        loss = None
        if labels is not None:
            losses, count = self._losses(logits, labels)
            loss = _mean_loss(losses, count, num_items_in_batch)
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )

    def _losses(self, logits: Float[Tensor, "batch labels"], labels: Tensor) -> tuple[Tensor, Tensor]:
        """Loss of each label, and how many there are."""
        problem = self.config.problem_type
        if problem is None:
            if self.num_labels == 1:
                problem = "regression"
            else:
                classes = labels.dtype in (torch.long, torch.int)
                problem = "single_label_classification" if classes else "multi_label_classification"
        classes = problem == "single_label_classification"
        expected = logits.shape[:1] if classes or (self.num_labels == 1 and labels.dim() == 1) else logits.shape
        if labels.shape != expected:
            raise InputError(f"labels: expected {list(expected)}, got {list(labels.shape)}")
        logits = logits.float()
        if classes:
            _check_integers("labels", labels, expected)
            _check_ids("labels", labels, self.num_labels, ignored=IGNORED_LABEL)
            self.config.problem_type = problem
            return F.cross_entropy(logits, labels.long(), reduction="none"), (labels != IGNORED_LABEL).sum()
        self.config.problem_type = problem
        targets = labels.to(logits.dtype).view_as(logits)
        loss = F.mse_loss if problem == "regression" else F.binary_cross_entropy_with_logits
        return loss(logits, targets, reduction="none"), torch.tensor(targets.numel(), device=targets.device)


def _mean_loss(losses: Tensor, count: Tensor, num_items_in_batch: Tensor | int | None) -> Tensor:
    """Sum over the items of this forward pass, divided by the number of those of the whole update."""
    total = count.clamp(min=1) if num_items_in_batch is None else num_items_in_batch
    return losses.sum() / (total.to(losses.device) if isinstance(total, Tensor) else total)


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
    if attention_mask is not None and (attention_mask.shape != shape or attention_mask.is_floating_point()):
        raise InputError(
            f"attention_mask: expected {list(shape)} of integer or bool, 1 on real tokens and 0 on padding, "
            f"got {list(attention_mask.shape)} of {attention_mask.dtype}"
        )
    if token_type_ids is not None and not config.type_vocab_size:
        raise InputError("token_type_ids: expected None because type_vocab_size is 0, got a tensor")
    for name, ids in (("input_ids", input_ids), ("token_type_ids", token_type_ids), ("position_ids", position_ids)):
        if ids is not None:
            _check_integers(name, ids, (1, shape[1]) if name == "position_ids" and len(ids) == 1 else shape)
    _check_ids("input_ids", input_ids, config.vocab_size)
    _check_ids("token_type_ids", token_type_ids, config.type_vocab_size)
    _check_ids("position_ids", position_ids, config.max_position_embeddings)


def _check_integers(name: str, ids: Tensor, shape: Sequence[int]) -> None:
    if ids.dtype not in (torch.int32, torch.int64) or ids.shape != tuple(shape):
        raise InputError(
            f"{name}: expected {list(shape)} of torch.int64 or torch.int32, got {list(ids.shape)} of {ids.dtype}"
        )


def _check_ids(name: str, ids: Tensor | None, limit: int, *, ignored: int | None = None) -> None:
    """Range of ids, where looking costs nothing: not on an accelerator, whose own check it is, and not in a trace."""
    if ids is None or ids.device.type != "cpu" or torch.compiler.is_compiling():
        return
    ids = ids if ignored is None else ids[ids != ignored]
    if ids.numel() == 0:
        return
    low, high = ids.min().item(), ids.max().item()
    if low < 0 or high >= limit:
        raise InputError(f"{name}: expected ids from 0 to {limit - 1}, got {low if low < 0 else high}")


AutoConfig.register(LinformerConfig.model_type, LinformerConfig)
AutoModel.register(LinformerConfig, LinformerModel)
AutoModelForMaskedLM.register(LinformerConfig, LinformerForMaskedLM)
AutoModelForSequenceClassification.register(LinformerConfig, LinformerForSequenceClassification)
