"""Masked-language-model targets as pure functions of seed, epoch and block.

So a resumed run sees the same masks as an uninterrupted one, with any number of processes.
"""

from __future__ import annotations

import numpy as np
import torch
from datasets import Dataset
from jaxtyping import Int
from transformers import PreTrainedTokenizerFast

from linformer_cli.errors import InputError
from linformer_cli.settings import IGNORED_LABEL

FILLER = None  # index of a block without labels, which fills up batches
_MASKED, _REPLACED = 0.8, 0.1  # shares of the selected tokens, as in BERT and RoBERTa; the others are unchanged


class BlockMasker:
    """Masks blocks of tokens, as BERT and RoBERTa do.

    Of the selected tokens 80 % become the mask token and 10 % random tokens, neither special nor added ones.

    Args:
        tokenizer: Gives the mask token, and which tokens are special.
        seed: Seed of all masks, not negative.
        probability: Probability of each non-special token to be selected.

    Raises:
        InputError: for a tokenizer without a mask token.

    Source:
        Devlin et al. 2019, section 3.1; Liu et al. 2019 (RoBERTa), section 4.1, for new masks in each epoch.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, *, seed: int, probability: float = 0.15) -> None:
        if tokenizer.mask_token_id is None:
            raise InputError("tokenizer: expected one with a mask token, got none")
        self._seed, self._probability, self._mask_id = seed, probability, tokenizer.mask_token_id
        self._special_ids = np.array(tokenizer.all_special_ids)
        # Added tokens may have no embedding in the model.
        excluded = [*self._special_ids, *tokenizer.get_added_vocab().values()]
        self._replacement_ids = np.setdiff1d(list(tokenizer.get_vocab().values()), excluded)

    def __call__(self, block: Int[np.ndarray, " seq"], *, epoch: int, index: int) -> dict[str, torch.Tensor]:
        """Mask one block, which is not changed: equal arguments give equal masks.

        Args:
            block: Token ids.
            epoch: Number of the epoch, from 0.
            index: Index of the block.

        Returns:
            `input_ids` and `labels`, int64 `[seq]`: labels are the original ids where selected, else `IGNORED_LABEL`.
        """
        # Counter-based generator: (seed, epoch) is the key, and each index has its own range of 2^192 draws.
        generator = np.random.Generator(np.random.Philox(key=[self._seed, epoch], counter=[0, 0, 0, index]))
        select, act = generator.random((2, len(block)))
        replacements = self._replacement_ids[generator.integers(len(self._replacement_ids), size=len(block))]
        original = block.astype(np.int64)
        selected = (select < self._probability) & ~np.isin(original, self._special_ids)
        masked = original.copy()
        masked[selected & (act < _MASKED)] = self._mask_id
        replaced = selected & (act >= _MASKED) & (act < _MASKED + _REPLACED)
        masked[replaced] = replacements[replaced]
        labels = np.where(selected, original, IGNORED_LABEL)
        return {"input_ids": torch.from_numpy(masked), "labels": torch.from_numpy(labels)}


class MaskedBlocks(torch.utils.data.Dataset):
    """Packed blocks with new masks in each epoch.

    Indexed by `(epoch, index)`, as `shuffled_blocks` gives them, or by `index` for epoch 0. The index `FILLER` gives a
    block without labels, which the loss ignores.

    Args:
        blocks: Result of `packing.pack`.
        masks: Masks the blocks.

    Attributes:
        blocks: The blocks before masking, as arrays.
    """

    def __init__(self, blocks: Dataset, masks: BlockMasker) -> None:
        self.blocks = blocks.with_format("numpy")
        self._masks = masks

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, key: int | tuple[int, int | None]) -> dict[str, torch.Tensor]:
        epoch, index = key if isinstance(key, tuple) else (0, key)
        if index is FILLER:
            block = self[epoch, 0]
            return {**block, "labels": torch.full_like(block["labels"], IGNORED_LABEL)}
        if not 0 <= index < len(self):  # a negative index would give the same block with other masks
            raise IndexError(f"block {index}: expected 0 to {len(self) - 1}")
        return self._masks(self.blocks[index]["input_ids"], epoch=epoch, index=index)


def shuffled_blocks(length: int, *, seed: int, epoch: int, multiple: int = 1) -> list[tuple[int, int | None]]:
    """Random order of the keys `(epoch, index)` of `MaskedBlocks`: a pure function of seed and epoch.

    Keys with `FILLER` are appended up to a multiple of `multiple`, so that all processes have the same number.
    """
    order = np.random.default_rng([seed, epoch]).permutation(length)
    return [(epoch, index) for index in (*map(int, order), *[FILLER] * (-length % multiple))]
