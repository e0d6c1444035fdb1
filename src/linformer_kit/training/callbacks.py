"""What a person sees while a model trains, and how often."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from tqdm import tqdm
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from linformer_kit.training.memory import most_bytes

# What stands in the log of a training beside its losses: how long its updates took, which they are and what they took.
_SECONDS, _UPDATES, _TAKEN = "training_seconds", "timed_updates", "timed_items"


class ProgressBar(TrainerCallback):
    """One bar over all updates: loss, rate, time left; a line for each evaluation.

    Args:
        each: What all forward passes of one update take together, over all processes, with whole batches.
        what: Its name: tokens, or texts.
        describe: An evaluation's metrics in words.

    Attributes:
        seconds: Time of the training so far: data and updates; evaluation and saving do not count. It stands in the log
            of the training, so that a run that is resumed goes on counting.
        in_epoch: What an epoch takes, of which its last update may have less left than others; None: every update takes
            the same.
        rate: What was taken in a second, in the mean.
    """

    def __init__(self, *, each: int, what: str, describe: Callable[[dict[str, float]], str]) -> None:
        self.each = each
        self.what = what
        self.describe = describe
        self.in_epoch: int | None = None
        self.seconds = 0.0
        self.updates = 0
        self.taken = 0
        self._started = 0.0
        self._logged = 0.0, 0  # seconds and what was taken at the last line of the log
        self._bar: tqdm | None = None

    @property
    def rate(self) -> float:
        return self.taken / self.seconds if self.seconds else 0.0

    def measures(self, state: TrainerState, device: torch.device) -> dict[str, float]:
        """What a line of the log says of speed and memory.

        Returns:
            `<what>_per_second` since the last one, `seconds_left` at the mean speed so far, `memory_mib`, the most that
            this process has held.
        """
        seconds, taken = self.seconds - self._logged[0], self.taken - self._logged[1]
        self._logged = self.seconds, self.taken
        found = {f"{self.what}_per_second": taken / seconds if seconds else 0.0}
        if self.updates:
            found["seconds_left"] = (state.max_steps - state.global_step) * self.seconds / self.updates
        memory = most_bytes(device)
        return found if memory is None else found | {"memory_mib": memory / 2**20}

    def count_from(self, state: TrainerState) -> None:
        """Take over time and updates of a training so far."""
        known: dict[str, Any] = next((entry for entry in reversed(state.log_history) if _SECONDS in entry), {})
        self.seconds, self.updates = known.get(_SECONDS, 0.0), known.get(_UPDATES, 0)
        self.taken = known.get(_TAKEN, self.updates * self.each)
        self._logged = self.seconds, self.taken

    def taken_by(self, update: int) -> int:
        """What an update takes, by its number from 1."""
        if self.in_epoch is None or update % math.ceil(self.in_epoch / self.each):
            return self.each
        return self.in_epoch % self.each or self.each

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.count_from(state)
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
        self.taken += self.taken_by(state.global_step)
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
        if state.log_history:
            state.log_history[-1] |= {_SECONDS: self.seconds, _UPDATES: self.updates, _TAKEN: self.taken}
        if self._bar is not None and logs and "loss" in logs:
            self._bar.set_postfix_str(f"loss {logs['loss']:.3f}, {self.rate:,.0f} {self.what}/s", refresh=False)

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        if self._bar is not None and metrics and "eval_loss" in metrics:
            self._bar.write(f"update {state.global_step}: {self.describe(metrics)}", file=self._bar.fp)
        self._started = time.perf_counter()

    def on_save(self, *args: Any, **kwargs: Any) -> None:
        self._started = time.perf_counter()

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        self.close()

    def close(self) -> None:
        """Leave the bar as it stands."""
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
