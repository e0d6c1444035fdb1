"""The embeddings of tokens, positions and token types, and the default positions.

Axes: batch, seq_len (n), embed (hidden_size).
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from linformer_kit.models.configuration import LinformerConfig
from linformer_kit.operator import kernels


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


def default_position_ids(padding_mask: Tensor | None, inputs_embeds: Tensor) -> Tensor:
    """0, 1, 2, … over the real tokens; padding takes the position of the token before it."""
    if padding_mask is None:
        return torch.arange(inputs_embeds.shape[1], device=inputs_embeds.device)[None]
    return ((~padding_mask).long().cumsum(dim=1) - 1).clamp(min=0)


def first_token(
    hidden: Float[Tensor, "batch seq_len embed"], attention_mask: Tensor | None
) -> Float[Tensor, "batch embed"]:
    """The hidden state of the first real token; padding may be on the left."""
    if attention_mask is None:
        return hidden[:, 0]
    positions = (attention_mask != 0).int().argmax(dim=1)
    return hidden[torch.arange(hidden.shape[0], device=hidden.device), positions]
