"""Tokenizers, and tokenisation of texts into one input each, or into several windows where a text is too long.

A tokenizer is a byte-level BPE trained on the corpus, or any existing one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from tqdm import tqdm
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from linformer_cli.errors import InputError, check_input, input_errors
from linformer_kit.data.read import Text, text_groups
from linformer_kit.files.manifest import fingerprint

Window = dict[str, list[int]]  # arguments of a model: input_ids, and token_type_ids if the tokenizer has them

# `lstrip` (the mask includes the space before it) only works if the trainer gets this `AddedToken`.
_MASK = AddedToken("<mask>", lstrip=True, special=True)
# In the order of RoBERTa's ids.
_SPECIAL_TOKENS = ["<s>", "<pad>", "</s>", "<unk>", _MASK]
_SMALLEST_VOCABULARY = len(_SPECIAL_TOKENS) + 256  # every byte is a token, so no text is unknown
_BATCH_SIZE = 256  # texts in one call of a tokenizer
# Part of the name of each cached tokenizer: increase it when `train_tokenizer` makes others of the same documents.
TRAINING_VERSION = 1


def train_tokenizer(documents: Iterable[str], *, vocab_size: int, max_length: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE with RoBERTa's special tokens and their ids.

    Args:
        documents: Training text.
        vocab_size: Maximum size of the vocabulary; a small corpus gives a smaller one, see `len` of the result.
        max_length: Maximum input length of the model, in tokens.

    Returns:
        A tokenizer that `AutoTokenizer` loads after `save_pretrained`. Decoding restores any text exactly.

    Raises:
        InputError: `vocab_size` is too small for the special tokens and all bytes.
    """
    if vocab_size < _SMALLEST_VOCABULARY:
        raise InputError(
            f"vocab_size: expected at least {_SMALLEST_VOCABULARY} ({len(_SPECIAL_TOKENS)} special tokens and "
            f"256 bytes), got {vocab_size}"
        )
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False
    )
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=_SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(tqdm(documents, desc="Training tokenizer", unit=" documents", delay=2), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token="<s>",
        cls_token="<s>",
        pad_token="<pad>",
        eos_token="</s>",
        sep_token="</s>",
        unk_token="<unk>",
        mask_token=_MASK,
        model_max_length=max_length,
        model_input_names=["input_ids", "attention_mask"],
    )


def load_tokenizer(name_or_path: str, *, max_length: int, is_masked: bool = True) -> PreTrainedTokenizerFast:
    """Load an existing tokenizer for pretraining.

    Args:
        name_or_path: Folder, or id on the Hugging Face hub.
        max_length: Maximum input length of the model, in tokens.
        is_masked: Whether the model needs a mask token, and one for padding.

    Returns:
        The tokenizer, without token types among its outputs.

    Raises:
        InputError: It cannot be loaded, or has no mask, padding, start or end token.
    """
    with input_errors(f"tokenizer {name_or_path}: expected a folder with tokenizer.json, or an id on the hub"):
        tokenizer = AutoTokenizer.from_pretrained(name_or_path, trust_remote_code=False)
    of_masks = {"mask": tokenizer.mask_token_id, "padding": tokenizer.pad_token_id} if is_masked else {}
    ids = of_masks | {
        "start (bos or cls)": start_token_id(tokenizer),
        "end (eos or sep)": end_token_id(tokenizer),
    }
    if missing := [role for role, token in ids.items() if token is None]:
        got = " and no ".join(missing)
        raise InputError(f"tokenizer {name_or_path}: expected tokens for {', '.join(ids)}; got no {got}")
    if "token_type_ids" in tokenizer.model_input_names:
        names = [name for name in tokenizer.model_input_names if name != "token_type_ids"]
        # As an argument, since `save_pretrained` keeps those.
        tokenizer = AutoTokenizer.from_pretrained(name_or_path, trust_remote_code=False, model_input_names=names)
    tokenizer.model_max_length = max_length
    return tokenizer


