"""Run the steps of a page, in order, in a new folder with a small Python library and the files that the page assumes."""

from __future__ import annotations

import os
import runpy
import shlex
import sys
from collections.abc import Iterable
from types import SimpleNamespace

import pytest
from torch.distributed.run import parse_args

from linformer_cli.cli import main
from linformer_cli.settings import REGISTERED_PROJECTIONS
from linformer_kit.data import files
from linformer_kit.operator.projections import PROJECTIONS
from tests.documentation import given
from tests.documentation.pages import Step, steps
from tests.documentation.tables import GIVEN, IN_PYTHON, NOT_RUN, OPTIONS, SCRIPT
from tests.processes import run_processes

_PROCESSES = 2


def run_command(command: str) -> None:
    """Run a command in this process; torchrun starts two processes, whatever number it is given.

    Raises:
        SystemExit: if it fails.
    """
    program, *words = shlex.split(command)
    if program == "linformer":
        main(words)
    elif program == "python":
        _run_script(words)
    else:
        assert program == "torchrun", command
        options = parse_args(words)
        assert options.module and options.training_script == "linformer_kit", command
        run_processes(_PROCESSES, _one_process, os.getcwd(), options.training_script_args)


def run_python(block: str, replaced: Iterable[tuple[str, str]]) -> None:
    """A block of Python by itself."""
    for old, new in replaced:
        block = block.replace(old, new)
    exec(compile(block, "the page", "exec"), {"__name__": "__main__"})


def run_step(step: Step, options: str, replaced: Iterable[tuple[str, str]]) -> None:
    """Run a step of a page, made small by further options or other numbers."""
    if step.kind == "python":
        run_python(step.text, replaced)
    else:
        run_command(f"{step.text} {options}")


def _one_process(rank: int, folder: str, words: list[str]) -> None:
    """A process of torchrun's."""
    os.chdir(folder)
    main(words)


def _run_script(words: list[str]) -> None:
    before = sys.argv
    sys.argv = words
    try:
        runpy.run_path(words[0], run_name="__main__")
    finally:
        sys.argv = before


@pytest.fixture
def read(tmp_path, monkeypatch):
    """Run all steps of a page in order; an error is raised with its line. Projections that it registers are removed."""
    registered = {*REGISTERED_PROJECTIONS}
    library = given.write_library(tmp_path / "library")
    monkeypatch.setattr(files, "sysconfig", SimpleNamespace(get_path=lambda _: str(library)))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.chdir(folder)

    def run(page: str) -> None:
        given.write(GIVEN.get(page, ()), folder)
        for step in steps(page):
            if step.name in NOT_RUN.get(page, {}) or step.text.startswith(SCRIPT):
                continue
            options = " ".join(more for begin, more in OPTIONS.items() if step.text.startswith(begin))
            try:
                run_step(step, options, IN_PYTHON.get(page, {}).items())
            except (Exception, SystemExit) as error:
                raise AssertionError(f"{page}, line {step.line}: {step.name} {options}") from error

    yield run
    for name in REGISTERED_PROJECTIONS - registered:
        REGISTERED_PROJECTIONS.discard(name), PROJECTIONS.pop(name)
