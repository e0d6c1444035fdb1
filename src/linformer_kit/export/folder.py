"""`linformer export`: write the folder, check it against PyTorch and measure it."""

from __future__ import annotations

import functools
import importlib.util
import statistics
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import torch

from linformer_kit.analysis.measure import interleaved
from linformer_kit.environment import environment, versions
from linformer_kit.errors import InputError
from linformer_kit.export.agreement import Case, cases, difference, random_inputs
from linformer_kit.export.exportable import Made, Run, Source, load
from linformer_kit.export.quality import quality_of
from linformer_kit.files.folders import check_new_folder
from linformer_kit.files.manifest import write_manifest
from linformer_kit.files.writing import whole_folder
from linformer_kit.report.base import write_json
from linformer_kit.settings import ExportSettings, portable

_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
_OF_VALIDATION = ("text_column", "text_pair_column", "label_column", "max_eval_samples")
_PYTORCH = "PyTorch"
_PAUSE = 0.1  # seconds before the runs of each are timed
_SHORT = 512  # tokens of the shorter of the two timed inputs


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

        made = make(settings, source, folder)
        results = _measured(settings, source, made, quality)
        source.tokenizer.save_pretrained(folder)
        write_json(results, folder / "export.json")
        write_manifest(folder)
    return results


def _measured(
    settings: ExportSettings, source: Source, made: Made, quality: tuple[str, Callable[[Run], float]] | None
) -> dict[str, Any]:
    """Description and measurements of the export; the last entry of `made` is the written form."""
    runs = {_PYTORCH: source.exportable.run, **made.runs}
    *_, last = runs
    results: dict[str, Any] = {
        "command": "export",
        "model": type(source.exportable.model).__name__,
        "inputs": list(source.exportable.input_names),
        "outputs": list(source.exportable.head.outputs),
        "max_length": source.limit,
        "bytes": {_PYTORCH: source.exportable.size, **made.size},
        "agreement": made.agreement,
    }
    if settings.int8:
        results["int8_difference"] = max(_differences(source, runs[last]))
    if quality is not None:
        name, measure = quality
        results["quality"] = {"measure": name, "float32": measure(runs[_PYTORCH]), "int8": measure(runs[last])}
    if settings.benchmark or settings.int8:
        results["seconds"] = _seconds(source, runs)
        results["environment"] = environment(torch.device("cpu"))
    results["settings"] = portable(settings)
    results["versions"] = versions() | {name: version(name) for name in _PACKAGES}
    return results


def _check(settings: ExportSettings) -> None:
    """Reject contradictory settings and missing packages before any work."""
    for name in _OF_VALIDATION if settings.validation_file is None else ():
        if (value := getattr(settings, name)) is not None:
            raise InputError(f"{name}: expected none without validation_file, got {value!r}")
    if settings.validation_file is not None and not settings.int8:
        raise InputError(
            "validation_file: expected none without int8, whose loss of accuracy it measures, "
            f"got {settings.validation_file!r}"
        )
    for package in _PACKAGES:
        if importlib.util.find_spec(package) is None:
            raise InputError(
                f"export: expected {', '.join(_PACKAGES)} to be installed (pip install 'linformer-kit[export]'), "
                f"got no {package}"
            )


def _differences(source: Source, run: Run) -> Iterator[float]:
    for case in cases(source.limit):
        inputs = random_inputs(source, case)
        yield difference(source.exportable, inputs, run(inputs), source.exportable.run(inputs))


def _seconds(source: Source, runs: dict[str, Run]) -> list[dict[str, Any]]:
    """Median seconds of each run for one text."""
    rows = []
    for length in sorted({min(_SHORT, source.limit), source.limit}):
        inputs = random_inputs(source, Case(1, length, "none"))
        row: dict[str, Any] = {"length": length}
        for name, run in runs.items():
            time.sleep(_PAUSE)  # threads of ONNX Runtime wait for more work without sleeping after a run
            timed = interleaved({name: functools.partial(run, inputs)}, device=torch.device("cpu"), repetitions=15)
            row[name] = statistics.median(timed[name])
        rows.append(row)
    return rows
