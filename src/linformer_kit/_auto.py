"""Make transformers' Auto classes know Linformer as soon as both are loaded, without loading either for the other."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def install() -> None:
    """Register now if transformers is loaded, else when it will be."""
    if "transformers" in sys.modules:
        register()
    elif not any(isinstance(finder, _TransformersHook) for finder in sys.meta_path):
        sys.meta_path.insert(0, _TransformersHook())


def register() -> None:
    """Load the models; their modules register them."""
    for module, last in (
        ("configuration", "LinformerConfig"),
        ("encoder", "LinformerEncoder"),
        ("modeling", "LinformerModel"),
    ):
        loaded = sys.modules.get(f"linformer_kit.{module}")
        if loaded is not None and not hasattr(loaded, last):
            return  # in the middle of its own import, which ends by calling this again
    importlib.import_module("linformer_kit.heads")
    importlib.import_module("linformer_kit.linearized.classes")


class _TransformersHook(MetaPathFinder):
    """Waits for the import of transformers, once."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if fullname != "transformers":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_register(module: ModuleType) -> None:
            execute(module)
            register()

        spec.loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec
