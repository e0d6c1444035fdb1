"""README.md of a saved model: what it is, what it was made from, and how to load it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import cast

from huggingface_hub import ModelCard, ModelCardData, try_to_load_from_cache
from transformers import PreTrainedModel

from linformer_cli.settings import is_local_path

CARD = "README.md"
_LINEAR = "linear-time attention (Linformer)"

_TEXT = """---
{data}
---

# {kind}

{what} with {attention} for inputs of up to {longest:,} tokens{source}.
{use}
"""
_NEEDS_US = """{library} alone does not know models of type `{model_type}`: import linformer-kit first.

```python
import linformer_kit  # adds this type of model to transformers
"""
_USE = """from {module} import {loader}

model = {call}("FOLDER")
```"""


def write_card(model: PreTrainedModel, folder: Path, longest: int, *, use: str | None = None) -> None:
    """Write the card of a model into its folder, which may be new, unless there is one; arguments as of `card_of`."""
    if not folder.is_file() and not (folder / CARD).exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CARD).write_text(card_of(model, longest, use=use), encoding="utf-8")


def card_of(model: PreTrainedModel, longest: int, *, use: str | None = None) -> str:
    """The text of a model's card.

    Args:
        model: The model; the `name_or_path` of its configuration is what it was made from.
        longest: Longest input in tokens.
        use: How to use what the folder holds; None: it is the model, and transformers loads it.
    """
    kind, base = type(model).__name__, model.config.name_or_path
    is_local = not base or is_local_path(base)
    attention = attention_of(model)
    data = ModelCardData(
        library_name="transformers",
        tags=["linformer"] if attention == _LINEAR else None,
        base_model=None if is_local else base,
        license=license_of(base, download=False) if base else None,
    )
    head = re.search(r"For[A-Z]\w*$", kind)
    return _TEXT.format(
        data=data.to_yaml(),
        kind=kind,
        what="A causal language model" if kind.endswith("ForCausalLM") else "An encoder",
        attention=attention,
        longest=longest,
        source=f", made from {Path(base).name if is_local else base}" if base else "",
        use=use or how_to_load(model, "transformers", f"AutoModel{head[0] if head else ''}.from_pretrained"),
    )


def attention_of(model: PreTrainedModel) -> str:
    """What the attention layers of a model compute, in words."""
    config = model.config
    if getattr(config, "has_slots", False) or (getattr(config, "linformer", None) or {}).get("layers"):
        return _LINEAR
    layers = [module.sliding_window for module in model.modules() if hasattr(module, "sliding_window")]
    windows = [window for window in layers if isinstance(window, int) and window > 0]
    if not windows:
        return "full attention"
    return "sliding windows" + (" and, in some layers, full attention" if len(windows) < len(layers) else "")


def how_to_load(model: PreTrainedModel, module: str, call: str) -> str:
    """How a saved model is loaded: by a call of what is imported from a module."""
    library, model_type, loader = module.replace("_", "-"), model.config.model_type, call.partition(".")[0]
    use = ("\n```python\n" if type(model).__module__.startswith("transformers.") else _NEEDS_US) + _USE
    return use.format(library=library, model_type=model_type, module=module, loader=loader, call=call)


def license_of(base: str, *, download: bool) -> str | None:
    """The licence that the card of a folder or hub id names; None if none is known.

    With `download` the card of a model on the hub is downloaded; else it is read if it is in the cache.
    """
    try:
        if is_local_path(base):
            card = ModelCard.load(Path(base) / CARD)
        else:
            card = ModelCard.load(base if download else cast(str, try_to_load_from_cache(base, CARD)))
        license = card.data.get("license")
    except Exception:  # no card, no network, or a card without settings
        return None
    return ", ".join(map(str, license)) if isinstance(license, list) else license and str(license)
