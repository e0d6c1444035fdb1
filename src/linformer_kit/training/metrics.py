"""Metrics of pretraining, in nats.

Masked-language-model loss is the mean negative log-likelihood over all masked tokens; a mean of batch means would give
more weight to tokens of batches with fewer masked tokens. Perplexity is its exponential. The unigram entropy covers
the tokens that can be masked, so no special tokens.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from linformer_kit.models.heads import LinformerForMaskedLM, labelled_positions
from linformer_kit.settings import IGNORED_LABEL


def masked_token_losses(
    model: LinformerForMaskedLM,
    input_ids: Int[Tensor, "batch seq_len"],
    labels: Int[Tensor, "batch seq_len"],
    attention_mask: Int[Tensor, "batch seq_len"] | None = None,
) -> tuple[Float[Tensor, " batch"], Int[Tensor, " batch"]]:
    """Sum of the negative log-likelihoods of the labelled tokens of each sequence, and their count.

    The head runs on labelled tokens only. Sums over sequences, unlike means, add up exactly over batches and processes.
    """
    positions = labelled_positions(labels)
    logits = model(input_ids, attention_mask, predicted_positions=positions).logits
    losses = F.cross_entropy(logits.float(), labels.flatten()[positions], reduction="none")
    sequence = positions // labels.shape[1]
    sums = torch.zeros(len(labels), device=losses.device).index_add(0, sequence, losses)
    return sums, (labels != IGNORED_LABEL).sum(dim=1)


def unigram_entropy(blocks: Iterable[np.ndarray], *, vocab_size: int, special_ids: Iterable[int]) -> float:
    """Entropy of the token frequencies, in nats: the loss of the best prediction that ignores all context.

    Args:
        blocks: Arrays of token ids.
        vocab_size: Number of tokens in the vocabulary.
        special_ids: Tokens to exclude.
    """
    counts = np.zeros(vocab_size, dtype=np.int64)
    for block in blocks:
        counts += np.bincount(np.asarray(block).ravel(), minlength=vocab_size)
    counts[list(special_ids)] = 0
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())
