"""Run any text classifier that transformers can load: texts in, probabilities of the classes out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int
from transformers import PreTrainedConfig

from linformer_cli.errors import InputError, input_errors
from linformer_cli.settings import ClassifierSettings, is_local_path
from linformer_kit.data.examples import Columns, Labels, listed_classes
from linformer_kit.data.tokenizer import Encoder, Window
from linformer_kit.environment import best_device
from linformer_kit.inference.batches import Batches, Text
from linformer_kit.interop.checkpoints.pretrained import read_config
from linformer_kit.interop.loading import check_model_folder, fingerprint, input_length, load_classifier


class Classifier:
    """A loaded classifier with its tokenizer, device and batch size.

    Args:
        settings: The model and the options; the threshold is not used here.

    Attributes:
        labels: The classes.
        bf16: Whether it runs in bfloat16 mixed precision.

    Raises:
        InputError: if the model is not a complete classifier, or settings do not fit it.
    """

    def __init__(self, settings: ClassifierSettings) -> None:
        model, tokenizer = load_classifier(settings.model)
        self.labels = _labels(model.config, settings.model)
        self._encode = Encoder(tokenizer, input_length(model, tokenizer, settings.max_length))
        self._model = model.to(best_device())
        self._batches = Batches(self._model, tokenizer, settings, self._logits)
        self.bf16 = self._batches.bf16

    def __call__(self, texts: Sequence[Text]) -> tuple[Float[np.ndarray, "texts classes"], Int[np.ndarray, " texts"]]:
        """Classify texts.

        Args:
            texts: Pairs of a text and a second text; the second is None in all pairs or in none.

        Returns:
            Logits, and the number of truncated tokens of each text.
        """
        encoded = self._encode(texts)
        windows = [text.window for text in encoded]
        logits = self._batches(windows, lambda batch: self._logits([windows[index] for index in batch]))
        return np.stack(logits), np.array([text.lost for text in encoded])

    def fingerprint(self) -> str:
        """Hexadecimal hash of all weights."""
        return fingerprint(self._model)

    def _logits(self, windows: list[Window]) -> np.ndarray:
        return self._model(**self._batches.pad(windows)).logits.float().cpu().numpy()


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
    with input_errors(f"model: expected trained_columns as finetune writes them in {name}, got {recorded}"):
        return Columns(**recorded | {"numbered": tuple(recorded["numbered"])})


def _labels(config: PreTrainedConfig, name: str) -> Labels:
    multi_label = config.problem_type == "multi_label_classification"
    numbers = sorted(config.id2label)
    if config.problem_type == "regression" or len(numbers) < (1 if multi_label else 2):
        what = "a regression" if config.problem_type == "regression" else f"a model with {len(numbers)} outputs"
        raise InputError(f"model: expected a classifier, got {what} in {name}")
    names = tuple(str(config.id2label[number]) for number in numbers)
    if numbers != list(range(len(numbers))) or len(set(names)) < len(names):
        expected = "different classes, numbered from 0, in id2label"
        raise InputError(f"model: expected {expected}, got {listed_classes(names)} in {name}")
    return Labels(names, multi_label=multi_label)
