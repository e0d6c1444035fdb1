"""Compare what methods make of texts that are longer than an encoder's longest input.

`linformer bench documents TEACHER --models STUDENT... --text_file FILES...`: quality on searches and classification,
seconds per document and memory, for each method and length.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from linformer_kit.environment import best_device
from linformer_kit.errors import InputError
from linformer_kit.experiments.experiment import (
    Experiment,
    check_output,
    check_same_settings,
    earlier_file,
    require,
)
from linformer_kit.experiments.measure import in_fresh_process, interleaved, peak_bytes, summary
from linformer_kit.experiments.quality.document_inputs import FACT_TASKS, Inputs, Labelled, longest_length, read_inputs
from linformer_kit.experiments.quality.document_tasks import MOST_FACTS, Search, ranks, search_scores
from linformer_kit.experiments.quality.encoders import load_unit_embedder, regression_accuracy
from linformer_kit.experiments.quality.methods import BUILT, Method, Pieces, build_methods
from linformer_kit.files.manifest import read_json
from linformer_kit.inference.embedder import Embedder
from linformer_kit.interop.loading import fingerprint
from linformer_kit.operator.checks import LONGEST
from linformer_kit.report.documents import write_documents_report
from linformer_kit.settings import LARGEST_SEED, portable
from linformer_kit.settings.documents import DocumentsSettings

_SECONDS = 60.0  # for all runs of one method at one length
_POSITIVE = ("articles", "queries", "candidates", "max_train_samples", "max_eval_samples", "repetitions", "batch_size")
_OF_TEXTS = ("agreement", "late_sentence", "needle", "same_document")  # need text_file
_MAY_CHANGE = ("methods", "models", "names", "resume", "memory", "repetitions", "batch_size")  # when resuming

Task = str
Scores = dict[str, Any]
Reference = Callable[[int], np.ndarray]  # embeddings of `pieces` of the texts of `agreement`, by length


def main(settings: DocumentsSettings) -> None:
    """Measure, write and print."""
    measure_documents(settings).show()


def measure_documents(settings: DocumentsSettings) -> Experiment:
    """Measure the quality of each method on each task at each length, then time and memory.

    Returns:
        The results, as in `documents.json`.

    Raises:
        InputError: for models, texts and settings that cannot be used, before any measurement.
    """
    names = _check(settings)
    tasks = _tasks(settings)
    teacher = _teacher(settings)
    least = teacher.tokenizer.num_special_tokens_to_add(pair=False) + 1
    for name in ("lengths", "fact_lengths"):
        require(min(getattr(settings, name)) >= least, name, f"{least} or more", min(getattr(settings, name)))
    inputs = read_inputs(settings, tasks, teacher.tokenizer, teacher.longest)
    for task in inputs.facts:
        inputs.search(task, min(settings.fact_lengths))  # raises an error now if the facts do not fit
    methods = build_methods(settings, names, teacher, longest_length(settings, tasks))
    experiment = Experiment(
        "bench documents",
        settings.output_dir,
        device=best_device(),
        settings=portable(settings) | {"tasks": tasks},
        write=write_documents_report,
        fields=_fields(settings, tasks, teacher, inputs, methods),
    )
    pieces = Pieces(teacher, teacher.longest)
    reference = functools.cache(lambda length: pieces(inputs.prefixes(inputs.long, length), "agreement, reference"))
    with experiment:
        experiment.save()  # so that the folder can be resumed
        for task in tasks:
            for name, method in methods.items():
                _measure_quality(experiment, settings, inputs, (task, name), method, reference)
        for length in sorted(settings.lengths):
            _measure_cost(experiment, settings, names, inputs, methods, length)
        experiment.finish()
    return experiment


def _measure_quality(
    experiment: Experiment,
    settings: DocumentsSettings,
    inputs: Inputs,
    what: tuple[Task, str],
    method: Method,
    reference: Reference,
) -> None:
    """Measure a method on a task at each length; write after each. What an earlier run measured is kept."""
    task, name = what
    scores = experiment.results["scores"][task].setdefault(name, {})
    read: dict[int, Scores] = {}  # by the number of tokens that the method reads
    for length in sorted(settings.fact_lengths if task in FACT_TASKS else settings.lengths):
        # The documents of hidden facts and the reference differ between lengths, other texts only in their number of
        # tokens.
        reads = length if task in (*FACT_TASKS, "agreement") else method.reads(length)
        if str(length) not in scores:
            scores[str(length)] = read.get(reads) or _scores(
                inputs, task, method, reads, f"{task}, {name}, {length} tokens", reference
            )
            experiment.save()
        read[reads] = scores[str(length)]


def _scores(inputs: Inputs, task: Task, method: Method, length: int, what: str, reference: Reference) -> Scores:
    if task == "agreement":
        cosines = (method(inputs.prefixes(inputs.long, length), what) * reference(length)).sum(axis=1)
        return {"cosine": float(cosines.mean()), "lowest": float(cosines.min())}
    if task == "classification":
        train, validation = (
            _features(inputs, side, method, length, what) for side in (inputs.train, inputs.validation)
        )
        return {"accuracy": regression_accuracy(train, validation)}
    found = _ranks(inputs.search(task, length), method, what)
    if task != "late_sentence":
        return search_scores(found)
    position = np.array([sentence.position for sentence in inputs.sentences])
    late = found[position > 0]
    by_position = [search_scores(found[position == number]) for number in range(len(inputs.ranges))]
    return (search_scores(late) if late.size else {}) | {"positions": by_position}


def _ranks(search: Search, method: Method, what: str) -> np.ndarray:
    return ranks(method(search.queries, what), method(search.documents, what), search.targets)


def _features(inputs: Inputs, side: Labelled, method: Method, length: int, what: str) -> tuple[np.ndarray, list[Any]]:
    return method(inputs.prefixes(side[0], length), what), side[1]


def _measure_cost(
    experiment: Experiment,
    settings: DocumentsSettings,
    models: dict[str, str],
    inputs: Inputs,
    methods: dict[str, Method],
    length: int,
) -> None:
    """Measure the time of all methods for a document of one length, then the memory of each; write after each."""
    costs = experiment.results["cost"]
    (document,) = inputs.prefixes([inputs.noise], length)
    if any(str(length) not in costs.get(name, {}) for name in methods):
        cases = {name: lambda method=method: method([document], "time") for name, method in methods.items()}
        timings = interleaved(cases, device=best_device(), repetitions=settings.repetitions, seconds=_SECONDS)
        for name, runs in timings.items():
            costs.setdefault(name, {}).setdefault(str(length), {"peak_bytes": None}).update(summary(runs))
        experiment.save()  # keeps the times if memory runs out below
    torch.cuda.empty_cache()  # the processes that measure memory share the device
    for name in methods if settings.memory else ():
        cost = costs[name][str(length)]
        if cost["peak_bytes"] is None:
            chosen = dataclasses.replace(settings, methods=[each for each in settings.methods if each == name])
            own = {name: models[name]} if name in models else {}
            cost["peak_bytes"] = in_fresh_process(_peak, chosen, own, document, torch.get_num_threads())
            experiment.save()


def _peak(settings: DocumentsSettings, models: dict[str, str], document: str, threads: int) -> int:
    """Peak memory of one method for a document, in addition to the model's own; runs in a fresh process."""
    torch.set_num_threads(threads)
    longest = longest_length(settings, _tasks(settings))
    (method,) = build_methods(settings, models, _teacher(settings), longest).values()
    method([document], "memory")
    return peak_bytes(lambda: method([document], "memory"), best_device())


