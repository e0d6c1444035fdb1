"""The frame of every measurement: its folder, the header of its results, reports of partial results, and resuming.

A measurement calls `check_output` before any work, opens an `Experiment` with `portable` settings, fills in its
`results`, calls `save` after each part, and `show` at the end. Results without partial reports are written by
`write_at_once`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from linformer_kit.environment import environment
from linformer_kit.errors import InputError
from linformer_kit.files.folders import check_new_folder, check_writable
from linformer_kit.files.runs import check_output_dir, open_output_dir
from linformer_kit.files.writing import uninterrupted, whole_folder

Results = dict[str, Any]
Writer = Callable[[Results, Path], str]  # writes results and their report into a folder; returns the Markdown


def require(condition: bool, name: str, expected: str, got: Any) -> None:
    """Raise `InputError` for the setting `name` unless the condition holds."""
    if not condition:
        raise InputError(f"{name}: expected {expected}, got {got}")


def check_output(output_dir: str | None, *, resume: bool = False, overwrite: bool = False) -> None:
    """Check the output folder before any work.

    Args:
        output_dir: The folder, or None for a new one below runs/.
        resume: Whether the results in it are continued.
        overwrite: Whether the results in it are replaced.

    Raises:
        InputError: if the folder is not empty and neither is given, holds a model, or is not writable.
    """
    if output_dir is not None and resume:
        check_writable(Path(output_dir))
        return
    if output_dir is not None and not overwrite:
        check_new_folder("output_dir", output_dir)
    check_output_dir(output_dir, resume=False, overwrite=False)


def earlier_file(output_dir: str | None, name: str, *, resume: bool) -> Path | None:
    """The results file to resume, `<output_dir>/<name>.json`; None if there is nothing to resume."""
    path = Path(output_dir or "") / f"{name}.json"
    return path if resume and path.is_file() else None


def check_same_settings(earlier: Results, now: Results, path: Path) -> None:
    """Check that the settings of results to resume are those of this run.

    Args:
        earlier: The earlier results.
        now: The settings that must not differ.
        path: The file of the earlier results, for errors.

    Raises:
        InputError: for the first setting that differs.
    """
    for name, value in now.items():
        before = earlier["settings"].get(name)
        if before != value:
            raise InputError(f"resume: expected {name} as in {path}, {before!r}, got {value!r}")


def header(command: str, *, device: torch.device, settings: Results) -> Results:
    """The first fields of all results: command, machine with versions, settings."""
    return {"command": command, "environment": environment(device), "settings": settings}


class Experiment:
    """The results of one measurement and the folder that they are written to.

    As a context manager, it prints the folder of the partial results after Ctrl-C.

    Args:
        command: The command, such as `bench long`.
        output_dir: The folder, checked by `check_output`; None: a new folder, `runs/<command>-<date>-<time>`.
        device: Device of the measurement.
        settings: Settings to record.
        write: Function that writes the report.
        fields: Further fields of the results.

    Attributes:
        results: The results, written as JSON.
        folder: The output folder.
        text: The Markdown report of the last `save`.
    """

    def __init__(
        self,
        command: str,
        output_dir: str | None,
        *,
        device: torch.device,
        settings: Results,
        write: Writer,
        fields: Results | None = None,
    ) -> None:
        self.results = header(command, device=device, settings=settings) | (fields or {})
        self.folder = open_output_dir(output_dir, command=_hyphened(command), overwrite=False)
        self.text = ""
        self._write = write

    def __enter__(self) -> Experiment:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, KeyboardInterrupt) and any(self.folder.iterdir()):
            print(f"What was measured so far is in {self.folder}", file=sys.stderr)

    def save(self) -> None:
        """Write the results so far and their report."""
        self.text = self._write(self.results, self.folder)

    def finish(self) -> None:
        """Mark the results as complete and write them."""
        self.results["complete"] = True
        self.save()

    def show(self) -> None:
        """Print the report and its folder."""
        show(self.text, self.folder)


def write_at_once(output_dir: str | None, command: str, write: Callable[[Path], str]) -> tuple[str, Path]:
    """Write complete results into their folder, all files or none.

    Returns:
        The text that `write` returns, and the folder.
    """
    folder = open_output_dir(output_dir, command=_hyphened(command), overwrite=False)
    with uninterrupted(), whole_folder(folder) as part:
        return write(part), folder


def show(text: str, folder: Path | str, *, interrupted: bool = False) -> None:
    """Print a report and its folder.

    Raises:
        KeyboardInterrupt: after printing, if the measurement was interrupted.
    """
    print(text)
    print(f"Saved in {folder}")
    if interrupted:
        raise KeyboardInterrupt


def _hyphened(command: str) -> str:
    return command.replace(" ", "-")
