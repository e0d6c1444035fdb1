"""`linformer export`: write the folder, check it against PyTorch, and measure what int8 loses and the time."""

from __future__ import annotations

import functools
import importlib.util
import statistics
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from itertools import islice
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from linformer_cli.errors import InputError, renamed
from linformer_cli.settings import EvaluateSettings, ExportSettings, portable
from linformer_kit.analysis.measure import interleaved
from linformer_kit.data.labelled import load_measured, metrics_of
from linformer_kit.data.read import TextColumns, read_texts
from linformer_kit.data.tokenizer import Encoder, Window
from linformer_kit.environment import environment, versions
from linformer_kit.export.exportable import (
    CLASSIFIER,
    ENCODER,
    Arrays,
    Case,
    Run,
    Source,
    cases,
    differences,
    load,
    random_inputs,
)
from linformer_kit.files.folders import check_new_folder
from linformer_kit.files.manifest import write_manifest
from linformer_kit.files.writing import whole_folder
from linformer_kit.inference.batches import Text, by_length
from linformer_kit.inference.classifier import read_labels, trained_columns
from linformer_kit.inference.files import check_text_column, file_of_texts
from linformer_kit.inference.scores import answers_of, scores
from linformer_kit.report.base import write_json

_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
_OF_VALIDATION = ("text_column", "text_pair_column", "label_column", "max_eval_samples")
_PYTORCH = "PyTorch"
_ROWS = 16  # texts in a batch
_PAUSE = 0.1  # seconds before the runs of each are timed
_SHORT = 512  # tokens of the shorter of the two timed inputs

Quality = tuple[str, Callable[[Run], float]]  # name of the measure, and the function that computes it


def export(settings: ExportSettings) -> dict[str, Any]:
    """Write a model as an ONNX file, in float32 or int8, and its tokenizer.

    Returns:
        The description and the measurements of the result, as in `export.json`.

    Raises:
        InputError: for settings that contradict each other or the model, libraries that are not installed, or a result
            that does not agree with PyTorch. Nothing is written then.
    """
    _check(settings)
    out = check_new_folder("out", settings.out)
    source = load(settings.model)
    quality = None if settings.validation_file is None else quality_of(settings, source)
    with whole_folder(out) as folder:
        from linformer_kit.export.onnx_file import make  # imports the packages

        forms, size, agreement = make(settings, source, folder)
        runs = {_PYTORCH: source.exportable.run, **forms}
        *_, written = runs.values()
        results: dict[str, Any] = {
            "command": "export",
            "model": type(source.exportable.model).__name__,
            "inputs": list(source.exportable.input_names),
            "outputs": list(source.exportable.head.outputs),
            "max_length": source.limit,
            "bytes": {_PYTORCH: source.exportable.size, **size},
            "agreement": agreement,
        }
        if settings.int8:
            results["int8_difference"] = max(differences(source, written, cases(source.limit)).values())
        if quality is not None:
            name, measure = quality
            results["quality"] = {"measure": name, "float32": measure(runs[_PYTORCH]), "int8": measure(written)}
        if settings.benchmark:
            results["seconds"] = _seconds(source, runs)
        results["environment"] = environment(torch.device("cpu"))
        results["settings"] = portable(settings)
        results["versions"] = versions() | {name: version(name) for name in _PACKAGES}
        source.tokenizer.save_pretrained(folder)
        write_json(results, folder / "export.json")
        write_manifest(folder)
    return results


def _check(settings: ExportSettings) -> None:
    """Reject contradictory settings and missing packages before any work."""
    for name in _OF_VALIDATION if settings.validation_file is None else ():
        if (value := getattr(settings, name)) is not None:
            raise InputError(f"{name}: expected none without validation_file, got {value!r}")
    if settings.validation_file is not None and not settings.int8:
        expected = "none without int8, whose loss of accuracy it measures"
        raise InputError(f"validation_file: expected {expected}, got {settings.validation_file!r}")
    for package in _PACKAGES:
        if importlib.util.find_spec(package) is None:
            needed = f"{', '.join(_PACKAGES)} to be installed (pip install 'linformer-kit[export]')"
            raise InputError(f"export: expected {needed}, got no {package}")