def _teacher(settings: DocumentsSettings) -> Embedder:
    teacher = load_unit_embedder(settings.teacher, settings, field="teacher")
    require(teacher.tokenizer.is_fast, "teacher", "a fast tokenizer (tokenizer.json)", "a slow one")
    return teacher


def _tasks(settings: DocumentsSettings) -> list[Task]:
    """The tasks of the settings, by default all whose texts are given."""
    texts, labelled = settings.text_file is not None, bool(settings.labelled_task or settings.train_file)
    given = {
        "agreement": texts,
        "late_sentence": texts,
        "passkey": True,
        "needle": texts,
        "same_document": texts,
        "classification": labelled,
    }
    tasks = settings.tasks if settings.tasks is not None else [task for task, there in given.items() if there]
    for task in tasks:
        source = "text_file" if task in _OF_TEXTS else "train_file or labelled_task"
        require(given[task], source, f"texts for the task {task}", "none")
    return list(tasks)


def _fields(
    settings: DocumentsSettings, tasks: list[Task], teacher: Embedder, inputs: Inputs, methods: dict[str, Method]
) -> dict[str, Any]:
    """Fields of the results, with the measurements of an earlier run if it is resumed."""
    fields: dict[str, Any] = {
        "teacher_length": teacher.longest,
        "teacher_fingerprint": fingerprint(teacher.model),
        "texts_fingerprint": inputs.fingerprint(),
        "positions": [list(edges) for edges in inputs.ranges],
        "labelled": [len(side[0]) for side in (inputs.train, inputs.validation)],
        "methods": {
            name: {
                "parameters": method.embedder.model.num_parameters(),
                "reads": method.reads(LONGEST),
                "fingerprint": fingerprint(method.embedder.model),
            }
            for name, method in methods.items()
        },
        "scores": {task: {} for task in tasks},
        "cost": {},
        "complete": False,
    }
    earlier = earlier_file(settings.output_dir, "documents", resume=settings.resume)
    return fields if earlier is None else fields | _kept(read_json(earlier), settings, tasks, fields, earlier)


