"""Adapters: the changes that turn one pretrained encoder into a distilled linear one, a folder of a few MB.

    adapter_config.json           PEFT's configuration: rank, scale and the adapted layers
    adapter_model.safetensors     A and B of each adapted layer; E and F if they are learned
    linformer.json                the base model, the settings of `linearize`, and how the adapter was made
    README.md                     the same for readers
    manifest.json                 size and SHA-256 of the other files

PEFT reads and merges such a folder; here is which base model it fits, and with which settings that becomes linear.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from huggingface_hub import snapshot_download
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from linformer_cli.errors import InputError, extra_errors, input_errors
from linformer_cli.settings import LinearizeSettings, is_local_path
from linformer_kit.files.manifest import MANIFEST, damage, read_json
from linformer_kit.operator.projections import SequenceProjection
from linformer_kit.report.card import CARD

if TYPE_CHECKING:
    from peft import LoraConfig

CONFIG, WEIGHTS, ABOUT = "adapter_config.json", "adapter_model.safetensors", "linformer.json"
PREFIX = "base_model.model."  # PEFT's, before the name of each weight
SHIPPED = Path(__file__).parent.parent / "adapters"
_POOLER = "pooler."  # absent from models with a head, and not used by any adapter


@dataclass(frozen=True)
class Adapter:
    """An adapter that was read, or made by training.

    Attributes:
        name: Its name in errors.
        config: PEFT's configuration.
        weights: A and B of the adapted layers, and learned parameters of E and F, by name in the base model.
        about: Contents of `linformer.json`.
    """

    name: str
    config: LoraConfig
    weights: dict[str, Tensor]
    about: dict[str, Any]

    @property
    def settings(self) -> LinearizeSettings:
        """Arguments of `linearize`."""
        return LinearizeSettings(**self.about["linearize"])

    def check_base(self, model: PreTrainedModel) -> None:
        """Check that a model with full attention is the one that the adapter was trained on."""
        base = self.about["base_model"]
        if model.dtype not in (torch.float32, torch.bfloat16):
            raise InputError(f"model: expected float32 or bfloat16 for adapter {self.name}, got {model.dtype}")
        if base_fingerprint(model) != base["fingerprint"]:
            kind = type(model).__name__
            raise InputError(f"model: expected {base['name']} for adapter {self.name}, got a {kind} with other weights")

    def merge_into(self, model: PreTrainedModel) -> None:
        """Add the changes to the weights of the linearised base model, in-place."""
        from peft import LoraModel, set_peft_model_state_dict

        base = model.base_model
        trainable = [parameter for parameter in base.parameters() if parameter.requires_grad]
        with input_errors(f"adapter: expected weights that fit {type(model).__name__}, got {self.name}"):
            learned = learned_parameters(base).keys()
            adapted = LoraModel(base, self.config, "default")
            loaded: Any = set_peft_model_state_dict(base, self.weights)
            absent = [name for name in loaded.missing_keys if ".lora_" in name or name in learned]
            if absent or loaded.unexpected_keys:
                raise ValueError(f"{[*absent, *loaded.unexpected_keys][0]} is in one of them only")
            adapted.merge_and_unload(safe_merge=True)
        for parameter in trainable:  # PEFT freezes them
            parameter.requires_grad_(True)


def read_adapter(name: str) -> Adapter:
    """Read an adapter that ships with the package, of a folder, or of the hub."""
    with extra_errors("adapters"):
        from peft import LoraConfig
    folder = adapter_folder(name)
    if wrong := damage(folder):
        raise InputError(f"adapter: {wrong}")
    about = read_json(folder / ABOUT)
    with input_errors(f"adapter: expected PEFT's files and {ABOUT} in {folder}"):
        weights = {key.removeprefix(PREFIX): tensor for key, tensor in load_file(folder / WEIGHTS).items()}
        adapter = Adapter(name, LoraConfig.from_pretrained(str(folder)), weights, about)
        adapter.settings, about["base_model"]["name"], about["base_model"]["fingerprint"]
    return adapter


def shipped_adapters() -> dict[str, Path]:
    """Folders of the adapters that ship with the package, by name."""
    return {path.parent.name: path.parent for path in sorted(SHIPPED.glob(f"*/{ABOUT}"))}


def adapters_of(model: PreTrainedModel, seq_len: int | None) -> list[str]:
    """Names of the shipped adapters for a model with full attention: those of this new n, or else all."""
    fingerprint, lengths = base_fingerprint(model), dict[str, int | None]()
    for name, folder in shipped_adapters().items():
        about = read_json(folder / ABOUT)
        if about["base_model"]["fingerprint"] == fingerprint:
            lengths[name] = about["linearize"]["max_position_embeddings"]
    return [name for name, length in lengths.items() if length == seq_len] or list(lengths)


def adapter_folder(name: str) -> Path:
    """Folder of an adapter that ships with the package, of a path, or of the hub, downloaded."""
    folder = shipped_adapters().get(name)
    if folder is None and is_local_path(name):
        folder = Path(name)
        if not folder.is_dir():
            raise InputError(f"adapter: expected a folder, got {name}, which is none")
    if folder is None:
        known = ", ".join(shipped_adapters()) or "none"
        with input_errors(f"adapter: expected a folder, a hub id, or one that ships ({known}), got {name}"):
            folder = Path(snapshot_download(name, allow_patterns=[CONFIG, WEIGHTS, ABOUT, MANIFEST, CARD]))
    for file in (CONFIG, WEIGHTS, ABOUT, CARD):
        if not (folder / file).is_file():
            raise InputError(
                f"adapter: expected one of `linformer distill --adapter_rank`, got {folder} without {file}"
            )
    return folder


def learned_parameters(base: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters that linearisation adds to a base model: E and F, by name."""
    prefixes = tuple(f"{name}." for name, module in base.named_modules() if isinstance(module, SequenceProjection))
    return {name: parameter for name, parameter in base.named_parameters() if name.startswith(prefixes)}


def base_fingerprint(model: PreTrainedModel) -> str:
    """Hexadecimal hash of the weights of an encoder without its head and pooler, rounded to bfloat16.

    So the same in float32 and bfloat16, and for each of the classes that hold the encoder.
    """
    weights = model.base_model.named_parameters()
    return weights_hash((name, tensor.bfloat16()) for name, tensor in weights if not name.startswith(_POOLER))


def weights_hash(weights: Iterable[tuple[str, Tensor]]) -> str:
    """Hexadecimal SHA-256 of names, shapes and values."""
    content = hashlib.sha256()
    for name, tensor in weights:
        content.update(f"{name} {tuple(tensor.shape)}".encode())
        content.update(tensor.detach().cpu().flatten().view(torch.uint8).numpy().data)
    return content.hexdigest()
