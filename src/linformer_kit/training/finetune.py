"""Fine-tuning of an encoder for text classification: labelled texts → tokens → batches → classifier → metrics."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
from transformers import (
    AutoModelForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    set_seed,
)

from linformer_cli.errors import DivergedError, InputError
from linformer_cli.settings import FinetuneSettings, check_model_is_kept, model_label
from linformer_kit.data.inputs import labelled_inputs
from linformer_kit.data.labelled import Labels, load_labelled
from linformer_kit.data.tokenizer import Encoder
from linformer_kit.inference.scores import answers_of, by_class, mistakes
from linformer_kit.interop.loading import fingerprint, input_length, load_model, random_weights, resize
from linformer_kit.report.classification import write_finetune_report, write_mistakes
from linformer_kit.training.batches import Batches
from linformer_kit.training.checkpoint import save_model
from linformer_kit.training.process import callers_random_state, keep_freed_memory
from linformer_kit.training.run import Run, measurements, print_results
from linformer_kit.training.state import Plan, learning_rate_schedule
from linformer_kit.training.tasks.classification import Classification, curves


def main(settings: FinetuneSettings) -> None:
    """Fine-tune and print the results."""
    keep_freed_memory()
    _, folder = finetune(settings)
    print_results(folder, f"Saved in {folder}. Use it:\n  linformer predict {folder} FILE")


@callers_random_state()
def finetune(settings: FinetuneSettings) -> tuple[dict[str, Any], Path]:
    """Fine-tune an encoder to classify texts.

    Args:
        settings: The encoder, the texts and the training.

    Returns:
        The results, as in `metrics.json`, and the folder that holds them and the classifier.

    Raises:
        InputError: for invalid settings or unsuitable texts. Existing files are kept.
        DivergedError: if training diverged.
    """
    check_model_is_kept(settings.model, settings.output_dir)
    run = Run("finetune", settings)
    texts = load_labelled(settings)
    labels = texts.labels
    metric = settings.metric_for_best_model or labels.metrics[0]
    if metric not in (*labels.metrics, "loss"):
        expected = f"one of {', '.join(labels.metrics)} and loss"
        raise InputError(f"metric_for_best_model: expected {expected}, got {metric!r}")
    model, tokenizer = load_encoder(settings, labels, seed=settings.seed)
    encoder = Encoder(tokenizer, tokenizer.model_max_length)
    (train, train_cut), (validation, validation_cut) = (
        labelled_inputs(examples, labels, texts.columns, encoder, name=name)
        for name, examples in (("training", texts.train), ("validation", texts.validation))
    )
    texts_fingerprint = texts.fingerprint()
    texts = dataclasses.replace(texts, train=[])  # free memory: only their tokens are needed from here on
    encoder_fingerprint = fingerprint(model.base_model, without=random_weights(model))
    fingerprints = {"texts_fingerprint": texts_fingerprint, "model_fingerprint": encoder_fingerprint}
    run.open({"texts": texts.description}, fingerprints)

    model.config.trained_columns = dataclasses.asdict(texts.columns)
    # From short to long, so that batches need little padding.
    order = np.argsort(validation.lengths, kind="stable")
    texts_in_pass = settings.per_device_train_batch_size * run.process.num_processes
    task = Classification(
        model,
        tokenizer,
        train=train,
        validation=validation.select(order),
        texts_in_update=texts_in_pass * settings.gradient_accumulation_steps,
        seed=settings.seed,
        metrics=labels.metrics,
    )
    training = run.train(task, _plan(settings, task, metric), label=f"seed {settings.seed}")
    if training.diverged is not None:
        raise DivergedError(training.diverged)
    measured = training.measure()
    values = task.metrics(*measured)
    back = np.argsort(order)
    logits, targets = (each[back] for each in measured)
    answers = answers_of(logits, multi_label=labels.multi_label)
    results = run.results(
        model={
            "name": model_label(settings.model),
            "type": model.config.model_type,
            "parameters": model.num_parameters(),
        },
        texts={
            "description": texts.description,
            "labels": list(labels.names),
            "multi_label": labels.multi_label,
            "train": len(train),
            "validation": len(validation),
            "max_length": tokenizer.model_max_length,
            "cut": {"train": train_cut, "validation": validation_cut},
        },
        metrics={name: values[name] for name in (*labels.metrics, "loss")},
        metric_for_best_model=metric,
        **measurements(training),
        best_updates=training.result_update,
        epochs=training.state.epoch,
        curve=curves(training.state.log, labels.metrics),
        **by_class(answers, targets, labels),
        # A bit for each text.
        right=None if labels.multi_label else np.packbits(answers == targets).tobytes().hex(),
    )
    save_model(model, tokenizer, run.folder)
    run.write(write_mistakes, mistakes(logits, answers, targets, texts.validation, labels))
    run.write(write_finetune_report, results)
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


def _plan(settings: FinetuneSettings, task: Classification, metric: str) -> Plan:
    in_epoch = Batches(task, settings).updates_in_epoch
    updates = settings.max_steps or math.ceil(settings.num_train_epochs * in_epoch)
    return Plan(
        updates=updates,
        schedule=learning_rate_schedule(
            settings.lr_scheduler_type, updates=updates, warmup_steps=settings.warmup_steps
        ),
        seed=settings.seed,
        evaluate_every=settings.eval_steps,
        save_every=settings.eval_steps,
        metric=metric,
        patience=settings.early_stopping_patience,
    )
