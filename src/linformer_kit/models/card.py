"""README.md of a saved model: what it is, what it was made from, and how to load it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import ModelCard, try_to_load_from_cache
from transformers import PreTrainedModel

from linformer_cli.settings import is_local_path

CARD = "README.md"

_TEXT = """---
{fields}
---

# {kind}

An encoder with linear-time attention (Linformer) for inputs of up to {longest:,} tokens{source}.
{use}
"""
_USE = """{library} alone does not know models of type `{model_type}`: import linformer-kit first.

```python
import linformer_kit  # adds this type of model to transformers
from {module} import {loader}

model = {call}("FOLDER")
```"""


def write_card(model: PreTrainedModel, folder: Path, longest: int, *, use: str | None = None) -> None:
    """Write the card of a model into its folder, which may be new, unless there is one; arguments as in `card_of`."""
    if folder.is_file() or (folder / CARD).exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CARD).write_text(card_of(model, longest, use=use), encoding="utf-8")


def card_of(model: PreTrainedModel, longest: int, *, use: str | None = None) -> str:
    """The text of a model's card.

    Args:
        model: The model; its `name_or_path` is what it was made from.
        longest: Longest input in tokens.
        use: How to use what the folder holds; None: it is the model, and transformers loads it.
    """
    kind, base = type(model).__name__, model.name_or_path
    fields: dict[str, Any] = {"library_name": "transformers", "tags": ["linformer"]}
    if base and not is_local_path(base):
        fields["base_model"] = base
    if base and (known := license_of(base, download=False)):
        fields["license"] = known
    head = re.search(r"For[A-Z]\w*$", kind)
    loader = f"AutoModel{head[0] if head else ''}"
    return _TEXT.format(
        fields=yaml.safe_dump(fields, sort_keys=False).strip(),
        kind=kind,
        longest=longest,
        source=f", made from {Path(base).name if is_local_path(base) else base}" if base else "",
        use=use or how_to_load(model, "transformers", loader, f"{loader}.from_pretrained"),
    )


def how_to_load(model: PreTrainedModel, module: str, loader: str, call: str) -> str:
    """How a saved model is loaded: by `call`, which `loader`, imported from `module`, is or has."""
    library, kind = module.replace("_", "-"), model.config.model_type
    return _USE.format(library=library, model_type=kind, module=module, loader=loader, call=call)


def license_of(base: str, *, download: bool) -> str | None:
    """The licence that the model card of a folder or hub id names; None if none is known.

    Args:
        base: The model.
        download: Whether to download the card of a model on the hub; else it is read if it is in the cache.
    """
    if is_local_path(base):
        place: Any = Path(base) / CARD
    else:
        place = base if download else try_to_load_from_cache(base, CARD)
    try:
        found = ModelCard.load(place).data.get("license")
    except Exception:  # no card, no network, or a card without settings
        return None
    return ", ".join(map(str, found)) if isinstance(found, list) else found and str(found)
