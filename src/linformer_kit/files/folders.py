"""Output folders: checks before any work, new ones, and those of training runs with their checkpoints."""

from __future__ import annotations

import datetime
import itertools
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from linformer_cli.errors import InputError
from linformer_cli.outputs import RUN_MARK, check_no_run, check_writable
from linformer_kit.files.manifest import damage, listed_files, remove_listed
from linformer_kit.files.writing import MANIFEST, PART, put_in_place, remove_folder, remove_tree

_NEW_FOLDERS = "runs"  # parent of new run folders, when no output_dir is given
CHECKPOINT = re.compile(r"checkpoint-(\d+)")
TRAINER_STATE = "trainer_state.json"  # the training state; transformers' file name
# Files of a run at the top of its folder; `overwrite` removes them and those that the manifest lists, the mark last.
RUN_FILES = (
    *(MANIFEST, "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"),
    *("metrics.json", "metrics.md", "perplexity.png", "curve.png", "confusion.png", "calibration.png"),
    "mistakes.jsonl",
    *("settings.yaml", RUN_MARK),
)
# If any of these exists beside an encoder, sentence-transformers reads its configuration there.
SENTENCE_FILES = ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json")
# Files that libraries load together with a model in the same folder: those of another model must not be there.
_LOADED_BESIDE = (
    *SENTENCE_FILES,
    *("adapter_config.json", "generation_config.json"),
    *("added_tokens.json", "chat_template.jinja", "special_tokens_map.json"),
)


def new_folder(parent: Path, name: str) -> Path:
    """Create a folder with an unused name; concurrent runs get different ones."""
    parent.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        folder = parent / (name if number == 1 else f"{name}-{number}")
        with suppress(FileExistsError):
            folder.mkdir()
            break
    return folder


def check_made_from(path: Path, before: dict[str, Any], now: dict[str, Any], advice: str = "") -> None:
    """Raise an `InputError`, which ends with `advice`, unless the record `before`, of the file `path`, has the settings
    and fingerprints of `now`; its other entries are not compared.
    """
    for name, value in now.items():
        if before.get(name) != value:
            raise InputError(f"resume: expected {name} as in {path}, {before.get(name)!r}, got {value!r}{advice}")


def check_output_dir(output_dir: str | None, *, resume: bool, overwrite: bool) -> None:
    """Raise an `InputError` for an output folder that cannot be created, or in which a run or a model would be lost."""
    if output_dir is None and resume:
        raise InputError("resume: expected an output_dir to resume in, got none")
    folder = Path(output_dir or _NEW_FOLDERS)
    check_writable(folder)
    if output_dir is None:
        return
    ours = listed_files(folder)
    foreign = [name for name in _LOADED_BESIDE if os.path.lexists(folder / name) and folder / name not in ours]
    holds_run = checkpoints(folder) or any((folder / name).exists() for name in RUN_FILES)
    unmarked = holds_run and not (folder / RUN_MARK).exists()
    if unmarked or (foreign and not resume):
        what = f"a model but no {RUN_MARK}" if unmarked else foreign[0]
        raise InputError(
            f"output_dir: expected a folder without a model from outside linformer-kit, got {folder}, which has {what}"
        )
    check_no_run(folder, goes_on=resume or overwrite)


def open_output_dir(output_dir: str | None, *, command: str, overwrite: bool) -> Path:
    """Create the folder, by default `runs/<command>-<date>-<time>`; `overwrite` removes an existing run."""
    check_writable(Path(output_dir or _NEW_FOLDERS))
    if output_dir is None:
        return new_folder(Path(_NEW_FOLDERS), f"{command}-{datetime.datetime.now():%Y%m%d-%H%M%S}")
    folder = Path(output_dir)
    if overwrite:
        _remove_run(folder)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def checkpoint_path(folder: Path, updates: int) -> Path:
    """Path of the checkpoint after a number of updates."""
    return folder / f"checkpoint-{updates}"


def find_checkpoint(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest intact checkpoint, or None, and a description of the damage of each newer one."""
    wrong: list[str] = []
    for path in checkpoints(folder):
        if (what := damage(path)) is None:
            return path, wrong
        wrong.append(what)
    return None, wrong


def recover_checkpoints(folder: Path) -> None:
    """Put complete checkpoints of killed processes in place where none is intact, and remove what else they left."""
    for part in folder.glob(f".*{PART}"):
        path = folder / part.name.removeprefix(".").removesuffix(PART)
        if not CHECKPOINT.fullmatch(path.name):
            continue
        if part.is_symlink() or damage(part) is not None or damage(path) is None:
            remove_tree(part)
        else:
            put_in_place(part, path)


def rotate_checkpoints(folder: Path, limit: int | None, *, keep: int | None) -> None:
    """Remove all but `limit` checkpoints, the oldest first, if the newest one is intact; None: remove none.

    `keep` is the update of a checkpoint to keep regardless of age; it counts towards `limit`.
    """
    paths = checkpoints(folder)
    if limit is None or len(paths) <= limit or damage(paths[0]) is not None:
        return
    best = [path for path in paths[1:] if keep is not None and path == checkpoint_path(folder, keep)]
    others = [path for path in paths[1:] if path not in best]
    for path in others[max(0, limit - 1 - len(best)) :]:
        remove_folder(path)


def checkpoints(folder: Path) -> list[Path]:
    """Checkpoints, the newest first."""
    named = [path for path in folder.glob("checkpoint-*") if CHECKPOINT.fullmatch(path.name)]
    return sorted(named, key=lambda path: int(path.name.rpartition("-")[2]), reverse=True)


def _remove_run(folder: Path) -> None:
    """Remove the files of a run and folders that become empty; of symbolic links only the links."""
    recover_checkpoints(folder)
    for path in checkpoints(folder):
        remove_folder(path)
    remove_listed(folder)
    for name in RUN_FILES:
        (folder / name).unlink(missing_ok=True)
    logs = folder / "runs"
    for path in (*logs.glob("*"), logs):
        if path.is_dir() and not path.is_symlink() and not logs.is_symlink():
            for events in path.glob("events.out.tfevents*"):
                events.unlink()
            if not any(path.iterdir()):
                path.rmdir()
