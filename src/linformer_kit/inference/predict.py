"""Text classifiers that transformers can load, and the classification of any number of texts in constant memory."""

from __future__ import annotations

import itertools
import json
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from transformers import AutoModelForSequenceClassification, PreTrainedConfig

from linformer_cli.errors import InputError, check_input, input_errors
from linformer_cli.settings import ClassifierSettings, PredictSettings
from linformer_kit.data.labelled import Columns, Labels, listed_classes
from linformer_kit.data.read import TextColumns
from linformer_kit.data.tokenizer import Window, tokenizer_fingerprint
from linformer_kit.inference.batches import Group, TextModel
from linformer_kit.inference.output import InputTexts, OutputFile
from linformer_kit.inference.scores import answers_of, class_probabilities, names_of
from linformer_kit.interop.checkpoints import read_config
from linformer_kit.interop.loading import load_model, model_fingerprint
from linformer_kit.report.environment import WEIGHT_DTYPES, device_of

_DIGITS = 6
_KIND = "a classifier (`linformer finetune` makes one)"


def main(settings: PredictSettings) -> None:
    """Classify the texts of files; write one line of JSON for each, to a file or to standard output.

    A line has `row` (from 1, counted over all rows of the files), `label` (a list of labels if the model is
    multi-label), `probabilities` by class and, if the text was truncated, `lost_tokens`. The numbers of texts of each
    class are printed to standard error, and the rows of each file if there are several.

    Raises:
        InputError: for a file that cannot be read (nothing is written) and a model that is not a classifier.
    """
    if settings.out is None and settings.resume:
        raise InputError("resume: expected an output to resume, got none")
    texts = InputTexts(settings, first_row=1)
    output = OutputFile(settings, texts)
    trained = read_classifier(settings.model)
    columns = TextColumns(
        settings.text_column or trained.columns.text, settings.text_pair_column or trained.columns.text_pair
    )
    texts.find(columns, document="line")
    classifier = Classifier(settings, trained)
    identity = {
        "model_fingerprint": model_fingerprint(classifier.model),
        "tokenizer_fingerprint": tokenizer_fingerprint(classifier.tokenizer),
        "labels": list(trained.labels.names),
        "max_length": classifier.limit,
        **columns.names(),
    }
    progress = output.write(classifier, identity, classifier.lines)
    shown = ", ".join(f"{progress.counts.get(name, 0):,} {name}" for name in trained.labels.names)
    truncated = f"; {progress.truncated:,} truncated" if progress.truncated else ""
    print(f"{progress.texts:,} texts: {shown}{truncated}", file=sys.stderr)
    print(texts.rows_by_file(), end="", file=sys.stderr)


class Trained(NamedTuple):
    """What the configuration of a classifier says: its classes, and how its fine-tuning read texts."""

    labels: Labels
    columns: Columns
    config: PreTrainedConfig
    pieces: bool


class Classifier(TextModel):
    """A loaded classifier.

    Args:
        settings: The model, its device, and the size and precision of batches.
        trained: The result of `read_classifier` for the model; None: read it.

    Attributes:
        labels: Its classes.
    """

    def __init__(self, settings: ClassifierSettings, trained: Trained | None = None) -> None:
        device = device_of(settings.device)
        self.labels, _, config, self.pieces = trained or read_classifier(settings.model)
        auto_class = AutoModelForSequenceClassification
        model, tokenizer, *_ = load_model(settings.model, auto_class, _KIND, config=config)
        self._threshold = settings.threshold
        model.to(WEIGHT_DTYPES[settings.dtype])
        super().__init__(model, tokenizer, settings.max_length, settings.batch_size, device)

    def lines(self, group: Group, done: int) -> tuple[bytes, Counter[str]]:
        """The predictions for consecutive texts as JSON Lines, and the number of each class among them.

        `done` is the number of texts before them.
        """
        logits, lost_tokens = group
        counts: Counter[str] = Counter()
        answers = answers_of(logits, multi_label=self.labels.multi_label, threshold=self._threshold)
        probabilities = class_probabilities(logits, multi_label=self.labels.multi_label).round(_DIGITS).tolist()
        lines = []
        for row, answer, chances, lost in zip(itertools.count(done + 1), answers, probabilities, lost_tokens.tolist()):
            label = names_of(answer, self.labels)
            line: dict[str, Any] = {"row": row, "label": label}
            line |= {"probabilities": dict(zip(self.labels.names, chances, strict=True))}
            line |= {"lost_tokens": lost} if lost else {}
            lines.append(json.dumps(line, ensure_ascii=False) + "\n")
            counts.update([label] if isinstance(label, str) else label)
        return "".join(lines).encode(), counts

    def forward(self, windows: Sequence[Window]) -> np.ndarray:
        return self.model(**self.pad(windows)).logits.float().cpu().numpy()


def read_classifier(name: str) -> Trained:
    """Read and check the configuration of a classifier, without its weights.

    The columns are `text` and `label` if its configuration has none.

    Raises:
        InputError: if the model does not exist or is not a classifier, or its configuration is malformed.
    """
    config = read_config(name, f"model: expected {_KIND}, got {name}")
    named = config.architectures
    if isinstance(named, list) and not any("ForSequenceClassification" in str(each) for each in named):
        raise InputError(f"model: expected {_KIND}, got {', '.join(map(str, named))} in {name}")
    multi_label = config.problem_type == "multi_label_classification"
    numbers = sorted(config.id2label)
    if config.problem_type == "regression" or len(numbers) < (1 if multi_label else 2):
        what = "a regression" if config.problem_type == "regression" else f"a model with {len(numbers)} outputs"
        raise InputError(f"model: expected a classifier, got {what} in {name}")
    names = tuple(str(config.id2label[number]) for number in numbers)
    if numbers != list(range(len(numbers))) or len(set(names)) < len(names):
        expected = "different classes, numbered from 0, in id2label"
        raise InputError(f"model: expected {expected}, got {listed_classes(names)} in {name}")
    recorded = getattr(config, "trained_columns", None) or {"text": "text"}
    with input_errors(f"model: expected trained_columns as finetune writes them in {name}, got {recorded}"):
        columns = Columns(**recorded)
    pieces = getattr(config, "trained_pieces", False)
    check_input(isinstance(pieces, bool), f"trained_pieces in {name}", "true or false", pieces)
    return Trained(Labels(names, multi_label=multi_label), columns, config, pieces)
