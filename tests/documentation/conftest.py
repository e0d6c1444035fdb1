"""Run pages in a new folder, with a small Python library."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from linformer_kit.data import files
from tests.documentation import given, reader
from tests.documentation.pages import steps
from tests.documentation.tables import GIVEN, IN_PYTHON, NOT_RUN, OPTIONS, PRESUMED, SCRIPT


@pytest.fixture
def read(tmp_path, monkeypatch):
    """Run all steps of a page in order; an error is raised with its line."""
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
                reader.run(step, options, PRESUMED.get(page, ""), IN_PYTHON.get(page, {}).items())
            except (Exception, SystemExit) as error:
                raise AssertionError(f"{page}, line {step.line}: {step.name} {options}") from error

    return run
