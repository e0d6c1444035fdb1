"""Fine-tuning of an encoder for text classification: labelled texts → tokens → batches → classifier → metrics."""

from __future__ import annotations

import dataclasses
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from transformers import (
    AutoModelForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    set_seed,
)

from linformer_cli.errors import DivergedError, InputError, input_errors
from linformer_cli.settings import FinetuneSettings, check_model_is_kept, model_label
from linformer_kit.data.cached import cache_folder
from linformer_kit.data.examples import Labels
from linformer_kit.data.inputs import LabelledItems, labelled_inputs
from linformer_kit.data.labelled import LabelledTexts, load_labelled
from linformer_kit.data.tokenizer import Encoder
from linformer_kit.files.manifest import read_json
from linformer_kit.inference.scores import (
    answers_of,
    by_class,
    check_metric,
    mistakes,
    summary,
)
from linformer_kit.interop.loading import fingerprint, input_length, load_model, random_weights, resize
from linformer_kit.report.classification import best_run, write_finetune_report, write_mistakes
from linformer_kit.training.batches import Batches
from linformer_kit.training.checkpoint import save_model
from linformer_kit.training.run import Run, measurements
from linformer_kit.training.state import Plan, learning_rate_schedule
from linformer_kit.training.tasks.classification import Classification, curves


@dataclasses.dataclass(frozen=True)
class _Task:
    """What all seeds have in common."""

    settings: FinetuneSettings
    texts: LabelledTexts  # without the training texts, to save memory
    metric: str  # selects the best checkpoint
    tokenizer: PreTrainedTokenizerBase
    train: LabelledItems
    validation: LabelledItems
    cut: dict[str, dict[str, int]]  # what `labelled_inputs` truncated, of training and validation


def finetune(settings: FinetuneSettings) -> tuple[dict[str, Any], Path]:
    """Fine-tune an encoder to classify texts, once for each seed.

    Args:
        settings: The encoder, the texts and the training.

    Returns:
        The results, as in `metrics.json`, and the folder that holds them and the classifier of the best seed.

    Raises:
        InputError: for invalid settings or unsuitable texts. Existing files are kept.
        DivergedError: if the training of a seed diverged; the results of earlier seeds are kept.
    """
    if not settings.seeds or len(set(settings.seeds)) < len(settings.seeds):
        raise InputError(f"seeds: expected one or more, each once, got {settings.seeds}")
    check_model_is_kept(settings.model, settings.output_dir)
    run = Run("finetune", settings, may_change=("seeds",))  # a resumed run may add seeds
    texts = load_labelled(settings)
    check_metric(settings.metric_for_best_model, texts.metrics)
    runs = _earlier_runs(run.folder / "metrics.json") if settings.resume else []
    done = [earlier["seed"] for earlier in runs]
    seeds = [seed for seed in settings.seeds if seed not in done]
    model: PreTrainedModel | None
    model, tokenizer = load_encoder(settings, texts.labels, seed=(seeds or settings.seeds)[0])
    with run.process.local_main_process_first():  # the others read its cache
        train, validation, cut = _inputs(settings, texts, tokenizer)
    fingerprints = {
        "texts_fingerprint": texts.fingerprint(),
        "model_fingerprint": fingerprint(model.base_model, without=random_weights(model)),
    }
    metric = settings.metric_for_best_model or texts.metrics[0]
    texts = dataclasses.replace(texts, train=[])  # free memory: only their tokens are needed from here on
    task = _Task(settings, texts, metric, tokenizer, train, validation, cut)
    run.settings = dataclasses.replace(settings, seeds=[*done, *seeds])
    results = _results(run, task, model, runs)
    run.open({"texts": texts.description}, fingerprints)
    for seed in seeds:
        if model is None:
            model, _ = load_encoder(settings, texts.labels, seed=seed)
        logits, measured = _train(run, task, model, seed)
        results["runs"].append(measured)
        if best_run(results)["seed"] == seed:
            save_model(model, tokenizer, run.folder)
            run.write(_write_mistakes, task, logits)
        run.write(_write, results)
        model = None  # each seed loads its own
    run.write(_write, results)  # also if all seeds were done before: the figures may be missing
    return results, run.folder


