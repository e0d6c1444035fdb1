"""The folder of a training, and the checkpoints in it."""

from __future__ import annotations

import datetime
import os
import re
from pathlib import Path

from linformer_kit.errors import InputError
from linformer_kit.files.folders import check_writable, new_folder
from linformer_kit.files.manifest import MANIFEST, damage, listed_files, recover, remove_listed
from linformer_kit.files.writing import remove_tree

_NEW_FOLDERS = "runs"  # where folders go that nobody has named


CHECKPOINT = re.compile(r"checkpoint-(\d+)")


TRAINER_STATE = "trainer_state.json"  # of transformers: where a training stands


TWIN_FOLDER = "full"  # the full-attention twin


SEED_FOLDER = re.compile(r"seed-(\d+)")  # the checkpoints of one seed


# What proves that a folder is a run of ours, or its twin: without it, files that stand where ours would are another's.
RUN_MARK = "run.json"


TWIN_MARK = "twin.json"


# What a run leaves at the top of its folder; `overwrite` removes it and what the manifest lists, the marks last.
RUN_FILES = (
    MANIFEST,
    "config.json",
    "model.safetensors",
    "metrics.json",
    "metrics.md",
    "perplexity.png",
    "curve.png",
    "confusion.png",
    "mistakes.jsonl",
    "settings.yaml",
    "tokenizer.json",
    "tokenizer_config.json",
    TWIN_MARK,
    RUN_MARK,
)


# Where any of these stands beside an encoder, sentence-transformers reads its set-up there.
SENTENCE_FILES = ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json")
# What libraries would load with a model beside which it stands: another one's must not be there.
_LOADED_BESIDE = (
    *SENTENCE_FILES,
    "adapter_config.json",
    "added_tokens.json",
    "chat_template.jinja",
    "generation_config.json",
    "special_tokens_map.json",
)


def check_output_dir(output_dir: str | None, *, resume: bool, overwrite: bool, twin: bool = False) -> None:
    """Refuse an output folder that another run would be lost in.

    Args:
        output_dir: The folder, or None for a new one.
        resume: Whether a run that is there goes on.
        overwrite: Whether a run that is there is removed.
        twin: Whether a full-attention twin is trained as well.

    Raises:
        InputError: if the folder holds a run and neither is given, or both are, or no such folder can be made, or it
            holds a model that is not ours, or files of one.
    """
    if resume and overwrite:
        raise InputError("resume, overwrite: expected at most one of them, got both")
    if output_dir is None and resume:
        raise InputError("resume: expected an output_dir to resume in, got none")
    folder = Path(output_dir or _NEW_FOLDERS)
    check_writable(folder)
    if output_dir is None:
        return
    for place, mark in ((folder, RUN_MARK), (folder / TWIN_FOLDER, TWIN_MARK))[: 1 + twin]:
        if not resume:
            _check_nothing_beside(place)
        if not holds_run(place):
            continue
        if not (place / mark).exists():
            raise InputError(f"output_dir: expected no model that is not ours, but {place} holds one without {mark}")
        if not (resume or overwrite):
            raise InputError(
                f"output_dir: expected a folder without a run, but {place} holds one; "
                "continue it with --resume or remove it with --overwrite"
            )


def open_output_dir(output_dir: str | None, *, command: str, overwrite: bool) -> Path:
    """Make the folder, or a new one, `runs/<command>-<date>-<time>`; with `overwrite` remove the run that is there."""
    if output_dir is None:
        return new_folder(Path(_NEW_FOLDERS), f"{command}-{datetime.datetime.now():%Y%m%d-%H%M%S}")
    folder = Path(output_dir)
    if overwrite:
        _remove_run(folder)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def holds_run(folder: Path) -> bool:
    """Whether the folder holds a run or the files of a model, which a run would write over."""
    places = [folder, *_seeds(folder)]
    return any(map(checkpoints, places)) or any((folder / name).exists() for name in RUN_FILES)


def checkpoint_path(folder: Path, updates: int | None) -> Path:
    """Where the checkpoint after so many updates is."""
    return folder / f"checkpoint-{updates}"


def newest_whole_checkpoint(folder: Path) -> Path | None:
    """The checkpoint with the most updates of which every file is what its manifest says, or None."""
    return find_checkpoint(folder)[0]


def find_checkpoint(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest whole checkpoint, or None, and what is wrong with each newer one, in words that name the file."""
    wrong: list[str] = []
    for path in checkpoints(folder):
        found = damage(path)
        if found is None:
            return path, wrong
        wrong.append(found)
    return None, wrong


def rotate_checkpoints(folder: Path, limit: int | None, *, keep: int | None) -> None:
    """Remove the oldest checkpoints, once the newest one is known to be whole.

    Args:
        folder: Where they are.
        limit: How many stay; None: all.
        keep: Updates of one that stays whatever its age, and counts.
    """
    found = checkpoints(folder)
    if limit is None or len(found) <= limit or damage(found[0]) is not None:
        return
    staying = {found[0], *(path for path in found if path == checkpoint_path(folder, keep))}
    for path in found:
        if len(staying) < limit:
            staying.add(path)
    for path in found:
        if path not in staying:
            remove_folder(path)


def remove_folder(folder: Path) -> None:
    """Remove a folder that nobody must find half removed: its manifest goes first. Of a link only the link goes."""
    if not folder.is_symlink():
        (folder / MANIFEST).unlink(missing_ok=True)
    remove_tree(folder)


def checkpoints(folder: Path) -> list[Path]:
    """Checkpoints, the newest first."""
    if not folder.is_dir():
        return []
    found = [(int(match[1]), path) for path in folder.iterdir() if (match := CHECKPOINT.fullmatch(path.name))]
    return [path for _, path in sorted(found, reverse=True)]


def _seeds(folder: Path) -> list[Path]:
    """The folders of a run of several seeds."""
    return sorted(path for path in folder.glob("seed-*") if SEED_FOLDER.fullmatch(path.name) and path.is_dir())


def _check_nothing_beside(folder: Path) -> None:
    """Refuse what would be loaded with a new model and is not of the run there, which `overwrite` would remove."""
    ours = listed_files(folder)
    for path in (folder / name for name in _LOADED_BESIDE):
        if os.path.lexists(path) and path not in ours:
            raise InputError(
                f"output_dir: expected no files of another model, which would be loaded with the new one, got {path}: "
                "move or delete it"
            )


def _remove_run(folder: Path) -> None:
    """Remove what a run has written, and no folder that holds anything else; nothing behind a link."""
    recover(folder, CHECKPOINT)
    twin = folder / TWIN_FOLDER
    if (twin / TWIN_MARK).exists() or (twin.is_dir() and not any(twin.iterdir())):
        _remove_part(twin)
    for seed in _seeds(folder):
        _remove_part(seed)
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


def _remove_part(folder: Path) -> None:
    """Remove a run within another, and its folder once nothing is left in it; of a link only the link."""
    if folder.is_symlink():
        folder.unlink()
        return
    _remove_run(folder)
    if not any(folder.iterdir()):
        folder.rmdir()
