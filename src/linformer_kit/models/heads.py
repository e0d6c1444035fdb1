"""Models for tasks: the encoder with a head.

    LinformerForMaskedLM                the tied head of pretraining
    LinformerForCausalLM                the same head over causal layers (in `causal`)
    LinformerForSequenceClassification  classification and regression over the first token, or a mean
    LinformerForTokenClassification     a label for each token
    LinformerForQuestionAnswering       start and end position of the answer

All take the arguments of `LinformerModel.forward`; `**outputs` are `output_attentions` and `output_hidden_states`.

A loss is the sum over the labels of a batch, divided by the number of labels of the whole update
(`num_items_in_batch`; default: those of the batch): so accumulated gradients equal those of one large batch.

Axes: batch, seq_len (n), embed (hidden_size), vocab, labels.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.modeling_outputs import (
    MaskedLMOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.utils.generic import can_return_tuple

from linformer_cli.errors import InputError
from linformer_cli.settings import IGNORED_LABEL
from linformer_kit.models.configuration import LinformerConfig
from linformer_kit.models.modeling import LinformerModel, LinformerPreTrainedModel, check_ids
from linformer_kit.operator.conditions import check_tensors, values_are_cheap
from linformer_kit.operator.padding import pooled


def check_labels_of_tokens(labels: Tensor | None, hidden: Float[Tensor, "batch seq_len embed"]) -> None:
    """Raise an error for another number of labels than one for each token."""
    if labels is not None and labels.shape != hidden.shape[:2]:
        raise InputError(f"labels: expected {list(hidden.shape[:2])}, got {list(labels.shape)}")


class LinformerLMHead(nn.Module):
    """Map hidden states to logits over the vocabulary, as in RoBERTa; the decoder is tied to the word embeddings.

    Without `head_transform` in the configuration it is the decoder alone.
    """

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__()
        self.transforms = config.head_transform
        if self.transforms:
            self.dense = nn.Linear(config.hidden_size, config.hidden_size)
            self.layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
            self.activation = ACT2FN[config.hidden_act]
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)

    def forward(self, hidden: Float[Tensor, "*tokens embed"]) -> Float[Tensor, "*tokens vocab"]:
        if self.transforms:
            hidden = self.layer_norm(self.activation(self.dense(hidden)))
        return self.decoder(hidden)


class LinformerWithHead(LinformerPreTrainedModel):
    """What masked language models and classifiers have in common: an encoder, and one head over its hidden states."""

    output_class: type[MaskedLMOutput] | type[SequenceClassifierOutput] | type[TokenClassifierOutput]
    causal: bool | None = None  # whether layers are causal; None: the configuration decides

    def __init__(self, config: LinformerConfig) -> None:
        if self.causal not in (None, config.causal):
            raise InputError(f"causal: expected {self.causal} for {type(self).__name__}, got {config.causal}")
        super().__init__(config)
        self.num_labels = config.num_labels
        self.linformer = LinformerModel(config)

    @can_return_tuple
    def forward(
        self,
        input_ids: Int[Tensor, "batch seq_len"] | None = None,
        attention_mask: Shaped[Tensor, "batch seq_len"] | None = None,
        token_type_ids: Int[Tensor, "batch seq_len"] | None = None,
        position_ids: Int[Tensor, "batch_or_1 seq_len"] | None = None,
        inputs_embeds: Float[Tensor, "batch seq_len embed"] | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        predicted_positions: Int[Tensor, " predicted"] | None = None,
        **outputs: bool | None,
    ) -> MaskedLMOutput | SequenceClassifierOutput | TokenClassifierOutput:
        """Predict. Takes the arguments of `LinformerModel.forward`, and:

        Args:
            labels: For tokens: target tokens or class ids `[batch, seq_len]`; -100 is ignored. For sequences: class ids
                `[batch]`, or targets `[batch, num_labels]` (`[batch]` for one regression output).
            num_items_in_batch: Number of labels in all forward passes of one update.
            predicted_positions: Tokens to run the head on, as indices into the flattened batch: token t of sequence s
                is s·seq_len + t. The loss is over their labels. `labelled_positions` returns all labelled ones.
                Default: all tokens. None for sequences.
        """
        check_tensors(labels=labels)
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        encoded = self.linformer(*inputs, **outputs, return_dict=True)
        hidden = encoded.last_hidden_state
        if predicted_positions is not None:
            if self.output_class is SequenceClassifierOutput:
                raise InputError("predicted_positions: expected None for whole sequences, got a tensor")
            check_labels_of_tokens(labels, hidden)
            hidden = hidden.flatten(0, 1)[predicted_positions]
            labels = None if labels is None else labels.flatten()[predicted_positions]
        logits = self._logits(hidden, attention_mask)
        loss = None if labels is None else self._loss(logits, labels, num_items_in_batch)
        return self.output_class(loss, logits, encoded.hidden_states, encoded.attentions)

    def _logits(self, hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
        raise NotImplementedError

    def _loss(
        self, logits: Float[Tensor, "*tokens labels"], labels: Tensor, num_items_in_batch: Tensor | int | None
    ) -> Float[Tensor, ""]:
        """Cross-entropy of tokens; -100 marks tokens without a label."""
        if labels.is_floating_point():
            raise InputError(f"labels: expected whole numbers, got {labels.dtype}")
        ids, shape = labels.long().where(labels != IGNORED_LABEL, 0), logits.shape
        check_ids("labels", ids, shape[:-1], shape[-1], values_are_cheap(labels))
        losses = F.cross_entropy(logits.flatten(0, -2).float(), labels.flatten().long(), reduction="none")
        return _mean(losses, (labels != IGNORED_LABEL).sum(), num_items_in_batch)


class LinformerLanguageModel(LinformerWithHead):
    """What language models have in common: the tied head."""

    _tied_weights_keys = {"lm_head.decoder.weight": "linformer.embeddings.word_embeddings.weight"}

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__(config)
        self.lm_head = LinformerLMHead(config)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        self.lm_head.decoder = new_embeddings

    def _logits(self, hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
        return self.lm_head(hidden)


class LinformerForMaskedLM(LinformerLanguageModel):
    """Masked language model.

    `logits` are `[batch, seq_len, vocab]` in training and evaluation, compiled or not. With `predicted_positions` the
    head runs on these tokens only, and logits are `[predicted, vocab]`: training needs the labelled tokens only.
    """

    output_class = MaskedLMOutput
    causal = False


def labelled_positions(labels: Int[Tensor, "batch seq_len"]) -> Int[Tensor, " labelled"]:
    """Indices of the labelled tokens in the flattened batch, for `predicted_positions` of `LinformerForMaskedLM`."""
    return (labels != IGNORED_LABEL).flatten().nonzero()[:, 0]


class LinformerClassificationHead(nn.Module):
    """Map a vector for each sequence to logits of classes: as in RoBERTa, or with `classifier_pooling` linearly."""

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__()
        self.transforms = config.classifier_pooling is None
        if self.transforms:
            self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(_classifier_dropout(config))
        self.out_proj = nn.Linear(config.hidden_size, config.num_labels)

    def forward(self, vectors: Float[Tensor, "batch embed"]) -> Float[Tensor, "batch labels"]:
        if self.transforms:
            vectors = self.dense(self.dropout(vectors)).tanh()
        return self.out_proj(self.dropout(vectors))


def _classifier_dropout(config: LinformerConfig) -> float:
    return config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout


class LinformerForSequenceClassification(LinformerWithHead):
    """Classification (single-label or multi-label) or regression of whole sequences, by `config.problem_type`.

    Without a problem_type it is inferred from the labels, as in transformers: one output is regression, whole numbers
    `[batch]` are single-label, anything else is multi-label classification.
    """

    output_class = SequenceClassifierOutput
    causal = False  # the first token sees the whole text

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__(config)
        self.classifier = LinformerClassificationHead(config)
        self.post_init()

    def _logits(self, hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
        return self.classifier(pooled(hidden, attention_mask, self.config.classifier_pooling or "cls"))

    def _loss(self, logits: Tensor, labels: Tensor, num_items_in_batch: Tensor | int | None) -> Tensor:
        of_classes = "multi" if labels.is_floating_point() or labels.shape == logits.shape else "single"
        inferred = "regression" if self.num_labels == 1 else f"{of_classes}_label_classification"
        problem = self.config.problem_type or inferred
        if problem == "single_label_classification":
            mean = super()._loss(logits, labels, num_items_in_batch)
        else:
            logits = logits.float()
            if labels.shape not in (logits.shape, logits.squeeze(-1).shape):
                raise InputError(f"labels: expected {list(logits.shape)}, got {list(labels.shape)}")
            loss = F.mse_loss if problem == "regression" else F.binary_cross_entropy_with_logits
            losses = loss(logits, labels.to(logits.dtype).view_as(logits), reduction="none")
            mean = _mean(losses, losses.numel(), num_items_in_batch)
        if self.config.problem_type is None:  # labels that raise an error say nothing of it
            self.config.problem_type = problem
        return mean


class LinformerForTokenClassification(LinformerWithHead):
    """Classification of each token, as for named entities."""

    output_class = TokenClassifierOutput

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__(config)
        self.dropout = nn.Dropout(_classifier_dropout(config))
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def _logits(self, hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
        return self.classifier(self.dropout(hidden))


class LinformerForQuestionAnswering(LinformerPreTrainedModel):
    """Extractive question answering: predicts the start and end position of the answer in the text."""

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__(config)
        self.linformer = LinformerModel(config)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Int[Tensor, "batch seq_len"] | None = None,
        attention_mask: Shaped[Tensor, "batch seq_len"] | None = None,
        token_type_ids: Int[Tensor, "batch seq_len"] | None = None,
        position_ids: Int[Tensor, "batch_or_1 seq_len"] | None = None,
        inputs_embeds: Float[Tensor, "batch seq_len embed"] | None = None,
        start_positions: Int[Tensor, " batch"] | Int[Tensor, "batch 1"] | None = None,
        end_positions: Int[Tensor, " batch"] | Int[Tensor, "batch 1"] | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **outputs: bool | None,
    ) -> QuestionAnsweringModelOutput:
        """Find answers. Takes the arguments of `LinformerModel.forward`, and:

        Args:
            start_positions: First token of each answer; those after the end of a truncated text are ignored.
            end_positions: Last token of each answer, likewise.
            num_items_in_batch: Number of answers in all forward passes of one update.
        """
        if (start_positions is None) != (end_positions is None):
            raise InputError("start_positions, end_positions: expected both or neither, got one")
        check_tensors(start_positions=start_positions, end_positions=end_positions)
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        encoded = self.linformer(*inputs, **outputs, return_dict=True)
        start_logits, end_logits = self.qa_outputs(encoded.last_hidden_state).unbind(dim=-1)
        targets = (each if each is None else each.long() for each in (start_positions, end_positions))
        loss = self.loss_function(start_logits, end_logits, *targets, num_items_in_batch=num_items_in_batch)
        return QuestionAnsweringModelOutput(loss, start_logits, end_logits, encoded.hidden_states, encoded.attentions)


def _mean(losses: Tensor, count: Tensor | int, num_items_in_batch: Tensor | int | None) -> Tensor:
    """Sum over the items of this forward pass, divided by the number of items in the whole update."""
    total = torch.as_tensor(count if num_items_in_batch is None else num_items_in_batch, device=losses.device)
    return losses.sum() / total.clamp(min=1)
