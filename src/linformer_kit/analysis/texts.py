"""The sequences that an analysis runs a model on: packed to one length, or one text each."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from linformer_kit.data.files import TextFiles, find_files, standard_library
from linformer_kit.data.packing import blocks
from linformer_kit.data.read import read_documents
from linformer_kit.data.tokenizer import end_token_id, start_token_id
from linformer_kit.errors import InputError, renamed
from linformer_kit.interop.loading import input_length

_DEFAULT_LENGTH = 512
_SHORTEST = 4  # start, two tokens, end
_FILES_IN_TURN = 64  # open at the same time


def sequence_length(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, seq_len: int | None) -> int:
    """Tokens in a sequence: `seq_len`, or by default 512 as in Figure 1, or the model's maximum if that is less.

    Raises:
        InputError: for a length out of range, and for a tokenizer with more tokens than the model.
    """
    words = model.get_input_embeddings().num_embeddings
    if len(tokenizer) > words:
        raise InputError(
            f"model: expected a tokenizer of at most {words:,} tokens (the model's vocabulary), got {len(tokenizer):,}"
        )
    if seq_len is None:
        return min(_DEFAULT_LENGTH, input_length(model, tokenizer, None))
    if seq_len < _SHORTEST:
        raise InputError(f"seq_len: expected {_SHORTEST} or more, got {seq_len}")
    with renamed("max_length", "seq_len"):
        return input_length(model, tokenizer, seq_len)


def find_texts(text_file: list[str] | None, *, document: str = "auto", column: str = "text") -> TextFiles:
    """The files to read.

    Args:
        text_file: Files, folders or globs; None: the source of the Python standard library.
        document: How .txt files are split, as in `TextFiles`.
        column: Text column of tables.

    Raises:
        InputError: as `find_files`.
    """
    if text_file is None:
        return standard_library()
    paths = find_files(text_file, field="text_file")
    return TextFiles(", ".join(Path(pattern).name for pattern in text_file), paths, document=document, column=column)


def sequences(
    files: TextFiles, tokenizer: PreTrainedTokenizerBase, *, seq_len: int, packing: bool
) -> Iterator[list[int]]:
    """Token ids of one sequence after the other, read on demand, from up to 64 files in turn.

    Args:
        files: The text files.
        tokenizer: Tokenizer with start and end tokens.
        seq_len: Tokens in a sequence; without packing, the maximum.
        packing: Whether to join the texts of a file and cut them into sequences of seq_len tokens, start and end
            included; else each text is a sequence, truncated if it is too long.

    Raises:
        InputError: for text that cannot be read, and a tokenizer without start and end tokens.
    """
    if start_token_id(tokenizer) is None or end_token_id(tokenizer) is None:
        raise InputError("model: expected a tokenizer with start and end tokens, got one without")
    streams = (_of_file(files, path, tokenizer, seq_len, packing) for path in files.paths)
    opened = deque(islice(streams, _FILES_IN_TURN))
    while opened:
        stream = opened.popleft()
        ids = next(stream, None)
        if ids is not None:
            yield ids
            opened.append(stream)
        else:
            opened.extend(islice(streams, 1))


def _of_file(
    files: TextFiles, path: Path, tokenizer: PreTrainedTokenizerBase, seq_len: int, packing: bool
) -> Iterator[list[int]]:
    texts = read_documents([path], document=files.document, column=files.column)
    if not packing:
        for text in texts:
            yield tokenizer(text, truncation=True, max_length=seq_len)["input_ids"]
        return
    for group in blocks(texts, tokenizer, seq_len - 1):
        for block in group:
            yield [*block.tolist(), end_token_id(tokenizer)]
