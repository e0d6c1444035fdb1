"""Register Linformer with transformers' Auto classes by name, so that its classes are imported only when used.

transformers keeps its own models as tables of names, `CONFIG_MAPPING_NAMES` and one for each Auto class, and imports
the class of a name from the module `transformers.models.<model type>`. Linformer's names are added to these
tables when transformers loads them, before or after this package, and to two modules under `transformers.models`.
The public `AutoModel.register` takes classes; importing these would import torch.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_CONFIGURATIONS = "transformers.models.auto.configuration_auto"
_MODELS = "transformers.models.auto.modeling_auto"
# Model type: the module of its classes, the configuration, and its model for each Auto class. The classes of linearised
# models depend on the original model: `linearized.classes` registers them when it makes them.
_KINDS: dict[str, tuple[str, str, dict[str, str]]] = {
    "linformer": (
        "linformer_kit",
        "LinformerConfig",
        {
            "AutoModel": "LinformerModel",
            "AutoModelForMaskedLM": "LinformerForMaskedLM",
            "AutoModelForQuestionAnswering": "LinformerForQuestionAnswering",
            "AutoModelForSequenceClassification": "LinformerForSequenceClassification",
            "AutoModelForTokenClassification": "LinformerForTokenClassification",
        },
    ),
    "linearized": ("linformer_kit.linearized.classes", "LinearizedConfig", {}),
}

logger = logging.getLogger(__name__)


def install() -> None:
    """Register with the modules that transformers has loaded, and with the others when they load."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    for name in (_CONFIGURATIONS, _MODELS):
        if name in sys.modules:
            _register(importlib.import_module(name))  # waits for another thread that is importing it


def _register(module: ModuleType) -> None:
    """Add the names to a module of tables; errors become a warning, so that the import of transformers succeeds."""
    try:
        for model_type, (home, configuration, models) in _KINDS.items():
            if module.__name__ == _CONFIGURATIONS:
                _add(module.CONFIG_MAPPING_NAMES, model_type, configuration)
                names = (configuration, *models.values())
                sys.modules[f"transformers.models.{model_type}"] = _Classes(model_type, home, names)
            else:
                for auto_class, model in models.items():
                    mapping = getattr(module, auto_class)._model_mapping
                    _add(mapping._model_mapping, model_type, model)
                    # transformers built this mapping from the configurations' names when it was imported.
                    mapping._reverse_config_mapping[configuration] = model_type
    except Exception as error:
        logger.warning(
            "Linformer could not be registered with transformers' Auto classes; its own classes still load: %s: %s",
            type(error).__name__,
            error,
        )


def _add(names: dict[str, str], model_type: str, name: str) -> None:
    if (known := names.setdefault(model_type, name)) != name:
        raise ValueError(f"model_type {model_type}: expected an unused name, got that of transformers' {known}")


class _Classes(ModuleType):
    """The module in which transformers looks for the classes of a model type; each is imported on first access."""

    def __init__(self, model_type: str, home: str, names: Sequence[str]) -> None:
        super().__init__(f"transformers.models.{model_type}", f"Names of {home}, imported on first access.")
        self.__spec__ = ModuleSpec(self.__name__, None)  # `find_spec` of a loaded module reads it
        self.__dict__.update(_home=home, __all__=list(names))

    def __getattr__(self, name: str) -> Any:
        if name not in self.__all__:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        try:
            return getattr(importlib.import_module(self._home), name)
        except AttributeError as error:  # transformers would treat it as a missing name and look elsewhere
            raise ImportError(f"{self._home}.{name}: {error}") from error


class _Finder(MetaPathFinder):
    """Import hook for the modules of transformers' tables. It keeps no state, so `find_spec` has no side effects."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in (_CONFIGURATIONS, _MODELS):
            return None
        for finder in sys.meta_path:
            if isinstance(finder, _Finder) or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader)
                return spec
        return None


class _Loader(Loader):
    """Load a module with its original loader, then register; the module keeps the original loader."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        module.__loader__ = self.loader
        self.loader.exec_module(module)
        _register(module)
