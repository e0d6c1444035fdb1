"""Compare linear students of a sentence embedder with their teacher: embeddings, tasks, time and memory.

`linformer bench embeddings TEACHER STUDENT...`: the others are compared with the first model.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from linformer_kit.data.documents import read_documents
from linformer_kit.data.encoding import Encoder
from linformer_kit.data.examples import Example
from linformer_kit.data.files import find_files
from linformer_kit.data.labelled import load_labelled
from linformer_kit.environment import best_device
from linformer_kit.errors import renamed
from linformer_kit.experiments.experiment import Experiment, check_output, require
from linformer_kit.experiments.measure import in_fresh_process, interleaved, peak_bytes, summary
from linformer_kit.experiments.quality.encoders import lengthened, load_unit_embedder, regression_accuracy
from linformer_kit.inference.embedder import Embedder
from linformer_kit.operator.checks import LONGEST
from linformer_kit.report.embeddings import write_embeddings_report
from linformer_kit.settings import FinetuneSettings, portable
from linformer_kit.settings.bench import EmbeddingsSettings

Side = tuple[list[Example], list[Any]]  # texts and their classes

_CHARACTERS = 6  # per token, an upper limit of the mean
_MOST_CHARACTERS = 100_000  # of a text; the rest is dropped, as it is beyond every length
_SECONDS = 60.0  # for all runs of one model at one length


def main(settings: EmbeddingsSettings) -> None:
    """Measure, write and print."""
    measure_embeddings(settings).show()


def measure_embeddings(settings: EmbeddingsSettings) -> Experiment:
    """Measure the cosine to the first model's embeddings, accuracy of a logistic regression on them, and their cost.

    Returns:
        The results, as in `embeddings.json`.

    Raises:
        InputError: for models, texts and tasks that cannot be used.
    """
    names = _check(settings)
    passages = _passages(settings)
    tasks: dict[str, tuple[Side, Side]] = {name: _task(settings, name) for name in settings.tasks}
    embedders = {name: load_unit_embedder(model, settings) for name, model in names.items()}
    if passages:
        _check_embedders(settings, embedders)
    experiment = Experiment(
        "bench embeddings",
        settings.output_dir,
        device=best_device(),
        settings=portable(settings),
        write=write_embeddings_report,
        fields={"models": {name: {} for name in names}, "complete": False},
    )
    with experiment:
        _measure_quality(experiment, settings, embedders, passages, tasks)
        for length in settings.lengths:
            _measure_cost(experiment, settings, embedders, names, length)
        experiment.finish()
    return experiment


def _check_embedders(settings: EmbeddingsSettings, embedders: dict[str, Embedder]) -> None:
    """Reject models whose embeddings differ in width, or that do not take the lengths."""
    width = next(iter(embedders.values())).width
    for name, embedder in embedders.items():
        require(embedder.width == width, "models", f"embeddings of one width, {width}", embedder.width)
        for length in settings.cosine_lengths:
            limit = embedder.longest
            require(length <= limit, "cosine_lengths", f"at most {limit:,} (the limit of {name})", length)
            with renamed("max_length", "cosine_lengths"):
                Encoder(embedder.tokenizer, length)


def _measure_quality(
    experiment: Experiment,
    settings: EmbeddingsSettings,
    embedders: dict[str, Embedder],
    passages: list[str],
    tasks: dict[str, tuple[Side, Side]],
) -> None:
    """Measure the cosine to the first model's embeddings and the accuracy on the tasks; write after each model."""
    reference: dict[int, np.ndarray] = {}
    for name, embedder in embedders.items():
        found = experiment.results["models"][name]
        found["parameters"] = embedder.model.num_parameters()
        found["longest"] = embedder.longest
        found["cosine"] = {}
        for length in settings.cosine_lengths if passages else ():
            embedder.truncate(length)
            vectors = embedder.embed(passages, f"{name}, {length} tokens")
            cosine = (vectors * reference.setdefault(length, vectors)).sum(axis=1)
            found["cosine"][str(length)] = {"mean": float(cosine.mean()), "least": float(cosine.min())}
        embedder.truncate(embedder.longest)
        found["accuracy"] = {task: _accuracy(embedder, *sides, f"{name}, {task}") for task, sides in tasks.items()}
        experiment.save()


def _measure_cost(
    experiment: Experiment,
    settings: EmbeddingsSettings,
    embedders: dict[str, Embedder],
    names: dict[str, str],
    length: int,
) -> None:
    """Measure the time of all models at one length, then the memory of each; write after each."""
    models = experiment.results["models"]
    for name, timing in _times(embedders, length, settings).items():
        models[name].setdefault("cost", {})[str(length)] = {**summary(timing), "peak_bytes": None}
    experiment.save()  # keeps the times if memory runs out below
    torch.cuda.empty_cache()  # the processes that measure memory share the device
    for name, model in names.items() if settings.memory else ():
        peak = in_fresh_process(_peak, model, length, settings, torch.get_num_threads())
        models[name]["cost"][str(length)]["peak_bytes"] = peak
        experiment.save()


