"""What sentence-transformers keeps beside an encoder: how its hidden states become the embedding of a text."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from linformer_kit.errors import InputError

_MODULES = "modules.json"
_SETTINGS = ("sentence_bert_config.json", "config_sentence_transformers.json")
_MAX_LENGTH = "max_seq_length"


def copy_sentence_files(source: str, folder: Path, *, longer: int | None = None) -> None:
    """Copy them from the folder of an encoder, where it has any.

    Args:
        source: Folder of the encoder, or a hub id, of which nothing is copied.
        folder: Where the linear encoder is.
        longer: Longest text in tokens, where it is another one now.

    Raises:
        InputError: for a list of modules that is none.
    """
    path = Path(source) / _MODULES
    if not path.is_file():
        return
    try:
        places = [Path(module["path"]).name for module in json.loads(path.read_text(encoding="utf-8"))]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: expected modules of sentence-transformers, got {error}") from None
    shutil.copy(path, folder)
    for name in filter(None, places):
        if (Path(source) / name).is_dir():
            shutil.copytree(Path(source) / name, folder / name)
    for name in _SETTINGS:
        if (Path(source) / name).is_file():
            shutil.copy(Path(source) / name, folder)
    settings = folder / _SETTINGS[0]
    if longer is not None and settings.is_file():
        content = json.loads(settings.read_text(encoding="utf-8"))
        settings.write_text(json.dumps({**content, _MAX_LENGTH: longer}, indent=2) + "\n", encoding="utf-8")