def _seconds(source: Source, runs: dict[str, Run]) -> list[dict[str, Any]]:
    """Median seconds of each run for one text."""
    rows = []
    for length in sorted({min(_SHORT, source.limit), source.limit}):
        inputs = random_inputs(source, Case(1, length))
        row: dict[str, Any] = {"length": length}
        for name, run in runs.items():
            time.sleep(_PAUSE)  # threads of ONNX Runtime wait for more work without sleeping after a run
            timed = interleaved({name: functools.partial(run, inputs)}, device=torch.device("cpu"), repetitions=15)
            row[name] = statistics.median(timed[name])
        rows.append(row)
    return rows


def quality_of(settings: ExportSettings, source: Source) -> Quality:
    """Name of the measure and a function that computes it; the texts are read and checked in this call.

    Classifiers: accuracy, or micro_f1 for multi-label. Encoders without a head: cosine of mean embeddings with those
    of PyTorch in float32.

    Raises:
        InputError: for a model with another head, and for texts or classes that cannot be used.
    """
    head = source.exportable.head
    if head == CLASSIFIER:
        return _classifier_quality(settings, source)
    if head != ENCODER:
        raise InputError(f"validation_file: expected none for {head.kind}, got {settings.validation_file}")
    windows = _encoded(source, _texts(settings))

    def measure(run: Run) -> float:
        cosines = [
            _cosines(source.exportable.run(inputs)[0], run(inputs)[0], inputs)
            for _, inputs in _batches(source, windows)
        ]
        return float(np.concatenate(cosines).mean())

    return "cosine with float32", measure


def _classifier_quality(settings: ExportSettings, source: Source) -> Quality:
    labelled = EvaluateSettings(
        model=settings.model,
        validation_file=[str(settings.validation_file)],
        **{name: getattr(settings, name) for name in _OF_VALIDATION},
    )
    examples, labels, columns = load_measured(labelled, read_labels(settings.model), trained_columns(settings.model))
    right = np.array([labels.target(example, column=columns.label) for example in examples])
    windows = _encoded(source, [(example.text, example.text_pair) for example in examples])
    metric = metrics_of(labels)[0]

    def measure(run: Run) -> float:
        logits = np.empty((len(windows), len(labels.names)))
        for places, inputs in _batches(source, windows):
            logits[places] = run(inputs)[0]
        answers = answers_of(logits, multi_label=labels.multi_label)
        return scores(answers, right, (metric,), len(labels.names))[metric]

    return metric, measure


def _cosines(ours: np.ndarray, theirs: np.ndarray, inputs: Arrays) -> np.ndarray:
    real = inputs["attention_mask"][..., None] == 1
    one, other = (np.where(real, outputs, 0).sum(axis=1) for outputs in (ours, theirs))
    return (one * other).sum(axis=1) / (np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1))


def _texts(settings: ExportSettings) -> list[Text]:
    """The first texts of a file; classes are not read."""
    if settings.label_column is not None:
        raise InputError(f"label_column: expected none for an encoder without a head, got {settings.label_column!r}")
    with renamed("file", "validation_file"):
        path = file_of_texts(str(settings.validation_file))
    for field in ("text_column", "text_pair_column"):
        check_text_column(getattr(settings, field), path, field=field)
    columns = TextColumns(settings.text_column or "text", settings.text_pair_column)
    return list(islice(read_texts(path, columns), settings.max_eval_samples))


def _encoded(source: Source, texts: list[Text]) -> list[Window]:
    if not texts:
        raise InputError("validation_file: expected texts, got none")
    return [text.window for text in Encoder(source.tokenizer, source.limit)(texts)]


def _batches(source: Source, windows: list[Window]) -> Iterator[tuple[list[int], Arrays]]:
    """Batches of texts of similar length: their indices and their padded inputs."""
    exportable, tokenizer, _ = source
    for places in tqdm(by_length(windows, _ROWS), desc="measure", unit=" batches", dynamic_ncols=True, delay=2):
        padded = tokenizer.pad([windows[place] for place in places], return_tensors="np")
        yield places, {name: padded[name].astype(np.int64) for name in exportable.input_names}
