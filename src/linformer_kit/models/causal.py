"""The causal language model.

Axes: batch, seq_len (n), embed (hidden_size), vocab.
"""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from linformer_cli.settings import IGNORED_LABEL
from linformer_kit.models.heads import LinformerLanguageModel


class LinformerForCausalLM(LinformerLanguageModel):
    """Causal language model: predicts each token from those before it. Its configuration has `causal` True."""

    causal = True

    @can_return_tuple
    def forward(  # type: ignore[override]  # no `predicted_positions`: almost all tokens have labels
        self,
        input_ids: Int[Tensor, "batch seq_len"] | None = None,
        attention_mask: Shaped[Tensor, "batch seq_len"] | None = None,
        token_type_ids: Int[Tensor, "batch seq_len"] | None = None,
        position_ids: Int[Tensor, "batch_or_1 seq_len"] | None = None,
        inputs_embeds: Float[Tensor, "batch seq_len embed"] | None = None,
        labels: Int[Tensor, "batch seq_len"] | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **outputs: bool | None,
    ) -> CausalLMOutputWithPast:
        """Predict the next token of each. Takes the arguments of `LinformerModel.forward`, and:

        Args:
            labels: The tokens themselves, which are shifted here: logits of a token are compared with the label of the
                next; -100 is ignored.
            num_items_in_batch: Number of labels in all forward passes of one update.
        """
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        encoded = self.linformer(*inputs, **outputs, return_dict=True)
        logits, loss = self.lm_head(encoded.last_hidden_state), None
        if labels is not None:
            loss = self._loss(logits, F.pad(labels[:, 1:], (0, 1), value=IGNORED_LABEL), num_items_in_batch)
        return CausalLMOutputWithPast(
            loss=loss, logits=logits, hidden_states=encoded.hidden_states, attentions=encoded.attentions
        )
