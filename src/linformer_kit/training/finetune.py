"""Fine-tuning of any encoder to classify texts: labelled texts → tokens → batches → classifier → metrics."""

from __future__ import annotations

import dataclasses
import logging
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from transformers import (
    AutoModelForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    set_seed,
)

from linformer_kit.data.cached import cache_folder
from linformer_kit.data.encoding import Encoder
from linformer_kit.data.examples import Labels
from linformer_kit.data.inputs import LabelledInputs, LabelledItems, labelled_inputs
from linformer_kit.data.labelled import LabelledTexts, load_labelled
from linformer_kit.environment import versions
from linformer_kit.errors import DivergedError, InputError, input_errors
from linformer_kit.files.manifest import read_json
from linformer_kit.files.runs import check_output_dir, open_output_dir
from linformer_kit.inference.scores import (
    by_class,
    check_metric,
    class_probabilities,
    confusion,
    mistakes,
    predicted,
    summary,
)
from linformer_kit.interop.loading import fingerprint, input_length, load_model, random_weights, resize
from linformer_kit.report.classification import best_run, write_finetune_report, write_mistakes
from linformer_kit.settings import FinetuneSettings, names_folder
from linformer_kit.training.arguments import training_arguments
from linformer_kit.training.checkpoint import save_model
from linformer_kit.training.classification import ClassificationTrainer, balanced_weights, curves
from linformer_kit.training.identity import all_but, check_same_settings, check_same_source, save_run
from linformer_kit.training.randomness import callers_random_state
from linformer_kit.training.resume import checkpoint_to_resume
from linformer_kit.training.state import is_count
from linformer_kit.training.trainer import check_trainer

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class _Task:
    """What all seeds have in common.

    Attributes:
        settings: Of the run.
        texts: The labelled texts, of which those to learn from are no longer in memory.
        metric: What the best checkpoint is best at.
        tokenizer: The model's.
        train: Inputs to learn from.
        validation: Inputs to measure on.
    """

    settings: FinetuneSettings
    texts: LabelledTexts
    metric: str
    tokenizer: PreTrainedTokenizerBase
    train: LabelledInputs
    validation: LabelledInputs


@callers_random_state()
def finetune(settings: FinetuneSettings) -> tuple[dict[str, Any], Path]:
    """Fine-tune an encoder to classify texts, once for each seed.

    Args:
        settings: Which encoder, which texts and how.

    Returns:
        The results, as in `metrics.json`, and the folder that holds them and the classifier of the best seed.

    Raises:
        InputError: for anything in the settings or the texts that does not fit. Nothing that was there is lost.
    """
    check(settings)
    process = PartialState()
    if process.num_processes > 1 and settings.output_dir is None:
        raise InputError(f"output_dir: expected a folder for {process.num_processes} processes to share, got none")
    if process.is_main_process:
        check_output_dir(settings.output_dir, resume=settings.resume, overwrite=settings.overwrite)
        check_same_settings(settings, all_but(FinetuneSettings, "seeds", "cache_dir"))  # more seeds may join
    texts = load_labelled(settings)
    check_metric(settings.metric_for_best_model, texts.metrics)
    model, tokenizer = load_encoder(settings, texts.labels, seed=settings.seeds[0])
    with process.local_main_process_first():  # tokenises, the others map what it has written
        train, validation = _inputs(settings, texts, tokenizer)
    fingerprints = {
        "texts_fingerprint": texts.fingerprint(),
        "model_fingerprint": fingerprint(model.base_model, without=random_weights(model)),
    }
    metric = settings.metric_for_best_model or texts.metrics[0]
    texts = dataclasses.replace(texts, train=[])  # from here on they are tokens
    task = _Task(settings, texts, metric, tokenizer, train, validation)
    results = _results(task, model, runs=_earlier_runs(settings))
    _check_earlier_runs(results)
    del model  # each seed has its own
    folder = Path(settings.output_dir or "")
    if process.is_main_process:
        check_same_source(settings, fingerprints)
        folder = open_output_dir(settings.output_dir, command="finetune", overwrite=settings.overwrite)
        seeds = dict.fromkeys([*(run["seed"] for run in results["runs"]), *settings.seeds])
        whole = dataclasses.replace(settings, seeds=list(seeds))
        save_run(whole, folder, command="finetune", source={"texts": texts.description}, fingerprints=fingerprints)
    process.wait_for_everyone()
    for seed in settings.seeds:
        if any(run["seed"] == seed for run in results["runs"]):
            continue
        classifier, probabilities, run = _train(task, folder, seed)
        results["runs"].append(run)
        if process.is_main_process:
            if best_run(results)["seed"] == seed:
                save_model(classifier, tokenizer, folder)
                write_mistakes(_mistakes(task, probabilities), folder)
            _write(results, folder)
    if process.is_main_process:
        _write(results, folder)  # also where all had been done, and the last process ended before its pictures
    return results, folder


