"""Start a new head at a logistic regression on what its last layer reads, before all weights are trained.

The encoder's features are then not distorted by the gradients of a random head (Kumar et al. 2022).
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from accelerate.utils import broadcast_object_list
from jaxtyping import Float, Num
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from linformer_kit.inference.baselines import MOST_TEXTS
from linformer_kit.models.base import last_layer
from linformer_kit.training.checkpoint import fill
from linformer_kit.training.run import Run
from linformer_kit.training.task import Task, to_array

STRENGTHS = (1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0)  # C: inverse strengths of the regularisation, on numbers of size 1
_SMALL = 1e-6  # size of a number that means nothing: MiniLM has three such units

logger = logging.getLogger(__name__)

Targets = Num[np.ndarray, " texts"] | Num[np.ndarray, "texts classes"]


class _Inputs(nn.Linear):
    """Stands for a linear layer, and returns what it reads."""

    def __init__(self) -> None:
        nn.Module.__init__(self)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs


class Fitted(NamedTuple):
    """A regression on vectors as they are, unscaled."""

    strength: float
    weight: Float[np.ndarray, "classes width"]
    bias: Float[np.ndarray, " classes"]


def start_at_regression(run: Run, task: Task, *, balanced: bool) -> None:
    """Set the last layer of a task's classifier to the best regression by validation texts; all processes call it.

    Nothing is set, and the log says so, without finite vectors and texts of two classes.

    Args:
        run: Measures the vectors, in its batches and precision; the metric of its plan selects the regression,
            and of equals the lower loss.
        task: Labelled items, `metrics`, and a `measure` of logits and labels.
        balanced: Whether texts are weighted by the inverse of the number of texts of their class.
    """
    name = last_layer(task.model)
    layer: Any = task.model.get_submodule(name)
    chosen = np.random.default_rng(task.seed).permutation(len(task.train_items))[:MOST_TEXTS]
    train = task.train_items.select(chosen[np.argsort(task.train_items.lengths[chosen], kind="stable")])
    task.model.set_submodule(name, _Inputs())  # logits are these then
    try:
        (vectors, targets), (held_out, held_out_targets) = run.measure(train), run.measure()
    finally:
        task.model.set_submodule(name, layer)
    found: list[Any] = [None]
    if run.rank == 0 and np.isfinite(vectors).all() and len(np.unique(targets, axis=0)) > 1:
        fits = regressions(vectors, targets, len(layer.weight), balanced=balanced, biased=layer.bias is not None)
        measured = [(fit, task.metrics(_logits(run, fit, held_out), held_out_targets)) for fit in fits]
        metric = str(run.plan.metric)
        sign = -1 if metric == "loss" else 1
        found[0] = max(measured, key=lambda each: (sign * each[1][metric], -each[1]["loss"]))
    broadcast_object_list(found)
    if found[0] is None:
        logger.warning("the head starts at random: a regression needs finite vectors, and texts that differ in class")
        return
    (strength, *values), metrics = found[0]
    for place, value in zip((layer.weight, layer.bias), values, strict=True):
        if place is not None:
            fill(place, torch.from_numpy(value))
    shown = ", ".join(f"{name} {value:,.4f}" for name, value in metrics.items())
    logger.info(
        "the head starts at a logistic regression on the encoder's vectors (%s training texts, C %g): validation %s",
        *(f"{len(targets):,}", strength, shown),
    )


def _logits(run: Run, fit: Fitted, vectors: Float[np.ndarray, "texts width"]) -> Float[np.ndarray, "texts classes"]:
    """As the last layer will compute them, in the precision of the run."""
    inputs, *layer = (torch.from_numpy(each).to(run.device) for each in (vectors, fit.weight, fit.bias))
    with torch.no_grad(), run.autocast:
        return to_array(F.linear(inputs, *layer))


def regressions(
    vectors: Float[np.ndarray, "texts width"], targets: Targets, classes: int, *, balanced: bool, biased: bool
) -> Iterator[Fitted]:
    """Regressions on vectors, one for each of `STRENGTHS`; for multi-label texts, on each class apart.

    Without `biased`, their bias is 0.
    """
    mean = vectors.mean(axis=0, dtype=np.float64) * biased
    # Not the deviation: weights of numbers that are nearly the same in all texts would be large, and so would be what
    # dropout of these numbers does to the logits.
    size = np.sqrt(np.square(vectors, dtype=np.float64).mean(axis=0))
    scale = np.where(size > _SMALL, size, np.inf)
    scaled = (vectors - mean) / scale
    columns = [targets] if targets.ndim == 1 else list(targets.T.astype(np.int64))
    weighted = "balanced" if balanced else None
    # Each begins at the one before it.
    options: dict[str, Any] = {"class_weight": weighted, "fit_intercept": biased, "max_iter": 1000, "warm_start": True}
    models = [LogisticRegression(**options) for _ in columns]
    for strength in STRENGTHS:
        weight, bias = np.zeros((classes, scaled.shape[1])), np.full(classes, -math.log(len(targets)))
        for number, (model, column) in enumerate(zip(models, columns, strict=True)):
            seen = np.unique(column)
            if len(seen) == 1:  # of the multi-label texts all have the class, or none
                bias[number] *= 1 - 2 * seen[0]
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                model.set_params(C=strength).fit(scaled, column)
            coefficients, intercepts = model.coef_, model.intercept_
            if targets.ndim == 2:
                seen = np.array([number])
            elif len(seen) == 2:  # the regression is of the second class
                coefficients, intercepts = (np.concatenate([-each, each]) / 2 for each in (coefficients, intercepts))
            weight[seen], bias[seen] = coefficients, intercepts
        weight /= scale
        yield Fitted(strength, weight.astype(np.float32), (bias - weight @ mean).astype(np.float32))
