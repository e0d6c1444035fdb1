"""Checkpoints: weights, AdamW's moments and the training state, in a folder that is written completely or not at all.

    config.json, model.safetensors, tokenizer files    the model, for `from_pretrained`
    optimizer.safetensors                              AdamW's moments, by the names of the parameters
    trainer_state.json                                 update, position in the data, log
    manifest.json                                      size and SHA-256 of the other files

Sharded models are gathered before saving, so any number of processes, sharded or not, can resume from a checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from linformer_kit.errors import InputError, error_text, failure_kind, input_errors, machine_failure
from linformer_kit.files.manifest import checked_folder, listed, listed_files, whole_contents
from linformer_kit.files.runs import TRAINER_STATE
from linformer_kit.models.card import CARD
from linformer_kit.training.state import TrainingState

OPTIMIZER = "optimizer.safetensors"
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def save_checkpoint(
    folder: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    optimizer: torch.optim.Optimizer,
    state: TrainingState,
) -> None:
    """Write a checkpoint, replacing an existing one; all processes call this, and one writes.

    Raises:
        InputError: if it cannot be written; no part of it is left then, and older checkpoints are unchanged.
        MachineError: likewise, if the machine failed, for example because the disk is full.
        OutOfMemoryError: likewise, if memory ran out.
    """
    weights, moments = _weights_if_sharded(model), _moments(model, optimizer)

    def write() -> None:
        with checked_folder(folder) as part:
            model.save_pretrained(part, state_dict=weights)
            tokenizer.save_pretrained(part)
            save_file(moments, part / OPTIMIZER)
            (part / TRAINER_STATE).write_text(json.dumps(state.to_json(), indent=1), encoding="utf-8")

    kept = "nothing is left of it, and older checkpoints are"
    write_by_one(write, f"{folder}: could not be written", kept)


def save_model(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    *,
    beside: Callable[[Path], None] = lambda folder: None,
) -> None:
    """Save a model and its tokenizer to a folder, with a manifest; all processes call this, and one writes.

    Args:
        model: The model.
        tokenizer: The tokenizer.
        folder: The output folder.
        beside: Writes additional files of the model into the folder it is given.

    Raises:
        As `save_checkpoint`; checkpoints are unchanged.
    """
    weights = _weights_if_sharded(model)

    def write() -> None:
        with whole_contents(folder, "model") as part:
            model.save_pretrained(part, state_dict=weights)
            tokenizer.save_pretrained(part)
            if (folder / CARD).exists() and folder / CARD not in listed_files(folder):
                (part / CARD).unlink(missing_ok=True)  # that of the user stays
            beside(part)

    write_by_one(write, f"{folder}: the model could not be written", "checkpoints are")


def load_weights(model: nn.Module, checkpoint: Path) -> None:
    """Load the weights of a checkpoint into a model; only files listed in its manifest are read.

    Raises:
        InputError: for the weights of another model.
    """
    weights: dict[str, Tensor] = {}
    for name in sorted(name for name in listed(checkpoint) if fnmatch(name, "model*.safetensors")):
        with input_errors(str(checkpoint / name)):
            weights |= load_file(checkpoint / name)
    names = model.state_dict().keys()
    every = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    own = {name: tensor for name, tensor in every if name in names}
    there = {id(own[name]) for name in weights.keys() & own.keys()}  # tied weights are saved once
    missing = [name for name, tensor in own.items() if id(tensor) not in there]
    unknown = sorted(weights.keys() - own.keys())
    if missing or unknown:
        kind, keys = ("none for", missing) if missing else ("no place for", unknown)
        raise InputError(f"{checkpoint}: expected the weights of this model, got {kind} {keys[0]}")
    for name, whole in weights.items():
        if whole.shape != own[name].shape:
            raise InputError(f"{checkpoint}: expected {list(own[name].shape)} as {name}, got {list(whole.shape)}")
        _fill(own[name], whole)


def load_moments(model: nn.Module, optimizer: torch.optim.Optimizer, checkpoint: Path) -> None:
    """Load AdamW's moments of a checkpoint into the optimizer.

    Raises:
        InputError: for a file that cannot be read, and for moments of other parameters.
    """
    path = checkpoint / OPTIMIZER
    with input_errors(f"{path}: expected AdamW's moments"):
        moments = load_file(path)
    optimizer.state.clear()
    trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for name, parameter in model.named_parameters():
        found = {moment: moments.pop(f"{name}.{moment}", None) for moment in _MOMENTS}
        if id(parameter) not in trained or all(moment is None for moment in found.values()):
            continue
        for moment, tensor in found.items():
            shape = torch.Size() if moment == "step" else parameter.shape
            if tensor is None or tensor.shape != shape or not tensor.is_floating_point():
                got = "none" if tensor is None else f"{list(tensor.shape)} of {tensor.dtype}"
                raise InputError(f"{path}: expected {list(shape)} as {name}.{moment}, got {got}")
            place = torch.zeros(()) if moment == "step" else torch.zeros_like(parameter, requires_grad=False)
            _fill(place, tensor)
            optimizer.state[parameter][moment] = place.to(parameter.device) if moment == "step" else place
    if moments:
        raise InputError(f"{path}: expected moments of this model's parameters, got {min(moments)}")


def whole_weights(model: nn.Module) -> dict[str, Tensor]:
    """The state dict of a model; sharded tensors are gathered to the CPU, so all processes must call this."""
    wholes: dict[int, Tensor] = {}  # tied weights stay one tensor

    def whole(tensor: Tensor) -> Tensor:
        if not isinstance(tensor, DTensor):
            return tensor.detach()
        if id(tensor) not in wholes:
            wholes[id(tensor)] = tensor.full_tensor().detach().cpu()
        return wholes[id(tensor)]

    # With `keep_vars`, tied weights are the same object.
    return {name: whole(tensor) for name, tensor in model.state_dict(keep_vars=True).items()}


def _weights_if_sharded(model: nn.Module) -> dict[str, Tensor] | None:
    """State dict for `save_pretrained`; None for a model that is not sharded."""
    sharded = any(isinstance(parameter, DTensor) for parameter in model.parameters())
    return whole_weights(model) if sharded else None


def write_by_one(write: Callable[[], object], what: str, kept: str) -> None:
    """Let one process write; if that fails, all processes raise the same kind of error.

    Args:
        write: The function that writes; called in the main process only.
        what: Start of the message: the path and what could not be written.
        kept: End of the message, before "as they were": what is left and what is unchanged.

    Raises:
        InputError, MachineError or OutOfMemoryError: depending on the cause.
    """
    error: BaseException | None = None
    told: list[Any] = [None]
    if PartialState().is_main_process:
        try:
            write()
        except Exception as raised:
            error = raised
            told = [(failure_kind(error), machine_failure(error) or error_text(error))]
    broadcast_object_list(told)
    if told[0] is not None:
        kind, got = told[0]
        raise kind(f"{what}: {got}; {kept} as they were") from error


def _moments(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """AdamW's moments by parameter name; a parameter that has had no gradient yet has none."""
    return {
        f"{name}.{moment}": _whole(optimizer.state[parameter][moment]).cpu()
        for name, parameter in model.named_parameters()
        if parameter in optimizer.state
        for moment in _MOMENTS
    }


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor().cpu() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def _fill(place: Tensor, whole: Tensor) -> None:
    """Copy values into a tensor in-place, or into its shards."""
    if isinstance(place, DTensor):
        whole = distribute_tensor(whole.to(place.device, place.dtype), place.device_mesh, place.placements)
    place.copy_(whole)
