"""Collectives with gradients (pure torch). Every process of the group must make the same calls."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor


def add(parts: list[Tensor], *, group: dist.ProcessGroup) -> list[Tensor]:
    """Sum each tensor over the processes, all in one message.

    Assumes that each process uses the sums in its own loss, and that the losses are added: gradients are summed too.
    """
    wide = functools.reduce(torch.promote_types, [part.dtype for part in parts])
    summed = _Sum.apply(torch.cat([part.flatten().to(wide) for part in parts]), group)
    sums = summed.split([part.numel() for part in parts])
    return [total.view(part.shape).to(part.dtype) for total, part in zip(sums, parts, strict=True)]


def most(tensor: Tensor, *, group: dist.ProcessGroup) -> Tensor:
    """The elementwise maximum over the processes; without gradients."""
    largest = tensor.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    return largest


def exchange(
    first: Shaped[Tensor, "batch reach embed"], last: Shaped[Tensor, "batch reach embed"], *, group: dist.ProcessGroup
) -> tuple[Shaped[Tensor, "batch reach embed"], Shaped[Tensor, "batch reach embed"]]:
    """Send `first` to the previous process and `last` to the next one.

    Returns:
        `last` of the previous process and `first` of the next one; zeros beyond the ends.
    """
    return _Exchange.apply(first, last, group)


def of_all(tensor: Tensor, *, group: dist.ProcessGroup) -> list[Tensor]:
    """Gather the tensors of all processes, which have the same shape; without gradients."""
    everywhere = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everywhere, tensor.contiguous(), group=group)
    return everywhere


class _Sum(torch.autograd.Function):
    """The sum over the processes; its transpose is the same sum."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        total = part.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _Sum.apply(gradients[0], ctx.group), None


class _Exchange(torch.autograd.Function):
    """Exchange ends with the neighbours; its transpose is the same exchange."""

    @staticmethod
    def forward(ctx: Any, first: Tensor, last: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, Tensor]:
        ctx.group = group
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        before, after = (torch.zeros_like(sent, memory_format=torch.contiguous_format) for sent in (first, last))
        operations = []
        for peer, sent, received in ((rank - 1, first, before), (rank + 1, last, after)):
            if 0 <= peer < ranks:
                operations.append(dist.P2POp(dist.isend, sent.contiguous(), group=group, group_peer=peer))
                operations.append(dist.P2POp(dist.irecv, received, group=group, group_peer=peer))
        for work in dist.batch_isend_irecv(operations) if operations else ():
            work.wait()
        return before, after

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        first, last = _Exchange.apply(*gradients, ctx.group)
        return first, last, None
