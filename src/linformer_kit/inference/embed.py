"""Embed any number of texts, in order, in one array on disk: whole, or by pieces.

Late chunking (Günther et al. 2024, arXiv 2409.04701) runs the encoder on inputs of many pieces and pools the hidden
states of each piece, so that its vector knows its context. The mean of pieces embeds each piece alone. Both read a long
text whole with an encoder of few positions, and a text of one piece has the vector that it has otherwise.
"""

from __future__ import annotations

import io
import itertools
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from sentence_transformers.sentence_transformer.modules import Normalize
from tqdm import tqdm

from linformer_cli.errors import InputError
from linformer_cli.settings import EmbedSettings
from linformer_kit.data.read import Text, TextColumns
from linformer_kit.data.tokenizer import Window, tokenizer_fingerprint
from linformer_kit.files.writing import whole_file
from linformer_kit.inference.batches import in_groups
from linformer_kit.inference.embedder import Embedder, load_embedder
from linformer_kit.inference.files import TextsAndOutput
from linformer_kit.interop.loading import fingerprint

_NUMBER = np.dtype("<f4")


def main(settings: EmbedSettings) -> None:
    """Embed the texts of files; write them as a float32 array `[rows, width]` in NumPy's format.

    Row i is the embedding of text i, as sentence-transformers computes it from the model's folder; with `chunk_tokens`
    there is a row for each piece, and `OUTPUT.pieces.jsonl` says where it is.

    Raises:
        InputError: for files that cannot be read (nothing is written) and a model that is no embedder of texts.
    """
    size, output = settings.chunk_tokens, Path(settings.out)
    pieces = output.with_name(f"{output.name}.pieces.jsonl")
    written = TextsAndOutput(settings, pieces)
    written.find_texts(TextColumns(settings.text_column or "text"), document=settings.document)
    embedder = _load(settings)
    identity = {
        "model_fingerprint": fingerprint(embedder.sentences),
        "tokenizer_fingerprint": tokenizer_fingerprint(embedder.tokenizer),
        "modules": [repr(module) for module in embedder.sentences],
        "prompt": embedder.prompt,
        "max_length": embedder.limit,
    }

    def start() -> bytes:
        pieces.unlink(missing_ok=True)  # of an output that is overwritten
        count = written.total if size is None else _write_pieces(pieces, embedder, written.texts(), size)
        return _header(count, embedder.width)

    def rows(group: list[Text], done: int) -> bytes:
        texts = [text for text, _ in group]
        if size is not None:
            vectors = embed_chunks(embedder, texts, size)
        else:
            vectors = embed_pieces(embedder, texts) if settings.pieces else embedder.embed(texts)
        return (b"" if done else start()) + vectors.astype(_NUMBER).tobytes()

    written.write(embedder, identity, rows)
    number = "" if size is None else f"{len(np.load(output, mmap_mode='r')):,} pieces, "
    print(f"{written.total:,} texts, {number}{embedder.width} numbers each, in {output}", file=sys.stderr)
    if embedder.truncated:
        longer = f"{embedder.truncated:,} texts of more than {embedder.limit:,} tokens were truncated"
        print(f"{longer}; --pieces reads whole texts", file=sys.stderr)


def _load(settings: EmbedSettings) -> Embedder:
    """The embedder; one that cannot embed pieces raises an error if they are asked for."""
    embedder = load_embedder(
        settings.model, batch_size=settings.batch_size, dtype=settings.dtype, device=settings.device
    )
    embedder.truncate(settings.max_length)
    size = settings.chunk_tokens
    if settings.pieces or size is not None:
        # Raises an error without room for text; of a prompt, a text may take over the last token.
        room = max(tokens.room for tokens in tokenise(embedder, ["", "a"]))
        if size is not None and size > room:
            expected = f"at most {room}, max_length {embedder.limit} without special tokens and prompt"
            raise InputError(f"chunk_tokens: expected {expected}, got {size}")
    # Of other poolings than means, a piece's first or last token says little.
    after = [getattr(module, "pooling_mode", type(module).__name__) for module in embedder.sentences][1:]
    if size is not None and after[:1] != ["mean"]:
        raise InputError(f"chunk_tokens: expected a model with mean pooling after its encoder, got {after}")
    return embedder