def check(settings: FinetuneSettings) -> None:
    """Refuse what will not fit, before the work on the texts.

    Raises:
        InputError: for settings that no training can be made of.
    """
    if not settings.seeds or len(set(settings.seeds)) < len(settings.seeds):
        raise InputError(f"seeds: expected one or more, each once, got {settings.seeds}")
    if min(settings.seeds) < 0:
        raise InputError(f"seeds: expected 0 or more, got {min(settings.seeds)}")
    if settings.max_steps is None and not settings.num_train_epochs > 0:
        raise InputError(f"num_train_epochs: expected more than 0, got {settings.num_train_epochs}")
    fixed = _fixed(settings, "loss", settings.seeds[0])
    check_trainer(lambda folder: training_arguments(settings, folder, fixed), updates=settings.max_steps or 1000)
    if settings.output_dir is not None and names_folder(settings.model):
        source, folder = Path(settings.model).resolve(), Path(settings.output_dir).resolve()
        if source == folder or folder in source.parents:
            raise InputError(f"output_dir: expected another folder than that of the model, got {settings.output_dir}")


def load_encoder(
    settings: FinetuneSettings, labels: Labels, *, seed: int
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The encoder with a head for these classes, which starts anew unless it is there, and its tokenizer.

    The tokenizer's `model_max_length` is that of the inputs, and will be saved with the classifier.

    Raises:
        InputError: for a model that is not whole or cannot classify, and a length that it does not take.
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
) -> tuple[LabelledInputs, LabelledInputs]:
    """Inputs to learn from and to measure on."""
    encoder = Encoder(tokenizer, tokenizer.model_max_length)
    cache = cache_folder(settings.cache_dir) / "labelled"
    train, validation = (
        labelled_inputs(examples, texts.labels, texts.columns, encoder, cache=cache, name=name)
        for name, examples in (("training", texts.train), ("validation", texts.validation))
    )
    return train, validation


def _train(task: _Task, folder: Path, seed: int) -> tuple[PreTrainedModel, np.ndarray, dict[str, Any]]:
    """Train with one seed, or go on.

    Returns:
        The best classifier, its probabilities for the validation texts in their order, and what was measured.
    """
    settings, labels, metrics = task.settings, task.texts.labels, task.texts.metrics
    # From short to long, so that batches are padded little.
    order = np.argsort(task.validation.items.lengths, kind="stable")
    validation = task.validation.items.select(order)
    trainer = _trainer(task, validation, folder / f"seed-{seed}", seed)
    logger.info(
        "seed %s: %s parameters, %s, on %s",
        seed,
        f"{trainer.model.num_parameters():,}",
        "bf16 mixed precision" if trainer.args.bf16 else "float32",
        trainer.args.device,
    )
    checkpoint = checkpoint_to_resume(Path(trainer.args.output_dir)) if settings.resume else None
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    measured = trainer.predict(validation, metric_key_prefix="eval")
    if not np.isfinite(measured.predictions).all():
        raise DivergedError(
            f"learning_rate: expected one that training survives, got {settings.learning_rate}, and the model answers "
            "what is no number"
        )
    of_sorted = class_probabilities(measured.predictions, multi_label=labels.multi_label)
    probabilities, targets = np.empty_like(of_sorted), np.empty_like(measured.label_ids)
    probabilities[order], targets[order] = of_sorted, measured.label_ids
    answers = predicted(probabilities, multi_label=labels.multi_label)
    run = {
        "seed": seed,
        "metrics": {name: measured.metrics[f"eval_{name}"] for name in (*metrics, "loss")},
        "updates": trainer.state.global_step,
        "skipped_updates": trainer.skipped_updates,
        "best_updates": trainer.state.best_global_step or trainer.state.global_step,
        "epochs": trainer.state.epoch,
        "curve": curves(trainer.state.log_history, metrics),
        "by_class": by_class(answers, targets, len(labels.names)),
        "confusion": None if labels.multi_label else confusion(answers, targets, len(labels.names)),
        "seconds": trainer.progress.seconds,
        "texts_per_second": trainer.progress.rate,
        "bf16": trainer.args.bf16,
    }
    return trainer.model, probabilities, run


