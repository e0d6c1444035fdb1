"""Labelled texts as inputs of a model: tokens, labels, and counts of truncated tokens."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int, Num
from torch.utils.data import Dataset
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from linformer_cli.settings import IGNORED_LABEL
from linformer_kit.data.labelled import Columns, Example, Labels
from linformer_kit.data.tokenizer import Encoder
from linformer_kit.internals import grouped_indices

logger = logging.getLogger(__name__)

# A window, and its `labels`; or of a text read as pieces, `windows`, their `weights` in the mean, and `labels`.
Item = dict[str, Any]


@dataclass(frozen=True)
class LabelledItems(Dataset[Item]):
    """Tokens of texts and their labels; the index None gives an item whose label the loss ignores."""

    windows: list[list[dict[str, Int[np.ndarray, " tokens"]]]]  # of each text; int32: 4 bytes for a token
    labels: Num[np.ndarray, " texts"] | Num[np.ndarray, "texts classes"]  # classes, or 0 and 1 for each class
    # Number of truncated `texts`, of their removed `tokens`, and of all tokens before truncation (`of_tokens`).
    truncated: dict[str, int]
    weights: list[tuple[int, ...]] | None = None  # of the windows of each text, in a mean; None: each has one window

    @property
    def lengths(self) -> Int[np.ndarray, " texts"]:
        """Tokens of each text."""
        return np.array([sum(len(each["input_ids"]) for each in windows) for windows in self.windows])

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int | None) -> Item:
        if index is None:
            shortest = self[int(self.lengths.argmin())]
            return {**shortest, "labels": np.full_like(self.labels[0], IGNORED_LABEL).tolist()}
        windows = [{name: ids.tolist() for name, ids in window.items()} for window in self.windows[index]]
        inputs = windows[0] if self.weights is None else {"windows": windows, "weights": self.weights[index]}
        return {**inputs, "labels": self.labels[index].tolist()}

    def select(self, order: Int[np.ndarray, " selected"]) -> LabelledItems:
        """A selection of the items, in a given order."""
        weights = None if self.weights is None else [self.weights[index] for index in order]
        return LabelledItems([self.windows[index] for index in order], self.labels[order], self.truncated, weights)


@dataclass(frozen=True)
class PieceCollator:
    """Turns items of texts read as pieces into a batch of all their windows, padded.

    Besides, the batch has for each window `text_of`, the number of its text, and `shares`, its share of the mean.
    """

    tokenizer: PreTrainedTokenizerBase

    def __call__(self, items: Sequence[Item]) -> dict[str, torch.Tensor]:
        batch = self.tokenizer.pad([each for item in items for each in item["windows"]], return_tensors="pt")
        shares = [np.divide(item["weights"], sum(item["weights"])) for item in items]
        return {
            **batch,
            "labels": torch.tensor([item["labels"] for item in items]),
            "text_of": torch.arange(len(items)).repeat_interleave(torch.tensor(list(map(len, shares)))),
            "shares": torch.from_numpy(np.concatenate(shares)).float(),
        }


def grouped_by_length(
    lengths: Sequence[int] | Int[np.ndarray, " texts"], *, batch_size: int, seed: int, epoch: int
) -> list[int]:
    """Random order of batches of texts of similar length: a pure function of seed and epoch.

    The batches are those of transformers, which sorts random pools of texts, in random order. The first has the longest
    text, so that out-of-memory errors occur at the start.

    Args:
        lengths: Lengths of the texts in tokens.
        batch_size: Texts per update.
        seed, epoch: As for `shuffled_blocks`.
    """
    random = np.random.default_rng([seed, epoch])
    generator = torch.Generator().manual_seed(int(random.integers(2**63)))
    order = grouped_indices(np.asarray(lengths).tolist(), batch_size, generator)
    batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    places = np.arange(len(batches))
    random.shuffle(places[1 : len(order) // batch_size])  # an incomplete batch stays at the end
    return [index for place in places for index in batches[place]]


def labelled_inputs(
    examples: Sequence[Example], labels: Labels, columns: Columns, encoder: Encoder, *, name: str
) -> LabelledItems:
    """Tokenise labelled texts, and log how many are truncated, or cut into pieces, with the `name` of the texts."""
    targets = labels.targets(examples, column=columns.label)  # before tokenisation: may raise
    windows: list[list[dict[str, np.ndarray]]] = []
    weights: list[tuple[int, ...]] = []
    truncated = {"texts": 0, "tokens": 0, "of_tokens": 0}
    encoded = encoder([(example.text, example.text_pair) for example in examples])
    for text in tqdm(encoded, f"Tokenising {name} texts", len(examples), delay=2):
        windows.append([{key: np.array(ids, np.int32) for key, ids in each.items()} for each in text.windows])
        weights.append(text.weights)
        truncated["texts"] += text.lost > 0
        truncated["tokens"] += text.lost
        truncated["of_tokens"] += text.tokens + text.lost
    if truncated["texts"]:
        logger.info(
            f"{name}: {truncated['texts']:,} of {len(examples):,} texts are longer than {encoder.max_length} tokens "
            f"and lose {truncated['tokens']:,} of all {truncated['of_tokens']:,} tokens"
        )
    if cut := [len(each) for each in weights if len(each) > 1]:
        what = f"longer than {encoder.max_length} tokens and are read as {sum(cut):,} pieces"
        logger.info(f"{name}: {len(cut):,} of {len(examples):,} texts are {what}")
    return LabelledItems(windows, targets, truncated, weights if encoder.pieces else None)
