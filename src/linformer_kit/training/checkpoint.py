"""Output folders and the checkpoints in them."""

from __future__ import annotations

import datetime
import json
import re
import shutil
import zipfile
from pathlib import Path

from safetensors import SafetensorError, safe_open

from linformer_kit.errors import InputError

CHECKPOINT = re.compile(r"checkpoint-(\d+)")
# What a run leaves at the top of its folder; what `overwrite` removes, and nothing else.
RUN_FILES = (
    "config.json",
    "model.safetensors",
    "metrics.json",
    "metrics.md",
    "perplexity.png",
    "run.json",
    "settings.yaml",
    "tokenizer.json",
    "tokenizer_config.json",
)
TWIN_FOLDER = "full"  # the full-attention twin, a run of its own


def check_output_dir(output_dir: str | None, *, resume: bool, overwrite: bool) -> None:
    """Refuse an output folder that another run would be lost in.

    Args:
        output_dir: The folder, or None for a new one.
        resume: Whether a run that is there goes on.
        overwrite: Whether a run that is there is removed.

    Raises:
        InputError: if the folder holds a run and neither is given, or both are, or it is a file, or what is to be
            overwritten is not a run of ours.
    """
    if resume and overwrite:
        raise InputError("resume, overwrite: expected at most one of them, got both")
    if output_dir is None:
        if resume:
            raise InputError("resume: expected an output_dir to resume in, got none")
        return
    folder = Path(output_dir)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"output_dir: expected a folder, got the file {folder}")
    if holds_run(folder) and overwrite and not (folder / "run.json").exists():
        raise InputError(
            f"overwrite: expected run.json in {folder}, as every run leaves one, got other files of a model"
        )
    if holds_run(folder) and not (resume or overwrite):
        raise InputError(
            f"output_dir: expected a folder without a run, but {folder} holds one; "
            "continue it with --resume or remove it with --overwrite"
        )


def open_output_dir(output_dir: str | None, *, command: str, overwrite: bool) -> Path:
    """Make the folder, or a new one, `runs/<command>-<date>-<time>`; with `overwrite` remove the run that is there."""
    if output_dir is None:
        return _new_folder(Path("runs"), f"{command}-{datetime.datetime.now():%Y%m%d-%H%M%S}")
    folder = Path(output_dir)
    if overwrite:
        _remove_run(folder)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def holds_run(folder: Path) -> bool:
    """Whether the folder holds a run or the files of a model, which a run would write over."""
    return bool(_checkpoints(folder)) or any((folder / name).exists() for name in RUN_FILES)


def newest_whole_checkpoint(folder: Path) -> Path | None:
    """The checkpoint with the most updates of which every file is there and readable, or None."""
    return next((path for path in _checkpoints(folder) if _is_whole(path)), None)


def _checkpoints(folder: Path) -> list[Path]:
    """Checkpoints, the newest first."""
    if not folder.is_dir():
        return []
    found = [(int(match[1]), path) for path in folder.iterdir() if (match := CHECKPOINT.fullmatch(path.name))]
    return [path for _, path in sorted(found, reverse=True)]


def _is_whole(checkpoint: Path) -> bool:
    """transformers writes trainer_state.json last; safetensors and zip files know how long they must be."""
    try:
        json.loads((checkpoint / "trainer_state.json").read_text())
        with safe_open(checkpoint / "model.safetensors", framework="numpy"):
            pass
    except (OSError, ValueError, SafetensorError):
        return False
    pickles = [checkpoint / "optimizer.pt", checkpoint / "scheduler.pt", *checkpoint.glob("rng_state*.pth")]
    return (checkpoint / "config.json").exists() and all(zipfile.is_zipfile(path) for path in pickles)


def _remove_run(folder: Path) -> None:
    """Remove what a run has written, and no folder that holds anything else."""
    for path in _checkpoints(folder):
        shutil.rmtree(path)
    for name in RUN_FILES:
        (folder / name).unlink(missing_ok=True)
    logs = folder / "runs"
    for path in logs.glob("*/events.out.tfevents*"):
        path.unlink()
    twin = folder / TWIN_FOLDER
    if twin.is_dir():
        _remove_run(twin)
    for path in (*logs.glob("*"), logs, twin):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def _new_folder(parent: Path, name: str) -> Path:
    """A folder that was not there before, also when two runs start within a second."""
    parent.mkdir(parents=True, exist_ok=True)
    for number in range(1, 1000):
        folder = parent / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise InputError(f"output_dir: expected a free name below {parent}, got 1000 taken ones; give --output_dir")
