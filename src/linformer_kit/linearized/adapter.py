"""Adapters: the changes that turn one pretrained encoder into a distilled linear one, a folder of some MB.

    adapter_config.json           PEFT's configuration: rank, scale and the adapted layers
    adapter_model.safetensors     A and B of each adapted layer; E and F if they are learned
    linformer.json                the base model, the settings of `linearize`, and how the adapter was made
    README.md                     the same for readers
    manifest.json                 size and SHA-256 of the other files

PEFT loads such a folder as well, onto a base model linearised with the settings of `linformer.json`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from linformer_kit.errors import InputError, input_errors
from linformer_kit.files.manifest import MANIFEST, damage, read_json
from linformer_kit.models.card import CARD
from linformer_kit.operator.projections import SequenceProjection
from linformer_kit.settings import LinearizeSettings, is_local_path

CONFIG, WEIGHTS, ABOUT = "adapter_config.json", "adapter_model.safetensors", "linformer.json"
PREFIX = "base_model.model."  # PEFT's, before the name of each weight
FORMAT = 1
SHIPPED = Path(__file__).parent.parent / "adapters"
_A, _B = ".lora_A.weight", ".lora_B.weight"
# Fields of PEFT's configuration, with the value that they have in plain LoRA.
_PLAIN = {
    "peft_type": "LORA",
    "use_rslora": False,
    "use_dora": False,
    "rank_pattern": {},
    "alpha_pattern": {},
    "bias": "none",
    "fan_in_fan_out": False,
}
_POOLER = "pooler."  # absent from models with a head, and not used by any adapter


@dataclass(frozen=True)
class Adapter:
    """An adapter that was read, or made by training.

    Attributes:
        name: Its name in errors.
        weights: Tensors by name: `<layer>.lora_A.weight` `[rank, in]`, `<layer>.lora_B.weight` `[out, rank]`, and
            parameters of the linearised base model that replace its own.
        scale: Factor of B·A.
        about: Contents of `linformer.json`.
    """

    name: str
    weights: dict[str, Tensor]
    scale: float
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
        self._check(self._added_shapes(), dict(model.base_model.named_parameters()), type(model).__name__)

    @torch.no_grad()
    def merge_into(self, model: PreTrainedModel) -> None:
        """Add the changes to the weights of the linearised base model, in-place: all of them, or none."""
        own = dict(model.base_model.named_parameters())
        values = {name: each for name, each in self.weights.items() if ".lora_" not in name}
        absent = dict.fromkeys(learned_parameters(model.base_model).keys() - values.keys())
        shapes = {name: value.shape for name, value in values.items()}
        self._check(self._added_shapes() | shapes | absent, own, type(model).__name__)
        for layer, b, a in self._pairs():
            place = own[f"{layer}.weight"]
            place.copy_(place.float() + (self.scale * (b.float() @ a.float())).to(place.device))
        for name, value in values.items():
            own[name].copy_(value)

    def _check(self, shapes: Mapping[str, torch.Size | None], own: Mapping[str, Tensor], kind: str) -> None:
        for name, shape in shapes.items():
            if name not in own or own[name].shape != shape:
                got = "none" if shape is None else f"one of shape {list(shape)}"
                raise InputError(f"adapter: expected values that fit {kind}, got {got} for {name} in {self.name}")

    def _pairs(self) -> list[tuple[str, Tensor, Tensor]]:
        """Name, B and A of each adapted layer."""
        layers = [name.removesuffix(_A) for name in self.weights if name.endswith(_A)]
        return [(layer, self.weights[layer + _B], self.weights[layer + _A]) for layer in layers]

    def _added_shapes(self) -> dict[str, torch.Size | None]:
        """Shapes of what is added to parameters of the base model."""
        return {f"{layer}.weight": torch.Size((b.shape[0], a.shape[1])) for layer, b, a in self._pairs()}


def read_adapter(name: str) -> Adapter:
    """Read an adapter that ships with the package, of a folder, or of the hub."""
    folder = adapter_folder(name)
    if found := damage(folder):
        raise InputError(f"adapter: {found}")
    about = read_json(folder / ABOUT)
    if about.get("format") != FORMAT:
        raise InputError(f"adapter: expected format {FORMAT} in {folder / ABOUT}, got {about.get('format')!r}")
    with input_errors(f"adapter: expected the base model and settings of `linearize` in {folder / ABOUT}"):
        LinearizeSettings(**about["linearize"])
        known = {key: about["base_model"][key] for key in ("name", "fingerprint")}
    if not all(isinstance(value, str) for value in known.values()):
        raise InputError(f"adapter: expected name and fingerprint of the base model in {folder / ABOUT}, got {known}")
    with input_errors(f"adapter: expected weights in {folder / WEIGHTS}"):
        weights = {key.removeprefix(PREFIX): tensor for key, tensor in load_file(folder / WEIGHTS).items()}
    scale = _scale(read_json(folder / CONFIG), weights, folder / CONFIG)
    if not all(tensor.isfinite().all() for tensor in weights.values()):
        raise InputError(f"adapter: expected finite weights in {folder / WEIGHTS}, got NaN or infinite ones")
    return Adapter(name, weights, scale, about)


def _scale(config: dict[str, Any], weights: dict[str, Tensor], path: Path) -> float:
    """Factor of B·A, from a configuration of PEFT without any variant of LoRA, for these weights."""
    for name, plain in _PLAIN.items():
        if config.get(name, plain) != plain:
            raise InputError(f"adapter: expected {name} {plain!r} in {path}, got {config[name]!r}")
    rank, alpha, layers = (config.get(name) for name in ("r", "lora_alpha", "target_modules"))
    if not isinstance(rank, int) or rank < 1 or not isinstance(alpha, (int, float)) or not isinstance(layers, list):
        raise InputError(f"adapter: expected r, lora_alpha and target_modules in {path}, got {rank}, {alpha}, {layers}")
    pairs = {f"{layer}{part}" for layer in layers for part in (_A, _B)}
    if pairs != {name for name in weights if ".lora_" in name}:
        raise InputError(f"adapter: expected weights of the target_modules of {path}, got others in {WEIGHTS}")
    for name in pairs:
        if weights[name].dim() != 2 or weights[name].shape[0 if name.endswith(_A) else 1] != rank:
            raise InputError(f"adapter: expected rank {rank}, as in {path}, got {list(weights[name].shape)} for {name}")
    return alpha / rank


def shipped_adapters() -> dict[str, Path]:
    """Folders of the adapters that ship with the package, by name."""
    return {path.parent.name: path.parent for path in sorted(SHIPPED.glob(f"*/{ABOUT}"))}


def adapters_of(model: PreTrainedModel, seq_len: int | None) -> list[str]:
    """Names of the shipped adapters for a model with full attention: those of this new n, or else all."""
    found: dict[str, int | None] = {}
    for name, folder in shipped_adapters().items():
        about = read_json(folder / ABOUT)
        base = about["distillation"]["teacher"]  # its sizes are compared first, since a fingerprint takes time
        same_size = (base["type"], base["layers"]) == (model.config.model_type, model.config.num_hidden_layers)
        if same_size and about["base_model"]["fingerprint"] == base_fingerprint(model):
            found[name] = about["linearize"]["max_position_embeddings"]
    return [name for name, longest in found.items() if longest == seq_len] or list(found)


def adapter_folder(name: str) -> Path:
    """Folder of an adapter that ships with the package, of a path, or of the hub, downloaded."""
    folder = _folder(name)
    for file in (CONFIG, WEIGHTS, ABOUT, CARD):
        if not (folder / file).is_file():
            raise InputError(f"adapter: expected one of `linformer distill --adapter`, got {folder} without {file}")
    return folder


def _folder(name: str) -> Path:
    if (shipped := shipped_adapters().get(name)) is not None:
        return shipped
    if is_local_path(name):
        if not Path(name).is_dir():
            raise InputError(f"adapter: expected a folder, got {name}, which is none")
        return Path(name)
    known = ", ".join(shipped_adapters()) or "none"
    with input_errors(f"adapter: expected a folder, a hub id, or one that ships ({known}), got {name}"):
        return Path(snapshot_download(name, allow_patterns=[CONFIG, WEIGHTS, ABOUT, MANIFEST, CARD]))


def learned_parameters(base: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters that linearisation adds to a base model: E and F, by name."""
    inside = [name for name, module in base.named_modules() if isinstance(module, SequenceProjection)]
    return {
        name: parameter
        for name, parameter in base.named_parameters()
        if any(name.startswith(f"{module}.") for module in inside)
    }


def base_fingerprint(model: PreTrainedModel) -> str:
    """Hexadecimal hash of the weights of an encoder without its head and pooler, rounded to bfloat16.

    So the same in float32 and bfloat16, and for each of the classes that hold the encoder.
    """
    content = hashlib.sha256()
    for name, parameter in model.base_model.named_parameters():
        if not name.startswith(_POOLER):
            content.update(f"{name} {tuple(parameter.shape)}".encode())
            content.update(parameter.detach().cpu().bfloat16().view(torch.int16).contiguous().numpy().data)
    return content.hexdigest()