def tokenizer_of_prompts(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """A tokenizer with the same tokens that puts the start token before a text, no end after it, and pads on the left.

    Raises:
        InputError: for a tokenizer that is not of the library `tokenizers`.
    """
    check_input(tokenizer.is_fast, "tokenizer", "one with tokenizer.json, with causal", type(tokenizer).__name__)
    start = tokenizer.convert_ids_to_tokens(start_token_id(tokenizer))
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    template, start_ids = f"{start} $A", [(start, start_token_id(tokenizer))]
    backend.post_processor = processors.TemplateProcessing(
        single=template, pair=f"{template} $B", special_tokens=start_ids
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        padding_side="left",
        model_max_length=tokenizer.model_max_length,
        model_input_names=["input_ids", "attention_mask"],
        chat_template=tokenizer.chat_template,
        **tokenizer.special_tokens_map,
    )


def start_token_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """The id that starts a sequence."""
    return tokenizer.cls_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id


def end_token_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """The id that ends a document."""
    return tokenizer.sep_token_id if tokenizer.eos_token_id is None else tokenizer.eos_token_id


def vocabulary_size(tokenizer: PreTrainedTokenizerBase) -> int:
    """The number of token ids from 0 to the largest, which may have gaps."""
    return max(tokenizer.get_vocab().values()) + 1


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """A hash of everything that the ids of a text depend on; equal tokenizers have equal hashes."""
    if tokenizer.is_fast:
        rules = json.loads(tokenizer.backend_tokenizer.to_str())
        # Arguments of the latest call, not properties of the tokenizer.
        del rules["truncation"], rules["padding"]
    else:
        rules = [repr(tokenizer), tokenizer.get_vocab()]
    return fingerprint(rules, tokenizer.truncation_side, start_token_id(tokenizer), end_token_id(tokenizer))


class EncodedText(NamedTuple):
    """A tokenised text."""

    windows: list[Window]  # with special tokens: one, or several where a text is read by pieces
    lost: int = 0  # truncated tokens
    weights: tuple[int, ...] = (1,)  # of each window in a mean

    @property
    def tokens(self) -> int:
        """Tokens that a model reads."""
        return sum(len(window["input_ids"]) for window in self.windows)


@dataclass(frozen=True)
class Encoder:
    """Tokenises texts into inputs of a model; longer texts are truncated, of a pair the longer one first, or cut.

    A text without tokens, which a tokenizer without special tokens makes of an empty one, becomes one padding token,
    which the attention mask does not exclude.

    Args:
        tokenizer: Any with a padding token.
        max_length: Maximum input length in tokens.
        pieces: Whether a longer text is cut into pieces of that length, each with the special tokens and the prompt;
            their weights are the numbers of their own tokens.
        prompt: What precedes each text.

    Raises:
        InputError: if `max_length` leaves no room for text; for pieces without a fast tokenizer, which knows the
            characters of each token.
    """

    tokenizer: PreTrainedTokenizerBase
    max_length: int
    pieces: bool = False
    prompt: str = ""

    def __post_init__(self) -> None:
        if self.tokenizer.pad_token is None:
            raise InputError("model: expected a tokenizer with a padding token, got none")
        if self.pieces and not self.tokenizer.is_fast:
            raise InputError("model: expected a fast tokenizer (tokenizer.json) for pieces of texts, got a slow one")
        self._check_room(pair=False)

    def __call__(self, texts: Sequence[Text]) -> Iterator[EncodedText]:
        """Encode texts, either all single or all pairs, as they are asked for.

        Raises:
            InputError: if `max_length` leaves no room for text in pairs, or after the prompt; for pieces of pairs.
        """
        if texts and texts[0][1] is not None:
            if self.pieces:
                raise InputError("pieces: expected single texts, got pairs")
            self._check_room(pair=True)
        prompted = ((self.prompt + text, pair) for text, pair in texts)
        for group in text_groups(prompted, count=_BATCH_SIZE):
            if self.pieces:
                yield from self._in_pieces([text for text, _ in group])
                continue
            for text, whole in zip(group, self._windows(group), strict=True):
                window, tokens = whole, len(whole["input_ids"])
                if tokens > self.max_length:
                    (window,) = self._windows([text], truncation=True, max_length=self.max_length)
                yield EncodedText([window], tokens - len(window["input_ids"]))

    def _in_pieces(self, texts: list[str]) -> Iterator[EncodedText]:
        """The pieces of each text, which begins with the prompt."""
        encoded = self.tokenizer(texts, return_offsets_mapping=True, verbose=False)
        for number, (ids, offsets) in enumerate(zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)):
            ordinary = [place for place, part in enumerate(encoded.sequence_ids(number)) if part is not None]
            own = [place for place in ordinary if not self.prompt or offsets[place][1] > len(self.prompt)]
            first = own[0] if own else max(ordinary, default=-1) + 1
            stop = first + len(own)
            after = ids[stop:] or (
                [] if ids else [self.tokenizer.pad_token_id]
            )  # a text without tokens is one of padding
            room = self.max_length - first - len(after)
            if room < 1:
                expected = f"at least {first + len(after) + 1} for prompt and text"
                raise InputError(f"max_length: expected {expected}, got {self.max_length}")
            parts = [ids[start : min(start + room, stop)] for start in range(first, max(first + 1, stop), room)]
            windows = [{"input_ids": [*ids[:first], *part, *after]} for part in parts]
            yield EncodedText(windows, weights=tuple(max(1, len(part)) for part in parts))

    def _check_room(self, *, pair: bool) -> None:
        """Raise an error if there is room for nothing but special tokens around a text or a pair."""
        special = self.tokenizer.num_special_tokens_to_add(pair=pair)
        if self.max_length <= special:
            of_what = " for pairs of texts" if pair else ""
            raise InputError(f"max_length: expected at least {special + 1}{of_what}, got {self.max_length}")

    def _windows(self, texts: Sequence[Text], **how: object) -> list[Window]:
        first, second = zip(*texts, strict=True)
        pairs = None if second[0] is None else list(second)
        inputs = self.tokenizer(list(first), pairs, return_attention_mask=False, verbose=False, **how)
        names = [name for name in inputs if name in self.tokenizer.model_input_names]
        windows = [dict(zip(names, values, strict=True)) for values in zip(*map(inputs.get, names), strict=True)]
        empty = {name: [self.tokenizer.pad_token_id if name == "input_ids" else 0] for name in names}
        return [window if window["input_ids"] else empty for window in windows]