def load_encoder(
    settings: FinetuneSettings, labels: Labels, *, seed: int
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load the encoder with a head for these classes, and its tokenizer; a missing head is initialised at random.

    The tokenizer's `model_max_length` is set to the length of the inputs, and is saved with the classifier.

    Raises:
        InputError: for a damaged model, a model that cannot classify, and an unsupported length.
    """
    set_seed(seed)
    head = {
        "num_labels": len(labels.names),
        "id2label": dict(enumerate(labels.names)),
        "label2id": {name: number for number, name in enumerate(labels.names)},
        "problem_type": "multi_label_classification" if labels.multi_label else "single_label_classification",
    }
    kind = "an encoder that can classify sequences"
    model, tokenizer = load_model(settings.model, AutoModelForSequenceClassification, kind, head=head)
    resize(model, settings.resize_to, settings.resize_mode)
    if settings.resize_to is not None:
        tokenizer.model_max_length = settings.resize_to
    tokenizer.model_max_length = input_length(model, tokenizer, settings.max_length)
    return model.float(), tokenizer  # the trainer mixes precisions by itself


def _inputs(
    settings: FinetuneSettings, texts: LabelledTexts, tokenizer: PreTrainedTokenizerBase
) -> tuple[LabelledItems, LabelledItems, dict[str, dict[str, int]]]:
    """Training and validation inputs, and what was truncated of each."""
    encoder = Encoder(tokenizer, tokenizer.model_max_length)
    cache = cache_folder(settings.cache_dir) / "labelled"
    (train, train_cut), (validation, validation_cut) = (
        labelled_inputs(examples, texts.labels, texts.columns, encoder, cache=cache, name=name)
        for name, examples in (("training", texts.train), ("validation", texts.validation))
    )
    return train, validation, {"train": train_cut, "validation": validation_cut}


def _train(run: Run, task: _Task, model: PreTrainedModel, seed: int) -> tuple[np.ndarray, dict[str, Any]]:
    """Train the model with one seed in-place, or resume.

    Returns:
        Logits of the best classifier for the validation texts in their order, and the results of this seed.
    """
    settings, labels, metrics = task.settings, task.texts.labels, task.texts.metrics
    # From short to long, so that batches need little padding.
    order = np.argsort(task.validation.lengths, kind="stable")
    model.config.trained_columns = dataclasses.asdict(task.texts.columns)
    texts_in_pass = settings.per_device_train_batch_size * run.process.num_processes
    classification = Classification(
        model,
        task.tokenizer,
        train=task.train,
        validation=task.validation.select(order),
        texts_in_update=texts_in_pass * settings.gradient_accumulation_steps,
        seed=seed,
        metrics=metrics,
    )
    in_epoch = Batches(classification, settings).updates_in_epoch
    updates = settings.max_steps or math.ceil(settings.num_train_epochs * in_epoch)
    plan = Plan(
        updates=updates,
        schedule=learning_rate_schedule(
            settings.lr_scheduler_type, updates=updates, warmup_steps=settings.warmup_steps
        ),
        seed=seed,
        evaluate_every=settings.eval_steps,
        save_every=settings.eval_steps,
        metric=task.metric,
        patience=settings.early_stopping_patience,
    )
    training = run.train(classification, plan, run.folder / f"seed-{seed}", label=f"seed {seed}")
    if training.diverged is not None:
        raise DivergedError(f"seed {seed}: {training.diverged}")
    measured = training.measure()
    values = classification.metrics(*measured)
    back = np.argsort(order)
    logits, targets = (each[back] for each in measured)
    answers, multi_label = answers_of(logits, multi_label=labels.multi_label), labels.multi_label
    return logits, {
        "seed": seed,
        "metrics": {name: values[name] for name in (*metrics, "loss")},
        **measurements(training),
        "best_updates": training.result_update,
        "epochs": training.state.epoch,
        "curve": curves(training.state.log, metrics),
        **by_class(answers, targets, labels),
        "right": None if multi_label else np.packbits(answers == targets).tobytes().hex(),  # a bit for each text
    }


def _results(run: Run, task: _Task, model: PreTrainedModel, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The results before training: model, texts, settings and earlier runs, which can be reported.

    Raises:
        InputError: for earlier runs that cannot.
    """
    texts = task.texts
    results = run.results(
        model={
            "name": model_label(task.settings.model),
            "type": model.config.model_type,
            "parameters": model.num_parameters(),
        },
        texts={
            "description": texts.description,
            "labels": list(texts.labels.names),
            "multi_label": texts.labels.multi_label,
            "train": len(task.train),
            "validation": len(task.validation),
            "max_length": task.tokenizer.model_max_length,
            "cut": task.cut,
        },
        metrics=list(texts.metrics),
        metric_for_best_model=task.metric,
        runs=runs,
        summary={},
    )
    if runs:  # rejected before more seeds are trained
        with input_errors(str(run.folder / "metrics.json")), tempfile.TemporaryDirectory() as folder:
            _write(results, Path(folder))
    return results


def _write(results: dict[str, Any], folder: Path) -> None:
    results["summary"] = summary(results["runs"], results["metrics"])
    write_finetune_report(results, folder)


def _write_mistakes(task: _Task, logits: np.ndarray, folder: Path) -> None:
    labels = task.texts.labels
    answers = answers_of(logits, multi_label=labels.multi_label)
    write_mistakes(mistakes(logits, answers, task.validation.labels, task.texts.validation, labels), folder)


def _earlier_runs(path: Path) -> list[dict[str, Any]]:
    """Results of the seeds that a resumed run has finished."""
    runs = read_json(path).get("runs") if path.exists() else []
    if not (isinstance(runs, list) and all(isinstance(run, dict) and isinstance(run.get("seed"), int) for run in runs)):
        raise InputError(f"{path}: expected runs, each with its seed, got {str(runs)[:60]}")
    return runs
