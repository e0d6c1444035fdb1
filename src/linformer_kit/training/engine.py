"""Forward, backward and AdamW step on the available devices: mixed precision, data parallel or sharded."""

from __future__ import annotations

import contextlib
import math
import re
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from linformer_cli.settings import TrainingSettings
from linformer_kit.environment import use_bf16
from linformer_kit.operator.projections import SequenceProjection
from linformer_kit.parallel.sharded import shard
from linformer_kit.training.batches import to_device
from linformer_kit.training.tasks.base import Batch, Task

_SCALER_KEYS = ("scale", "_growth_tracker")
# Names of parameters without weight decay, as in transformers.
_WITHOUT_DECAY = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)", re.IGNORECASE)
_HIGHEST = "highest_lr"  # key of a group's peak learning rate


class Engine:
    """A task on its device, distributed over the processes, with its optimizer.

    Args:
        task: The task to train; it is moved to the device of this process.
        settings: The training settings.
    """

    def __init__(self, task: Task, settings: TrainingSettings) -> None:
        process = PartialState()
        self.device, self.rank, self.processes = process.device, process.process_index, process.num_processes
        self.bf16 = use_bf16(settings.bf16, on_cpu=self.device.type == "cpu", fp16=settings.fp16)
        self._dtype = torch.float16 if settings.fp16 else torch.bfloat16 if self.bf16 else None
        # Disabled, it changes nothing: `scale` returns the loss, `step` makes the step of the optimizer.
        self._scaler = torch.amp.GradScaler(self.device.type, enabled=settings.fp16)
        self._task, self._sharded = task.to(self.device), settings.fully_shard
        if getattr(settings, "activation_checkpointing", False):
            task.model.activation_checkpointing_enable({"use_reentrant": False})
        if settings.torch_compile:
            task.model.compile()
        if settings.fully_shard:
            shard(task.model, init_device_mesh(self.device.type, (self.processes,)))
        self._parallel: nn.Module = task
        if self.processes > 1 and not settings.fully_shard:
            self._parallel = DistributedDataParallel(
                task,
                device_ids=None if self.device.type == "cpu" else [self.device],
                broadcast_buffers=False,
                find_unused_parameters=not task.uses_every_parameter,
            )
        self.optimizer = adamw(task.model, settings)

    @property
    def precision(self) -> str:
        """The number format, for the log."""
        return "float32" if self._dtype is None else f"{str(self._dtype).removeprefix('torch.')} mixed precision"

    def autocast(self) -> Any:
        """Context of mixed precision; disabled for float32."""
        return torch.autocast(self.device.type, self._dtype or torch.bfloat16, enabled=self._dtype is not None)

    def total_labels(self, batches: list[Batch]) -> Tensor | None:
        """Number of labels of an update over all processes; None if losses are means."""
        counts = [self._task.labels(batch) for batch in batches]
        if any(count is None for count in counts):
            return None
        total = torch.stack([torch.as_tensor(count) for count in counts]).sum().to(self.device)
        if self.processes > 1:
            torch.distributed.all_reduce(total)
        return total

    def backward(self, batch: Batch, total: Tensor | None, number: int, count: int) -> Tensor:
        """Accumulate the gradient of one batch of an update; processes synchronise gradients in the last one.

        Returns:
            The batch's contribution to the update's loss over all processes.
        """
        last = number == count - 1
        if self._sharded:
            self._task.model.set_requires_gradient_sync(last)  # type: ignore[operator]
        waits = isinstance(self._parallel, DistributedDataParallel) and not last
        with self._parallel.no_sync() if waits else contextlib.nullcontext():  # type: ignore[operator]
            with self.autocast():
                loss = self._parallel(to_device(batch, self.device), total)
            # Gradients are averaged over the processes; a loss divided by all labels needs their sum.
            loss = loss / count if total is None else loss * self.processes
            self._scaler.scale(loss).backward()
        return loss.detach() / self.processes

    def clip(self, longest: float) -> float:
        """Clip the gradient norm and return the norm before clipping; it may be non-finite with float16."""
        self._scaler.unscale_(self.optimizer)
        norm = torch.nn.utils.clip_grad_norm_(self._task.model.parameters(), longest if longest > 0 else torch.inf)
        return (norm.full_tensor() if isinstance(norm, DTensor) else norm).item()

    def checked_loss(self, parts: list[Tensor], norm: float) -> tuple[float, str]:
        """The loss of an update over all processes, and the first non-finite loss or gradient; empty if there is none.

        `parts` are the return values of `backward`, `norm` is that of `clip`.
        """
        losses, wrong = torch.stack(parts).double(), ""
        if not torch.isfinite(losses).all():
            first = int((~torch.isfinite(losses)).nonzero()[0])
            wrong = f"a loss of {losses[first].item()} in batch {first + 1} of {len(losses)} of process {self.rank}"
        elif not self._scaler.is_enabled() and not math.isfinite(norm):
            wrong = f"a gradient norm of {norm}"
        told = torch.stack([losses.sum(), torch.tensor(float(bool(wrong)), device=self.device, dtype=torch.double)])
        if self.processes > 1:
            torch.distributed.all_reduce(told)
        loss, count = told.tolist()
        return loss, next(filter(None, gather_object([wrong]))) if count else ""

    def step(self, share: float) -> None:
        """Update the parameters, with a fraction of the peak learning rates, and drop the gradients."""
        for group in self.optimizer.param_groups:
            group["lr"] = group[_HIGHEST] * share
        self._scaler.step(self.optimizer)  # if float16 has overflowed, it makes no step and lowers the scale
        self._scaler.update()
        self.optimizer.zero_grad()

    def skip(self) -> None:
        """Make no update: drop the gradients, and keep the scale of float16, so that the next update can be made."""
        self.optimizer.zero_grad()
        self._scaler.update(self._scaler.get_scale())

    def scaler_state(self) -> dict[str, float]:
        """State of float16's loss scaling, for checkpoints; empty without float16."""
        return {name: value for name, value in self._scaler.state_dict().items() if name in _SCALER_KEYS}

    def load_scaler(self, state: dict[str, float]) -> None:
        """Restore the loss scaling of a checkpoint, if it has any."""
        if state:
            self._scaler.load_state_dict(self._scaler.state_dict() | state)

    def largest(self, number: int) -> int:
        """The largest value over all processes."""
        if self.processes == 1:
            return number
        numbers = torch.tensor(number, device=self.device)
        torch.distributed.all_reduce(numbers, op=torch.distributed.ReduceOp.MAX)
        return int(numbers)


