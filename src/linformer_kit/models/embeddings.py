"""The embeddings of tokens, positions and token types, and the default positions.

Axes: batch, seq_len (n), embed (hidden_size).
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from linformer_kit.models.configuration import LinformerConfig


class LinformerEmbeddings(nn.Module):
    """Embeddings of words, positions and (if configured) token types, summed; then LayerNorm and dropout."""

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
            first = torch.zeros(inputs_embeds.shape[:2], dtype=torch.long, device=inputs_embeds.device)
            embeddings = embeddings + self.token_type_embeddings(first if token_type_ids is None else token_type_ids)
        return self.dropout(self.layer_norm(embeddings))


def first_token(
    hidden: Float[Tensor, "batch seq_len embed"], attention_mask: Tensor | None
) -> Float[Tensor, "batch embed"]:
    """The hidden state of the first real token; padding may be on the left."""
    if attention_mask is None:
        return hidden[:, 0]
    positions = (attention_mask != 0).int().argmax(dim=1)
    return hidden[torch.arange(hidden.shape[0], device=hidden.device), positions]
