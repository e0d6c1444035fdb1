"""A run around one or more trainings: output folder, identity, records, and how trainings end."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from linformer_kit.errors import DivergedError, InputError
from linformer_kit.files.runs import check_output_dir, open_output_dir
from linformer_kit.settings import TrainingSettings
from linformer_kit.training.checkpoint import save_model, write_by_one
from linformer_kit.training.identity import (
    check_enough_updates,
    check_same_settings,
    check_same_source,
    record_divergence,
    save_run,
    start_in,
)
from linformer_kit.training.log import check_report_to
from linformer_kit.training.loop import Training
from linformer_kit.training.plan import Plan
from linformer_kit.training.processes import start_processes
from linformer_kit.training.randomness import deterministic_kernels
from linformer_kit.training.resume import checkpoint_to_resume
from linformer_kit.training.tasks.base import Task

logger = logging.getLogger(__name__)


class Run:
    """A run of a training command. All processes create one, and call the same methods.

    Args:
        command: Name of the command.
        settings: Its settings.
        may_change: Names of settings that may change on resume, besides those that may change in all commands.

    Attributes:
        settings: The settings.
        process: This process.
        folder: The output folder; final after `open`.

    Raises:
        InputError: for invalid settings, and for a folder where another run would be overwritten. No data was read, and
            nothing was written or removed.
    """

    def __init__(self, command: str, settings: TrainingSettings, *, may_change: Collection[str] = ()) -> None:
        check_report_to(settings.report_to)
        self.command, self.settings = command, settings
        self.process = start_processes(cpu=settings.use_cpu, timeout=settings.ddp_timeout)
        count = self.process.num_processes
        if count > 1 and settings.output_dir is None:
            raise InputError(f"output_dir: expected a folder for {count} processes to share, got none")
        if settings.fully_shard and count == 1:
            raise InputError("fully_shard: expected several processes, as torchrun starts them, got one")
        if self.process.is_main_process:
            check_output_dir(settings.output_dir, resume=settings.resume, overwrite=settings.overwrite)
            check_enough_updates(settings)
            check_same_settings(settings, may_change)
        self.folder = Path(settings.output_dir or "")
        self._start_before = start_in(settings.output_dir)

    @property
    def is_main(self) -> bool:
        """Whether this is the main process, which writes files."""
        return self.process.is_main_process

    def one_process_first(self) -> AbstractContextManager[None]:
        """Context for work with cached results: one process per machine does it first, the others read the cache."""
        return self.process.local_main_process_first()

    def open(self, source: dict[str, str], fingerprints: dict[str, str]) -> None:
        """Open the output folder and record settings and inputs of the run.

        Args:
            source: Description of the training data, under its name.
            fingerprints: Hashes of the inputs, under names that end in `_fingerprint`.

        Raises:
            InputError: if a resumed run had other inputs, or another run has started in the folder meanwhile.
        """
        if self.is_main:
            if start_in(self.settings.output_dir) != self._start_before:
                raise InputError(f"output_dir: expected one run at a time, got another one in {self.folder}")
            check_same_source(self.settings, fingerprints)
            self.folder = open_output_dir(
                self.settings.output_dir, command=self.command, overwrite=self.settings.overwrite
            )
            save_run(self.settings, self.folder, command=self.command, source=source, fingerprints=fingerprints)
        self.process.wait_for_everyone()

    def train(self, task: Task, plan: Plan, folder: Path | None = None, *, said: str = "") -> Training:
        """Train a task, or resume it.

        Args:
            task: The task to train.
            plan: Number of updates, learning rates, and when to evaluate and save.
            folder: Folder of the checkpoints; None: the folder of the run.
            said: Description for the log.

        Returns:
            The finished training; if it diverged, `diverged` says where, and earlier checkpoints are finite.
        """
        folder = self.folder if folder is None else folder
        checkpoint = checkpoint_to_resume(folder) if self.settings.resume else None
        training = Training(task, self.settings, plan, folder, checkpoint=checkpoint)
        precision = training.engine.precision
        size = f"{task.model.num_parameters():,} parameters"
        logger.info("%s%s, %s, on %s", f"{said}: " if said else "", size, precision, self.process.device)
        try:
            with deterministic_kernels(self.settings.full_determinism):
                training.run()
            losses = training.state.logged("eval_loss")
            if not math.isfinite(losses[max(losses)]):
                rate = self.settings.learning_rate
                raise DivergedError(
                    f"training diverged: the validation loss is NaN or infinite; lower learning_rate {rate}"
                )
        except DivergedError as error:
            training.diverged = str(error)
            if self.is_main:
                record_divergence(self.folder, f"{said}: {error}" if said else str(error))
        return training

    def save_model(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        folder: Path | None = None,
        *,
        beside: Callable[[Path], None] = lambda folder: None,
    ) -> None:
        """Save a model and its tokenizer to `folder`, by default that of the run; see `checkpoint.save_model`."""
        save_model(model, tokenizer, self.folder if folder is None else folder, beside=beside)

    def write(self, write: Callable[[Path], object]) -> None:
        """Let the main process write results into the folder of the run; all processes raise if that fails."""
        what = f"{self.folder}: the results could not be written"
        write_by_one(lambda: write(self.folder), what, "the checkpoints are")


def measurements(training: Training) -> dict[str, Any]:
    """Entries common to the results of all trainings: updates, divergence, time, speed and number format."""
    return {
        "updates": training.state.update,
        "diverged": training.diverged,
        "skipped_updates": training.skipped_updates,
        "seconds": training.log.seconds,
        f"{training.task.unit}_per_second": training.log.rate,
        "bf16": training.engine.bf16,
    }
