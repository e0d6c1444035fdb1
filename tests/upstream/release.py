"""Source releases of other libraries, from the package index; their code is run from a cache and never committed."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from types import ModuleType

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "linformer-kit" / "upstream"


def source_release(name: str) -> Path:
    """The unpacked source release of the version of a library that is installed; downloaded once."""
    folder = CACHE / f"{name}-{importlib.metadata.version(name)}"
    if folder.is_dir():
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as part:
        options = ("--no-deps", "--no-build-isolation", "--no-binary", name, "--dest", part)
        subprocess.run([sys.executable, "-m", "pip", "download", *options, folder.name.replace("-", "==")], check=True)
        (archive,) = Path(part).glob("*.tar.gz")
        with tarfile.open(archive) as source:
            source.extractall(part, filter="data")
        try:
            (Path(part) / folder.name).rename(folder)
        except OSError:
            if not folder.is_dir():  # another process was faster
                raise
    return folder


def import_folder(path: Path, name: str, absent: dict[str, str]) -> ModuleType:
    """Import a folder as a package of another name, for `tests` is our own.

    Args:
        path: The folder.
        name: Of the package.
        absent: Classes that its modules import from modules which the release leaves out, by module; made empty.
    """
    package = ModuleType(name)
    package.__path__ = [str(path)]
    sys.modules[name] = package
    for module, class_name in absent.items():
        parent = f"{name}.{module.rpartition('.')[0]}"
        sys.modules.setdefault(parent, ModuleType(parent)).__path__ = []
        made = ModuleType(f"{name}.{module}")
        setattr(made, class_name, type(class_name, (), {}))
        sys.modules[made.__name__] = made
    return package
