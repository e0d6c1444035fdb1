"""Importing this package and calling its functions changes no global state of the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

IMPORTS = """
import importlib, pkgutil, sys
import sentence_transformers  # hides a warning of torch in this process
from tests.process_state import changed, matplotlib, process_state
matplotlib.use("svg")
before = process_state()
import linformer_kit
for module in pkgutil.walk_packages(linformer_kit.__path__, "linformer_kit."):
    if module.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:  # of an extra
        if error.name.partition(".")[0] not in ("onnx", "onnxruntime", "onnxscript", "openvino"):
            raise
from linformer_kit.report.figures import new_figure, save_figure
figure, axes = new_figure((2, 2))
axes.imshow([[0, 1]])
save_figure(figure, sys.argv[1])
print(changed(before), matplotlib.get_backend(), "matplotlib.pyplot" in sys.modules)
"""


@pytest.mark.slow
def test_imports_and_figures_change_nothing(tmp_path):
    """Neither settings nor generators, nor matplotlib's backend; and pyplot, which has a state of its own, is not loaded."""
    command = [sys.executable, "-c", IMPORTS, str(tmp_path / "drawn.png")]
    result = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1])
    assert result.returncode == 0, result.stderr
    assert result.stdout == "[] svg False\n"
    assert (tmp_path / "drawn.png").read_bytes().startswith(b"\x89PNG")