def _accuracy(embedder: Embedder, train: Side, validation: Side, what: str) -> float:
    """Validation accuracy of a logistic regression on the embeddings."""
    return regression_accuracy(
        (_features(embedder, train[0], what), train[1]), (_features(embedder, validation[0], what), validation[1])
    )


def _features(embedder: Embedder, examples: list[Example], what: str) -> np.ndarray:
    """Embeddings; for pairs, both embeddings, their absolute difference and their product."""
    first = embedder.embed([example.text for example in examples], what)
    if examples[0].text_pair is None:
        return first
    second = embedder.embed([str(example.text_pair) for example in examples], what)
    return np.concatenate([first, second, np.abs(first - second), first * second], axis=1)


def _task(settings: EmbeddingsSettings, name: str) -> tuple[Side, Side]:
    """Texts and classes of a task, for training and for validation."""
    limits = {"max_train_samples": settings.max_train_samples, "max_eval_samples": settings.max_eval_samples}
    texts = load_labelled(FinetuneSettings(model="", task=name, data_dir=settings.data_dir, **limits))  # type: ignore[arg-type]
    train, validation = (
        (examples, [texts.labels.target(example, column=texts.columns.label) for example in examples])
        for examples in (texts.train, texts.validation)
    )
    return train, validation


def _passages(settings: EmbeddingsSettings) -> list[str]:
    """Long texts, evenly spaced over all files."""
    if settings.text_file is None:
        return []
    paths = find_files(settings.text_file, field="text_file")
    least = max(settings.cosine_lengths) * _CHARACTERS
    texts = read_documents(paths, document="auto", column=settings.text_column)
    long = [text[:_MOST_CHARACTERS] for text in texts if len(text) >= least]
    enough = f"at most {len(long)} (the texts of at least {least} characters)"
    require(len(long) >= settings.samples, "samples", enough, settings.samples)
    return [long[place] for place in np.linspace(0, len(long) - 1, settings.samples).astype(int)]


def _times(embedders: dict[str, Embedder], length: int, settings: EmbeddingsSettings) -> dict[str, list[float]]:
    """Seconds of each run of each model over one batch of inputs of a length; the models alternate."""
    cases = {name: _pass(embedder, length, settings) for name, embedder in embedders.items()}
    return interleaved(cases, device=best_device(), repetitions=settings.repetitions, seconds=_SECONDS)


def _pass(embedder: Embedder, length: int, settings: EmbeddingsSettings) -> Callable[[], object]:
    """A forward pass over random tokens, of the model resized to the length if it is shorter."""
    model, device = lengthened(embedder.model, length), embedder.device
    ids = torch.randint(model.config.vocab_size, (max(1, settings.tokens // length), length)).to(device)

    @torch.inference_mode()
    def run() -> object:
        with torch.autocast(device.type, torch.bfloat16, enabled=embedder.bf16):
            return model(input_ids=ids)

    return run


def _peak(name: str, length: int, settings: EmbeddingsSettings, threads: int) -> int:
    """Peak memory of `_pass` in bytes, in addition to the model's own; runs in a fresh process."""
    torch.set_num_threads(threads)
    run = _pass(load_unit_embedder(name, settings), length, settings)
    run()
    return peak_bytes(run, best_device())


def _check(settings: EmbeddingsSettings) -> dict[str, str]:
    """Check the settings; return the models by their names in the results."""
    for name in ("batch_size", "samples", "repetitions", "tokens", "max_train_samples", "max_eval_samples"):
        require(getattr(settings, name) >= 1, name, "1 or more", getattr(settings, name))
    require(bool(settings.models), "models", "one or more", "none")
    for name in ("lengths", "cosine_lengths"):
        lengths = getattr(settings, name)
        fits = all(1 <= length <= LONGEST for length in lengths)
        require(fits, name, f"1 to {LONGEST:,} each", lengths)
    names = settings.names or [Path(model).name for model in settings.models]
    different = len(names) == len(set(names)) == len(settings.models)
    require(different, "names", f"{len(settings.models)} different names", names)
    require(
        not settings.text_file or bool(settings.cosine_lengths), "cosine_lengths", "one or more with text_file", "none"
    )
    require(not settings.tasks or settings.data_dir is not None, "data_dir", "the folder of the tasks", "none")
    check_output(settings.output_dir)
    return dict(zip(names, settings.models, strict=True))