def _trainer(task: _Task, validation: LabelledItems, folder: Path, seed: int) -> ClassificationTrainer:
    """The trainer of one seed; checkpoints go below the folder."""
    settings, labels = task.settings, task.texts.labels
    weights = None
    if settings.class_weight == "balanced":
        weights = balanced_weights(torch.tensor(task.train.items.labels.tolist()), len(labels.names))
    return ClassificationTrainer(
        load_encoder(settings, labels, seed=seed)[0],
        training_arguments(settings, folder, _fixed(settings, task.metric, seed)),
        train=task.train.items,
        validation=validation,
        tokenizer=task.tokenizer,
        metrics=task.texts.metrics,
        class_weights=weights,
        early_stopping_patience=settings.early_stopping_patience,
        projection_learning_rate_factor=settings.projection_learning_rate_factor,
        projection_weight_decay=settings.projection_weight_decay,
        skip_bad_batches=settings.skip_bad_batches,
    )


def _results(task: _Task, model: PreTrainedModel, *, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """What there is to say before anything is trained."""
    texts, settings = task.texts, task.settings
    return {
        "command": "finetune",
        "model": {"name": settings.model, "type": model.config.model_type, "parameters": model.num_parameters()},
        "texts": {
            "description": texts.description,
            "labels": list(texts.labels.names),
            "multi_label": texts.labels.multi_label,
            "train": len(task.train.items),
            "validation": len(task.validation.items),
            "max_length": task.tokenizer.model_max_length,
            "cut": {"train": task.train.cut, "validation": task.validation.cut},
        },
        "metrics": list(texts.metrics),
        "metric_for_best_model": task.metric,
        "runs": runs,
        "summary": {},
        "settings": dataclasses.asdict(settings),
        "versions": versions(),
    }


def _write(results: dict[str, Any], folder: Path) -> None:
    results["summary"] = summary(results["runs"], results["metrics"])
    write_finetune_report(results, folder)


def _mistakes(task: _Task, probabilities: np.ndarray) -> list[dict[str, Any]]:
    labels = task.texts.labels
    targets = task.validation.items.labels
    answers = predicted(probabilities, multi_label=labels.multi_label)
    return mistakes(probabilities, answers, targets, task.texts.validation, labels)


def _fixed(settings: FinetuneSettings, metric: str, seed: int) -> dict[str, Any]:
    """Fields of TrainingArguments that fine-tuning decides."""
    strategy = "epoch" if settings.eval_steps is None else "steps"
    return {
        "eval_strategy": strategy,
        "save_strategy": strategy,
        "save_steps": settings.eval_steps or 500,
        "load_best_model_at_end": True,
        "metric_for_best_model": metric,
        "greater_is_better": metric != "loss",
        "restore_callback_states_from_checkpoint": True,  # how long early stopping has waited
        "seed": seed,
    }


def _earlier_runs(settings: FinetuneSettings) -> list[dict[str, Any]]:
    """The seeds that a run to be resumed has finished."""
    path = Path(settings.output_dir or "") / "metrics.json"
    if not (settings.resume and path.exists()):
        return []
    runs = read_json(path).get("runs")
    if not (isinstance(runs, list) and all(isinstance(run, dict) and is_count(run.get("seed")) for run in runs)):
        raise InputError(f"{path}: expected runs, each with its seed, got {str(runs)[:60]}")
    return runs


def _check_earlier_runs(results: dict[str, Any]) -> None:
    """Refuse earlier results that no report can be made of, before further ones would be lost beside them."""
    if results["runs"]:
        path = Path(results["settings"]["output_dir"]) / "metrics.json"
        with input_errors(str(path)), tempfile.TemporaryDirectory() as folder:
            _write(results, Path(folder))