def _header(rows: int, width: int) -> bytes:
    """The start of a file in NumPy's format."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": _NUMBER.str, "fortran_order": False, "shape": (rows, width)})
    return header.getvalue()


class Tokens(NamedTuple):
    """A tokenised text, not truncated."""

    before: list[int]  # special tokens and the prompt
    text: list[int]  # tokens of the text itself
    after: list[int]  # special tokens
    spans: list[tuple[int, int]]  # first character of each token of the text itself, and the character after its last
    room: int  # tokens of the text itself in the longest input

    def window(self, start: int) -> Window:
        """The longest input with a part of the text itself, from a token on, and all other tokens."""
        return {"input_ids": [*self.before, *self.text[start : start + self.room], *self.after]}

    def passes(self, size: int) -> list[list[int]]:
        """Of each of the longest inputs that read the text: the first token of each piece, and the end of the last."""
        size, length = min(size, self.room), len(self.text)
        whole = self.room // size * size
        starts = range(0, max(1, length - self.room + whole), whole)
        return [[*range(start, max(1, stop), size), stop] for start, stop in itertools.pairwise([*starts, length])]


def tokenise(embedder: Embedder, texts: Sequence[str]) -> Iterator[Tokens]:
    """Tokenise texts, one or more, each after the model's prompt.

    Raises:
        InputError: without a fast tokenizer, which knows the characters of each token, or without room for text.
    """
    tokenizer, prompt = embedder.tokenizer, embedder.prompt
    if not tokenizer.is_fast:
        raise InputError("model: expected a fast tokenizer (tokenizer.json) for pieces of texts, got a slow one")
    encoded = tokenizer([prompt + text for text in texts], return_offsets_mapping=True, verbose=False)
    for number, (ids, offsets) in enumerate(zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)):
        ordinary = [place for place, text in enumerate(encoded.sequence_ids(number)) if text is not None]  # not special
        of_text = [place for place in ordinary if not prompt or offsets[place][1] > len(prompt)]
        first = of_text[0] if of_text else max(ordinary, default=-1) + 1
        stop = first + len(of_text)
        spans = [(max(0, start - len(prompt)), end - len(prompt)) for start, end in offsets[first:stop]]
        after = ids[stop:] or ([] if ids else [tokenizer.pad_token_id])  # a text without tokens is one padding token
        around = first + len(after)
        if embedder.limit <= around:
            expected = f"at least {around + 1} for prompt and text"
            raise InputError(f"max_length: expected {expected}, got {embedder.limit}")
        yield Tokens(ids[:first], ids[first:stop], after, spans, embedder.limit - around)


def embed_pieces(embedder: Embedder, texts: Sequence[str]) -> np.ndarray:
    """Means of the embeddings of consecutive pieces, weighted by their numbers of tokens, float32 `[texts, width]`.

    They are normalised if the embeddings of the model are, and then cut to its width, as sentence-transformers does.

    Args:
        embedder: The embedder; each piece has at most `embedder.limit` tokens, prompt and special tokens included.
        texts: The texts, one or more; all of each is read.
    """
    windows: list[Window] = []
    weights, firsts = [], []
    for tokens in tokenise(embedder, texts):
        firsts.append(len(windows))
        for start in range(0, max(1, len(tokens.text)), tokens.room):
            windows.append(tokens.window(start))
            weights.append(max(1, min(tokens.room, len(tokens.text) - start)))
    counts = np.array(weights, dtype=np.float32)[:, None]
    sums = np.add.reduceat(embedder.outputs(windows) * counts, firsts)
    is_normal = isinstance(embedder.sentences[-1], Normalize)
    means = sums / (np.linalg.norm(sums, axis=1, keepdims=True) if is_normal else np.add.reduceat(counts, firsts))
    return means[:, : embedder.sentences.truncate_dim]


def embed_chunks(embedder: Embedder, texts: Sequence[str], size: int) -> np.ndarray:
    """Late chunking: the embeddings of all pieces of some texts, float32 `[pieces, width]`.

    A text longer than `embedder.limit` is read in several inputs of that length, whose pieces do not overlap. Its first
    piece includes the special tokens before it and the prompt, if the model pools that; its last piece includes the
    special tokens after it.

    Args:
        embedder: The embedder, with mean pooling.
        texts: The texts, one or more; all of each is read.
        size: Number of tokens of each piece; the last one of a text may have fewer.
    """
    encoder, *others = embedder.sentences
    passes = [(text, edges) for text in tokenise(embedder, texts) for edges in text.passes(size)]
    starts = [min(edges[0], max(0, len(text.text) - text.room)) for text, edges in passes]  # the last one reads back
    windows = [text.window(start) for (text, _), start in zip(passes, starts, strict=True)]

    def vector(states: torch.Tensor) -> np.ndarray:
        outputs = {"token_embeddings": states[None], "attention_mask": states.new_ones(1, len(states))}
        for module in others:
            outputs = module(outputs)
        return embedder.vectors(outputs)

    def run(batch: list[int]) -> Iterator[np.ndarray]:
        outputs = encoder(dict(embedder.pad([windows[index] for index in batch])))
        for index, hidden, real in zip(batch, outputs["token_embeddings"], outputs["attention_mask"], strict=True):
            states, (text, pieces) = hidden[real.bool()], passes[index]
            edges = [len(text.before) + piece - starts[index] for piece in pieces]
            if pieces[-1] == len(text.text):
                edges[-1] = len(states)
            if pieces[0] == 0:
                edges[0] = min(embedder.unpooled, edges[1] - 1)
            yield np.concatenate([vector(states[start:stop]) for start, stop in itertools.pairwise(edges)])

    return embedder.outputs(windows, run)[:, : embedder.sentences.truncate_dim]


def _write_pieces(path: Path, embedder: Embedder, texts: Iterable[Text], size: int) -> int:
    """Write the pieces of late chunking as JSON Lines, and return their number.

    A line has the `row` of the text, the `start`, which is the first character, and the `end`, behind the last one.
    """
    pieces = 0
    with whole_file(path) as staged, staged.open("w", encoding="utf-8") as file:
        tokenised = (each for group in in_groups(texts) for each in tokenise(embedder, [text for text, _ in group]))
        bar = tqdm(tokenised, desc="Tokenise", unit=" texts", dynamic_ncols=True, delay=2)
        for row, tokens in enumerate(bar, start=1):
            for start, stop in itertools.chain.from_iterable(map(itertools.pairwise, tokens.passes(size))):
                spans = tokens.spans[start:stop] or [(0, 0)]
                file.write(json.dumps({"row": row, "start": spans[0][0], "end": spans[-1][1]}) + "\n")
                pieces += 1
    return pieces
