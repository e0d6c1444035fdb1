"""The description of the machine in results."""

from __future__ import annotations

import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
import torch

from linformer_kit.report import environment as environment_module
from linformer_kit.report.environment import environment, fast_dtype


def test_the_machine_is_named():
    told = environment(torch.device("cpu"))
    assert told["device"] and told["threads"] == torch.get_num_threads() and told["torch"] == torch.__version__


def test_a_package_that_is_not_installed_has_no_version(monkeypatch):
    def of_installed(name: str) -> str:
        if name == "accelerate":  # of an extra, which `linformer bench` does not need
            raise PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(environment_module, "version", of_installed)
    told = environment(torch.device("cpu"))
    assert told["accelerate"] is None and told["transformers"] == version("transformers")


def repository(folder: Path, name: str) -> str:
    """Make a git repository of a Python project with one commit, and return that."""
    (folder / "src").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(f'[project]\nname = "{name}"\n')
    (folder / ".gitignore").write_text("src/linformer_kit\nvenv\n")
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    for command in (["init", "-q"], ["add", "-A"], [*who, "commit", "-qm", "first"]):
        subprocess.run(["git", "-C", folder, *command], check=True)
    return subprocess.check_output(["git", "-C", folder, "rev-parse", "HEAD"], text=True)[:12]


@pytest.mark.e2e
@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_commit_is_that_of_the_package_and_not_of_a_repository_around_it(tmp_path, monkeypatch):
    def recorded(root: Path, place: str) -> str | None:
        folder = root / place / "linformer_kit" / "report"
        monkeypatch.setattr(environment_module, "__file__", str(folder / "environment.py"))
        folder.mkdir(parents=True, exist_ok=True)
        return environment(torch.device("cpu"))["commit"]

    own, other = tmp_path / "own", tmp_path / "other"
    commit, _ = repository(own, "linformer-kit"), repository(other, "users-project")
    assert recorded(own, "src") == commit
    for place in ("venv/lib/python3/site-packages", "src"):
        assert recorded(other, place) is None, place
    assert recorded(own, "venv/lib/python3/site-packages") is None, "the installed files may be others"
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))  # as in a hook
    assert recorded(own, "src") == commit
    (own / "pyproject.toml").write_text('[project]\nname = "linformer-kit"\nversion = "1"\n')
    assert recorded(own, "src") == f"{commit}+"


@pytest.mark.parametrize(("asked", "result"), [("bfloat16", torch.bfloat16), ("float32", torch.float32)])
def test_what_is_asked_for_wins(asked, result):
    assert fast_dtype(asked, torch.device("cpu")) is result


@pytest.mark.parametrize("available", [True, False])
def test_auto_is_what_the_gpu_has_and_does_not_emulate(monkeypatch, available):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: available or including_emulation)
    assert (fast_dtype("auto", torch.device("cuda")) is torch.bfloat16) == available
