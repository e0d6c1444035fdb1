"""Identity of a run: settings, text and tokenizer, saved with the run and compared on resume."""

from __future__ import annotations

import dataclasses
import datetime
import json
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml
from accelerate import PartialState

from linformer_kit.environment import environment, versions
from linformer_kit.errors import InputError
from linformer_kit.files.manifest import read_json
from linformer_kit.files.runs import RUN_MARK, newest_whole_checkpoint
from linformer_kit.files.writing import write_new, write_whole
from linformer_kit.settings import TrainingSettings, read_yaml
from linformer_kit.training.state import read_state

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


def check_enough_updates(settings: TrainingSettings) -> None:
    """Raise an error if a resumed run has already made more than `max_steps` updates.

    Raises:
        InputError: with the name of the checkpoint.
    """
    wanted, folder = getattr(settings, "max_steps", None), Path(settings.output_dir or "")
    if not settings.resume or wanted is None:
        return
    checkpoint = newest_whole_checkpoint(folder)
    if checkpoint is not None and (updates := read_state(checkpoint).update) > wanted:
        raise InputError(f"max_steps: expected at least the {updates} updates of {checkpoint}, got {wanted}")


def check_same_settings(settings: TrainingSettings, may_change: Collection[str]) -> None:
    """Raise an error if a resumed run has other settings than at its start.

    Args:
        settings: Settings of the run.
        may_change: Names of additional settings that may change.

    Raises:
        InputError: with the name of the first setting that differs.
    """
    path = Path(settings.output_dir or "") / _SETTINGS
    if not settings.resume or not path.exists():
        return
    before, now = read_yaml(path), dataclasses.asdict(settings)
    _check_same_batch(settings)
    free = {*_NOT_SAVED, *_MAY_CHANGE, *may_change, _BATCH}
    if now.get("streaming") or now.get("dataset_name"):
        free.discard("dataloader_num_workers")  # workers share the files of a stream, so their number changes the order
    if now.get("resize_to", 0) is None:
        free.add("resize_mode")  # unused
    for name in (name for name in now if name not in free):
        old, new, place = before.get(name), now[name], name
        if isinstance(old, dict) and isinstance(new, dict) and old != new:
            inner = next(key for key in (*new, *old) if old.get(key) != new.get(key))
            old, new, place = old.get(inner), new.get(inner), f"{name}.{inner}"
        if old != new:
            raise InputError(
                f"resume: expected {place} as in {path}, {old!r}, got {new!r}; "
                f"--config {path} gives the same settings again"
            )


def _check_same_batch(settings: TrainingSettings) -> None:
    """Raise an error if the global batch size differs; the size per process may change with their number.

    Size and number are read from one file: a kill between the writing of two would leave those of different starts.
    """
    folder = Path(settings.output_dir or "")
    starts = _earlier_starts(settings, folder)
    last = starts[-1] if starts and isinstance(starts[-1], dict) else {}
    before = read_json(folder / RUN_MARK).get("settings") if starts else None
    counts = last.get("processes", 1), PartialState().num_processes
    sizes = before.get(_BATCH) if isinstance(before, dict) else None, settings.per_device_train_batch_size
    if not all(isinstance(number, int) for number in (*counts, *sizes)) or counts[0] * sizes[0] != counts[1] * sizes[1]:
        old, new = (f"{size} in {count} processes" for size, count in zip(sizes, counts, strict=True))
        raise InputError(f"resume: expected the same global batch size ({_BATCH} times processes), {old}, got {new}")


def check_same_source(settings: TrainingSettings, fingerprints: dict[str, str]) -> None:
    """Raise an error if a resumed run has other text, another tokenizer or another model.

    Args:
        settings: Settings of the run.
        fingerprints: Hashes of the inputs of the run, by names that end in `_fingerprint`.
    """
    path = Path(settings.output_dir or "") / RUN_MARK
    if not _is_recorded(settings, path):
        return
    before = read_json(path)
    for name in dict.fromkeys([*fingerprints, *filter(lambda name: name.endswith(_FINGERPRINT), before)]):
        if before.get(name) != fingerprints.get(name):
            raise InputError(f"resume: expected the {name.removesuffix(_FINGERPRINT)} of {path}, got another one")


def save_run(
    settings: TrainingSettings,
    folder: Path,
    *,
    command: str,
    source: dict[str, str],
    fingerprints: dict[str, str],
) -> None:
    """Save the resolved settings, the inputs of the run, and each of its starts with versions and machine.

    Args:
        settings: Settings of the run.
        folder: Folder of the run.
        command: Name of the command.
        source: Description of the training data, under its name.
        fingerprints: As for `check_same_source`.

    Raises:
        InputError: if another run has started in the folder since it was checked. Nothing is changed then.
    """
    resolved = {name: value for name, value in dataclasses.asdict(settings).items() if name not in _NOT_SAVED}
    run = {
        "command": command,
        **source,
        **fingerprints,
        "versions": versions(),
        "settings": resolved,
        "starts": [*_earlier_starts(settings, folder), _this_start()],
    }
    text = json.dumps(run, indent=2) + "\n"
    # First, since this file marks the folder as an output folder of this package, and claims it for this run.
    if settings.resume and (folder / RUN_MARK).exists():
        write_whole(folder / RUN_MARK, text)
    else:
        try:
            write_new(folder / RUN_MARK, text)
        except FileExistsError:
            raise InputError(f"output_dir: expected one run at a time, got another one in {folder}") from None
    write_whole(folder / _SETTINGS, yaml.safe_dump(resolved, sort_keys=False))


def _earlier_starts(settings: TrainingSettings, folder: Path) -> list[dict[str, Any]]:
    path = folder / RUN_MARK
    starts = read_json(path).get("starts", []) if _is_recorded(settings, path) else []
    if not isinstance(starts, list):
        raise InputError(f"{path}: expected a list as starts, got {type(starts).__name__}")
    return starts


def start_in(output_dir: str | None) -> bytes | None:
    """What the last start of a run in a folder recorded, to see whether there is a new one; None without a run."""
    path = Path(output_dir or "") / RUN_MARK
    return path.read_bytes() if output_dir is not None and path.is_file() else None


def _is_recorded(settings: TrainingSettings, path: Path) -> bool:
    """Whether there is a start to resume; a kill between creating and writing the file leaves it empty."""
    return settings.resume and path.exists() and path.stat().st_size > 0


def _this_start() -> dict[str, Any]:
    process = PartialState()
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {
        "time": now,
        "arguments": sys.argv[1:],
        "processes": process.num_processes,
        **environment(process.device),
    }


def record_divergence(folder: Path, message: str) -> None:
    """Record that the last start of a run diverged."""
    run = read_json(folder / RUN_MARK)
    if isinstance(starts := run.get("starts"), list) and starts:
        starts[-1]["diverged"] = message
    write_whole(folder / RUN_MARK, json.dumps(run, indent=2) + "\n")
