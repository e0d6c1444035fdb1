"""Fine-tuning of an encoder for text classification: labelled texts → tokens → batches → classifier → metrics."""

from __future__ import annotations

import copy
import dataclasses
import logging
import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Num
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import (
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    set_seed,
)

from linformer_cli.errors import DivergedError, InputError, check_choice
from linformer_cli.settings import IGNORED_LABEL, ClassifierPooling, FinetuneSettings, model_label
from linformer_kit.data.inputs import PieceCollator, grouped_by_length, labelled_inputs
from linformer_kit.data.labelled import MACRO_F1, LabelledTexts, Labels, listed_classes, load_labelled, remarks, sample
from linformer_kit.data.tokenizer import Encoder, Window, tokenizer_fingerprint
from linformer_kit.inference.baselines import MOST_TEXTS, free_results
from linformer_kit.inference.batches import reads_padding
from linformer_kit.inference.scores import answers_of, by_class, certainty, mistakes, scores
from linformer_kit.interop.checkpoints import pooling_mode, read_config
from linformer_kit.interop.loading import Loaded, input_length, load_model, model_fingerprint
from linformer_kit.linearized.classes import POOLING, LinearizedConfig
from linformer_kit.models.base import last_layer
from linformer_kit.models.configuration import LinformerConfig
from linformer_kit.report.classification import texts_table, write_finetune_report
from linformer_kit.training.checkpoint import save_model
from linformer_kit.training.process import callers_random_state, keep_freed_memory
from linformer_kit.training.regression import start_at_regression
from linformer_kit.training.run import Run, print_results
from linformer_kit.training.state import Plan, learning_rate_schedule
from linformer_kit.training.task import Batch, Batches, Task, to_array

logger = logging.getLogger(__name__)

_KIND = "an encoder that can classify sequences"
_SHARE_OF_WORDS = 0.1  # of the training's time, for a regression on words
_UNBALANCED = 4  # ratio of the numbers of texts of two classes


def main(settings: FinetuneSettings) -> None:
    """Fine-tune and print the results."""
    keep_freed_memory()
    _, folder = finetune(settings)
    print_results(folder, f"Saved in {folder}. Use it:\n  linformer predict {folder} FILE")


@callers_random_state()
def finetune(settings: FinetuneSettings) -> tuple[dict[str, Any], Path]:
    """Fine-tune an encoder to classify texts.

    Returns:
        The results, as in `metrics.json`, and the folder that holds them and the classifier.

    Raises:
        InputError: for invalid settings or unsuitable texts. Existing files are kept.
        DivergedError: if training diverged.
    """
    with Run("finetune", settings) as run:
        return _finetune(run, settings), run.folder


def _finetune(run: Run, settings: FinetuneSettings) -> dict[str, Any]:
    config = read_config(settings.model, f"model: expected {_KIND}, got {settings.model}")
    known = trained_classes(config)
    texts = load_labelled(settings, known)
    labels = texts.labels
    logger.info("texts of each class:\n%s", "\n".join(_texts_table(texts)))
    if settings.pieces and texts.columns.text_pair:
        raise InputError(f"pieces: expected single texts, got pairs (text_pair_column {texts.columns.text_pair})")
    counts = np.array(labels.count(texts.train))
    metric = settings.metric_for_best_model or _best_metric(labels, counts)
    check_choice("metric_for_best_model", metric, (*labels.metrics, "loss"))
    loaded = load_encoder(settings, labels, seed=settings.seed, config=config)
    model, tokenizer = loaded.model, loaded.tokenizer
    encoder = Encoder(tokenizer, tokenizer.model_max_length, pieces=settings.pieces)
    train, validation = (
        labelled_inputs(examples, labels, texts.columns, encoder, name=name)
        for name, examples in (("training", texts.train), ("validation", texts.validation))
    )
    fingerprints = {
        "texts_fingerprint": texts.fingerprint(),
        "model_fingerprint": model_fingerprint(model, without=loaded.random),
        "tokenizer_fingerprint": tokenizer_fingerprint(tokenizer),
    }
    texts = dataclasses.replace(texts, train=sample(texts.train, MOST_TEXTS))  # frees memory: the others are tokens now
    run.open({"texts": texts.description}, fingerprints)
    _warn_of_padding(model, tokenizer)
    model.config.trained_columns, model.config.trained_pieces = dataclasses.asdict(texts.columns), settings.pieces
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
        windows_in_pass=settings.per_device_train_batch_size,
        collate=PieceCollator(tokenizer) if settings.pieces else None,
        metrics=labels.metrics,
        class_weights=None if settings.class_weights is None else balanced_weights(counts, train.labels),
        starts_anew=settings.head_start == "regression" and f"{last_layer(model)}.weight" in loaded.random,
    )
    run.train(task, _plan(settings, task, metric), label=f"seed {settings.seed}")
    if run.diverged is not None:
        raise DivergedError(run.diverged)
    results, worst = _results(run, settings, texts, order)
    save_model(model, tokenizer, run.folder)
    run.write(write_finetune_report, results, worst)
    return results


