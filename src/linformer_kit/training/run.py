"""A run around one or more trainings: output folder, its record (compared on resume), and how trainings end."""

from __future__ import annotations

import dataclasses
import datetime
import json
import logging
import math
import sys
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import yaml
from accelerate import PartialState
from accelerate.utils import broadcast_object_list

from linformer_kit.environment import environment, versions
from linformer_kit.errors import DivergedError, InputError
from linformer_kit.files.manifest import read_json, recover
from linformer_kit.files.runs import CHECKPOINT, RUN_MARK, check_output_dir, find_checkpoint, open_output_dir
from linformer_kit.files.writing import write_new, write_whole
from linformer_kit.settings import TrainingSettings
from linformer_kit.training.checkpoint import write_by_one
from linformer_kit.training.log import check_report_to
from linformer_kit.training.loop import Training
from linformer_kit.training.process import deterministic_kernels, start_processes
from linformer_kit.training.state import Plan, read_state
from linformer_kit.training.tasks.base import Task

logger = logging.getLogger(__name__)

# Settings that may change on resume: they affect speed, logging and which checkpoints are kept. The number of
# processes may change as well.
_MAY_CHANGE = (
    "max_skipped_updates",
    "save_total_limit",
    "logging_steps",
    "report_to",
    "dataloader_num_workers",
    "per_device_eval_batch_size",
    "fully_shard",
    "ddp_timeout",
    "cache_dir",
)
# Not saved, so that repeating a run from its settings does not overwrite it.
_NOT_SAVED = ("output_dir", "resume", "overwrite")
_SETTINGS = "settings.yaml"
_FINGERPRINT = "_fingerprint"
_BATCH = "per_device_train_batch_size"


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
        self.folder = Path(settings.output_dir or "")
        self._before = self._last_record()  # to see whether another run starts meanwhile
        self._resumed = _read_record(self.folder) if settings.resume and self.is_main else {}
        if self._resumed:
            self._check_same_settings(may_change)
            self._check_enough_updates()

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
            another = f"output_dir: expected one run at a time, got another one in {self.folder}"
            if self._last_record() != self._before:
                raise InputError(another)
            self._check_same_inputs(fingerprints)
            settings = self.settings
            self.folder = open_output_dir(settings.output_dir, command=self.command, overwrite=settings.overwrite)
            try:
                self._write_record({**source, **fingerprints})
            except FileExistsError:
                raise InputError(another) from None
        self.process.wait_for_everyone()

    def _last_record(self) -> bytes | None:
        path = self.folder / RUN_MARK
        return path.read_bytes() if self.settings.output_dir is not None and path.is_file() else None

    def _check_same_settings(self, may_change: Collection[str]) -> None:
        """Raise an error if the run has other settings than at its last start, with the name of the first."""
        before, now = _flat(self._resumed["settings"]), _flat(dataclasses.asdict(self.settings))
        old_batch = before.get(_BATCH), self._resumed["starts"][-1].get("processes")
        new_batch = now[_BATCH], self.process.num_processes
        if not all(isinstance(number, int) for number in old_batch) or math.prod(old_batch) != math.prod(new_batch):
            raise InputError(
                f"resume: expected the same global batch size ({_BATCH} times processes), {old_batch[0]} in "
                f"{old_batch[1]} processes, got {new_batch[0]} in {new_batch[1]} processes"
            )
        free = {*_NOT_SAVED, *_MAY_CHANGE, *may_change, _BATCH}
        if now.get("streaming") or now.get("dataset_name"):
            # Workers share the files of a stream, so their number changes the order.
            free.discard("dataloader_num_workers")
        if now.get("resize_to", 0) is None:
            free.add("resize_mode")  # unused
        path = self.folder / _SETTINGS
        for name, new in now.items():
            if name.partition(".")[0] not in free and before.get(name) != new:
                raise InputError(
                    f"resume: expected {name} as in {path}, {before.get(name)!r}, got {new!r}; "
                    f"--config {path} gives the same settings again"
                )

    def _check_enough_updates(self) -> None:
        """Raise an error if a checkpoint has more than `max_steps` updates, with its name."""
        wanted, (checkpoint, _) = getattr(self.settings, "max_steps", None), find_checkpoint(self.folder)
        if wanted is not None and checkpoint is not None and (updates := read_state(checkpoint).update) > wanted:
            raise InputError(f"max_steps: expected at least the {updates} updates of {checkpoint}, got {wanted}")

    def _check_same_inputs(self, fingerprints: dict[str, str]) -> None:
        """Raise an error if the run had other text, another tokenizer or another model."""
        before = {name: value for name, value in self._resumed.items() if name.endswith(_FINGERPRINT)}
        for name in {**fingerprints, **before} if self._resumed else {}:
            if before.get(name) != fingerprints.get(name):
                kind, path = name.removesuffix(_FINGERPRINT), self.folder / RUN_MARK
                raise InputError(f"resume: expected the {kind} of {path}, got another one")

    def _write_record(self, inputs: dict[str, str]) -> None:
        """Write settings, inputs, and each start of the run with versions and machine.

        Raises:
            FileExistsError: if another run has started in the folder since it was checked. Nothing is changed then.
        """
        saved = {name: value for name, value in dataclasses.asdict(self.settings).items() if name not in _NOT_SAVED}
        start = {
            "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "arguments": sys.argv[1:],
            "processes": self.process.num_processes,
            **environment(self.process.device),
        }
        record: dict[str, Any] = {
            "command": self.command,
            **inputs,
            "versions": versions(),
            "settings": saved,
            "starts": [*self._resumed.get("starts", ()), start],
        }
        # First, since this file marks the folder as an output folder of this package, and claims it for this run.
        if self.settings.resume and (self.folder / RUN_MARK).exists():
            write_whole(self.folder / RUN_MARK, _as_json(record))
        else:
            write_new(self.folder / RUN_MARK, _as_json(record))
        write_whole(self.folder / _SETTINGS, yaml.safe_dump(saved, sort_keys=False))

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
                record = _read_record(self.folder)
                record["starts"][-1]["diverged"] = f"{said}: {error}" if said else str(error)
                write_whole(self.folder / RUN_MARK, _as_json(record))
        return training

    def write(self, write: Callable[[Path], object]) -> None:
        """Let the main process write results into the folder of the run; all processes raise if that fails."""
        what = f"{self.folder}: the results could not be written"
        write_by_one(lambda: write(self.folder), what, "the checkpoints are")


