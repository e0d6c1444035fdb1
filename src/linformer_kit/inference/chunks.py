"""Vectors of long texts as means over their pieces, by which an encoder of few positions reads a long text whole.

A text of one piece has the vector that it has otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from sentence_transformers.sentence_transformer.modules import Normalize

from linformer_kit.data.encoding import Window
from linformer_kit.errors import InputError
from linformer_kit.inference.embedder import Embedder


class Tokens(NamedTuple):
    """A tokenised text, not truncated.

    Attributes:
        ids: Its token ids, with special tokens and prompt.
        first: Index of the first token of the text itself.
        length: Number of tokens of the text itself.
    """

    ids: list[int]
    first: int
    length: int

    def window(self, start: int, stop: int) -> Window:
        """A part of the text itself as an input, with all other tokens."""
        last = self.first + self.length
        own = self.ids[self.first : last][start:stop]
        return {"input_ids": [*self.ids[: self.first], *own, *self.ids[last:]]}

    def room(self, limit: int) -> int:
        """Tokens of the text itself in an input of `limit` tokens; raises an error if there is no room."""
        around = len(self.ids) - self.length
        if limit <= around:
            raise InputError(f"max_length: expected at least {around + 1} for prompt and text, got {limit}")
        return limit - around


def tokenise(embedder: Embedder, texts: Sequence[str]) -> Iterator[Tokens]:
    """Tokenise texts, one or more, each after the model's prompt.

    Raises:
        InputError: without a fast tokenizer, which knows the characters of each token.
    """
    tokenizer, prompt = embedder.tokenizer, embedder.prompt
    if not tokenizer.is_fast:
        raise InputError("model: expected a fast tokenizer (tokenizer.json) for pieces of texts, got a slow one")
    encoded = tokenizer([prompt + text for text in texts], return_offsets_mapping=True, verbose=False)
    for number, (ids, offsets) in enumerate(zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)):
        places = [place for place, text in enumerate(encoded.sequence_ids(number)) if text is not None]  # not special
        own = [place for place in places if not prompt or offsets[place][1] > len(prompt)]
        first = own[0] if own else max(places, default=-1) + 1
        yield Tokens(ids or [tokenizer.pad_token_id], first, len(own))


def embed_pieces(embedder: Embedder, texts: Sequence[str], what: str | None = None, overlap: float = 0) -> np.ndarray:
    """Means of the embeddings of consecutive pieces, weighted by their numbers of tokens, float32 `[texts, width]`.

    They are normalised if the embeddings of the model are.

    Args:
        embedder: The embedder; each piece has at most `embedder.limit` tokens, prompt and special tokens included.
        texts: The texts, one or more; all of each is read.
        what: Describes them in a progress bar.
        overlap: Share of a piece that the next one repeats.

    Raises:
        InputError: if the prompt leaves no room for text.
    """
    windows: list[Window] = []
    weights, starts = [], []
    for tokens in tokenise(embedder, texts):
        room, length = tokens.room(embedder.limit), tokens.length
        repeated = int(room * overlap)
        starts.append(len(windows))
        for start in range(0, max(1, length - repeated), room - repeated):
            windows.append(tokens.window(start, start + room))
            weights.append(max(1, min(room, length - start)))
    counts = np.array(weights, dtype=np.float32)[:, None]
    sums = np.add.reduceat(embedder.embed_windows(windows, what) * counts, starts)
    if isinstance(embedder.sentences[-1], Normalize):
        return sums / np.linalg.norm(sums, axis=1, keepdims=True)
    return sums / np.add.reduceat(counts, starts)
