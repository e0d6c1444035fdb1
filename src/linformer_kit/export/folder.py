"""`linformer export`: write the folder of an exported model, once it agrees with PyTorch."""

from __future__ import annotations

import importlib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from linformer_cli.errors import of_extra
from linformer_cli.settings import ExportSettings, without_local_paths
from linformer_kit.environment import environment
from linformer_kit.export.exportable import check_tokenizer, load
from linformer_kit.files.manifest import write_manifest
from linformer_kit.files.tokenizer import save_tokenizer
from linformer_kit.files.writing import whole_folder
from linformer_kit.interop.checkpoints.sentences import warn_of_left_out
from linformer_kit.report.base import write_json

_PACKAGES = ("onnx", "onnxscript", "onnxruntime")


def main(settings: ExportSettings) -> None:
    """Export and print the results."""
    results = export(settings)
    agreement = results["agreement"]
    print(f"{results['model']}, inputs {', '.join(results['inputs'])}, at most {results['max_length']:,} tokens")
    print(
        f"Largest difference from PyTorch over {len(agreement['shapes'])} shapes: "
        f"{agreement['largest_difference']:.1e} (PyTorch's own from float64: {agreement['float32_error']:.1e}, "
        f"allowed: {agreement['tolerance']:.1e})"
    )
    print("Size: " + ", ".join(f"{name} {size / 1e6:.1f} MB" for name, size in results["bytes"].items()))
    if "int8_difference" in results:
        print(f"Largest difference of int8: {results['int8_difference']:.1e}")
    print(f"Saved in {settings.out}")


def export(settings: ExportSettings) -> dict[str, Any]:
    """Write a model as an ONNX file, in float32 or int8, and its tokenizer.

    Returns:
        The description of the result and its differences from PyTorch, as in `export.json`.

    Raises:
        InputError: for a model that cannot be exported, libraries that are not installed, or a result that does not
            agree with PyTorch. Nothing is written then.
    """
    with of_extra("export"):
        for package in _PACKAGES:
            importlib.import_module(package)
    from linformer_kit.export.onnx_file import write_files  # imports the packages

    source = load(settings.model)
    warn_of_left_out(settings.model, {})
    with whole_folder(Path(settings.out)) as folder:
        save_tokenizer(source.tokenizer, folder)
        check_tokenizer(source, folder)
        results = {
            "command": "export",
            "model": type(source.model).__name__,
            "inputs": list(source.input_names),
            "outputs": list(source.head.outputs),
            "max_length": source.limit,
            **write_files(source, folder, int8=settings.int8),
            "environment": environment(torch.device("cpu")) | {name: version(name) for name in _PACKAGES},
            "settings": without_local_paths(settings),
        }
        write_json(results, folder / "export.json")
        write_manifest(folder)
    return results
