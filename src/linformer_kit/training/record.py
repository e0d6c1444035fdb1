"""What a run is made of (command, settings, inputs, starts), in its folder, and compared when it is resumed."""

from __future__ import annotations

import dataclasses
import datetime
import json
import logging
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml
from accelerate import PartialState

from linformer_cli.errors import InputError
from linformer_cli.output_paths import RUN_MARK
from linformer_cli.settings import TrainingSettings
from linformer_cli.settings.recorded import flat
from linformer_kit.files.folders import check_made_from, find_checkpoint
from linformer_kit.files.manifest import read_json
from linformer_kit.files.writing import write_whole
from linformer_kit.report.environment import environment
from linformer_kit.training.state import read_state

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


class Record:
    """The record of a run, `run.json`, with what its last start has written.

    Args:
        command: Name of the command.
        settings: Its settings.
        process: This process.
    """

    def __init__(self, command: str, settings: TrainingSettings, process: PartialState) -> None:
        self._command, self._settings, self._process = command, settings, process
        self._before: dict[str, Any] = {}

    def read(self, folder: Path, may_change: Collection[str]) -> None:
        """Read what the last start has recorded, if there was one, and compare it.

        Raises:
            InputError: for another command, for settings that make another run of it, with the first of them, and for
                fewer updates than a checkpoint has.
        """
        path = folder / RUN_MARK
        if not path.exists():
            return
        record = read_json(path)
        for name, kind in {"settings": dict, "starts": list}.items():
            if not isinstance(record.get(name), kind):
                raise InputError(f"{path}: expected a {kind.__name__} of {name}, got {str(record.get(name))[:60]}")
        self._before = record
        self._check_same_settings(folder, may_change)
        self._check_enough_updates(folder)

    @property
    def _global_batch_size(self) -> int:
        return self._settings.per_device_train_batch_size * self._process.num_processes

    def _check_same_settings(self, folder: Path, may_change: Collection[str]) -> None:
        """Raise an error if the run has other settings than at its last start, with the name of the first."""
        mark, path, free = folder / RUN_MARK, folder / _SETTINGS, (*_NOT_SAVED, *_MAY_CHANGE, *may_change)
        check_made_from(mark, self._before, {"command": self._command})
        size, processes = self._settings.per_device_train_batch_size, self._process.num_processes
        if self._before.get("global_batch_size") != self._global_batch_size:
            expected = f"{self._before.get('global_batch_size')!r} for all processes together, as in {mark}"
            raise InputError(f"resume: expected per_device_train_batch_size {expected}, got {size} × {processes}")
        before, now = flat(self._before["settings"]), flat(dataclasses.asdict(self._settings))
        if before.get("per_device_train_batch_size") != size:
            text = "resume: another number of processes, %s: the same batches, but not bit for bit the same result"
            logger.warning(text, processes)
        now = {name: value for name, value in now.items() if name.partition(".")[0] not in free}
        check_made_from(path, before, now, f"; --config {path} gives the same settings again")

    def _check_enough_updates(self, folder: Path) -> None:
        """Raise an error if a checkpoint has more than `max_steps` updates, with its name."""
        wanted, (checkpoint, _) = getattr(self._settings, "max_steps", None), find_checkpoint(folder)
        if wanted is not None and checkpoint is not None and (updates := read_state(checkpoint).update) > wanted:
            raise InputError(f"max_steps: expected at least the {updates} updates of {checkpoint}, got {wanted}")

    def check_same_content(self, folder: Path, fingerprints: dict[str, str]) -> None:
        """Raise an `InputError` that says which inputs of a resumed run have changed, by the names of their hashes."""
        changed = [name for name, value in fingerprints.items() if self._before.get(name) != value]
        if self._before and changed:
            words = " and ".join(name.removesuffix("_fingerprint").replace("_", " ") for name in changed)
            raise InputError(f"resume: expected the content that the run in {folder} began with, got other {words}")

    def write(self, folder: Path, inputs: dict[str, str]) -> None:
        """Write settings, inputs and each start of the run."""
        saved = {name: value for name, value in dataclasses.asdict(self._settings).items() if name not in _NOT_SAVED}
        start = {
            "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "arguments": sys.argv[1:],
            "processes": self._process.num_processes,
            **environment(self._process.device),
        }
        record: dict[str, Any] = {
            "command": self._command,
            **inputs,
            "global_batch_size": self._global_batch_size,
            "settings": saved,
            "starts": [*self._before.get("starts", ()), start],
        }
        # First, since this file marks the folder as an output folder of this package.
        write_whole(folder / RUN_MARK, json.dumps(record, indent=2) + "\n")
        write_whole(folder / _SETTINGS, yaml.safe_dump(saved, sort_keys=False))
