"""A run around one or more trainings: output folder, its record (compared on resume), and how trainings end."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import json
import logging
import math
import sys
from collections.abc import Callable, Collection
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import yaml
from accelerate import PartialState
from accelerate.utils import broadcast_object_list

from linformer_cli.errors import DivergedError, InputError
from linformer_cli.outputs import LOCK, RUN_MARK
from linformer_cli.settings import TrainingSettings, without_local_paths
from linformer_cli.settings.files import flat
from linformer_kit.environment import environment
from linformer_kit.files.folders import (
    check_made_from,
    check_output_dir,
    find_checkpoint,
    open_output_dir,
    recover_checkpoints,
)
from linformer_kit.files.locking import locked
from linformer_kit.files.manifest import read_json
from linformer_kit.files.writing import write_whole
from linformer_kit.training.checkpoint import write_by_one
from linformer_kit.training.loop import Training
from linformer_kit.training.process import start_processes
from linformer_kit.training.state import Plan, read_state, tracker_classes
from linformer_kit.training.task import Task

logger = logging.getLogger(__name__)

# Settings that may change on resume: they affect speed, logging and which checkpoints are kept. The number of
# processes may change as well, and with it the batch of each: `global_batch_size` is compared.
_MAY_CHANGE = (
    "save_total_limit",
    "logging_steps",
    "report_to",
    "dataloader_num_workers",
    "per_device_train_batch_size",
    "fully_shard",
    "ddp_timeout",
)
# Not saved, so that the settings can be repeated in another folder.
_NOT_SAVED = ("output_dir", "resume")
_SETTINGS = "settings.yaml"


class Run:
    """A run of a training command. All processes create one, and call the same methods within `with`.

    It locks its folder when it is created, or in `open` if the folder does not exist yet, until the block ends.

    Args:
        command: Name of the command.
        settings: Its settings.
        may_change: Names of settings that may change on resume, besides those that may change in all commands.

    Attributes:
        folder: The output folder; final after `open`.

    Raises:
        InputError: for settings that do not fit, for a folder that is not empty, and for one of a run that is not to be
            resumed, or is alive.
    """

    def __init__(self, command: str, settings: TrainingSettings, *, may_change: Collection[str] = ()) -> None:
        tracker_classes(settings.report_to)
        self.command, self.settings = command, settings
        self.process = start_processes(settings.device, timeout=settings.ddp_timeout)
        count = self.process.num_processes
        if count > 1 and settings.output_dir is None:
            raise InputError(f"output_dir: expected a folder for {count} processes to share, got none")
        if settings.fully_shard and count == 1:
            raise InputError("fully_shard: expected several processes, as torchrun starts them, got one")
        if self.process.is_main_process:
            check_output_dir(settings.output_dir, resume=settings.resume)
        self.folder = Path(settings.output_dir or "")
        self._resumed: dict[str, Any] = {}
        self._lock = ExitStack()
        self._is_new = settings.output_dir is None or not self.folder.is_dir()
        if self._is_new or not self.process.is_main_process:
            return
        with ExitStack() as lock:  # released after an error
            lock.enter_context(locked(self.folder / LOCK, "output_dir"))
            check_output_dir(settings.output_dir, resume=settings.resume)  # nothing was written meanwhile
            self._resumed = _read_record(self.folder)
            if self._resumed:
                self._check_same_settings(may_change)
                self._check_enough_updates()
            self._lock = lock.pop_all()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *error: object) -> None:
        self._lock.close()

    def open(self, source: dict[str, str], fingerprints: dict[str, str]) -> None:
        """Open the output folder and record settings, a description of the data, and hashes of the inputs.

        The names of the hashes are words, such as `train_text_fingerprint`, which the error of a resume repeats.

        Raises:
            InputError: if a resumed run had other inputs, or another run has started in the folder meanwhile.
        """
        if self.process.is_main_process:
            if self._resumed:
                self._check_same_content(fingerprints)
            self.folder = open_output_dir(self.settings.output_dir, command=self.command)
            if self._is_new:
                self._lock.enter_context(locked(self.folder / LOCK, "output_dir"))
                check_output_dir(str(self.folder), resume=False)  # no other run has ended there meanwhile
            self._write_record({**source, **fingerprints})
        self.process.wait_for_everyone()

    @property
    def _global_batch_size(self) -> int:
        return self.settings.per_device_train_batch_size * self.process.num_processes

    def _check_same_settings(self, may_change: Collection[str]) -> None:
        """Raise an error if the run has other settings than at its last start, with the name of the first."""
        mark, path, free = self.folder / RUN_MARK, self.folder / _SETTINGS, (*_NOT_SAVED, *_MAY_CHANGE, *may_change)
        check_made_from(mark, self._resumed, {"command": self.command})
        size, processes = self.settings.per_device_train_batch_size, self.process.num_processes
        if self._resumed.get("global_batch_size") != self._global_batch_size:
            expected = f"{self._resumed.get('global_batch_size')!r} for all processes together, as in {mark}"
            raise InputError(f"resume: expected per_device_train_batch_size {expected}, got {size} × {processes}")
        before, now = flat(self._resumed["settings"]), flat(dataclasses.asdict(self.settings))
        if before.get("per_device_train_batch_size") != size:
            text = "resume: another number of processes, %s: the same batches, but not bit for bit the same result"
            logger.warning(text, processes)
        now = {name: value for name, value in now.items() if name.partition(".")[0] not in free}
        check_made_from(path, before, now, f"; --config {path} gives the same settings again")

    def _check_same_content(self, fingerprints: dict[str, str]) -> None:
        """Raise an error that says which inputs of a resumed run have changed."""
        changed = [name for name, value in fingerprints.items() if self._resumed.get(name) != value]
        if changed:
            words = " and ".join(name.removesuffix("_fingerprint").replace("_", " ") for name in changed)
            raise InputError(
                f"resume: expected the content that the run in {self.folder} began with, got other {words}"
            )

    def _check_enough_updates(self) -> None:
        """Raise an error if a checkpoint has more than `max_steps` updates, with its name."""
        wanted, (checkpoint, _) = getattr(self.settings, "max_steps", None), find_checkpoint(self.folder)
        if wanted is not None and checkpoint is not None and (updates := read_state(checkpoint).update) > wanted:
            raise InputError(f"max_steps: expected at least the {updates} updates of {checkpoint}, got {wanted}")

    def _write_record(self, inputs: dict[str, str]) -> None:
        """Write settings, inputs and each start of the run."""
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
            "global_batch_size": self._global_batch_size,
            "settings": saved,
            "starts": [*self._resumed.get("starts", ()), start],
        }
        # First, since this file marks the folder as an output folder of this package.
        write_whole(self.folder / RUN_MARK, json.dumps(record, indent=2) + "\n")
        write_whole(self.folder / _SETTINGS, yaml.safe_dump(saved, sort_keys=False))

    def train(self, task: Task, plan: Plan, *, label: str = "") -> Training:
        """Train a task, or resume it; `label` describes it in the log.

        Returns:
            The finished training; if it diverged, `diverged` says where, and earlier checkpoints are finite.
        """
        checkpoint = _checkpoint_to_resume(self.folder) if self.settings.resume else None
        training = Training(task, self.settings, plan, self.folder, checkpoint=checkpoint)
        size, dtype = f"{task.model.num_parameters():,} parameters", str(training.dtype).removeprefix("torch.")
        mixed = "" if training.dtype == torch.float32 else " mixed precision"
        logger.info("%s, %s, %s%s, on %s", label, size, dtype, mixed, self.process.device)
        try:
            training.run()
            losses, rate = training.state.logged("eval_loss"), self.settings.learning_rate
            if not math.isfinite(losses[max(losses)]):
                got = "the validation loss is NaN or infinite"
                raise DivergedError(f"training diverged: {got}; lower learning_rate {rate}")
        except DivergedError as error:
            training.diverged = str(error)
        return training

    def results(self, training: Training, **results: Any) -> dict[str, Any]:
        """Results of the command: the given ones, updates, divergence, time and speed, then settings and machine."""
        state = training.state
        return {
            "command": self.command,
            **results,
            "updates": state.update,
            "diverged": training.diverged,
            "seconds": state.seconds,
            f"{training.task.unit}_per_second": training.log.rate,
            "dtype": str(training.dtype).removeprefix("torch."),
            "settings": without_local_paths(self.settings),
            "environment": environment(self.process.device),
        }

    def write(self, write: Callable[..., object], *arguments: Any) -> None:
        """Let the main process call `write` with the arguments and the folder of the run; all raise if that fails."""
        what = f"{self.folder}: the results could not be written"
        write_by_one(functools.partial(write, *arguments, self.folder), what, "the checkpoints are")


def print_results(folder: Path, advice: str) -> None:
    """Print the results of a training, and what can be done with them, once for all processes."""
    if PartialState().is_main_process:
        print((folder / "metrics.md").read_text(encoding="utf-8"))
        print(advice)


def _checkpoint_to_resume(folder: Path) -> Path | None:
    """The newest intact checkpoint, or None, in all processes; the log names it, and the damage of each newer one."""
    newest: list[Path | None] = [None]
    if PartialState().is_main_process:
        recover_checkpoints(folder)
        newest[0], wrong = find_checkpoint(folder)
        for what in wrong:
            logger.warning("resume: skipped a damaged checkpoint: %s", what)
        logger.info("resuming from %s", newest[0] or "the beginning: no intact checkpoint")
    broadcast_object_list(newest)
    return newest[0]


def _read_record(folder: Path) -> dict[str, Any]:
    """What the last start of a run has recorded; empty if there was none."""
    path = folder / RUN_MARK
    if not path.exists():
        return {}
    record = read_json(path)
    for name, kind in {"settings": dict, "starts": list}.items():
        if not isinstance(record.get(name), kind):
            raise InputError(f"{path}: expected a {kind.__name__} of {name}, got {str(record.get(name))[:60]}")
    return record
