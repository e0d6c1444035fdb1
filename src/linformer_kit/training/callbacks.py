"""What a person sees while a model trains, and how often."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from tqdm import tqdm
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class ProgressBar(TrainerCallback):
    """One bar over all updates: loss, tokens per second, time left; a line for each evaluation.

    Args:
        tokens_per_update: Tokens in all forward passes of one update, over all processes.

    Attributes:
        seconds: Time of the training so far: data and updates; evaluation and saving do not count.
        tokens_per_second: Mean over those seconds.
    """

    def __init__(self, *, tokens_per_update: int) -> None:
        self.tokens_per_update = tokens_per_update
        self.seconds = 0.0
        self.updates = 0
        self._started = 0.0
        self._bar: tqdm | None = None

    @property
    def tokens_per_second(self) -> float:
        return self.updates * self.tokens_per_update / self.seconds if self.seconds else 0.0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._started = time.perf_counter()
        if state.is_world_process_zero:
            self._bar = tqdm(
                total=state.max_steps, initial=state.global_step, desc="training", unit="update", dynamic_ncols=True
            )

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        now = time.perf_counter()
        self.seconds += now - self._started
        self._started = now
        self.updates += 1
        if self._bar is not None:
            self._bar.update(state.global_step - self._bar.n)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        if self._bar is not None and logs and "loss" in logs:
            self._bar.set_postfix_str(f"loss {logs['loss']:.3f}, {self.tokens_per_second:,.0f} tokens/s", refresh=False)

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        if self._bar is not None and metrics and "eval_loss" in metrics:
            loss = metrics["eval_loss"]
            perplexity = math.exp(min(loss, 700))
            self._bar.write(
                f"update {state.global_step}: validation loss {loss:.3f} nats, perplexity {perplexity:,.1f}",
                file=self._bar.fp,
            )
        self._started = time.perf_counter()

    def on_save(self, *args: Any, **kwargs: Any) -> None:
        self._started = time.perf_counter()

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class ElasticProjectedDim(TrainerCallback):
    """Trains with another number of slots in each update; between updates, and so in evaluation, the model has all.

    Args:
        dims: Numbers of slots to draw from.
        seed: Seed of all draws.
    """

    def __init__(self, dims: Sequence[int], *, seed: int) -> None:
        self.dims = dims
        self.seed = seed

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: Any = None, **kwargs: Any
    ) -> None:
        model.set_projected_dim(drawn_projected_dim(self.dims, seed=self.seed, update=state.global_step))

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: Any = None, **kwargs: Any
    ) -> None:
        model.set_projected_dim()


def drawn_projected_dim(dims: Sequence[int], *, seed: int, update: int) -> int:
    """The number of slots of one update: a pure function, so the same in every process and after a resume."""
    return dims[int(np.random.default_rng([seed, update]).integers(len(dims)))]


class ArgumentIntervals(TrainerCallback):
    """Evaluates, saves and logs as often as the arguments say: a checkpoint brings the intervals of its own run."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        state.compute_steps(args, state.max_steps)
