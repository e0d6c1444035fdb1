"""Run any text classifier that transformers can load: texts in, probabilities of the classes out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from linformer_cli.errors import InputError, input_errors
from linformer_cli.settings import ClassifierSettings
from linformer_kit.data.examples import Columns, Labels, listed_classes
from linformer_kit.data.read import Text
from linformer_kit.data.tokenizer import Window
from linformer_kit.inference.batches import TextModel
from linformer_kit.interop.checkpoints.pretrained import read_config
from linformer_kit.interop.loading import fingerprint, load_classifier


class Classifier(TextModel):
    """A loaded classifier.

    Args:
        settings: The model and the options; the threshold is not used here.

    Attributes:
        labels: The classes.

    Raises:
        InputError: if the model is not a complete classifier, or settings do not fit it.
    """

    def __init__(self, settings: ClassifierSettings) -> None:
        model, tokenizer = load_classifier(settings.model)
        self.labels, _ = read_classes(settings.model)
        super().__init__(model, tokenizer, settings.max_length, batch_size=settings.batch_size, bf16=settings.bf16)

    def __call__(self, texts: Sequence[Text]) -> tuple[Float[np.ndarray, "texts classes"], Int[np.ndarray, " texts"]]:
        """Classify texts.

        Args:
            texts: Pairs of a text and a second text; the second is None in all pairs or in none.

        Returns:
            Logits, and the number of truncated tokens of each text.
        """
        encoded = self.encode(texts)
        return np.stack(self.outputs([text.window for text in encoded])), np.array([text.lost for text in encoded])

    def forward(self, windows: Sequence[Window]) -> np.ndarray:
        return self.model(**self.pad(windows)).logits.float().cpu().numpy()

    def identity(self) -> dict[str, Any]:
        """What the outputs depend on besides the texts."""
        return {
            "model_fingerprint": fingerprint(self.model),
            "labels": list(self.labels.names),
            "max_length": self.limit,
            "bf16": self.bf16,
        }


def read_classes(name: str) -> tuple[Labels, Columns]:
    """The classes of a classifier, and the columns of its fine-tuning, without its weights.

    The columns are `text` and `label` if its configuration has none.

    Raises:
        InputError: if the model does not exist or is not a classifier, or its configuration is malformed.
    """
    config = read_config(name, f"model: expected a classifier, got {name}")
    multi_label = config.problem_type == "multi_label_classification"
    numbers = sorted(config.id2label)
    if config.problem_type == "regression" or len(numbers) < (1 if multi_label else 2):
        what = "a regression" if config.problem_type == "regression" else f"a model with {len(numbers)} outputs"
        raise InputError(f"model: expected a classifier, got {what} in {name}")
    names = tuple(str(config.id2label[number]) for number in numbers)
    if numbers != list(range(len(numbers))) or len(set(names)) < len(names):
        expected = "different classes, numbered from 0, in id2label"
        raise InputError(f"model: expected {expected}, got {listed_classes(names)} in {name}")
    recorded = getattr(config, "trained_columns", None) or {"text": "text", "numbered": ()}
    with input_errors(f"model: expected trained_columns as finetune writes them in {name}, got {recorded}"):
        columns = Columns(**recorded | {"numbered": tuple(recorded["numbered"])})
    return Labels(names, multi_label=multi_label), columns