def _warn_of_padding(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Warn if outputs for a text depend on the padding beside it: `predict` reads such texts one by one.

    A copy is run: BigBird has full attention for good after a short text. Funnel cannot read one, so nothing is said.
    """
    model = copy.deepcopy(model)

    @torch.inference_mode()
    def logits(windows: Sequence[Window]) -> np.ndarray:
        return to_array(model(**tokenizer.pad(list(windows), return_tensors="pt")).logits)

    with suppress(InputError):
        if reads_padding(model, tokenizer, logits):
            logger.warning(
                "model: %s reads the padding of shorter texts in a batch, which `predict` does not have; "
                "--per_device_train_batch_size 1 trains without",
                type(model).__name__,
            )


def _results(
    run: Run, settings: FinetuneSettings, texts: LabelledTexts, order: Int[np.ndarray, " texts"]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The results, and the mistakes; the task has the validation texts in this order."""
    task, labels, back = run.task, texts.labels, np.argsort(order)
    logits, targets = (each[back] for each in run.measure())
    answers = answers_of(logits, multi_label=labels.multi_label)
    logged = {"training loss": "loss", "validation loss": "eval_loss"}
    logged |= {name: f"eval_{name}" for name in labels.metrics}
    results = run.results(
        model={
            "name": model_label(settings.model),
            "type": task.model.config.model_type,
            "parameters": task.model.num_parameters(),
        },
        texts={
            "description": texts.description,
            "labels": list(labels.names),
            "multi_label": labels.multi_label,
            "train": len(task.train_items),
            "validation": len(task.validation_items),
            "max_length": task.tokenizer.model_max_length,
            "cut": {"train": task.train_items.truncated, "validation": task.validation_items.truncated},
        },
        metric_for_best_model=run.plan.metric,
        best_updates=run.plan.result_update(run.state),
        epochs=run.state.epoch,
        curve={name: run.state.curve(each) for name, each in logged.items()},
        metrics=task.metrics(logits, targets),
        **by_class(answers, targets, labels),
        **certainty(logits, answers, targets),
        free=_free_results(run, texts, answers, targets),
        # A bit for each text.
        right=None if labels.multi_label else np.packbits(answers == targets).tobytes().hex(),
    )
    return results, mistakes(logits, answers, targets, texts.validation, labels)


def _free_results(run: Run, texts: LabelledTexts, answers: np.ndarray, targets: np.ndarray) -> dict[str, Any] | None:
    """The results of `free_results`, in the process that writes them."""
    if not run.process.is_main_process:
        return None
    sides: dict[str, Any] = {"train": texts.train, "measured": texts.validation, "validation": texts.validation}
    seconds = _SHARE_OF_WORDS * run.state.seconds
    return free_results(answers, targets, texts.labels, texts.columns, **sides, seconds=seconds)


def _best_metric(labels: Labels, counts: Int[np.ndarray, " classes"]) -> str:
    """The metric that selects the best checkpoint where the settings name none, by the texts of each class."""
    learnt = counts[counts > 0]
    if labels.multi_label or learnt.max() < _UNBALANCED * learnt.min():
        return labels.metrics[0]
    logger.info("classes have from %s to %s texts: macro F1 selects the best checkpoint", learnt.min(), learnt.max())
    return MACRO_F1


def balanced_weights(
    counts: Int[np.ndarray, " classes"], targets: Num[np.ndarray, " texts"] | Num[np.ndarray, "texts classes"]
) -> Float[Tensor, " classes"]:
    """Weights of classes by their numbers of texts, as in scikit-learn; the mean weight of a text is 1.

    For multi-label texts, those of a yes, by the number of noes: a class counts as much where it is as where it is not.
    """
    counts = counts.clip(min=1)
    if targets.ndim == 2:
        return torch.from_numpy((len(targets) - counts).clip(min=1) / counts).float()
    return torch.from_numpy(len(targets) / len(np.unique(targets)) / counts).float()


def _texts_table(texts: LabelledTexts) -> list[str]:
    labels = texts.labels
    train, validation = (labels.count(side) for side in (texts.train, texts.validation))
    return texts_table(labels.names, train, validation, remarks(labels.names))


def trained_classes(config: PreTrainedConfig) -> Labels | None:
    """The classes of a classifier; None for a model of another kind."""
    named = config.architectures if isinstance(config.architectures, list) else []
    is_classifier = any("ForSequenceClassification" in str(each) for each in named)
    multi_label = config.problem_type == "multi_label_classification"
    if not is_classifier or config.problem_type == "regression" or (config.num_labels == 1 and not multi_label):
        return None
    return Labels(tuple(str(config.id2label.get(number)) for number in range(config.num_labels)), multi_label)


def load_encoder(
    settings: FinetuneSettings, labels: Labels, *, seed: int, config: PreTrainedConfig | None = None
) -> Loaded:
    """Load the encoder with a head for these classes, and its tokenizer; what its files lack is initialised at random.

    A classifier with the same classes keeps its head. The log says which weights are new, and why.

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
    config = config or read_config(settings.model, f"model: expected {_KIND}, got {settings.model}")
    known = trained_classes(config)
    if known is None and settings.head_start == "regression":
        head |= _pooling(config, settings.model)
    same, kind = known is not None and known.names == labels.names, ", ".join(config.architectures or ["no name"])
    loaded = load_model(
        settings.model, AutoModelForSequenceClassification, _KIND, head=head, same_classes=same, config=config
    )
    if known is not None and same:
        logger.info("the head is that of the model, with its classes %s", listed_classes(labels.names))
        if known.multi_label != labels.multi_label:
            logger.warning("the head was trained for %s", "any number of classes" if known.multi_label else "one class")
    if loaded.random:
        if known is None:
            why = f"the model ({kind}) has no classes"
        elif same:
            why = "its files lack them"
        else:
            why = f"the model's classes are {listed_classes(known.names)}, those of the texts are others"
        logger.warning("new weights, which are random: %s; %s", ", ".join(sorted(loaded.random)), why)
    loaded.tokenizer.model_max_length = input_length(loaded.model, loaded.tokenizer, settings.max_length)
    loaded.model.float()  # the trainer mixes precisions by itself
    return loaded


def _pooling(config: PreTrainedConfig, source: str) -> dict[str, Any]:
    """The field for a new head that pools as sentence-transformers does, else the mean; none if models have no such.

    A model whose family has the field keeps its value where sentence-transformers says nothing.
    """
    by_family = getattr(type(config), POOLING, None)
    if not isinstance(config, (LinearizedConfig, LinformerConfig)) and by_family is None:
        return {}
    mode = pooling_mode(source)
    if mode not in get_args(ClassifierPooling):
        mode = "mean" if by_family is None else getattr(config, POOLING)
    return {POOLING: "bos" if mode == "cls" and by_family == "late" else mode}  # EuroBERT's words


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
        evaluate_first=task.starts_anew,
        metric=metric,
        patience=settings.early_stopping_patience,
    )


def classification_loss(
    logits: Float[Tensor, "batch classes"],
    labels: Num[Tensor, " batch"] | Float[Tensor, "batch classes"],
    count: Tensor | int,
    class_weights: Float[Tensor, " classes"] | None = None,
) -> Float[Tensor, ""]:
    """Sum of the cross entropies of texts, or of texts and classes (multi-label), divided by `count`.

    Args:
        logits: The model's logits.
        labels: Class indices, or 0 and 1 for each class (multi-label); -100 is ignored.
        count: Labels in all forward passes of one update, so that accumulated gradients are those of the large batch.
        class_weights: Weight of a text by its class, or of the yes for a class (multi-label); default: 1.
    """
    logits = logits.float()
    weights = None if class_weights is None else class_weights.to(logits.device)
    if labels.dim() == 2:
        counted = (labels != IGNORED_LABEL).to(logits.dtype)
        target = labels.to(logits.dtype)
        total = F.binary_cross_entropy_with_logits(logits, target, counted, reduction="sum", pos_weight=weights)
    else:
        total = F.cross_entropy(logits, labels, weights, reduction="sum")
    return total / count


class Classification(Task):
    """Classify texts, with a model of any architecture.

    Args: as of `Task`, and
        texts_in_update: Texts in an update over all processes; they have similar lengths.
        windows_in_pass: Most pieces of texts in a forward pass; more are recomputed in the backward pass, so that
            memory does not grow with the length of a text. None: all.
        metrics: Names of metrics of `scores`.
        class_weights: As for `classification_loss`.
        starts_anew: Whether the last layer is new, and starts at a regression on what it reads.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        texts_in_update: int,
        windows_in_pass: int | None = None,
        metrics: Sequence[str],
        class_weights: Float[Tensor, " classes"] | None = None,
        starts_anew: bool = False,
        **data: Any,
    ) -> None:
        super().__init__(model, tokenizer, **data)
        self.starts_anew, self._windows_in_pass = starts_anew, windows_in_pass
        self._texts_in_update, self._metrics, self._class_weights = texts_in_update, metrics, class_weights

    def start(self, run: Run) -> None:
        if self.starts_anew:
            start_at_regression(run, self, balanced=self._class_weights is not None)

    def order(self, epoch: int, update_size: int) -> list[Any]:
        lengths = self.train_items.lengths
        return grouped_by_length(lengths, batch_size=self._texts_in_update, seed=self.seed, epoch=epoch)

    def labels(self, batch: Batch) -> Tensor:
        return (batch["labels"] != IGNORED_LABEL).sum()

    def forward(self, batch: Batch, labels: Tensor) -> Tensor:  # type: ignore[override]
        return classification_loss(*self.measure(batch), labels, self._class_weights)

    def measure(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logits and labels; of a text read as pieces, the mean logits, as the last layer is affine."""
        inputs = dict(batch)
        targets = inputs.pop("labels")
        if "shares" not in inputs:
            return self._logits(inputs), targets
        text_of, shares = inputs.pop("text_of"), inputs.pop("shares")
        size = self._windows_in_pass or len(shares)
        parts = [{name: each[at : at + size] for name, each in inputs.items()} for at in range(0, len(shares), size)]
        if len(parts) > 1 and torch.is_grad_enabled():
            logits = [checkpoint(self._logits, part, use_reentrant=False) for part in parts]
        else:
            logits = list(map(self._logits, parts))
        weighted = torch.cat(logits).float() * shares[:, None]
        return weighted.new_zeros(len(targets), weighted.shape[1]).index_add(0, text_of, weighted), targets

    def _logits(self, inputs: Batch) -> Tensor:
        return self.model(**inputs).logits

    def metrics(self, logits: np.ndarray, targets: np.ndarray) -> dict[str, float]:  # type: ignore[override]
        return scores(logits, answers_of(logits, multi_label=targets.ndim == 2), targets, self._metrics)
