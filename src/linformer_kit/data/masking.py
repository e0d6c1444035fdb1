"""Masked-language-model targets as pure functions of seed, epoch and block.

So a resumed run sees the same masks as an uninterrupted one, with any number of processes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerFast

from linformer_kit.errors import InputError
from linformer_kit.settings import IGNORED_LABEL

FILLER = None  # index of a block without labels, which fills up batches
_MASKED, _REPLACED = 0.8, 0.1  # shares of the selected tokens, as in BERT and RoBERTa; the others are unchanged


def mask_tokens(
    input_ids: np.ndarray,
    *,
    seed: int,
    epoch: int,
    index: int,
    probability: float,
    mask_token_id: int,
    special_ids: Sequence[int] | np.ndarray,
    replacement_ids: Sequence[int] | np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Mask some tokens of one block, as BERT and RoBERTa do.

    A pure function: equal arguments give equal results.

    Args:
        input_ids: Token ids, `[seq]`; not changed.
        seed: Seed; not negative, like epoch and index.
        epoch: Number of the epoch, from 0.
        index: Index of the block.
        probability: Probability of each non-special token to be selected.
        mask_token_id: Replaces 80 % of the selected tokens.
        special_ids: Tokens that are never selected.
        replacement_ids: Tokens, of which random ones replace 10 % of the selected tokens.

    Returns:
        `(masked_ids, labels)`, int64 `[seq]`: labels are the original ids where selected, `IGNORED_LABEL` elsewhere.

    Source:
        Devlin et al. 2019, section 3.1; Liu et al. 2019 (RoBERTa), section 4.1, for new masks in each epoch.
    """
    # Counter-based generator: (seed, epoch) is the key, and each index has its own range of 2^192 draws.
    generator = np.random.Generator(np.random.Philox(key=[seed, epoch], counter=[0, 0, 0, index]))
    select, act = generator.random((2, len(input_ids)))
    replacements = np.asarray(replacement_ids)[generator.integers(len(replacement_ids), size=len(input_ids))]
    original = input_ids.astype(np.int64)
    selected = (select < probability) & ~np.isin(original, special_ids)
    masked_ids = original.copy()
    masked_ids[selected & (act < _MASKED)] = mask_token_id
    replaced = selected & (act >= _MASKED) & (act < _MASKED + _REPLACED)
    masked_ids[replaced] = replacements[replaced]
    return masked_ids, np.where(selected, original, IGNORED_LABEL)


class BlockMasker:
    """`mask_tokens` for one tokenizer and run.

    Args:
        tokenizer: Gives the mask token, and which tokens are special.
        seed: Seed of all masks.
        probability: Share of the tokens to select.

    Raises:
        InputError: for a tokenizer without a mask token.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, *, seed: int, probability: float) -> None:
        if tokenizer.mask_token_id is None:
            raise InputError("tokenizer: expected one with a mask token, got none")
        special_ids = np.array(tokenizer.all_special_ids)
        # Added tokens may have no embedding in the model.
        excluded = [*special_ids, *tokenizer.get_added_vocab().values()]
        self._arguments = {
            "seed": seed,
            "probability": probability,
            "mask_token_id": tokenizer.mask_token_id,
            "special_ids": special_ids,
            "replacement_ids": np.setdiff1d(list(tokenizer.get_vocab().values()), excluded),
        }

    def __call__(self, block: np.ndarray, *, epoch: int, index: int) -> dict[str, torch.Tensor]:
        """Return `input_ids` and `labels`, each `[seq]`, of a block of ids `[seq]`."""
        masked_ids, labels = mask_tokens(block, epoch=epoch, index=index, **self._arguments)
        return {"input_ids": torch.from_numpy(masked_ids), "labels": torch.from_numpy(labels)}


class MaskedBlocks(torch.utils.data.Dataset):
    """Packed blocks with new masks in each epoch.

    Indexed by `(epoch, index)`, as `shuffled_blocks` gives them, or by `index` for epoch 0. The index `FILLER` gives a
    block without labels, which the loss ignores.

    Args:
        blocks: Result of `packing.pack`.
        masks: Masks the blocks.
    """

    def __init__(self, blocks: Dataset, masks: BlockMasker) -> None:
        self._blocks = blocks.with_format("numpy")
        self._masks = masks

    def __len__(self) -> int:
        return len(self._blocks)

    def __getitem__(self, key: int | tuple[int, int | None]) -> dict[str, torch.Tensor]:
        epoch, index = key if isinstance(key, tuple) else (0, key)
        if index is FILLER:
            block = self[epoch, 0]
            return {**block, "labels": torch.full_like(block["labels"], IGNORED_LABEL)}
        if not 0 <= index < len(self):  # a negative index would give the same block with other masks
            raise IndexError(f"block {index}: expected 0 to {len(self) - 1}")
        return self._masks(self._blocks[index]["input_ids"], epoch=epoch, index=index)


def shuffled_blocks(length: int, *, seed: int, epoch: int, multiple: int = 1) -> list[tuple[int, int | None]]:
    """Random order of the keys `(epoch, index)` of `MaskedBlocks`: a pure function of seed and epoch.

    Args:
        length: Number of blocks.
        seed: Seed of the order.
        epoch: Number of the epoch, from 0.
        multiple: Keys with `FILLER` are appended up to a multiple of this, so that all processes have the same number.
    """
    order = np.random.default_rng([seed, epoch]).permutation(length)
    return [(epoch, index) for index in (*map(int, order), *[FILLER] * (-length % multiple))]