def _kept(
    before: dict[str, Any], settings: DocumentsSettings, tasks: list[Task], fields: dict[str, Any], path: Path
) -> dict[str, Any]:
    """Scores and costs of an earlier run with the same settings; methods and models may be added."""
    check_same_settings(before, portable(settings, without=_MAY_CHANGE) | {"tasks": tasks}, path)
    for name, what in (("teacher_fingerprint", "the teacher"), ("texts_fingerprint", "the texts")):
        if before[name] != fields[name]:
            raise InputError(f"resume: expected {what} of {path}, got others")
    for name, method in before["methods"].items():
        if fields["methods"].get(name, method)["fingerprint"] != method["fingerprint"]:
            raise InputError(f"resume: expected the model {name} of {path}, got another one")
    return {
        "methods": before["methods"] | fields["methods"],
        "scores": {task: before["scores"][task] for task in tasks},
        "cost": before["cost"],
    }


def _check(settings: DocumentsSettings) -> dict[str, str]:
    """Check the settings; return the models by their names in the results."""
    for name in _POSITIVE:
        require(getattr(settings, name) >= 1, name, "1 or more", getattr(settings, name))
    require(settings.candidates <= MOST_FACTS, "candidates", f"at most {MOST_FACTS}", settings.candidates)
    require(0 <= settings.seed <= LARGEST_SEED, "seed", f"0 to {LARGEST_SEED}", settings.seed)
    for name in ("lengths", "fact_lengths"):
        lengths = getattr(settings, name)
        fits = bool(lengths) and len(set(lengths)) == len(lengths) and all(1 <= length <= LONGEST for length in lengths)
        require(fits, name, f"one or more different lengths from 1 to {LONGEST:,}", lengths)
    for name in ("methods", "tasks"):
        values = getattr(settings, name) or []
        require(len(set(values)) == len(values), name, "each once", values)
    require(bool(settings.methods or settings.models), "methods, models", "one or more", "none")
    names = settings.names or [Path(model).name for model in settings.models]
    different = len({*names, *BUILT}) == len(settings.models) + len(BUILT) and len(names) == len(settings.models)
    require(different, "names", f"{len(settings.models)} different names, none of a method", names)
    fits = settings.min_tokens is None or bool(settings.labelled_task or settings.train_file)
    require(fits, "min_tokens", "none without labelled_task or train_file", settings.min_tokens)
    earlier = earlier_file(settings.output_dir, "documents", resume=settings.resume)
    check_output(settings.output_dir, resume=earlier is not None)
    return dict(zip(names, settings.models, strict=True))