def checkpoint_to_resume(folder: Path) -> Path | None:
    """The newest intact checkpoint, or None; the log names it, and the damage of each newer one.

    The main process looks for it and sends the path to the others. Incomplete files of a killed process are removed.
    """
    found: list[Path | None] = [None]
    if PartialState().is_main_process:
        recover(folder, CHECKPOINT)
        found[0], wrong = find_checkpoint(folder)
        for what in wrong:
            logger.warning("resume: skipped a damaged checkpoint: %s", what)
        logger.info("resuming from %s", found[0] or "the beginning: no intact checkpoint")
    broadcast_object_list(found)
    return found[0]


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


def _read_record(folder: Path) -> dict[str, Any]:
    """What the last start of a run has recorded; empty if there was none, or was killed before it was written."""
    path = folder / RUN_MARK
    if not path.exists() or path.stat().st_size == 0:
        return {}
    record = read_json(path)
    settings, starts = record.get("settings"), record.get("starts")
    if not isinstance(settings, dict):
        raise InputError(f"{path}: expected names and values as settings, got {type(settings).__name__}")
    if not (isinstance(starts, list) and starts and all(isinstance(start, dict) for start in starts)):
        raise InputError(f"{path}: expected a list of starts, got {str(starts)[:60]}")
    return record


def _flat(settings: dict[str, Any], start: str = "") -> dict[str, Any]:
    """Nested settings by their names with dots."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= _flat(value, f"{start}{name}.") if isinstance(value, dict) else {f"{start}{name}": value}
    return flat


def _as_json(record: dict[str, Any]) -> str:
    return json.dumps(record, indent=2) + "\n"
