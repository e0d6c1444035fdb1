"""Collectives with gradients (pure torch). Every process of the group must make the same calls."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor


def add(parts: list[Tensor], *, group: dist.ProcessGroup) -> list[Tensor]:
    """Sum each tensor over the processes, all in one message.

    Assumes that each process uses the sums in its own loss, and that the losses are added: gradients are summed too.
    """
    return _unpacked(_Sum.apply(_packed(parts), group), parts)


def most(tensor: Tensor, *, group: dist.ProcessGroup) -> Tensor:
    """The elementwise maximum over the processes; without gradients."""
    largest = tensor.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    return largest


def exchange(
    parts: list[Tensor], before: int, after: int, *, group: dist.ProcessGroup
) -> tuple[list[Tensor], list[Tensor]]:
    """Send the ends of this process's piece to both neighbours, each in one message.

    Args:
        parts: Tensors `[…, piece, width]` of the tokens of this process.
        before: Number of tokens to receive from the previous process, its last ones.
        after: Number of tokens to receive from the next process, its first ones.
        group: The process group.

    Returns:
        For each tensor, the tokens before the piece, and the tokens after it; zeros beyond the ends of the sequence and
        of a piece with fewer tokens.
    """
    # Only the last piece with tokens can be partly filled, so what it sends to the next process has no effect.
    first = [_filled(part[..., :after, :], after) for part in parts]
    last = [_filled(part[..., max(0, part.shape[-2] - before) :, :], before) for part in parts]
    previous, following = _Exchange.apply(_packed(first), _packed(last), group)
    return _unpacked(previous, last), _unpacked(following, first)


def of_all(tensor: Tensor, *, group: dist.ProcessGroup) -> list[Tensor]:
    """Gather the tensors of all processes, which have the same shape; without gradients."""
    everywhere = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everywhere, tensor.contiguous(), group=group)
    return everywhere


def _filled(part: Tensor, length: int) -> Tensor:
    return F.pad(part, (0, 0, 0, length - part.shape[-2]))


def _packed(parts: list[Tensor]) -> Tensor:
    """All tensors in one, in the widest of their number formats."""
    wide = functools.reduce(torch.promote_types, [part.dtype for part in parts])
    return torch.cat([part.flatten().to(wide) for part in parts])


def _unpacked(packed: Tensor, like: list[Tensor]) -> list[Tensor]:
    """The inverse of `_packed`, for tensors of these shapes and formats."""
    parts = packed.split([part.numel() for part in like])
    return [part.view(wanted.shape).to(wanted.dtype) for part, wanted in zip(parts, like, strict=True)]


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
    """Send a vector to the previous process and one to the next; its transpose is the same exchange."""

    @staticmethod
    def forward(ctx: Any, first: Tensor, last: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, Tensor]:
        ctx.group = group
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        before, after = torch.zeros_like(last), torch.zeros_like(first)  # as the other processes send
        operations = []
        for peer, sent, received in ((rank - 1, first, before), (rank + 1, last, after)):
            if 0 <= peer < ranks:
                pairs = ((dist.isend, sent.contiguous()), (dist.irecv, received))
                operations += [dist.P2POp(f, of, group=group, group_peer=peer) for f, of in pairs if of.numel()]
        for work in dist.batch_isend_irecv(operations) if operations else ():
            work.wait()
        return before, after

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        first, last = _Exchange.apply(*gradients, ctx.group)
        return first, last, None