def adamw(model: nn.Module, settings: TrainingSettings) -> torch.optim.AdamW:
    """AdamW for a model, sharded or not: weight decay for all but biases and norms; E and F may have their own rate."""
    rate, decay = settings.learning_rate, settings.weight_decay
    own_rate = rate * settings.projection_learning_rate_factor
    apart = {id(matrix) for matrix in projection_parameters(model)} if own_rate != rate else set()
    norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
    undecayed = {id(parameter) for norm in norms for parameter in norm.parameters(recurse=False)}
    groups: list[dict[str, Any]] = [
        {"params": [], "lr": rate, "weight_decay": decay},
        {"params": [], "lr": rate, "weight_decay": 0.0},
        {"params": [], "lr": own_rate, "weight_decay": decay},
    ]
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            decays = id(parameter) not in undecayed and not _WITHOUT_DECAY.search(name)
            groups[2 if decays and id(parameter) in apart else 0 if decays else 1]["params"].append(parameter)
    groups = [group | {_HIGHEST: group["lr"]} for group in groups if group["params"]]
    sharded = any(isinstance(parameter, DTensor) for parameter in model.parameters())
    betas = settings.adam_beta1, settings.adam_beta2
    return torch.optim.AdamW(groups, betas=betas, eps=settings.adam_epsilon, fused=not sharded, foreach=sharded)


def projection_parameters(model: nn.Module) -> list[nn.Parameter]:
    """E and F, W_P, and kernels of convolutions: the parameters of all projections."""
    projections = [module for module in model.modules() if isinstance(module, SequenceProjection)]
    return [matrix for module in projections for matrix in module.parameters()]
