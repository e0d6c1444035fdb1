"""Run any text classifier that transformers can load: texts in, probabilities of the classes out."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedConfig

from linformer_kit.data.examples import Columns, Labels, listed_classes
from linformer_kit.data.tokenizer import Encoder, Window
from linformer_kit.environment import best_device, use_bf16
from linformer_kit.errors import InputError
from linformer_kit.inference.batches import batches, check_finite, reads_padding, text_errors
from linformer_kit.inference.scores import class_probabilities, mean_logits
from linformer_kit.interop.checkpoints.pretrained import read_config
from linformer_kit.interop.loading import check_model_folder, fingerprint, input_length, load_classifier
from linformer_kit.settings import ClassifierSettings, is_local_path

# Texts are collected up to this number of texts or characters, then sorted by length.
_TEXTS_TOGETHER = 1024
_CHARACTERS_TOGETHER = 1 << 22

Text = tuple[str, str | None]


@dataclass(frozen=True)
class Prediction:
    """Prediction of a classifier for a text.

    Attributes:
        probabilities: Probability of each class.
        logits: Logits of these probabilities.
        windows: Number of windows that the text was split into.
        lost: Number of truncated tokens, which are in no window.
    """

    probabilities: np.ndarray
    logits: np.ndarray
    windows: int
    lost: int


class Classifier:
    """A loaded classifier with its tokenizer, device and batch size.

    The probabilities of a text of several windows are the means over the windows, weighted by their tokens.

    Args:
        settings: The model and the options; the threshold is not used here.

    Attributes:
        labels: The classes.
        bf16: Whether it runs in bfloat16 mixed precision.

    Raises:
        InputError: if the model is not a complete classifier, or settings do not fit it.
    """

    def __init__(self, settings: ClassifierSettings) -> None:
        model, self._tokenizer = load_classifier(settings.model)
        self.labels = _labels(model.config, settings.model)
        self._encode = Encoder(
            self._tokenizer, input_length(model, self._tokenizer, settings.max_length), settings.stride
        )
        self._device, self._batch_size = best_device(), settings.batch_size
        self._model = model.to(self._device)
        is_float16 = model.dtype == torch.float16
        self.bf16 = use_bf16(settings.bf16, on_cpu=self._device.type == "cpu", fp16=is_float16)

    def __call__(self, texts: Iterable[Text], *, skip: int = 0) -> Iterator[Prediction]:
        """Classify texts, in order.

        Args:
            texts: Pairs of a text and a second text; the second is None in all pairs or in none.
            skip: Number of first texts to skip; predictions of the others are bit for bit the same as without `skip`.

        Raises:
            InputError: for pairs that are too long, if there is a stride.
        """
        for batch in _batches(texts):
            known = min(skip, len(batch))
            skip -= known
            if known == len(batch):
                continue
            encoded = self._encode(batch)
            windows = [window for text in encoded for window in text.windows]
            of_windows, multi_label = self._logits(windows), self.labels.multi_label
            sizes = np.array([len(window["input_ids"]) for window in windows], dtype=np.float64)
            logits = np.empty((len(encoded), len(self.labels.names)))
            start = 0
            for place, text in enumerate(encoded):
                pieces = slice(start, start := start + len(text.windows))
                logits[place] = mean_logits(of_windows[pieces], sizes[pieces], multi_label=multi_label)
            probabilities = class_probabilities(logits, multi_label=multi_label)
            for chances, mean, text in zip(probabilities[known:], logits[known:], encoded[known:], strict=True):
                yield Prediction(chances, mean, len(text.windows), text.lost)

    def fingerprint(self) -> str:
        """Hexadecimal hash of all weights."""
        return fingerprint(self._model)

    def _logits(self, windows: list[Window]) -> np.ndarray:
        """Logits of each window."""
        logits = np.empty((len(windows), len(self.labels.names)), dtype=np.float64)
        for batch in batches(windows, self._batch_size, equal_lengths=self._equal_lengths):
            logits[batch] = self._run([windows[index] for index in batch], bf16=self.bf16)
        return logits

    @functools.cached_property
    def _equal_lengths(self) -> bool:
        """Whether batches must hold texts of equal length; found by running the model."""
        half = self._model.dtype != torch.float32
        return reads_padding(lambda windows: self._run(windows, bf16=False), self._encode, half=half)

    @torch.inference_mode()
    def _run(self, windows: Sequence[Window], *, bf16: bool) -> np.ndarray:
        """Logits of one batch."""
        inputs = self._tokenizer.pad(list(windows), return_tensors="pt").to(self._device)
        with torch.autocast(self._device.type, torch.bfloat16, enabled=bf16), text_errors():
            logits = self._model(**inputs).logits.float().cpu().numpy()
        check_finite(logits, "logits")
        return logits


def read_labels(name: str) -> Labels:
    """The classes of a classifier, without its weights.

    Raises:
        InputError: if the folder does not exist or is incomplete, or holds no classifier.
    """
    if is_local_path(name):
        check_model_folder(Path(name))
    return _labels(read_config(name, f"model: expected a classifier, got {name}"), name)


def trained_columns(name: str) -> Columns:
    """Columns of texts and classes in the fine-tuning of a model; `text` and `label` if its configuration has none.

    Raises:
        InputError: if its configuration cannot be read, or others than this package recorded them.
    """
    if is_local_path(name) and not (Path(name) / "config.json").is_file():
        return Columns("text")  # loading the model raises the error
    config = read_config(name, f"model: expected a classifier, got {name}")
    if (recorded := getattr(config, "trained_columns", None)) is None:
        return Columns("text")
    try:
        columns = Columns(**recorded | {"numbered": tuple(recorded["numbered"])})
    except (TypeError, KeyError):
        columns = Columns("", label="")
    known = columns.text, columns.label, columns.text_pair or "text"
    if not all(isinstance(value, str) and value for value in known):
        raise InputError(f"model: expected trained_columns as finetune writes them in {name}, got {recorded}")
    return columns


def _labels(config: PreTrainedConfig, name: str) -> Labels:
    multi_label = config.problem_type == "multi_label_classification"
    numbers = sorted(config.id2label)
    if numbers != list(range(len(numbers))):
        raise InputError(
            f"model: expected classes numbered from 0 in id2label, got {listed_classes(numbers)} in {name}"
        )
    names = tuple(str(config.id2label[number]) for number in numbers)
    if len(names) < (1 if multi_label else 2) or config.problem_type == "regression":
        kind = "regression" if config.problem_type == "regression" else "model"
        got = f"one with the single output {names[0]!r}" if len(names) == 1 else f"a {kind} with {len(names)} outputs"
        raise InputError(f"model: expected a classifier, got {got} in {name}")
    if len(set(names)) < len(names):
        raise InputError(f"model: expected a name for each class in id2label, got {listed_classes(names)} in {name}")
    return Labels(names, multi_label=multi_label)


def _batches(texts: Iterable[Text]) -> Iterator[list[Text]]:
    """Lists of texts to process together."""
    batch: list[Text] = []
    characters = 0
    for text in texts:
        batch.append(text)
        characters += len(text[0]) + len(text[1] or "")
        if len(batch) == _TEXTS_TOGETHER or characters >= _CHARACTERS_TOGETHER:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
