"""Checkpoints: weights, AdamW's moments and the training state, in a folder that is written completely or not at all.

    config.json, model.safetensors, tokenizer files    the model, for `from_pretrained`
    optimizer.safetensors                              AdamW's moments, by the names of the parameters
    trainer_state.json                                 update, position in the data, log
    manifest.json                                      size and SHA-256 of the other files

Sharded models are gathered before saving, so any number of processes, sharded or not, can resume from a checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from linformer_cli.errors import InputError, error_text, failure_kind, input_errors, machine_failure
from linformer_kit.files.folders import find_checkpoint, recover_checkpoints
from linformer_kit.files.manifest import listed_files, write_manifest
from linformer_kit.files.tokenizer import save_tokenizer
from linformer_kit.files.writing import whole_folder
from linformer_kit.report.card import CARD, write_card
from linformer_kit.training.state import TrainingState

logger = logging.getLogger(__name__)

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
        As `write_by_one`, if it cannot be written; nothing incomplete is left then, and older checkpoints are
            unchanged.
    """
    weights = _weights_if_sharded(model)
    moments = {
        f"{name}.{moment}": _whole(optimizer.state[parameter][moment]).cpu()
        for name, parameter in model.named_parameters()
        if parameter in optimizer.state  # it has had a gradient
        for moment in _MOMENTS
    }

    def write() -> None:
        with whole_folder(folder, replace=True) as part:
            model.save_pretrained(part, state_dict=weights)
            save_tokenizer(tokenizer, part)
            save_file(moments, part / OPTIMIZER)
            state.write(part)
            write_manifest(part)

    kept = "nothing incomplete is left of it, and older checkpoints are"
    write_by_one(write, f"{folder}: could not be written", kept)


def save_model(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    *,
    extra_files: Callable[[Path], None] = lambda folder: None,
) -> None:
    """Save a model and its tokenizer, and what `extra_files` writes into the folder it is given, with a manifest.

    All processes call this, and one writes. Raises as `save_checkpoint`.
    """
    weights = _weights_if_sharded(model)

    def write() -> None:
        with whole_folder(folder, beside=True) as part:
            model.save_pretrained(part, state_dict=weights)
            save_tokenizer(tokenizer, part)
            write_card(model, part, tokenizer.model_max_length)
            if (folder / CARD).exists() and folder / CARD not in listed_files(folder):
                (part / CARD).unlink(missing_ok=True)  # that of the user stays
            extra_files(part)
            write_manifest(part)

    write_by_one(write, f"{folder}: the model could not be written", "checkpoints are")


def newest_checkpoint(folder: Path) -> Path | None:
    """The newest intact checkpoint, or None, in all processes; the log names it, and the damage of each newer one."""
    newest: list[Path | None] = [None]
    if PartialState().is_main_process:
        recover_checkpoints(folder)
        newest[0], wrong = find_checkpoint(folder)
        for what in wrong:
            logger.warning("resume: skipped a damaged checkpoint: %s", what)
        logger.info("resuming from %s", newest[0] or "the beginning: no intact checkpoint")
    broadcast_object_list(newest)
    return newest[0]


def load_weights(model: nn.Module, checkpoint: Path) -> None:
    """Load the weights of a checkpoint into a model; only files listed in its manifest are read.

    Raises:
        InputError: for the weights of another model.
    """
    weights: dict[str, Tensor] = {}
    for path in listed_files(checkpoint):
        if path.match("model*.safetensors"):
            with input_errors(str(path)):
                weights |= load_file(path)
    places = model.state_dict(keep_vars=True)
    loaded = {id(places[name]) for name in weights.keys() & places.keys()}  # tied weights are saved once
    missing = [name for name, tensor in places.items() if id(tensor) not in loaded]
    unknown = sorted(weights.keys() - places.keys())
    if missing or unknown:
        kind, names = ("none for", missing) if missing else ("no place for", unknown)
        raise InputError(f"{checkpoint}: expected the weights of this model, got {kind} {names[0]}")
    for name, whole in weights.items():
        if whole.shape != places[name].shape:
            raise InputError(f"{checkpoint}: expected {list(places[name].shape)} as {name}, got {list(whole.shape)}")
        fill(places[name], whole)


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
        if id(parameter) not in trained or f"{name}.step" not in moments:
            continue
        for moment in _MOMENTS:
            like = parameter.new_zeros((), dtype=torch.float32) if moment == "step" else parameter
            place, whole = torch.zeros_like(like, requires_grad=False), moments.pop(f"{name}.{moment}", None)
            if whole is None or whole.shape != place.shape or not whole.is_floating_point():
                got = "none" if whole is None else f"{list(whole.shape)} of {whole.dtype}"
                raise InputError(f"{path}: expected {list(place.shape)} as {name}.{moment}, got {got}")
            fill(place, whole)
            optimizer.state[parameter][moment] = place
    if moments:
        raise InputError(f"{path}: expected moments of this model's parameters, got {min(moments)}")


def _weights_if_sharded(model: nn.Module) -> dict[str, Tensor] | None:
    """The state dict of a sharded model, gathered to the CPU, so that all processes must call this; None of others."""
    if not any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        return None  # `save_pretrained` takes that of the model
    tensors = model.state_dict(keep_vars=True)  # tied weights are the same object, and stay it
    wholes = {id(tensor): _whole(tensor.detach()) for tensor in tensors.values()}
    return {name: wholes[id(tensor)] for name, tensor in tensors.items()}


def write_by_one(write: Callable[[], object], what: str, kept: str) -> None:
    """Call `write` in the main process; if that fails, all processes raise the same error.

    Its message begins with `what`, the path and what could not be written, and ends with what is `kept`.

    Raises:
        MachineError: if the machine failed, for example because the disk is full.
        OutOfMemoryError: if memory ran out.
        InputError: for any other cause.
    """
    cause: BaseException | None = None
    failure: list[Any] = [None]
    if PartialState().is_main_process:
        try:
            write()
        except Exception as error:
            cause, got = error, machine_failure(error) or error_text(error)
            failure = [failure_kind(error)(f"{what}: {got}; {kept} as they were")]
    broadcast_object_list(failure)
    if failure[0] is not None:
        raise failure[0] from cause


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor().cpu() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def fill(place: Tensor, whole: Tensor) -> None:
    """Copy values into a tensor in-place, or into its shards."""
    if isinstance(place, DTensor):
        whole = distribute_tensor(whole.to(place.device, place.dtype), place.device_mesh, place.placements)
    place.copy_(whole)
