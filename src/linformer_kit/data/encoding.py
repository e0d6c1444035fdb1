"""Tokenisation of texts into one input each, or into several windows where a text exceeds the maximum length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from linformer_kit.errors import InputError

Window = dict[str, list[int]]  # arguments of a model: input_ids, and token_type_ids if the tokenizer has them

_TOGETHER = 256  # texts in one call of a tokenizer


@dataclass(frozen=True)
class EncodedText:
    """One tokenised text.

    Attributes:
        windows: Its inputs, with special tokens; more than one only with a stride.
        tokens: Tokens of the whole text, special ones included.
        lost: Tokens of the text that are in no window.
    """

    windows: list[Window]
    tokens: int
    lost: int


@dataclass(frozen=True)
class Encoder:
    """Tokenises texts into inputs of a model.

    A text without tokens, which a tokenizer without special tokens makes of an empty one, becomes one padding token,
    which the attention mask does not exclude.

    Args:
        tokenizer: Any with a padding token.
        max_length: Maximum input length in tokens.
        stride: Overlap of successive windows in tokens; None: longer texts are truncated, of a pair the longer one
            first.

    Raises:
        InputError: if `max_length` leaves no room for text, or for a stride that does not fit it or the tokenizer.
    """

    tokenizer: PreTrainedTokenizerBase
    max_length: int
    stride: int | None = None

    def __post_init__(self) -> None:
        if self.tokenizer.pad_token is None:
            raise InputError("model: expected a tokenizer with a padding token, got none")
        special = self._check_room(pair=False)
        if self.stride is not None:
            if not self.tokenizer.is_fast:
                raise InputError("stride: expected a model with a fast tokenizer (tokenizer.json), got a slow one")
            if not 0 <= self.stride < self.max_length - special:
                raise InputError(f"stride: expected 0 to {self.max_length - special - 1}, got {self.stride}")

    def __call__(self, texts: Sequence[tuple[str, str | None]]) -> list[EncodedText]:
        """Encode texts, either all single or all pairs.

        Raises:
            InputError: if `max_length` leaves no room for text in pairs, and for a stride with pairs that are too long.
        """
        if texts and texts[0][1] is not None:
            self._check_room(pair=True)
        return [
            encoded
            for start in range(0, len(texts), _TOGETHER)
            for encoded in self._encode(texts[start : start + _TOGETHER])
        ]

    def _check_room(self, *, pair: bool) -> int:
        """The number of special tokens around a text or a pair; raises an error if there is room for nothing else."""
        special = self.tokenizer.num_special_tokens_to_add(pair=pair)
        if self.max_length <= special:
            of_what = " for pairs of texts" if pair else ""
            raise InputError(f"max_length: expected at least {special + 1}{of_what}, got {self.max_length}")
        return special

    def _encode(self, texts: Sequence[tuple[str, str | None]]) -> list[EncodedText]:
        whole = self._windows(texts)
        return [
            EncodedText([window], len(window["input_ids"]), 0)
            if len(window["input_ids"]) <= self.max_length
            else self._too_long(text, len(window["input_ids"]))
            for text, window in zip(texts, whole, strict=True)
        ]

    def _too_long(self, text: tuple[str, str | None], tokens: int) -> EncodedText:
        if self.stride is None:
            windows = self._windows([text], truncation=True, max_length=self.max_length)
            return EncodedText(windows, tokens, tokens - len(windows[0]["input_ids"]))
        if text[1] is not None:
            raise InputError("stride: expected none for pairs of texts, which are cut")
        windows = self._windows(
            [text], truncation=True, max_length=self.max_length, stride=self.stride, return_overflowing_tokens=True
        )
        return EncodedText(windows, tokens, 0)

    def _windows(self, texts: Sequence[tuple[str, str | None]], **how: object) -> list[Window]:
        first, second = zip(*texts, strict=True)
        pairs = None if second[0] is None else list(second)
        inputs = self.tokenizer(list(first), pairs, return_attention_mask=False, verbose=False, **how)
        names = [name for name in inputs if name in self.tokenizer.model_input_names]
        rows = zip(*(inputs[name] for name in names), strict=True)
        return [self._not_empty(dict(zip(names, values, strict=True))) for values in rows]

    def _not_empty(self, window: Window) -> Window:
        if window["input_ids"]:
            return window
        return {name: [self.tokenizer.pad_token_id if name == "input_ids" else 0] for name in window}
