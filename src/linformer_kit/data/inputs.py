"""Labelled texts as inputs of a model: tokens in a memory-mapped file, labels, and counts of truncated tokens.

A token takes 4 bytes on disk, in one file for all processes of a machine.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.compute
from datasets import Dataset
from jaxtyping import Int, Num
from torch.utils.data import Dataset as TorchDataset
from tqdm import tqdm

from linformer_cli.settings import IGNORED_LABEL
from linformer_kit.data.cached import cached_dataset, content_hash
from linformer_kit.data.examples import Columns, Example, Labels
from linformer_kit.data.masking import FILLER
from linformer_kit.data.tokenizer import Encoder, tokenizer_fingerprint

logger = logging.getLogger(__name__)

Item = dict[str, Any]  # a window, and its `labels`

# Part of the name of each cached file: increase it when the same texts give other tokens.
_FORMAT_VERSION = 1
_TOKENS = "tokens"  # column of the number of tokens of the whole text
_TOGETHER = 256  # texts in a batch of the file
_BATCHES_TOGETHER = 50  # whose texts are sorted by length


@dataclass(frozen=True)
class LabelledItems(TorchDataset[Item]):
    """Windows of texts, read on access, and their labels."""

    windows: Dataset  # lists of int32: `input_ids`, and `token_type_ids` where the tokenizer has them
    lengths: Int[np.ndarray, " texts"]  # tokens of each window
    labels: Num[np.ndarray, " texts"] | Num[np.ndarray, "texts classes"]  # classes, or 0 and 1 for each class

    @classmethod
    def of(cls, windows: Dataset, labels: Sequence[int] | Sequence[list[float]]) -> LabelledItems:
        """Combine windows with the labels of their texts, in the same order."""
        lengths = pyarrow.compute.list_value_length(windows.data.column("input_ids")).to_numpy()
        return cls(windows, lengths, np.array(labels))

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int | np.integer) -> Item:
        return {**self.windows[int(index)], "labels": self.labels[index].tolist()}

    def select(self, order: Int[np.ndarray, " selected"]) -> LabelledItems:
        """A selection of the items, in a given order."""
        return LabelledItems(self.windows.select(order), self.lengths[order], self.labels[order])


class FilledItems(TorchDataset[Item]):
    """Items, plus one at index `FILLER` whose label the loss ignores."""

    def __init__(self, items: LabelledItems) -> None:
        self.items = items
        shortest = items[items.lengths.argmin()]
        labels = shortest["labels"]
        ignored = [float(IGNORED_LABEL)] * len(labels) if isinstance(labels, Sequence) else IGNORED_LABEL
        self._filler = {**shortest, "labels": ignored}

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int | None) -> Item:
        return self._filler if index is FILLER else self.items[index]


def grouped_by_length(
    lengths: Sequence[int] | Int[np.ndarray, " texts"], *, batch_size: int, seed: int, epoch: int, multiple: int = 1
) -> list[int | None]:
    """Random order that groups texts of similar length: a pure function of seed and epoch.

    The longest text comes first, so that out-of-memory errors occur at the start.

    Args:
        lengths: Lengths of the texts in tokens.
        batch_size: Texts per update.
        seed, epoch, multiple: As for `shuffled_blocks`.
    """
    lengths = np.asarray(lengths)
    order = np.random.default_rng([seed, epoch]).permutation(len(lengths))
    longest = int(lengths[order].argmax())
    order[[0, longest]] = order[[longest, 0]]
    pool = batch_size * _BATCHES_TOGETHER
    pools = [order[start : start + pool] for start in range(0, len(order), pool)]
    pools = [texts[np.argsort(-lengths[texts], kind="stable")] for texts in pools]
    return [*map(int, np.concatenate(pools)), *[FILLER] * (-len(lengths) % multiple)]


def labelled_inputs(
    examples: Sequence[Example], labels: Labels, columns: Columns, encoder: Encoder, *, cache: Path, name: str
) -> tuple[LabelledItems, dict[str, int]]:
    """Tokenise labelled texts, each into one window, and log how many are truncated.

    The tokens are in the folder `cache`, shared by all processes and later runs; `columns` and `name` are for messages.

    Returns:
        The items in the order of the texts, and how much was truncated: `texts`, their removed `tokens`, and all tokens
        before truncation (`of_tokens`).
    """
    targets = [labels.target(example, column=columns.label) for example in examples]  # before tokenisation: may raise
    first = encoder([(examples[0].text, examples[0].text_pair)])[0].window
    schema = pyarrow.schema({**dict.fromkeys(first, pyarrow.list_(pyarrow.int32())), _TOKENS: pyarrow.int32()})
    tokenizer = encoder.tokenizer
    how = [encoder.max_length, tokenizer.truncation_side, tokenizer.split_special_tokens, tokenizer.model_input_names]
    texts = ([example.text, example.text_pair] for example in examples)
    identity = chain([_FORMAT_VERSION, tokenizer_fingerprint(tokenizer), how], texts)
    path = cache / f"{content_hash(identity)}.arrow"
    stored = cached_dataset(path, schema, lambda: _batches(examples, encoder, schema, name), rows=len(examples))
    items = LabelledItems.of(stored.select_columns(list(first)), targets)  # type: ignore[arg-type]
    tokens = stored.data.column(_TOKENS).to_numpy()
    lost = tokens - items.lengths
    cut = {"texts": int((lost > 0).sum()), "tokens": int(lost.sum()), "of_tokens": int(tokens.sum(dtype=np.int64))}
    if cut["texts"]:
        logger.info(
            "%s: %s of %s texts are longer than %s tokens and lose %s of all %s tokens",
            name,
            f"{cut['texts']:,}",
            f"{len(items):,}",
            encoder.max_length,
            f"{cut['tokens']:,}",
            f"{cut['of_tokens']:,}",
        )
    return items, cut


def _batches(
    examples: Sequence[Example], encoder: Encoder, schema: pyarrow.Schema, name: str
) -> Iterator[pyarrow.RecordBatch]:
    with tqdm(total=len(examples), desc=f"Tokenising {name} texts", unit=" texts", delay=2) as bar:
        for start in range(0, len(examples), _TOGETHER):
            together = examples[start : start + _TOGETHER]
            encoded = encoder([(example.text, example.text_pair) for example in together])
            rows = [{**text.window, _TOKENS: text.tokens} for text in encoded]
            yield pyarrow.RecordBatch.from_pylist(rows, schema)
            bar.update(len(together))
