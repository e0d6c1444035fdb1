"""Models for tasks: the encoder with a head.

    LinformerForMaskedLM                the tied head of pretraining
    LinformerForSequenceClassification  classification and regression over the first token
    LinformerForTokenClassification     a label for each token
    LinformerForQuestionAnswering       start and end position of the answer

Axes: batch, seq_len (n), embed (hidden_size), vocab, labels.
"""

from __future__ import annotations

import torch
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
from linformer_kit.models.embeddings import first_token
from linformer_kit.models.inputs import check_ids, check_integers
from linformer_kit.models.losses import label_loss, position_loss, problem_of, token_loss
from linformer_kit.models.modeling import LinformerModel, LinformerPreTrainedModel


class LinformerLMHead(nn.Module):
    """Map hidden states to logits over the vocabulary, as in RoBERTa; the decoder is tied to the word embeddings."""

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

    `logits` are `[batch, seq_len, vocab]` in training and evaluation, compiled or not. With `predicted_positions` the
    head runs on these tokens only, and logits are `[predicted, vocab]`: training needs the labelled tokens only.
    """

    _tied_weights_keys = {"lm_head.decoder.weight": "linformer.embeddings.word_embeddings.weight"}

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__(config)
        self.linformer = LinformerModel(config, add_pooling_layer=False)
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
        attention_mask: Shaped[Tensor, "batch seq_len"] | None = None,
        token_type_ids: Int[Tensor, "batch seq_len"] | None = None,
        position_ids: Int[Tensor, "batch_or_1 seq_len"] | None = None,
        inputs_embeds: Float[Tensor, "batch seq_len embed"] | None = None,
        labels: Int[Tensor, "batch seq_len"] | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        predicted_positions: Int[Tensor, " predicted"] | None = None,
    ) -> MaskedLMOutput:
        """Predict tokens. Takes the arguments of `LinformerModel.forward`, and:

        Args:
            labels: Target tokens; -100 is ignored.
            num_items_in_batch: Number of labelled tokens in all forward passes of one update; the loss is a mean over
                them, so that accumulated gradients equal those of the large batch. Default: those of this batch.
            predicted_positions: Tokens to run the head on, as indices into the flattened batch: token t of sequence s
                is s·seq_len + t. The loss is over their labels. `labelled_positions` returns all labelled ones.
                Default: all tokens.
        """
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs = self.linformer(*inputs, output_attentions, output_hidden_states, return_dict=True)
        hidden = outputs.last_hidden_state
        if labels is not None:
            check_integers("labels", labels, hidden.shape[:2])
        if predicted_positions is not None:
            check_integers("predicted_positions", predicted_positions, predicted_positions.shape[:1])
            check_ids("predicted_positions", predicted_positions, hidden.shape[:2].numel())
            hidden = hidden.flatten(0, 1)[predicted_positions]
            labels = None if labels is None else labels.flatten()[predicted_positions]
        logits = self.lm_head(hidden)
        loss = None if labels is None else token_loss(logits, labels, num_items_in_batch)
        return MaskedLMOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


def labelled_positions(labels: Int[Tensor, "batch seq_len"]) -> Int[Tensor, " labelled"]:
    """Indices of the labelled tokens in the flattened batch, for `predicted_positions` of `LinformerForMaskedLM`."""
    return (labels != IGNORED_LABEL).flatten().nonzero()[:, 0]


class LinformerClassificationHead(nn.Module):
    """Map the hidden state of the first real token to logits over the labels, as in RoBERTa."""

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(_classifier_dropout(config))
        self.out_proj = nn.Linear(config.hidden_size, config.num_labels)

    def forward(
        self, hidden: Float[Tensor, "batch seq_len embed"], attention_mask: Tensor | None = None
    ) -> Float[Tensor, "batch labels"]:
        first = first_token(hidden, attention_mask)
        return self.out_proj(self.dropout(torch.tanh(self.dense(self.dropout(first)))))


class LinformerClassifier(LinformerPreTrainedModel):
    """What classifiers of sequences and of tokens have in common."""

    output_class: type[SequenceClassifierOutput] | type[TokenClassifierOutput]

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        self.linformer = LinformerModel(config, add_pooling_layer=False)

    @can_return_tuple
    def forward(
        self,
        input_ids: Int[Tensor, "batch seq_len"] | None = None,
        attention_mask: Shaped[Tensor, "batch seq_len"] | None = None,
        token_type_ids: Int[Tensor, "batch seq_len"] | None = None,
        position_ids: Int[Tensor, "batch_or_1 seq_len"] | None = None,
        inputs_embeds: Float[Tensor, "batch seq_len embed"] | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> SequenceClassifierOutput | TokenClassifierOutput:
        """Classify. Takes the arguments of `LinformerModel.forward`, and:

        Args:
            labels: For tokens: class ids `[batch, seq_len]`; -100 is ignored. For sequences: class ids `[batch]`, or
                targets `[batch, num_labels]` (`[batch]` for one regression output).
            num_items_in_batch: Labels in all forward passes of one update; see `LinformerForMaskedLM`.
        """
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs = self.linformer(*inputs, output_attentions, output_hidden_states, return_dict=True)
        logits = self._logits(outputs.last_hidden_state, attention_mask)
        loss = None if labels is None else self._loss(logits, labels, num_items_in_batch)
        return self.output_class(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )

    def _logits(self, hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
        raise NotImplementedError

    def _loss(self, logits: Tensor, labels: Tensor, num_items_in_batch: Tensor | int | None) -> Tensor:
        return token_loss(logits, labels, num_items_in_batch)


class LinformerForSequenceClassification(LinformerClassifier):
    """Classification (single-label or multi-label) or regression of whole sequences, by `config.problem_type`.

    Without a problem_type it is inferred from the labels, as in transformers: one output is regression, integer labels
    are single-label, anything else is multi-label classification.
    """

    output_class = SequenceClassifierOutput

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__(config)
        self.classifier = LinformerClassificationHead(config)
        self.post_init()

    def _logits(self, hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
        return self.classifier(hidden, attention_mask)

    def _loss(self, logits: Tensor, labels: Tensor, num_items_in_batch: Tensor | int | None) -> Tensor:
        problem = self.config.problem_type or problem_of(labels, self.num_labels)
        loss = label_loss(problem, logits, labels, num_items_in_batch)
        self.config.problem_type = problem
        return loss


class LinformerForTokenClassification(LinformerClassifier):
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
        self.linformer = LinformerModel(config, add_pooling_layer=False)
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
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> QuestionAnsweringModelOutput:
        """Find answers. Takes the arguments of `LinformerModel.forward`, and:

        Args:
            start_positions: First token of each answer; positions outside the sequence are ignored, as in transformers,
                because long texts are truncated.
            end_positions: Last token of each answer, likewise.
            num_items_in_batch: Answers in all forward passes of one update; see `LinformerForMaskedLM`.
        """
        if (start_positions is None) != (end_positions is None):
            raise InputError("start_positions, end_positions: expected both or neither, got one")
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs = self.linformer(*inputs, output_attentions, output_hidden_states, return_dict=True)
        start_logits, end_logits = self.qa_outputs(outputs.last_hidden_state).unbind(dim=-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            start_loss = position_loss("start_positions", start_logits, start_positions, num_items_in_batch)
            end_loss = position_loss("end_positions", end_logits, end_positions, num_items_in_batch)
            loss = (start_loss + end_loss) / 2
        return QuestionAnsweringModelOutput(
            loss=loss,
            start_logits=start_logits,
            end_logits=end_logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


def _classifier_dropout(config: LinformerConfig) -> float:
    return config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout
