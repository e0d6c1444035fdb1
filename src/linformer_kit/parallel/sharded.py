"""Sharded models: parameters, gradients and optimizer state are split over the processes.

Uses torch's `fully_shard` (FSDP2). Each process writes its shard of a checkpoint, and any number of processes can load
it. A checkpoint is safetensors and JSON: nothing in it is ever unpickled.

    <folder>/shard-00001-model-00001-of-00001.safetensors    the tensors that one process wrote, and where they belong
    <folder>/state.json                                      the optimizer's numbers, and the caller's `extra`
    <folder>/manifest.json                                   size and SHA-256 of the other files

All processes must call all functions. Without a process group they work for a single process.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from linformer_kit.errors import InputError, MachineError, OutOfMemoryError, error_text, failure_kind, machine_failure
from linformer_kit.files.manifest import MANIFEST, damage, listed, read_json, write_manifest
from linformer_kit.files.writing import flush, remove_tree, whole_folder, write_whole

_FORMAT = 1
_STATE = "state.json"
_MODEL = "model."
_OPTIMIZER = "optimizer."
_FAILURES = (InputError, MachineError, OutOfMemoryError)  # errors of a save; processes exchange their number, from 1


def shard(model: nn.Module, mesh: DeviceMesh, *, compute_dtype: torch.dtype | None = None) -> None:
    """Shard the parameters of a model over the processes, in-place: each keeps about 1/N of every parameter.

    Each layer gathers its parameters before it runs and frees them afterwards. Embeddings, head and, with layerwise
    sharing, the shared E belong to the whole model and stay gathered from its forward to its backward pass.

    Args:
        model: A model of this package or of transformers. Its parameters are replaced, so create the optimizer
            afterwards.
        mesh: The processes: one dimension, or two named dimensions (replicas, shards).
        compute_dtype: Number format of forward and backward (such as bfloat16); parameters, optimizer and sums of
            gradients keep that of the parameters. None: the parameters' format everywhere.

    Raises:
        InputError: for a model without layers of transformers, a sharded model, and an unsupported mesh.
    """
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise InputError(f"model: expected one with layers of transformers, got {type(model).__name__} without")
    if any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        raise InputError("model: expected one that is not sharded, got a sharded one")
    if mesh.ndim > 2 or (mesh.ndim == 2 and mesh.mesh_dim_names is None):
        raise InputError(f"mesh: expected one dimension, or two with mesh_dim_names, got {mesh}")
    reduced = None if compute_dtype is None else next(model.parameters()).dtype
    policy = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=reduced)
    parts: list[nn.Module] = [*layers, model]
    for part in parts:
        fully_shard(part, mesh=mesh, mp_policy=policy)


def save_sharded(
    folder: str | Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    extra: dict[str, Any] | None = None,
) -> None:
    """Write a checkpoint that any number of processes can load; each process writes its own shard.

    It is written to a temporary folder and moved in one step at the end, so a crash leaves no incomplete checkpoint.

    Args:
        folder: A new folder, visible to all processes.
        model: A model from `shard`, or one that is not sharded.
        optimizer: The optimizer of this model.
        extra: Other values to save, such as the update or a learning rate schedule; anything that JSON can hold.

    Raises:
        InputError: if the folder exists, or `extra` or a number of the optimizer cannot be written as JSON.
        MachineError: if the machine failed, for example because the disk is full.
        OutOfMemoryError: if memory ran out.
    """
    folder = _new_folder(folder)
    tensors = {_MODEL + name: tensor for name, tensor in _model_tensors(model).items()}
    state: dict[str, Any] = {"format": _FORMAT, "extra": extra or {}, "optimizer": None, "param_groups": None}
    if optimizer is not None:
        names = _parameter_names(model, optimizer)
        tensors |= _optimizer_tensors(optimizer, names)
        state["optimizer"] = type(optimizer).__name__
        state["param_groups"] = [_named_group(group, names) for group in optimizer.param_groups]
    try:
        text = json.dumps(state, indent=1)
    except (TypeError, ValueError) as error:
        raise InputError(f"extra, optimizer: expected what JSON can hold, got {error}") from None
    _write_at_once(folder, tensors, text)


@torch.no_grad()
def load_sharded(
    folder: str | Path, model: nn.Module, optimizer: torch.optim.Optimizer | None = None
) -> dict[str, Any]:
    """Load a checkpoint, on any number of processes, into a model that is sharded or not.

    Every file is compared with the manifest before anything is changed.

    Args:
        folder: A folder of `save_sharded`.
        model: A model of the same architecture; its values are replaced.
        optimizer: An optimizer of the same class with the same parameter groups; None: load the model only.

    Returns:
        The saved `extra`.

    Raises:
        InputError: for a file that is missing, damaged or unknown, and for another model or optimizer than was saved.
    """
    folder = Path(folder)
    if any(parameter.is_meta for parameter in model.parameters()):
        raise InputError("model: expected one with memory for its values, got one on meta; call its to_empty first")
    _check_files(folder, next(model.parameters()).device)
    state = read_json(folder / _STATE)
    if state.get("format") != _FORMAT:
        raise InputError(f"{folder / _STATE}: expected format {_FORMAT}, got {state.get('format')!r}")
    saved = _saved_tensors(folder)
    wanted = {_MODEL + name: tensor for name, tensor in _model_tensors(model).items()}
    _check_model(folder, saved, wanted)
    if optimizer is None:
        _read(folder, wanted)
        return state["extra"]
    if state["optimizer"] != type(optimizer).__name__:
        raise InputError(
            f"{folder}: expected the state of {type(optimizer).__name__}, got that of {state['optimizer']}"
        )
    names = _parameter_names(model, optimizer)
    groups = _indexed_groups(folder, state["param_groups"], optimizer, names)
    fields = _empty_states(names, saved)
    _read(folder, wanted | {f"{_OPTIMIZER}{n}.{field}": t for n, of in fields.items() for field, t in of.items()})
    order = [names[parameter] for group in optimizer.param_groups for parameter in group["params"]]
    states = {index: fields[name] for index, name in enumerate(order) if fields[name]}
    optimizer.load_state_dict({"state": states, "param_groups": groups})
    return state["extra"]


def save_full(folder: str | Path, model: PreTrainedModel) -> None:
    """Write the whole model as `save_pretrained` does, for `from_pretrained` on one process.

    The first process needs memory for the whole model.

    Raises:
        InputError: if the folder exists.
    """
    folder = _new_folder(folder)
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if _rank() == 0:
        with whole_folder(folder) as part:
            model.save_pretrained(part, state_dict=whole)
    _barrier()


def _write_at_once(folder: Path, tensors: dict[str, Tensor], state: str) -> None:
    """Write all files to a temporary folder, flush them to the disk, then rename the folder."""
    part = folder.with_name(f".{folder.name}.part")
    _barrier()  # no process writes before all have checked that the folder is new
    if _rank() == 0:
        remove_tree(part)
        part.mkdir(parents=True)
    _barrier()
    with _no_single_process_warning():
        dcp.save(tensors, storage_writer=HuggingFaceStorageWriter(str(part), save_distributed=True))
    _barrier()
    error: Exception | None = None
    if _rank() == 0:
        try:
            write_whole(part / _STATE, state)
            write_manifest(part)
            os.replace(part, folder)
            flush(folder.parent)
        except Exception as raised:
            remove_tree(part)
            error = raised
    # All processes learn of a failure before any of them raises.
    number = 0 if error is None else 1 + _FAILURES.index(failure_kind(error))
    failed = torch.tensor(number, dtype=torch.int32, device=next(iter(tensors.values())).device)
    if dist.is_initialized():
        dist.all_reduce(failed, dist.ReduceOp.MAX)
    if failed:
        got = "an error in the first process" if error is None else machine_failure(error) or error_text(error)
        raise _FAILURES[int(failed) - 1](f"{folder}: could not be written: {got}") from error


def _new_folder(folder: str | Path) -> Path:
    folder = Path(os.path.abspath(folder))
    if os.path.lexists(folder):
        raise InputError(f"folder: expected a new one, got {folder}, which exists")
    return folder


def _model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and saved buffers by name, tied weights once; not copies, so that loading fills them in-place."""
    # Call this first: it also frees parameters left gathered by a forward pass without a backward pass.
    kept = model.state_dict().keys()
    own = [*model.named_parameters(), *((name, buffer) for name, buffer in model.named_buffers() if name in kept)]
    return {name: tensor.detach() for name, tensor in own}


def _parameter_names(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[Tensor, str]:
    """The name of each parameter of the optimizer."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if any(parameter not in names for parameter in held):
        raise InputError("optimizer: expected one made after shard, got parameters that the model does not have")
    return {parameter: names[parameter] for parameter in held}


def _optimizer_tensors(optimizer: torch.optim.Optimizer, names: dict[Tensor, str]) -> dict[str, Tensor]:
    """The optimizer's tensors by name; a parameter that never had a gradient has none."""
    tensors = {}
    for parameter, name in names.items():
        for field, value in optimizer.state.get(parameter, {}).items():
            if not isinstance(value, Tensor) or value.shape not in (parameter.shape, torch.Size()):
                shapes = f"numbers and tensors {list(parameter.shape)}"
                got = list(value.shape) if isinstance(value, Tensor) else repr(value)
                raise InputError(f"optimizer: expected {shapes} as the state of {name}, got {got} as {field}")
            tensors[f"{_OPTIMIZER}{name}.{field}"] = value.detach()
    return tensors


def _named_group(group: dict[str, Any], names: dict[Tensor, str]) -> dict[str, Any]:
    """A parameter group in a form that JSON can hold."""
    numbers = {name: value.item() if isinstance(value, Tensor) else value for name, value in group.items()}
    return numbers | {"params": [names[parameter] for parameter in group["params"]]}


def _indexed_groups(
    folder: Path, saved: list[dict[str, Any]], optimizer: torch.optim.Optimizer, names: dict[Tensor, str]
) -> list[dict[str, Any]]:
    """Convert the saved groups for `load_state_dict`: parameters by index, tuples instead of JSON's lists."""
    groups, index = [], 0
    now = [[names[parameter] for parameter in group["params"]] for group in optimizer.param_groups]
    if [set(group["params"]) for group in saved] != [set(group) for group in now]:
        got = [len(group["params"]) for group in saved]
        raise InputError(f"{folder}: expected groups of {[len(group) for group in now]} equal parameters, got {got}")
    for group, current in zip(saved, optimizer.param_groups, strict=True):
        size = len(current["params"])
        tuples = {key: tuple(group[key]) for key, value in current.items() if isinstance(value, tuple) and key in group}
        groups.append(group | tuples | {"params": list(range(index, index + size))})
        index += size
    return groups


def _empty_states(names: dict[Tensor, str], saved: dict[str, TensorStorageMetadata]) -> dict[str, dict[str, Tensor]]:
    """Empty tensors for the saved state of each parameter: sharded as the parameter itself, or a scalar."""
    parameters = {name: parameter for parameter, name in names.items()}
    states: dict[str, dict[str, Tensor]] = {name: {} for name in parameters}
    for key, metadata in saved.items():
        name, _, field = key.removeprefix(_OPTIMIZER).rpartition(".")
        if key.startswith(_OPTIMIZER) and name in parameters:
            like, dtype = parameters[name].detach(), metadata.properties.dtype
            whole = metadata.size == like.shape
            states[name][field] = torch.empty_like(like, dtype=dtype) if whole else torch.empty((), dtype=dtype)
    return states


def _check_model(folder: Path, saved: dict[str, TensorStorageMetadata], wanted: dict[str, Tensor]) -> None:
    """Raise an error for the checkpoint of another model; the reader would convert dtypes and skip unknown tensors."""
    found = {key for key in saved if key.startswith(_MODEL)}
    for key in sorted(found ^ wanted.keys()):
        had, lacks = (folder, "the model") if key in found else ("the model", folder)
        raise InputError(f"{folder}: expected the tensors of the model, got {key[len(_MODEL) :]} in {had}, not {lacks}")
    for key, tensor in wanted.items():
        there = (list(saved[key].size), saved[key].properties.dtype)
        if there != (list(tensor.shape), tensor.dtype):
            expected = f"{list(tensor.shape)} in {tensor.dtype}"
            raise InputError(f"{folder}: expected {key[len(_MODEL) :]} to be {expected}, got {there[0]} in {there[1]}")


def _saved_tensors(folder: Path) -> dict[str, TensorStorageMetadata]:
    """Shapes and dtypes of the tensors in a checkpoint."""
    found = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    return {key: metadata for key, metadata in found.items() if isinstance(metadata, TensorStorageMetadata)}


def _read(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Fill the tensors. Each process reads on its own (`no_dist`): no objects are sent, so nothing is unpickled."""
    with _no_single_process_warning():
        dcp.load(tensors, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=True)


@contextmanager
def _no_single_process_warning() -> Iterator[None]:
    """Suppress the warning that a single process saves or loads, which is intended."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*assuming the intent is to (save|load) in a single process")
        yield


def _check_files(folder: Path, device: torch.device) -> None:
    """Compare the files with the manifest, each process a part of them; all raise an error if any file differs."""
    if found := damage(folder, only=MANIFEST):
        raise InputError(found)
    known = listed(folder)
    names = sorted({*known, *(path.name for path in folder.glob("*.safetensors"))})  # the reader reads all of these
    processes = dist.get_world_size() if dist.is_initialized() else 1
    mine = range(_rank(), len(names), processes)
    broken = [index for index in mine if names[index] not in known or damage(folder, only=names[index])]
    last = torch.tensor(max(broken, default=-1), device=device)
    if processes > 1:
        dist.all_reduce(last, dist.ReduceOp.MAX)
    if last >= 0:
        raise InputError(f"{folder / names[int(last)]}: expected the file that {MANIFEST} describes, got another")


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _barrier() -> None:
    if dist.is_initialized():
        dist.barrier()
